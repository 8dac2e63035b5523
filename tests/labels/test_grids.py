"""Reading regular grids: exact where the values are linear, seamless at the antimeridian, defined at the poles."""

from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import DataError
from tessearth.labels.climate import Grid, read_array, read_axes


def global_grid(step: float, function, *, northwards: bool = False, pad: int = 0) -> Grid:
    """Nodes at -90, -90 + step ... and -180, -180 + step ... 180, with `pad` columns more on either side."""
    lat = np.arange(-90, 90 + step / 2, step)[:: 1 if northwards else -1]
    lon = np.arange(-180 - pad * step, 180 + pad * step + step / 2, step)
    values = function(lat[:, None], (lon[None] + 180) % 360 - 180)
    return Grid(values=values, lat_start=lat[0], lat_step=lat[1] - lat[0], lon_start=lon[0], lon_step=step)


@pytest.mark.parametrize("northwards", [True, False])
@pytest.mark.parametrize("pad", [0, 2])
def test_bilinear_is_exact_for_linear_values(northwards: bool, pad: int) -> None:
    grid = global_grid(1.5, lambda lat, lon: 2 * lat - np.abs(lon), northwards=northwards, pad=pad)
    latlon = np.random.default_rng(0).uniform((-90, -180), (90, 180), (500, 2))
    inside = np.abs(latlon[:, 1] / 1.5 % 1 - 0.5) < 0.5
    np.testing.assert_allclose(grid.bilinear(latlon)[inside], 2 * latlon[inside, 0] - np.abs(latlon[inside, 1]))


@pytest.mark.parametrize("pad", [0, 2])
def test_the_antimeridian_is_no_seam(pad: int) -> None:
    grid = global_grid(0.75, lambda lat, lon: np.cos(np.radians(lon)) * np.cos(np.radians(lat)), pad=pad)
    lat = np.linspace(-80, 80, 50)
    west, east, turned = (grid.bilinear(np.stack((lat, np.full(50, lon)), -1)) for lon in (180 - 1e-9, -180, 180))
    np.testing.assert_allclose(west, east, atol=1e-8)
    np.testing.assert_array_equal(turned, east)


def test_poles_are_places_like_others() -> None:
    grid = global_grid(1.5, lambda lat, lon: lat + 0 * lon)
    assert grid.bilinear(np.array([(90.0, 12.0), (-90.0, 300.0)])).tolist() == [90, -90]


def test_nearest_takes_the_cell_a_place_lies_in() -> None:
    cells = np.arange(12).reshape(3, 4)  # cells of 60 x 90 degrees, row 0 north, column 0 from -180
    grid = Grid(values=cells, lat_start=60, lat_step=-60, lon_start=-135, lon_step=90)
    places = np.array([(89, -179), (90, 180), (31, 179), (29, -91), (29, -89), (-90, 359), (0, 269)], dtype=float)
    assert grid.nearest(places).tolist() == [0, 0, 3, 4, 5, 9, 4]


def test_axes_are_read_off_the_nodes(tmp_path: Path) -> None:
    lat, lon = np.meshgrid(np.linspace(90, -90, 13), np.linspace(-180, 180, 25), indexing="ij")
    np.savez_compressed(tmp_path / "lat.npz", lat)
    np.savez_compressed(tmp_path / "lon.npz", lon)
    axes = read_axes(tmp_path / "lat.npz", tmp_path / "lon.npz")
    assert axes == {"lat_start": 90, "lat_step": -15, "lon_start": -180, "lon_step": 15}
    np.savez_compressed(tmp_path / "lon.npz", lon**3)
    with pytest.raises(DataError, match=r"lat\.npz and lon\.npz describe no regular grid"):
        read_axes(tmp_path / "lat.npz", tmp_path / "lon.npz")


def test_a_grid_with_gaps_is_refused(tmp_path: Path) -> None:
    np.savez_compressed(tmp_path / "gap.npz", np.array([[1.0, np.nan]]))
    with pytest.raises(DataError, match=r"gap\.npz should hold a grid of finite numbers"):
        read_array(tmp_path / "gap.npz")
