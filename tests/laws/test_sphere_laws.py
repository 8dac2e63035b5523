"""What must hold of the sphere whatever the numbers."""

import math

import torch
from hypothesis import given
from hypothesis import strategies as st

from tessearth.sphere.geometry import (
    EARTH_RADIUS_KM,
    angular_distance,
    fibonacci_lattice,
    latlon_to_xyz,
    wrap_longitude,
    xyz_to_latlon,
)
from tests.imagery.sources.fabricate import tangent_frame, tangent_grid

latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 180)


def place(lat: float, lon: float) -> torch.Tensor:
    return torch.tensor([[lat, lon]], dtype=torch.float64)


@given(latitudes, longitudes)
def test_directions_have_unit_length(lat: float, lon: float) -> None:
    assert abs(float(latlon_to_xyz(place(lat, lon)).norm()) - 1) < 1e-15 * 4


@given(st.floats(-89.99, 89.99), st.floats(-179.99, 179.99))
def test_degrees_come_back(lat: float, lon: float) -> None:
    torch.testing.assert_close(xyz_to_latlon(latlon_to_xyz(place(lat, lon))), place(lat, lon), rtol=0, atol=1e-10)


@given(longitudes, st.integers(-3, 3))
def test_longitude_wraps(lon: float, turns: int) -> None:
    here, there = latlon_to_xyz(place(10, lon)), latlon_to_xyz(place(10, lon + 360 * turns))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-13)
    wrapped = float(wrap_longitude(torch.tensor(lon + 360.0 * turns, dtype=torch.float64)))
    assert -180 <= wrapped < 180
    assert math.isclose(math.cos(math.radians(wrapped - lon)), 1, abs_tol=1e-12)


@given(longitudes, st.sampled_from([-90.0, 90.0]))
def test_a_pole_is_one_point_whatever_its_longitude(lon: float, lat: float) -> None:
    pole = torch.tensor([[0.0, 0.0, math.copysign(1, lat)]], dtype=torch.float64)
    torch.testing.assert_close(latlon_to_xyz(place(lat, lon)), pole, rtol=0, atol=1e-15)


def test_both_sides_of_the_antimeridian_are_neighbours() -> None:
    east, west = latlon_to_xyz(place(0, 179.9999)), latlon_to_xyz(place(0, -179.9999))
    assert float(angular_distance(east, west)) < math.radians(0.00021)


@given(latitudes, longitudes, latitudes, longitudes)
def test_distance_is_symmetric_and_equals_the_angle(lat: float, lon: float, lat2: float, lon2: float) -> None:
    a, b = latlon_to_xyz(place(lat, lon)), latlon_to_xyz(place(lat2, lon2))
    distance = float(angular_distance(a, b))
    assert 0 <= distance <= math.pi
    assert math.isclose(distance, float(angular_distance(b, a)), abs_tol=1e-15)
    assert math.isclose(math.cos(distance), float((a * b).sum()), abs_tol=1e-14)


@given(st.floats(1e-9, 1e-3))
def test_small_distances_keep_their_digits(degrees: float) -> None:
    a, b = latlon_to_xyz(place(0, 0)), latlon_to_xyz(place(0, degrees))
    assert math.isclose(float(angular_distance(a, b)), math.radians(degrees), rel_tol=1e-6)


def test_the_lattice_is_even() -> None:
    lattice = fibonacci_lattice(3000)
    torch.testing.assert_close(lattice.norm(dim=-1), torch.ones(3000, dtype=torch.float64))
    torch.testing.assert_close(lattice.mean(0), torch.zeros(3, dtype=torch.float64), rtol=0, atol=1e-3)
    nearest = (lattice @ lattice.T).fill_diagonal_(-1).max(dim=1).values.acos()
    assert float(nearest.max() / nearest.min()) < 1.8


@given(st.floats(-89.9, 89.9), longitudes)
def test_the_local_frame_is_right_handed_and_points_north_and_east(lat: float, lon: float) -> None:
    up, east, north = tangent_frame(place(lat, lon))
    torch.testing.assert_close(torch.linalg.cross(east, north), up, rtol=0, atol=1e-14)
    moved = xyz_to_latlon(torch.nn.functional.normalize(up + 1e-6 * north, dim=-1))
    assert float(moved[0, 0]) > lat


@given(latitudes, longitudes, st.floats(0.1, 20))
def test_a_tile_is_centred_and_to_scale_everywhere(lat: float, lon: float, km: float) -> None:
    grid = tangent_grid(place(lat, lon), 5, km)
    torch.testing.assert_close(grid[0, 2, 2], latlon_to_xyz(place(lat, lon))[0], rtol=0, atol=1e-14)
    right, below = (float(angular_distance(grid[0, 2, 2], grid[0, i, j])) for i, j in ((2, 3), (3, 2)))
    assert math.isclose(right * EARTH_RADIUS_KM, km, rel_tol=1e-5)
    assert math.isclose(below * EARTH_RADIUS_KM, km, rel_tol=1e-5)
