"""Where sites start."""

from collections.abc import Callable

import numpy as np
import pytest
import torch

from tessearth.encoder.sites import LAND_SHARE, land_lattice, start_sites
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import fibonacci_lattice, xyz_to_latlon
from tessearth.sphere.land import is_inhabited_land, is_land


@pytest.mark.parametrize("num_sites", [1, 256, 1024, 4096, 8192])
def test_the_land_lattice_has_exactly_the_sites_asked_for_all_on_land(num_sites: int) -> None:
    sites = land_lattice(num_sites)
    latlon = xyz_to_latlon(sites).numpy()
    assert sites.shape == (num_sites, 3)
    assert sites.dtype == torch.float64
    assert is_land(latlon).all()
    assert (latlon[:, 0] > -60).all()
    assert len(np.unique(latlon.round(9), axis=0)) == num_sites


@pytest.mark.parametrize("num_sites", [256, 1024, 4096, 8192])
def test_the_land_lattice_is_even(num_sites: int) -> None:
    sites = land_lattice(num_sites)
    nearest = (sites @ sites.T).fill_diagonal_(-1).max(dim=1).values.clamp(max=1).acos()
    even = (nearest > nearest.median() / 2) & (nearest < nearest.median() * 2)
    assert float(even.double().mean()) >= 0.99


def test_surplus_sites_are_dropped_evenly_when_no_lattice_fits() -> None:
    def north_in_pairs(latlon: np.ndarray) -> np.ndarray:
        keep = latlon[:, 0] > 0
        keep[np.flatnonzero(keep)[: int(keep.sum()) % 2]] = False  # always an even count, so 99 cannot be met
        return keep

    sites = land_lattice(99, on_land=north_in_pairs)
    assert sites.shape == (99, 3)
    assert len(torch.unique(sites, dim=0)) == 99


def cap(share: float) -> Callable[[np.ndarray], np.ndarray]:
    """Land that is a round cap over so much of the sphere."""
    return lambda latlon: np.sin(np.deg2rad(latlon[:, 0])) > 1 - 2 * share


def sizes_that_fit(num_sites: int, share: float) -> list[int]:
    """Every size of the whole lattice that leaves exactly so many points on the cap."""
    near = round(num_sites / share)
    counts = {
        size: int(cap(share)(xyz_to_latlon(fibonacci_lattice(size)).numpy()).sum())
        for size in range(max(1, near - 12), near + 12)
    }
    return [size for size, count in counts.items() if count == num_sites]


@pytest.mark.parametrize("num_sites", [1, 7, 40, 133, 600])
def test_of_the_lattices_that_fit_the_one_nearest_to_the_lands_share_is_taken(num_sites: int) -> None:
    sizes, wanted = sizes_that_fit(num_sites, LAND_SHARE), max(num_sites, round(num_sites / LAND_SHARE))
    assert len(sizes) > 1
    nearest = min(sizes, key=lambda size: (abs(size - wanted), -size))
    lattice = fibonacci_lattice(nearest)
    expected = lattice[torch.from_numpy(cap(LAND_SHARE)(xyz_to_latlon(lattice).numpy()))]
    assert torch.equal(land_lattice(num_sites, on_land=cap(LAND_SHARE)), expected)


@pytest.mark.parametrize("share", [0.05, 0.12, 0.22, 0.29, 0.32, 0.6, 1.0])
def test_land_of_another_share_is_met_all_the_same(share: float) -> None:
    """The search begins from the share that is found: too far away, no size it tries would fit."""
    num_sites = 500
    found = land_lattice(num_sites, on_land=cap(share))
    assert len(found) == num_sites
    candidates = [fibonacci_lattice(size) for size in sizes_that_fit(num_sites, share)]
    kept = [lattice[torch.from_numpy(cap(share)(xyz_to_latlon(lattice).numpy()))] for lattice in candidates]
    assert any(torch.equal(found, lattice) for lattice in kept)


def test_sizes_are_tried_outwards_and_never_below_one() -> None:
    tried = []

    def none(latlon: np.ndarray) -> np.ndarray:
        tried.append(len(latlon))
        return np.zeros(len(latlon), dtype=bool)

    with pytest.raises(ConfigError):
        land_lattice(1, on_land=none)
    assert tried[1:8] == [4, 5, 3, 6, 2, 7, 1]
    assert tried[8:] == list(range(8, tried[-1] + 1))


def test_of_two_surpluses_the_smaller_is_thinned_from_end_to_end() -> None:
    """Counts of 100 or 120 and never 99: the hundred are taken, and of them the first and the last stay."""

    def hundreds(latlon: np.ndarray) -> np.ndarray:
        return np.arange(len(latlon)) < (120 if len(latlon) % 2 else 100)

    found = land_lattice(99, on_land=hundreds)
    assert found.shape == (99, 3)
    wholes = [fibonacci_lattice(size)[:100] for size in range(2, 1000, 2)]
    rows = [(found[:, None] == whole).all(-1) for whole in wholes if torch.equal(whole[0], found[0])]
    (match,) = [row for row in rows if bool(row.any(1).all())]
    kept = match.long().argmax(1)
    assert (kept[0], kept[-1]) == (0, 99)
    assert (kept.diff() >= 1).all()


def test_without_any_land_there_is_no_lattice() -> None:
    with pytest.raises(ConfigError, match="no lattice with 10 sites on land was found"):
        land_lattice(10, on_land=lambda latlon: np.zeros(len(latlon), dtype=bool))


def test_the_full_lattice_is_the_fibonacci_lattice() -> None:
    assert torch.equal(start_sites("full", 10), fibonacci_lattice(10))
    with pytest.raises(ConfigError, match="sites start as 'ocean'"):
        start_sites("ocean", 10)  # type: ignore[arg-type]


def test_land_and_sea_where_everyone_knows_them() -> None:
    land = [
        (48.85, 2.35),
        (-33.92, 18.42),
        (64.8, -18.5),
        (19.82, -155.47),
        (-16.6, 179.2),
        (-16.85, -179.97),
        (68, -179),
    ]
    sea = [(0, -30), (0, 160.0), (60, -40), (90, 0), (-50, 180), (-50, -180)]
    assert is_land(land).all()
    assert not is_land(sea).any()
    assert not is_inhabited_land([(-80, 0)]).any()
    assert is_land([(-80, 0)]).all()
    assert is_land([(48.85, 2.35 + 360)]).all()
