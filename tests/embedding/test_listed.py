"""Levels by lists: what is left out weighs next to nothing, and no order of work changes a bit."""

import copy
import math
import pickle
from typing import Any

import numpy as np
import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessearth.embedding.fast import listed, regions
from tessearth.embedding.fast.bounds import EPSILON, sort_by_key, sort_places
from tessearth.embedding.fast.cpu import FastVoronoi
from tessearth.embedding.fast.listed import ListedMixture, ListedSites, takes_lists
from tessearth.embedding.fast.mixture import TessellationMixture
from tessearth.embedding.fast.regions import RegionLists
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.sphere import cell_key, cell_keys, fibonacci_lattice
from tests.conftest import tiny_encoder

LEVEL: dict[str, Any] = {"logits": "chord", "sharpness": "spacing", "sharpness_range": (0.5, 8.0)}
PARIS = torch.tensor([0.66, 0.03, 0.75], dtype=torch.float64)


def level(sites: Tensor, background: float | None = None) -> SoftVoronoi:
    config = TessellationConfig(num_sites=len(sites), site_dim=3, background=background, **LEVEL)
    voronoi = SoftVoronoi(config, sites).double().requires_grad_(False)
    voronoi.embeddings.normal_(generator=torch.Generator().manual_seed(1))
    return voronoi


def crowded(spread: float, count: int = 1500) -> Tensor:
    """Sites of every density: a lattice, and a crowd around one place."""
    generator = torch.Generator().manual_seed(0)
    distance = spread ** torch.rand(count, 1, generator=generator, dtype=torch.float64)
    crowd = normalize(PARIS, dim=0) + distance * torch.randn(count, 3, generator=generator, dtype=torch.float64)
    return normalize(torch.cat((fibonacci_lattice(300), crowd)), dim=-1)


LEVELS = {
    "even": level(fibonacci_lattice(3000)),
    "crowded": level(crowded(1e-3)),
    "a background": level(crowded(1e-3), background=-8.0),
    "a high background": level(crowded(1e-2), background=3.0),
    "ten metres apart": level(crowded(1e-6)),
}
LEVELS["crowded"].territory.normal_(generator=torch.Generator().manual_seed(2))
LEVELS["crowded"].territory[::7] = -math.inf
LEVELS["crowded"].log_sharpness.add_(torch.randn(1800, generator=torch.Generator().manual_seed(3)).double())


def places(voronoi: SoftVoronoi) -> Tensor:
    """Sites, what lies near and between them, and places far away."""
    sites = voronoi.directions[::11]
    between = sites + voronoi.directions[::11].roll(1, 0)
    near = sites + torch.randn(sites.shape, generator=torch.Generator().manual_seed(4)) * voronoi.spacing[::11, None]
    return normalize(torch.cat((sites, near, between, fibonacci_lattice(200), torch.eye(3), -torch.eye(3))), dim=-1)


def prepare(voronoi: SoftVoronoi, xyz: Tensor) -> ListedSites:
    sites = ListedSites(voronoi)
    sites.prepare(cell_keys(xyz))
    return sites


@pytest.mark.parametrize("per_region", [4096, 8], ids=["faces", "small regions"])
@pytest.mark.parametrize("kind", LEVELS)
def test_what_lists_leave_out_weighs_at_most_epsilon(
    kind: str, per_region: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(regions, "SITES_PER_REGION", per_region)
    voronoi = LEVELS[kind]
    xyz = places(voronoi)
    xyz = xyz[:: 1 if per_region > 8 else 16]
    sites = prepare(voronoi, xyz)
    assert sites.regions.depth == (0 if per_region > 8 else 3)
    lists, weights = sites.regions.joined(), voronoi.weights(xyz)
    cells = lists.at(cell_keys(xyz)).tolist()
    for cell, row in zip(cells, weights, strict=True):
        near = lists.sites[int(lists.starts[cell]) : int(lists.starts[cell + 1])]
        assert float(row.sum() - row[sites.regions.order[near]].sum()) <= EPSILON


@pytest.mark.parametrize("kind", LEVELS)
def test_mixtures_by_lists_are_those_of_all_sites(kind: str) -> None:
    voronoi = LEVELS[kind]
    xyz = places(voronoi).float()
    sites = prepare(copy.deepcopy(voronoi).float(), xyz)
    expected = voronoi.weights(xyz.double()) @ voronoi.embeddings
    # A direction in float32 is 4 centimetres off for each centimetre of the 64,000 km that 1e-7 of the sphere are.
    allowed = 1e-5 + 2e-6 * float(voronoi.sharpness().max()) ** 0.5
    assert (sites.mix(xyz, cell_keys(xyz)) - expected).abs().max() < allowed
    for here, wanted in zip(xyz[::37], expected[::37], strict=True):
        which, weights = sites.weigh_one(here.numpy(), int(cell_keys(here[None])))
        rows = voronoi.embeddings[sites.regions.order[which]].numpy()
        assert np.abs(weights @ rows - wanted.numpy()).max() < allowed


def test_crowded_cells_are_mixed_as_others_are(monkeypatch: pytest.MonkeyPatch) -> None:
    voronoi = copy.deepcopy(LEVELS["a background"]).float()
    xyz = normalize(PARIS + 0.2 * fibonacci_lattice(400), dim=-1).float()
    xyz = xyz[cell_keys(xyz).argsort()]
    sites = prepare(voronoi, xyz)
    alone = sites.mix(xyz, cell_keys(xyz))
    monkeypatch.setattr(listed, "CROWD", 1)
    assert (sites.mix(xyz, cell_keys(xyz)) - alone).abs().max() < 1e-5


def test_lists_do_not_depend_on_the_order_of_regions() -> None:
    one, other = RegionLists(LEVELS["crowded"]), RegionLists(LEVELS["crowded"])
    for region in (3, 0, 5, 2):
        one.make(region)
        one.joined()
    for region in (5, 2, 3, 0):
        other.make(region)
    assert all(torch.equal(a, b) for a, b in zip(one.joined(), other.joined(), strict=True))


def test_far_from_all_sites_the_mixture_is_zero_with_a_background() -> None:
    voronoi = level(normalize(PARIS + 0.05 * fibonacci_lattice(500), dim=-1), background=-8.0).float()
    away = -normalize(PARIS, dim=0)[None].float()
    sites = prepare(voronoi, away)
    assert sites.mix(away, cell_keys(away)).abs().max() < 1e-6
    assert not len(sites.weigh_one(away[0].numpy(), int(cell_keys(away)))[0])


def test_sharp_or_spaced_levels_take_lists_and_broad_ones_series() -> None:
    broad = {"num_sites": 700, "site_dim": 5, "logits": "chord", "sharpness": 15.0}
    chosen = []
    for changes in (LEVEL | {"num_sites": 900, "site_dim": 4}, broad, broad | {"sharpness": 400.0}):
        encoder = tiny_encoder(tessellations=(TessellationConfig(**changes),)).requires_grad_(False)
        chosen.append(takes_lists(encoder.voronois()[0]))
        form = FastVoronoi(encoder, "float32").mixtures[0]
        assert isinstance(form, ListedMixture if chosen[-1] else TessellationMixture)
    assert chosen == [True, False, True]


def test_a_copy_by_pickle_makes_the_same_lists() -> None:
    xyz = fibonacci_lattice(50).float()
    sites = prepare(copy.deepcopy(LEVELS["even"]).float(), xyz)
    again = pickle.loads(pickle.dumps(sites))
    assert not again.regions.made
    again.prepare(cell_keys(xyz))
    assert torch.equal(again.mix(xyz, cell_keys(xyz)), sites.mix(xyz, cell_keys(xyz)))


def test_the_key_of_one_place_is_that_of_many() -> None:
    xyz = normalize(torch.cat((fibonacci_lattice(500), torch.eye(3), -torch.eye(3), PARIS[None])), dim=-1)
    assert [cell_key(here) for here in xyz.tolist()] == cell_keys(xyz).tolist()


def test_the_order_of_places_and_the_number_of_threads_change_no_byte() -> None:
    levels = (TessellationConfig(num_sites=900, site_dim=4, **LEVEL), TessellationConfig(num_sites=200, site_dim=3))
    quick = FastVoronoi(tiny_encoder(tessellations=levels, dtype=torch.float32).requires_grad_(False), "float32")
    crowd = normalize(PARIS + 1e-5 * fibonacci_lattice(700), dim=-1)  # many in each of the smallest cells
    xyz = torch.cat((crowd, fibonacci_lattice(2000), crowd[:5])).float()
    shuffled = torch.randperm(len(xyz), generator=torch.Generator().manual_seed(0))
    expected = quick.embed(xyz)
    assert torch.equal(quick.embed(xyz[shuffled]), expected[shuffled])
    torch.set_num_threads(2)
    try:
        assert torch.equal(quick.embed(xyz), expected)
    finally:
        torch.set_num_threads(1)


def test_places_are_sorted_along_the_same_curve_whatever_sorts_them() -> None:
    xyz = fibonacci_lattice(500).float()
    by_key, by_cell = sort_by_key(xyz), sort_places(xyz)
    assert torch.equal(by_key.fine, by_cell.fine)
    assert torch.equal(by_key.keys, cell_keys(xyz)[by_key.order])
