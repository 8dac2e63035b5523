"""Places as users have them, and what is said when they are not places."""

import warnings

import duckdb
import geopandas
import numpy as np
import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
import shapely
import torch
import xarray as xr

from tessearth.errors import ConfigError, CoordinateError, CoordinateWarning
from tessearth.sphere import as_latlon, as_xyz, find_columns, take_latlon, take_places

PARIS, NAIROBI = (48.8566, 2.3522), (-1.2921, 36.8219)
EXPECTED = np.array([PARIS, NAIROBI])
LAT, LON = EXPECTED.T


def geoseries(crs: int | None = 4326) -> geopandas.GeoSeries:
    return geopandas.GeoSeries.from_xy(LON, LAT, crs=crs)


COLUMNS = {"name": ["Paris", "Nairobi"], "lat": LAT.tolist(), "lon": LON.tolist()}
SHAPES = [shapely.Point(lon, lat) for lat, lon in EXPECTED]
TEXT = [f" {value}" for value in LAT]

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
    "pairs of text": EXPECTED.astype(str),
    "pairs that come one by one": iter([PARIS, NAIROBI]),
    "dict of columns": COLUMNS,
    "dicts of rows": pd.DataFrame(COLUMNS).to_dict("records"),
    "nullable columns": pd.DataFrame(COLUMNS).convert_dtypes(),
    "a column of text": pd.DataFrame({**COLUMNS, "lat": TEXT}),
    "polars": pl.DataFrame(COLUMNS),
    "polars, lazy": pl.DataFrame(COLUMNS).lazy(),
    "polars, text": pl.DataFrame({**COLUMNS, "lat": TEXT}),
    "arrow table": pa.table(COLUMNS),
    "arrow batch": pa.record_batch(COLUMNS),
    "arrow reader": pa.table(COLUMNS).to_reader(),
    "arrow dictionary": pa.table({**COLUMNS, "lat": pa.array(TEXT).dictionary_encode()}),
    "duckdb relation": duckdb.from_arrow(pa.table(COLUMNS)),
    "shapely points": SHAPES,
    "shapely array": np.array(SHAPES),
    "multipoint": shapely.MultiPoint(SHAPES),
    "geojson": geoseries().__geo_interface__,
    "stations of xarray": xr.Dataset(coords={"lat": ("station", LAT), "lon": ("station", LON)}),
    "geodataframe": geopandas.GeoDataFrame({"x": [1, 2]}, geometry=geoseries().to_crs(32631)),
}


@pytest.mark.filterwarnings("error")
@pytest.mark.parametrize("form", FORMS)
def test_every_holder_of_places_is_read(form: str) -> None:
    np.testing.assert_allclose(as_latlon(FORMS[form]), EXPECTED, rtol=0, atol=5e-6)


def test_a_frame_with_both_is_read_by_its_geometry_unless_columns_are_named() -> None:
    frame = geopandas.GeoDataFrame({"lat": [1.0, 2.0], "lon": [3.0, 4.0]}, geometry=geoseries())
    np.testing.assert_allclose(as_latlon(frame), EXPECTED)
    np.testing.assert_allclose(as_latlon(frame, lat="lat", lon="lon"), [(1, 3), (2, 4)])


@pytest.mark.parametrize("make", [pd.DataFrame, pl.DataFrame, pa.table, dict, lambda c: pl.DataFrame(c).lazy()])
def test_columns_are_named(make: object) -> None:
    table = make({"gps_lat": LAT, "gps_lon": LON, "x": [1, 2]})  # type: ignore[operator]
    np.testing.assert_allclose(as_latlon(table, lat="gps_lat", lon="gps_lon"), EXPECTED)
    with pytest.raises(CoordinateError, match=r"no column 'gps_lt'; did you mean 'gps_lat'"):
        as_latlon(table, lat="gps_lt", lon="gps_lon")


SQUARES = [shapely.box(lon - 1, lat - 1, lon + 1, lat + 1) for lat, lon in EXPECTED]
OF_SQUARES = geopandas.GeoDataFrame({"id": [1, 2]}, geometry=SQUARES, crs=4326)
IN_METRES = OF_SQUARES.to_crs(3857)
POLYGONS = {
    "geoseries": OF_SQUARES.geometry,
    "geodataframe in metres": IN_METRES,
    "shapely": SQUARES,
    "geojson": OF_SQUARES.__geo_interface__,
    "arrow of geopandas": IN_METRES.to_arrow(),
    "arrow table of shapes": pa.table(IN_METRES.to_arrow()),
    "polars, bytes of the usual name": pl.DataFrame({"id": [1, 2], "geom": shapely.to_wkb(SQUARES)}),
    "lazy polars": pl.DataFrame({"id": [1, 2], "geom": shapely.to_wkb(SQUARES)}).lazy(),
}
WITH_AN_EXTENSION = pl.DataFrame(IN_METRES.to_arrow())
if WITH_AN_EXTENSION.schema["geometry"] != pl.Binary:  # before version 2 polars forgets that these are shapes in metres
    POLYGONS["polars with an extension"] = WITH_AN_EXTENSION


@pytest.mark.parametrize("form", POLYGONS)
def test_shapes_in_every_container_are_places_inside_of_them(form: str) -> None:
    np.testing.assert_allclose(as_latlon(POLYGONS[form]), EXPECTED, atol=0.02)
    spread = take_places((POLYGONS[form],), shape="mean")
    assert spread.samples is not None
    assert spread.owners is not None
    for row, place in enumerate(EXPECTED):
        of_row = spread.samples[spread.owners == row]
        assert len(of_row) > 40
        assert np.abs(of_row - place).max() < 1


def test_columns_that_are_named_or_usual_come_before_bytes_that_only_look_like_shapes() -> None:
    wkb = shapely.to_wkb(SQUARES).tolist()
    np.testing.assert_array_equal(
        as_latlon(pa.table({"lat": [1.0, 2.0], "lon": [3.0, 4.0], "wkb": wkb})), [(1, 3), (2, 4)]
    )
    with pytest.raises(ConfigError, match="geometry is 'middle'; it must be one of point"):
        take_places((SQUARES,), shape="middle")  # type: ignore[arg-type]


def test_a_shape_without_a_place_takes_its_samples_with_it() -> None:
    beyond = shapely.box(0, 95, 1, 96)
    places = take_places(([SQUARES[0], beyond, SQUARES[1]],), on_bad="null", shape="mean")
    means = places.apply(lambda latlon: latlon)
    np.testing.assert_allclose(means[[0, 2]], EXPECTED, atol=0.02)
    assert np.isnan(means[1]).all()
    kept = take_places(([SQUARES[0], beyond, SQUARES[1]],), on_bad="skip", shape="mean")
    np.testing.assert_array_equal(kept.apply(lambda latlon: latlon), means[[0, 2]])


def test_one_place_in_every_form() -> None:
    for given in (PARIS, {"lat": PARIS[0], "lon": PARIS[1]}, SHAPES[0], SHAPES[0].__geo_interface__):
        assert as_latlon(given).tolist() == list(PARIS)
    assert as_latlon(*PARIS).tolist() == list(PARIS)
    assert as_latlon(LAT, LON).tolist() == EXPECTED.tolist()


def test_a_grid_gives_all_its_cells() -> None:
    coords = {"lon": [1.0, 2.0, 3.0, 4.0], "lat": [30.0, 20.0, 10.0]}
    grid = xr.Dataset({"rain": (("time", "lon", "lat"), np.zeros((2, 4, 3)))}, coords=coords)
    for given in (grid, grid.rain):
        latlon = as_latlon(given)
        assert latlon.shape == (3, 4, 2)
        assert latlon[2, 1].tolist() == [10.0, 2.0]
    assert as_latlon(grid.isel(lat=0)).tolist() == [[30.0, lon] for lon in coords["lon"]]
    assert as_latlon(grid.isel(lat=0, lon=1)).tolist() == [30.0, 2.0]
    curved = xr.Dataset(coords={"lat": (("y", "x"), latlon[..., 0]), "lon": (("x", "y"), latlon[..., 1].T)})
    np.testing.assert_array_equal(as_latlon(curved), latlon)


BAD = [PARIS, (95.0, 100.0), NAIROBI, (np.nan, 2.0)]


def test_bad_rows_are_refused_left_out_or_kept() -> None:
    with pytest.raises(CoordinateError) as caught:
        take_latlon(BAD)
    assert "2 of 4 rows have no usable place: row 1 is (95, 100)" in str(caught.value)
    assert "on_bad='skip' leaves such rows out" in str(caught.value)
    np.testing.assert_array_equal(take_latlon(BAD, on_bad="skip"), EXPECTED)
    kept = take_latlon(BAD, on_bad="null")
    np.testing.assert_array_equal(kept[::2], EXPECTED)
    assert np.isnan(kept[1::2]).all()
    with pytest.raises(ConfigError, match="on_bad is 'drop'"):
        take_latlon(BAD, on_bad="drop")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="use on_bad='null'"):
        take_latlon(np.array(BAD).reshape(2, 2, 2), on_bad="skip")
    with pytest.raises(CoordinateError, match="2 of 2 rows"):
        take_latlon(BAD[1::2], on_bad="skip")


def test_the_first_five_bad_rows_are_named_and_all_counted() -> None:
    table = pd.DataFrame({"lat": ["48.5"] + ["abc"] * 8, "lon": range(9)})
    with pytest.raises(CoordinateError) as caught:
        take_latlon(table)
    words = str(caught.value)
    assert words.startswith("8 of 9 rows have no usable place: row 1: lat holds 'abc'")
    assert "row 5:" in words
    assert "row 6:" not in words
    assert "and 3 more" in words


@pytest.mark.parametrize(
    ("text", "words"),
    [("48,85", "column.str.replace(',', '.')"), ("48°51'N", "--coordinates dms"), ("48.8, 2.3", "split it")],
)
def test_text_in_another_form_is_refused_with_advice(text: str, words: str) -> None:
    with pytest.raises(CoordinateError) as caught:
        as_latlon({"lat": ["1.5", text], "lon": [1, 2]})
    assert f"row 1: lat holds {text!r}" in str(caught.value)
    assert words in str(caught.value)


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
    "a file": (lambda: as_latlon("points.csv"), "tessearth encode --input FILE embeds a file"),
    "dates": (lambda: as_latlon({"lat": pd.to_datetime(["2020-01-01"]), "lon": [1]}), "lat holds dates"),
    "dicts and others": (lambda: as_latlon([COLUMNS, 5.0]), "row 1 is of type float, and others are dicts"),
    "broken geojson": (lambda: as_latlon({"type": "Point", "coordinates": "ab"}), "the points are no GeoJSON"),
    "no columns": (lambda: as_latlon([PARIS], lat="a", lon="b"), "these points have none"),
    "three": (lambda: as_latlon(1.0, 2.0, 3.0), "3 things were given"),
    "no such column": (lambda: as_latlon(pd.DataFrame({"a": [1], "lon": [2]})), "no column of a, lon reads as lat"),
    "mistyped column": (lambda: find_columns(["latitude", "lon"], lat="latitud"), "did you mean 'latitude'?"),
    "one column twice": (lambda: find_columns(["a", "lon"], lat="a", lon="a"), "both read from column 'a'"),
    "no shape": (lambda: as_latlon({"type": "Polygone", "coordinates": [1, 2]}), "the shapes are no GeoJSON"),
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
