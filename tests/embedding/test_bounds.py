"""The certificate: whatever the weights, sites left out of a cell's list never weigh more than epsilon together."""

import math
from typing import Any

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st
from torch import Tensor

from tessearth.embedding.fast.bounds import AffineLogits, CubeCells, SiteLists, bound_weights, keep_sites, read_logits
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.sphere.geometry import fibonacci_lattice, latlon_to_xyz

SHARPNESS = {"smooth": (6.0, 0.05), "paper": (45.0, 0.0), "sharp": (1500.0, 0.3), "mixed": (60.0, 1.5)}
AWKWARD = latlon_to_xyz(
    torch.tensor(
        [
            (90, 0),
            (-90, 77),
            (0, 180),
            (0, -180),
            (35.2644, 45),
            (-35.2644, -135),
            (0, 0),
            (45, 0),
            (1e-7, 179.9999999),
        ],
        dtype=torch.float64,
    )
)


def tessellation(kind: str, num_sites: int = 600, seed: int = 0, **changes: Any) -> SoftVoronoi:
    """Random sites, half of them crowded into one corner of the world, sharpness around a level."""
    generator = torch.Generator().manual_seed(seed)
    level, spread = SHARPNESS[kind]
    sites = torch.randn(num_sites, 3, generator=generator)
    sites[::2] = sites[::2] * 0.1 + torch.tensor([0.2, -0.9, 0.4])
    on_sphere = changes.get("on_sphere", True)
    sites = torch.nn.functional.normalize(sites, dim=-1) if on_sphere else sites
    config = TessellationConfig(num_sites=num_sites, site_dim=4, sharpness_range=(1e-3, 1e6), **changes)
    voronoi = SoftVoronoi(config, sites)
    with torch.no_grad():
        voronoi.log_sharpness.copy_(math.log(level) + spread * torch.randn(num_sites, generator=generator))
        if config.logits == "decoupled":
            voronoi.territory.copy_(torch.randn(num_sites, generator=generator))
    return voronoi


def dropped_weight(lists: SiteLists, xyz: Tensor) -> Tensor:
    """What the sites outside a place's list weigh there, (N,), in float64."""
    cells = lists.cells.find(xyz)
    lists.prepare(cells.unique())
    weights = torch.softmax(lists.logits.at(xyz), dim=-1)
    kept = torch.zeros_like(weights)
    for i, cell in enumerate(cells.tolist()):
        kept[i, lists[cell].long()] = 1
    return (weights * (1 - kept)).sum(-1)


def climb(lists: SiteLists, xyz: Tensor, steps: int = 40) -> Tensor:
    """Walk within each place's cell towards where the left out sites weigh most; the worst weights met, (N,)."""
    worst, home, step = dropped_weight(lists, xyz), lists.cells.find(xyz), 1.0 / lists.cells.side
    generator = torch.Generator().manual_seed(1)
    for _ in range(steps):
        noise = torch.randn(xyz.shape, generator=generator, dtype=torch.float64)
        moved = torch.nn.functional.normalize(xyz + step * noise, dim=-1)
        weight = torch.where(lists.cells.find(moved) == home, dropped_weight(lists, moved), -1.0)
        xyz = torch.where((weight > worst)[:, None], moved, xyz)
        step *= torch.where(weight > worst, 1.0, 0.93).mean().item()
        worst = torch.maximum(worst, weight)
    return worst


@pytest.mark.parametrize("kind", SHARPNESS)
@pytest.mark.parametrize("changes", [{}, {"logits": "decoupled"}, {"on_sphere": False}], ids=["paper", "apart", "free"])
def test_left_out_sites_never_weigh_more_than_epsilon(kind: str, changes: dict[str, Any]) -> None:
    lists = SiteLists(read_logits(tessellation(kind, **changes)), side=6, epsilon=1e-6)
    starts = torch.cat((AWKWARD, fibonacci_lattice(60)))
    worst = climb(lists, starts, steps=25)
    assert worst.max() <= 1e-6
    if kind == "sharp":
        assert lists.expected < 300  # a list of all sites would keep any promise


@pytest.mark.parametrize("epsilon", [1e-3, 1e-9])
def test_the_search_for_the_worst_point_would_find_a_broken_bound(epsilon: float) -> None:
    """Bounds taken at the centre of a cell instead of over all of it fail, and the climb sees it."""
    lists = SiteLists(read_logits(tessellation("sharp")), side=4, epsilon=epsilon)
    lists.cells.caps = lambda cells: (CubeCells(4).caps(cells)[0], torch.zeros(len(cells), dtype=torch.float64))  # type: ignore[method-assign]
    lists.known[:] = False
    assert climb(lists, fibonacci_lattice(40), steps=10).max() > epsilon


@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(list(SHARPNESS)),
    place=st.tuples(st.floats(-90, 90), st.floats(-360, 360)),
    radius=st.floats(0, 1.5),
)
def test_no_weight_in_a_cap_exceeds_its_bound(seed: int, kind: str, place: tuple[float, float], radius: float) -> None:
    logits = read_logits(tessellation(kind, num_sites=50, seed=seed))
    centre = latlon_to_xyz(torch.tensor([place], dtype=torch.float64))
    bounds = bound_weights(logits, centre, torch.tensor([radius], dtype=torch.float64))[0]
    around = torch.randn(200, 3, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    across = torch.nn.functional.normalize(around - (around @ centre.T) * centre, dim=-1)
    angle = radius * torch.linspace(0, 1, 200, dtype=torch.float64)[:, None]
    inside = angle.cos() * centre + angle.sin() * across
    weights = torch.softmax(logits.at(inside), dim=-1)
    assert (weights <= bounds * (1 + 1e-9) + 1e-300).all()


@pytest.mark.parametrize("side", [1, 4, 7, 32])
def test_every_place_lies_in_the_cap_of_its_cell(side: int) -> None:
    cells = CubeCells(side)
    xyz = torch.cat((AWKWARD, -AWKWARD, fibonacci_lattice(5000)))
    for given_as in (xyz, xyz.float()):
        found = cells.find(given_as)
        assert found.min() >= 0
        assert found.max() < cells.count
        centres, radii = cells.caps(found)
        assert ((xyz - centres).norm(dim=-1) <= 2 * torch.sin(radii / 2)).all()
    assert len(cells.find(fibonacci_lattice(400 * cells.count)).unique()) == cells.count


def test_dropped_bounds_add_up_to_at_most_epsilon_and_nearly_as_much() -> None:
    bounds = torch.rand(40, 500, generator=torch.Generator().manual_seed(0), dtype=torch.float64).pow(30)
    kept = keep_sites(bounds, 1e-4)
    dropped = (bounds * ~kept).sum(-1)
    assert (dropped <= 1e-4).all()
    one_more = torch.where(kept, bounds, math.inf).amin(-1)
    assert (dropped + one_more > 0.5e-4).all()


def test_affine_logits_are_the_tessellations_own() -> None:
    for changes in ({}, {"logits": "decoupled"}, {"on_sphere": False}):
        voronoi = tessellation("mixed", **changes).double()
        xyz = fibonacci_lattice(30)
        logits: AffineLogits = read_logits(voronoi)
        torch.testing.assert_close(logits.at(xyz), voronoi.logits(xyz).detach(), rtol=1e-9, atol=1e-9)
        some = torch.tensor([5, 2])
        torch.testing.assert_close(logits.of(some).at(xyz), logits.at(xyz)[:, some])


@pytest.mark.slow
@pytest.mark.parametrize("kind", SHARPNESS)
def test_the_certificate_holds_on_very_many_places(kind: str) -> None:
    lists = SiteLists(read_logits(tessellation(kind, num_sites=1024)), side=12)
    generator = torch.Generator().manual_seed(0)
    for _ in range(62):
        xyz = torch.nn.functional.normalize(torch.randn(4096, 3, generator=generator, dtype=torch.float64), dim=-1)
        assert dropped_weight(lists, xyz).max() <= lists.epsilon
    assert climb(lists, fibonacci_lattice(4000), steps=12).max() <= lists.epsilon
