"""Births and deaths of sites: what they go by, that nothing jumps, and that the schedule is kept."""

import dataclasses
import itertools
import math

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder import SiteGeometry, SoftVoronoi, SphericalVoronoiEncoder, add_slots, compact, list_sites
from tessearth.errors import ConfigError
from tessearth.sphere import CellLists, fibonacci_lattice
from tessearth.training.growth import FADE, Growth, listed_sums, main_axis, site_sums
from tessearth.training.levels import Levels
from tessearth.training.sites_recipe import GrowthRecipe, SitesRecipe
from tests.training.growing import encoder_of, growing_recipe

EVERY = 10
PLACES = fibonacci_lattice(500)
NORTH = PLACES[PLACES[:, 2] > 0]


class Grown:
    """Sites with empty slots under growth, driven step by step without a loss."""

    def __init__(
        self,
        sites: Tensor,
        budget: int,
        *,
        dtype: torch.dtype = torch.float64,
        steps: int = 60,
        listed: bool = False,
        background: float | None = -8.0,
        **growth: object,
    ) -> None:
        recipe = GrowthRecipe(every=EVERY, first=0.0, until=1.0, accumulate_every=1, **growth)  # type: ignore[arg-type]
        self.encoder = add_slots(encoder_of(sites, background=background), (budget,)).to(dtype)
        self.voronoi: SoftVoronoi = self.encoder.voronois()[0]
        torch.nn.init.normal_(self.voronoi.embeddings[: len(sites)].data, generator=torch.Generator().manual_seed(0))
        self.optimiser = torch.optim.AdamW(self.encoder.parameters(), lr=0.0)
        for parameter in self.voronoi.parameters():
            moments = {name: torch.rand_like(parameter) for name in ("exp_avg", "exp_avg_sq")}
            self.optimiser.state[parameter] = {"step": torch.zeros(()), **moments}
        sparse_from = 8 if listed else 10_000
        self.levels = Levels(self.encoder, SitesRecipe(refresh_every=5, sparse_from=sparse_from, growth=recipe))
        self.growth = Growth(self.levels, recipe, steps, self.optimiser)
        self.step = 0

    def see(self, residual: Tensor, places: Tensor = PLACES) -> None:
        self.growth.accumulate_(places.to(self.voronoi.spacing.dtype), residual)

    def event(self) -> list[object]:
        """The next event, up to before its first step."""
        self.step += EVERY
        born = self.growth.change_(self.step)
        self.levels.refresh_(drifting=EVERY)
        return list(born)

    def follow(self, steps: int = EVERY) -> None:
        for _ in range(steps):
            self.levels.follow_(self.levels.positions())
            self.encoder.constrain_()
            self.levels.hold_()

    def seen(self, places: Tensor = PLACES) -> tuple[Tensor, Tensor]:
        weights = self.voronoi.weights(places.to(self.voronoi.spacing.dtype)).detach()
        return self.voronoi.mix(weights).detach(), weights.sum(-1)


@pytest.mark.parametrize("background", [None, -8.0])
def test_lists_leave_out_no_more_than_they_may_at_any_step_of_growth(background: float | None) -> None:
    grown = Grown(fibonacci_lattice(150), 400, listed=True, die_below=0.5, background=background)
    voronoi, mixer = grown.voronoi, grown.levels.listed[0].mixer
    generator, worst, faded = torch.Generator().manual_seed(0), 0.0, 0
    for _ in grown.growth.events:
        grown.see(torch.rand(len(NORTH), generator=generator, dtype=torch.float64), NORTH)
        grown.event()
        faded += int((grown.levels.levels[0].territory_step < 0).sum())
        for step in range(EVERY):
            if step == 5:
                grown.levels.refresh_(drifting=5)
            with torch.no_grad():  # an optimiser that is rude to all
                voronoi.directions += 0.02 * voronoi.spacing[:, None] * torch.randn(400, 3, generator=generator)
                voronoi.log_sharpness += 0.02 * torch.randn(400, generator=generator)
                voronoi.territory += 0.02 * torch.randn(400, generator=generator)
            grown.follow(1)
            worst = max(worst, float(left_out(voronoi, mixer.lists).max()))
    assert faded > 0
    assert int(voronoi.takes_part().sum()) == 400
    assert 0 < worst < 1e-6


def left_out(voronoi: SoftVoronoi, lists: CellLists) -> Tensor:
    """The weight of the sites that are not in the lists of places, in float64."""
    weights = voronoi.weights(PLACES).detach()
    leaf = lists.find(PLACES)
    for row, (start, length) in enumerate(zip(lists.starts[leaf].tolist(), lists.lengths[leaf].tolist(), strict=True)):
        weights[row, lists.sites[start : start + length].long()] = 0
    return weights.sum(-1)


def even(count: int = 500) -> Tensor:
    return torch.ones(count, dtype=torch.float64)


@pytest.mark.parametrize("scale", [1.0, 1e-2])
@pytest.mark.parametrize("dtype", [torch.float64, torch.float32])
def test_outputs_and_total_weight_do_not_jump_when_sites_split(dtype: torch.dtype, scale: float) -> None:
    sites = F.normalize(torch.tensor([1.0, 0, 0]).double() + scale * fibonacci_lattice(60), dim=-1)
    places = F.normalize(torch.tensor([1.0, 0, 0]).double() + scale * PLACES, dim=-1)
    grown = Grown(sites, 90, dtype=dtype, steps=EVERY + 1)
    grown.see(torch.rand(500, generator=torch.Generator().manual_seed(0), dtype=torch.float64), places)
    before = grown.seen(places)
    assert len(grown.event()) == 1
    after = grown.seen(places)
    assert int(grown.voronoi.takes_part().sum()) == 90
    for one, other in zip(before, after, strict=True):
        torch.testing.assert_close(other, one, rtol=0, atol=1e-5)
    steps = []
    for _ in range(EVERY):
        grown.follow(1)
        steps.append(grown.seen(places)[0])
    size = [float((b - a).abs().max()) for a, b in zip([after[0], *steps], steps, strict=False)]
    assert max(size) < 4 * sum(size) / len(size)


def test_outputs_do_not_jump_when_a_site_fades_and_its_slot_is_freed() -> None:
    grown = Grown(fibonacci_lattice(60), 60, die_below=0.9)
    near = PLACES[PLACES[:, 0] > -0.2]
    grown.see(even(len(near)), near)
    before = grown.seen(near)
    grown.event()
    fading = (grown.levels.levels[0].territory_step < 0).nonzero().flatten()
    assert 0 < len(fading) < 60
    torch.testing.assert_close(grown.seen(near)[0], before[0], rtol=0, atol=1e-12)
    grown.follow()
    faded = grown.seen(near)
    torch.testing.assert_close(grown.voronoi.territory[fading], torch.full_like(fading, -FADE, dtype=torch.float64))
    grown.growth.change_(2 * EVERY)
    gone = grown.seen(near)
    torch.testing.assert_close(gone[0], faded[0], rtol=0, atol=1e-5)
    assert torch.equal(fading, (~grown.voronoi.takes_part()).nonzero().flatten())


def test_the_halves_share_everything_of_their_parent_and_drift_apart() -> None:
    grown = Grown(fibonacci_lattice(60), 61, steps=EVERY + 1)
    residual = torch.exp(-20 * (PLACES - PLACES[100]).square().sum(-1))
    grown.see(residual)
    voronoi = grown.voronoi
    heaviest = int(grown.growth.levels[0].sums[:60, 1].argmax())
    before = {name: tensor[heaviest].clone() for name, tensor in voronoi.state_dict().items()}
    (born,) = grown.event()
    assert (born.parents.tolist(), born.children.tolist()) == ([heaviest], [60])  # type: ignore[attr-defined]
    for slot in (heaviest, 60):
        assert torch.equal(voronoi.embeddings[slot], before["embeddings"])
        torch.testing.assert_close(voronoi.territory[slot].detach(), before["territory"] - math.log(2))
        assert torch.equal(voronoi.spacing[slot], before["spacing"])
        assert voronoi.log_sharpness[slot] == before["log_sharpness"]
    for parameter in voronoi.parameters():
        for name in ("exp_avg", "exp_avg_sq"):
            moment = grown.optimiser.state[parameter][name]
            assert torch.equal(moment[60], moment[heaviest])
    grown.follow()
    apart = float((voronoi.directions[60] - voronoi.directions[heaviest]).norm())
    assert apart == pytest.approx(0.6 * float(before["spacing"]), rel=0.02)
    middle = F.normalize((voronoi.directions[60] + voronoi.directions[heaviest]).detach(), dim=-1)
    torch.testing.assert_close(middle, before["directions"], rtol=0, atol=1e-4)


def test_a_site_splits_along_the_direction_in_which_its_residual_is_spread() -> None:
    sites = fibonacci_lattice(200)
    east = F.normalize(torch.linalg.cross(sites, torch.tensor([0.0, 0, 1]).double().expand_as(sites)), dim=-1)
    north = torch.linalg.cross(sites, east)
    angle = torch.linspace(0, math.pi, 200, dtype=torch.float64)[:, None]
    wanted = angle.cos() * east + angle.sin() * north
    moments = wanted[:, [0, 1, 2, 0, 0, 1]] * wanted[:, [0, 1, 2, 1, 2, 2]] + 0.2 * torch.tensor([1, 1, 1, 0, 0, 0])
    found = main_axis(sites, moments)
    torch.testing.assert_close((found * wanted).sum(-1).abs(), torch.ones(200, dtype=torch.float64))
    torch.testing.assert_close((found * sites).sum(-1), torch.zeros(200, dtype=torch.float64))


def test_sums_are_those_of_their_definition() -> None:
    voronoi = encoder_of(fibonacci_lattice(30)).double().voronois()[0]
    places = fibonacci_lattice(1500)
    residual = torch.rand(1500, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    weights, offset = voronoi.weights(places), places[:, None] - voronoi.positions()
    offset = offset / voronoi.spacing[:, None]
    share = weights * residual[:, None]
    moments = torch.einsum("nk,nka,nkb->kab", share, offset, offset)
    wanted = torch.stack([moments[:, a, b] for a, b in ((0, 0), (1, 1), (2, 2), (0, 1), (0, 2), (1, 2))], -1)
    found = site_sums(voronoi, places, residual)
    torch.testing.assert_close(found[:, 0], weights.sum(0))
    torch.testing.assert_close(found[:, 1], share.sum(0))
    torch.testing.assert_close(found[:, 2:], wanted)


@pytest.mark.parametrize("background", [None, -8.0])
def test_sums_by_lists_are_those_over_all_sites(background: float | None) -> None:
    voronoi = encoder_of(fibonacci_lattice(2000)).double().voronois()[0]
    voronoi.config = dataclasses.replace(voronoi.config, background=background)
    with torch.no_grad():
        voronoi.territory[::3] = -math.inf
    geometry = SiteGeometry(voronoi.positions(), voronoi.sharpness(), voronoi.territory, background)
    lists = list_sites(geometry, epsilon=1e-12)
    assert int(lists.lengths.max()) < 400
    places, residual = fibonacci_lattice(1500), torch.linspace(0, 1, 1500, dtype=torch.float64)
    torch.testing.assert_close(
        listed_sums(voronoi, lists, places, residual), site_sums(voronoi, places, residual), rtol=1e-6, atol=1e-7
    )


def test_sites_are_born_where_the_residual_is_and_die_where_nothing_passes() -> None:
    grown = Grown(fibonacci_lattice(60), 90, die_below=0.2)
    passing, erring = PLACES[PLACES[:, 2] > -0.3], (PLACES[PLACES[:, 2] > -0.3][:, 2] > 0.5).double()
    for _ in grown.growth.events:
        grown.see(erring, passing)
        grown.event()
        grown.follow()
    height = grown.voronoi.directions[grown.voronoi.takes_part(), 2].detach()
    assert len(height) == 90
    assert float((height > 0.4).double().mean()) > 0.5
    assert float((height < -0.6).double().mean()) < 0.05


def test_the_number_of_sites_grows_evenly_and_reaches_the_budget_at_the_last_event() -> None:
    grown = Grown(fibonacci_lattice(20), 160, die_below=0.0, steps=55)
    assert list(grown.growth.events) == [10, 20, 30, 40, 50]
    counts = [20]
    for _ in grown.growth.events:
        grown.see(even())
        grown.event()
        counts.append(int(grown.voronoi.takes_part().sum()))
    assert counts[-1] == 160
    ratios = [b / a for a, b in itertools.pairwise(counts)]
    assert max(ratios) - min(ratios) < 0.05


def test_of_equal_sites_the_first_split() -> None:
    grown = Grown(fibonacci_lattice(20), 30, steps=EVERY + 1)
    grown.growth.levels[0].sums[:20, :2] = 1.0
    (born,) = grown.event()
    assert born.parents.tolist() == list(range(10))  # type: ignore[attr-defined]


def test_empty_slots_change_no_output_and_are_left_out_again() -> None:
    encoder = encoder_of(fibonacci_lattice(30), fibonacci_lattice(20)).eval()
    latlon = torch.rand(40, 2, generator=torch.Generator().manual_seed(0)) * 90
    wider = add_slots(encoder, (50, 20))
    assert [v.config.num_sites for v in wider.voronois()] == [50, 20]
    torch.testing.assert_close(wider(latlon), encoder(latlon))
    back = compact(wider)
    assert back.config == encoder.config
    assert all(torch.equal(a, b) for a, b in zip(back.parameters(), encoder.parameters(), strict=True))
    assert compact(encoder) is encoder
    assert isinstance(add_slots(encoder, (30, 20)), SphericalVoronoiEncoder)


MISTAKES: list[tuple[dict[str, object], str]] = [
    ({"start": (12, 41)}, r"start\[1\] is 41, more than the budget, encoder.tessellations.1.num_sites = 40"),
    ({"start": (10, 20)}, r'start\[0\] is 10 of 12: only sharpness = "spacing" grows'),
    ({"start": (12, 6)}, r"start\[1\] is 6; spacing is measured by 6 neighbours"),
    ({"start": (16,)}, r"start has 1 numbers for 2 tessellations"),
    ({"start": None}, r"sites.growth.start is missing"),
    ({"every": 7}, r"every is 7; it must be a multiple of sites.refresh_every, 3"),
    ({"first": 0.9}, r"first is 0.9; it must lie before until, 0.8"),
    ({"accumulate_every": 9}, r"accumulate_every is 9, longer than the 6 steps to an event"),
]


@pytest.mark.parametrize(("changes", "message"), MISTAKES, ids=[message for _, message in MISTAKES])
def test_growth_that_cannot_be_is_refused(changes: dict[str, object], message: str) -> None:
    recipe = growing_recipe()
    assert recipe.sites.growth is not None
    with pytest.raises(ConfigError, match=message):
        growing_recipe(growth=dataclasses.replace(recipe.sites.growth, **changes))  # type: ignore[arg-type]


def test_a_schedule_too_short_for_the_budget_is_refused() -> None:
    with pytest.raises(ConfigError, match="grows from 10 sites to 160, which takes 4 events at least; 35 steps have 3"):
        Grown(fibonacci_lattice(10), 160, steps=35)
