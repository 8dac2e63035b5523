"""The cells of sites: they cover the sphere once, each holds its own site, and any flat map can show them."""

import itertools
import json
import math

import hypothesis
import hypothesis.strategies as st
import numpy as np
import numpy.typing as npt
import pytest
import shapely

from tessearth.encoder.sites import start_sites
from tessearth.errors import ConfigError, CoordinateError, DataError
from tessearth.sphere.voronoi_cells import Cells, build_cells, cell_rings, cells_geojson, ring_area

SPHERE = 4 * math.pi
DEGENERATE = {
    "cube, corners at the poles": list(itertools.product((-1, 1), repeat=3)),
    "octahedron, sites at the poles": [*np.eye(3), *-np.eye(3)],
    "border over the pole": [
        (0.2, 0, 1),
        (-0.2, 0, 1),
        (1, 0.3, -0.1),
        (-1, 0.2, -0.1),
        (0, 1, -0.1),
        (0.1, -1, -0.1),
        (0, 0.2, -1),
    ],
    "four sites": [(1, 1, 1), (1, -1, -1), (-1, 1, -1), (-1, -1, 1)],
}


def polygons(cells: Cells, step: float = 2.0) -> list[shapely.MultiPolygon]:
    return [
        shapely.MultiPolygon([shapely.Polygon(ring[:, ::-1]) for ring in rings]) for rings in cell_rings(cells, step)
    ]


def check_cover(cells: Cells, sites: int) -> None:
    shapes, rings = polygons(cells), list(cell_rings(cells))
    areas = np.array([sum(map(ring_area, around)) for around in rings])
    assert len(shapes) == sites
    assert all(shape.is_valid for shape in shapes)
    assert abs(cells.areas().sum() / SPHERE - 1) < 1e-6
    assert abs(areas.sum() / SPHERE - 1) < 1e-6
    np.testing.assert_allclose(areas, cells.areas(), atol=1e-9)
    assert sum(shape.area for shape in shapes) == pytest.approx(360 * 180, abs=1e-6)
    assert all(np.abs(ring[:, 1]).max() <= 180 and np.abs(ring[:, 0]).max() <= 90 for a in rings for ring in a)


def test_4096_cells_are_valid_and_cover_the_sphere_once() -> None:
    check_cover(build_cells(start_sites("full", 4096).numpy()), 4096)


@pytest.mark.parametrize("name", DEGENERATE)
def test_poles_on_sites_corners_and_borders_are_ordinary(name: str) -> None:
    sites = np.array(DEGENERATE[name], dtype=np.float64)
    check_cover(build_cells(sites), len(sites))


@hypothesis.given(st.integers(0, 2**32 - 1), st.integers(5, 60))
def test_random_sites_cover_the_sphere_once(seed: int, count: int) -> None:
    check_cover(build_cells(np.random.default_rng(seed).normal(size=(count, 3))), count)


def test_each_cell_holds_the_places_nearest_to_its_site(rng: np.random.Generator) -> None:
    cells = build_cells(rng.normal(size=(80, 3)))
    shapes = polygons(cells, step=0.25)
    places = rng.normal(size=(400, 3))
    places /= np.linalg.norm(places, axis=1, keepdims=True)
    nearness = places @ cells.sites.T
    top = np.sort(nearness, axis=1)
    clear = top[:, -1] - top[:, -2] > 1e-3  # away from borders, which a ring follows in steps
    for place, owner in zip(places[clear], nearness[clear].argmax(axis=1), strict=True):
        lat, lon = np.rad2deg((np.arcsin(place[2]), np.arctan2(place[1], place[0])))
        assert [k for k, shape in enumerate(shapes) if shape.covers(shapely.Point(lon, lat))] == [owner]


def test_a_cell_across_the_antimeridian_is_two_rings_that_meet_there(rng: np.random.Generator) -> None:
    cells = build_cells([(-1, 0.01, 0.02), *rng.normal(size=(40, 3))])
    west, east = sorted(next(cell_rings(cells)), key=lambda ring: ring[:, 1].mean())
    assert west[:, 1].min() == -180
    assert east[:, 1].max() == 180
    border = [np.sort(ring[np.abs(ring[:, 1]) == 180, 0])[[0, -1]] for ring in (west, east)]
    np.testing.assert_allclose(border[0], border[1], atol=1e-9)


def test_borders_are_each_between_two_cells(rng: np.random.Generator) -> None:
    cells = build_cells(rng.normal(size=(50, 3)))
    assert len(cells.borders()) == 3 * 50 - 6  # Euler, where three cells meet at every corner
    assert len(build_cells(np.array(DEGENERATE["cube, corners at the poles"], float)).borders()) == 12


def test_geojson_is_what_its_standard_says(rng: np.random.Generator) -> None:
    cells = build_cells(rng.normal(size=(30, 3)))
    written = json.loads(json.dumps(cells_geojson(cells, [{"sharpness": k} for k in range(30)])))
    assert [feature["properties"]["sharpness"] for feature in written["features"]] == list(range(30))
    for feature in written["features"]:
        shape = shapely.geometry.shape(feature["geometry"])
        parts = list(getattr(shape, "geoms", [shape]))
        assert all(part.exterior.is_ccw for part in parts)
        assert shape.bounds[0] >= -180
        assert shape.bounds[2] <= 180


@pytest.mark.parametrize(
    ("sites", "kind", "said"),
    [
        (np.eye(3), ConfigError, "at least 4 sites; 3 were given"),
        (np.ones((5, 3)), DataError, "these sites have no cells"),
        ([(1, 2), (3, 4)], CoordinateError, "directions have shape"),
    ],
)
def test_sites_without_cells_are_one_line(sites: npt.ArrayLike, kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said) as raised:
        build_cells(sites)
    assert "\n" not in str(raised.value)


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(3)
