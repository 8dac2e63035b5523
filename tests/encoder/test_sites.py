"""Where sites start."""

import numpy as np
import pytest
import torch

from tessearth.encoder.sites import land_lattice, start_sites
from tessearth.errors import ConfigError
from tessearth.geometry import fibonacci_lattice, xyz_to_latlon
from tessearth.land import is_inhabited_land, is_land


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
