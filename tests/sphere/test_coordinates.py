"""Places as users have them, and what is said when they are not places."""

import warnings

import geopandas
import numpy as np
import pandas as pd
import pytest
import torch
from shapely.geometry import LineString

from tessearth.errors import CoordinateError, CoordinateWarning
from tessearth.sphere.coordinates import as_latlon, as_xyz, find_columns

PARIS, NAIROBI = (48.8566, 2.3522), (-1.2921, 36.8219)
EXPECTED = np.array([PARIS, NAIROBI])
LAT, LON = EXPECTED.T


def geoseries(crs: int | None = 4326) -> geopandas.GeoSeries:
    return geopandas.GeoSeries.from_xy(LON, LAT, crs=crs)


FORMS = {
    "array": EXPECTED,
    "float32 array": EXPECTED.astype(np.float32),
    "list of pairs": [PARIS, NAIROBI],
    "tensor": torch.tensor(EXPECTED, requires_grad=True),
    "data frame": pd.DataFrame({"name": ["Paris", "Nairobi"], "Longitude": LON, "Latitude": LAT}),
    "data frame with another index": pd.DataFrame({"lat": LAT, "lng": LON}, index=["a", "b"]),
    "geoseries": geoseries(),
    "geoseries without crs": geoseries(None),
    "geoseries in metres": geoseries().to_crs(3857),
    "geodataframe": geopandas.GeoDataFrame({"x": [1, 2]}, geometry=geoseries().to_crs(32631)),
}


@pytest.mark.parametrize("form", FORMS)
def test_every_holder_of_places_is_read(form: str) -> None:
    np.testing.assert_allclose(as_latlon(FORMS[form]), EXPECTED, rtol=0, atol=5e-6)


def test_named_coordinates_broadcast_and_keep_their_shape() -> None:
    assert as_latlon(lat=48.0, lon=2.0).shape == (2,)
    assert as_latlon(lat=pd.Series(LAT), lon=list(LON)).shape == (2, 2)
    grid = as_latlon(lat=np.linspace(-80, 80, 5)[:, None], lon=np.linspace(-170, 170, 7))
    assert grid.shape == (5, 7, 2)
    assert grid[4, 0].tolist() == [80, -170]


WRONG = {
    "latitude out of range": (
        lambda: as_latlon([(48.0, 2.0), (95.0, 100.0)]),
        "row 1 is (95, 100): not (lat, lon) in deg",
    ),
    "swapped": (
        lambda: as_latlon([(139.7, 35.7), (2.3, 48.9)]),
        "row 0 is (139.7, 35.7): not (lat, lon) in degrees; this looks like (lon, lat): swap the two",
    ),
    "one place": (lambda: as_latlon((95.0, 10.0)), "the place is (95, 10)"),
    "longitude out of range": (lambda: as_latlon([(48.0, 400.0)]), "row 0 is (48, 400): longitude lies between"),
    "nan": (lambda: as_latlon([PARIS, (np.nan, 2.0)]), "row 1 is (nan, 2): latitude or longitude is missing"),
    "infinite": (lambda: as_latlon([(48.0, np.inf)]), "row 0 is (48, inf)"),
    "none": (lambda: as_latlon([(48.0, None)]), "row 0 is (48, nan)"),
    "text": (lambda: as_latlon([("48.0", "abc")]), "points holds 'abc', where degrees as numbers belong"),
    "ragged": (lambda: as_latlon([(1.0, 2.0), (3.0,)]), "points holds"),
    "three columns": (lambda: as_latlon([(1.0, 2.0, 3.0)]), "points have shape (1, 3); (lat, lon) pairs have shape"),
    "a number": (lambda: as_latlon(5.0), "points have shape ()"),
    "nothing": (as_latlon, "no places were given"),
    "half": (lambda: as_latlon(lat=[1.0]), "no places were given: pass points, or both lat= and lon="),
    "twice": (lambda: as_latlon([PARIS], lat=[1.0], lon=[2.0]), "places were given twice"),
    "lengths": (lambda: as_latlon(lat=[1.0, 2.0], lon=[1.0, 2.0, 3.0]), "lat has shape (2,) and lon (3,)"),
    "no such column": (lambda: as_latlon(pd.DataFrame({"a": [1], "lon": [2]})), "no column of a, lon reads as lat"),
    "lines": (lambda: as_latlon(geopandas.GeoSeries([LineString([(0, 0), (1, 1)])], crs=4326)), "not points"),
    "mistyped column": (lambda: find_columns(["latitude", "lon"], lat="latitud"), "did you mean 'latitude'?"),
    "swapped columns": (lambda: find_columns(["lat", "lon"], lat="lon", lon="lat"), "swap them"),
    "xyz of the wrong shape": (lambda: as_xyz([(1.0, 2.0)]), "xyz has shape (1, 2)"),
    "no direction": (
        lambda: as_xyz([(0.0, 0.0, 1.0), (0.0, 0.0, 0.0)]),
        "row 1 of xyz is (0, 0, 0): it points nowhere",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_is_no_place_is_named_in_one_line(wrong: str) -> None:
    call, words = WRONG[wrong]
    with pytest.raises(CoordinateError) as caught:
        call()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
    assert isinstance(caught.value, ValueError)


def test_radians_are_suspected() -> None:
    with pytest.warns(CoordinateWarning, match="are these radians"):
        as_latlon(np.deg2rad([PARIS, NAIROBI]))


@pytest.mark.parametrize("fine", [[(0.0, 0.0)], [(0.5, 0.5), (48.0, 2.0)], np.zeros((0, 2))])
def test_places_near_the_equator_raise_no_suspicion(fine: object) -> None:
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        as_latlon(fine)


def test_directions_of_any_length_are_brought_to_the_sphere() -> None:
    np.testing.assert_allclose(as_xyz([0, 0, 7]), [0, 0, 1])
    np.testing.assert_allclose(np.linalg.norm(as_xyz(np.random.default_rng(0).normal(size=(4, 5, 3))), axis=-1), 1)
