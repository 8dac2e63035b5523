"""Spherical harmonics: against scipy, against each other under the integral, and at high degrees."""

import math

import numpy as np
import pytest
import torch
from torch import Tensor

from tessearth.sphere.geometry import angular_distance, fibonacci_lattice, latlon_to_xyz, xyz_to_latlon
from tessearth.zoo.baselines.harmonics import SphericalHarmonics, normalised_legendre
from tests.zoo import slow


def quadrature(degrees: int) -> tuple[Tensor, Tensor]:
    """Places and weights that integrate products of two harmonics exactly: Gauss-Legendre x uniform."""
    nodes, weights = np.polynomial.legendre.leggauss(degrees)
    lat = np.degrees(np.arcsin(nodes))
    lon = np.arange(2 * degrees) * 180 / degrees - 180
    latlon = np.stack(np.broadcast_arrays(lat[:, None], lon[None]), -1).reshape(-1, 2)
    area = np.repeat(weights * math.pi / degrees, 2 * degrees)
    return torch.from_numpy(latlon), torch.from_numpy(area)


def test_harmonics_are_scipys_to_ten_digits_up_to_degree_40() -> None:
    random = xyz_to_latlon(fibonacci_lattice(7)).numpy()
    places = np.concatenate((slow.PLACES, random))
    expected = np.array([slow.harmonics(lat, lon, 41) for lat, lon in places])
    ours = SphericalHarmonics(41)(torch.from_numpy(places)).numpy()
    assert ours.shape == (len(places), 41**2)
    np.testing.assert_allclose(ours, expected, rtol=0, atol=1e-10)


def test_harmonics_are_scipys_up_to_degree_100() -> None:
    pytest.importorskip("scipy", "1.15", reason="scipy's own are nan at this degree before 1.15")
    places = slow.PLACES[[0, 6, 7]]
    expected = np.array([slow.harmonics(lat, lon, 101) for lat, lon in places])
    np.testing.assert_allclose(SphericalHarmonics(101)(torch.from_numpy(places)).numpy(), expected, rtol=0, atol=1e-10)


def test_the_first_harmonics_are_the_point_itself() -> None:
    latlon = torch.from_numpy(slow.PLACES)
    x, y, z = latlon_to_xyz(latlon).unbind(-1)
    expected = math.sqrt(3 / (4 * math.pi)) * torch.stack((y, z, x), -1)
    ours = SphericalHarmonics(2)(latlon)
    torch.testing.assert_close(ours[:, 1:], expected)
    torch.testing.assert_close(ours[:, 0], torch.full_like(z, math.sqrt(1 / (4 * math.pi))))


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-4)])
def test_harmonics_are_orthonormal_under_exact_quadrature(dtype: torch.dtype, tolerance: float) -> None:
    degrees = 40
    latlon, area = quadrature(degrees)
    values = SphericalHarmonics(degrees)(latlon.to(dtype)).double()
    gram = (values * area[:, None]).T @ values
    torch.testing.assert_close(gram, torch.eye(degrees**2, dtype=torch.float64), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-12), (torch.float32, 2e-4)])
def test_degree_100_is_finite_and_orthonormal(dtype: torch.dtype, tolerance: float) -> None:
    """The waves around the axis are orthogonal by themselves, so each order's Legendre functions are tested alone."""
    nodes, weights = np.polynomial.legendre.leggauss(101)
    lat = torch.from_numpy(np.arcsin(nodes))
    by_degree = [values.double() for values in normalised_legendre(lat.to(dtype), 101)]
    area = torch.from_numpy(weights) * 2 * math.pi
    for m in range(101):
        values = torch.stack([by_degree[degree][:, m] for degree in range(m, 101)], -1)
        assert values.isfinite().all()
        gram = (values * area[:, None]).T @ values
        torch.testing.assert_close(gram, torch.eye(101 - m, dtype=torch.float64), rtol=0, atol=tolerance)


@pytest.mark.parametrize(("dtype", "tolerance"), [(torch.float64, 1e-10), (torch.float32, 3e-3)])
def test_the_addition_theorem_holds_to_degree_100_at_poles_and_seam(dtype: torch.dtype, tolerance: float) -> None:
    """Sum over m of Y_lm(x) Y_lm(y) = (2 l + 1) / (4 pi) P_l(<x, y>), for every degree by itself."""
    latlon = torch.from_numpy(slow.PLACES)
    values = SphericalHarmonics(101)(latlon.to(dtype)).double()
    xyz = latlon_to_xyz(latlon)
    cosine = angular_distance(xyz[:, None], xyz[None]).cos().numpy()
    for degree in (0, 1, 2, 17, 40, 99, 100):
        block = values[:, degree**2 : (degree + 1) ** 2]
        expected = (2 * degree + 1) / (4 * math.pi) * np.polynomial.legendre.Legendre.basis(degree)(cosine)
        np.testing.assert_allclose((block @ block.T).numpy(), expected, rtol=0, atol=tolerance)


def test_single_precision_stays_near_double_to_degree_100() -> None:
    latlon = xyz_to_latlon(fibonacci_lattice(500)).float()
    encode = SphericalHarmonics(101)
    difference = (encode(latlon).double() - encode(latlon.double())).abs().max().item()
    assert difference < 2e-3  # the harmonics themselves reach 4
