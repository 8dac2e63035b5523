"""Lists of sites: whatever the sites, the weight that they leave out is at most epsilon, everywhere."""

import math

import pytest
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessearth.encoder import SiteGeometry, Slack, list_sites, weigh_left_out
from tessearth.encoder.list_kernels import list_by_kernels
from tessearth.encoder.lists import EPSILON, LONGEST, SiteRule
from tessearth.packages import has_kernels
from tessearth.sphere import DEPTH, CellLists, CubeCells, fibonacci_lattice, refine

DOUBLE = torch.float64
DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not has_kernels(DEVICE), reason="kernels need a GPU, or Triton and TRITON_INTERPRET=1"
)


def crowd(count: int, spread: float, seed: int = 0) -> Tensor:
    """Points about `spread` from one of the sphere's, which the seed says; all over the sphere if it is infinite."""
    generator = torch.Generator().manual_seed(seed)
    centre, noise = (torch.randn(rows, 3, dtype=DOUBLE, generator=generator) for rows in (1, count))
    return normalize(noise if spread == math.inf else normalize(centre, dim=-1) + spread * noise, dim=-1)


def geometry(positions: Tensor, sharpness: float | Tensor, territory: Tensor | None = None) -> SiteGeometry:
    count = len(positions)
    tau = sharpness if isinstance(sharpness, Tensor) else torch.full((count,), sharpness, dtype=DOUBLE)
    return SiteGeometry(positions, tau, torch.zeros(count, dtype=DOUBLE) if territory is None else territory)


def absent(count: int) -> Tensor:
    return torch.where(torch.arange(count) % 3 > 0, 0.0, -math.inf).double()


SPREAD = torch.linspace(-3, 3, 1000, dtype=DOUBLE)[torch.randperm(1000, generator=torch.Generator().manual_seed(5))]
CITIES = torch.cat([crowd(100, 10.0 ** -(1 + i % 4), seed=i) for i in range(10)])
CITY_SHARPNESS = torch.cat([torch.full((100,), 2 / (10.0 ** -(1 + i % 4) / 5) ** 2, dtype=DOUBLE) for i in range(10)])
CASES = {
    "blunt": geometry(crowd(1000, math.inf), 0.5),
    "the paper's": geometry(crowd(1000, math.inf), 45.0),
    "even": geometry(fibonacci_lattice(3000), 500.0),
    "a kilometre apart, everywhere": geometry(crowd(1000, math.inf), 1e8),
    "a kilometre apart, in one place": geometry(crowd(1000, 2e-3), 1e8),
    "every sharpness": geometry(crowd(1000, math.inf), 10 ** (4 + 1.4 * SPREAD), SPREAD.flip(0)),
    "every sharpness, on one side": geometry(crowd(1000, 0.3), (4 + SPREAD).exp(), SPREAD.flip(0)),
    "coincident, blunt": geometry(crowd(400, 0.0), 2.0),
    "coincident, sharp": geometry(torch.cat((crowd(300, 0.0), crowd(1000, math.inf, 1))), 1e4),
    "cities": geometry(CITIES, CITY_SHARPNESS),
    "levels in one": geometry(
        torch.cat((fibonacci_lattice(60), crowd(2000, 0.2))), torch.tensor([4.0] * 60 + [1e5] * 2000, dtype=DOUBLE)
    ),
    "a third absent": geometry(crowd(1000, math.inf), 200.0, absent(1000)),
    "one": geometry(crowd(1, math.inf), 1e8),
}


def worst_places(sites: SiteGeometry, lists: CellLists) -> Tensor:
    """Everywhere, on sites, about as far from sites as they reach, corners of cells, poles, the seam and far away."""
    chosen = torch.randint(len(sites.positions), (150,), generator=torch.Generator().manual_seed(1))
    own = sites.positions[chosen]
    reach = 3 * crowd(150, math.inf, 2) / sites.sharpness[chosen].sqrt()[:, None]
    cells = CubeCells(2**DEPTH)
    some = lists.keys[torch.linspace(0, len(lists.keys) - 1, 100).long()]
    corners = cells.points(cells.of_keys(some), torch.zeros(1, 2, dtype=DOUBLE))[:, 0]
    special = torch.tensor([(0, 0, 1), (0, 0, -1), (-1, 0, 0), (0, 1, 0), (1, 1, 1)], dtype=DOUBLE)
    between = own + own.roll(1, 0) + 1e-9
    return normalize(torch.cat((crowd(200, math.inf, 3), own, own + reach, corners, special, between, -own)), dim=-1)


def moved(sites: SiteGeometry, slack: Slack, seed: int) -> SiteGeometry:
    """Sites that went as far as the slack lets them, each its own way."""
    generator = torch.Generator().manual_seed(seed)
    count = len(sites.positions)
    way = normalize(torch.randn(count, 3, dtype=DOUBLE, generator=generator), dim=-1)
    signs = 2.0 * torch.randint(0, 2, (2, count), generator=generator) - 1
    return sites._replace(
        positions=normalize(sites.positions + 0.999 * slack.shift / sites.sharpness.sqrt()[:, None] * way, dim=-1),
        sharpness=sites.sharpness * (signs[0] * slack.log_sharpness).exp(),
        territory=sites.territory + signs[1] * slack.territory,
    )


@pytest.mark.parametrize("background", [None, -8.0], ids=["no background", "background"])
@pytest.mark.parametrize("name", CASES)
def test_what_is_left_out_weighs_at_most_epsilon(name: str, background: float | None) -> None:
    sites = CASES[name]._replace(background=background)
    lists = list_sites(sites)
    for places in (worst_places(sites, lists), worst_places(sites, lists).float()):
        assert float(weigh_left_out(sites, lists, places).max()) <= EPSILON


@pytest.mark.parametrize("background", [None, -8.0], ids=["no background", "background"])
@pytest.mark.parametrize("name", CASES)
def test_lists_hold_for_all_sites_within_the_slack(name: str, background: float | None) -> None:
    sites, slack = CASES[name]._replace(background=background), Slack(0.3, 0.1, 0.2)
    lists = list_sites(sites, slack=slack)
    places = worst_places(sites, lists)
    for seed in range(2):
        assert float(weigh_left_out(moved(sites, slack, seed), lists, places).max()) <= EPSILON


def test_without_slack_sites_that_move_break_the_lists() -> None:
    sites = CASES["even"]
    lists = list_sites(sites)
    places = worst_places(sites, lists)
    assert float(weigh_left_out(moved(sites, Slack(1.0, 0.3, 1.0), 0), lists, places).max()) > EPSILON


def test_lists_are_short_and_few_on_an_even_lattice() -> None:
    lists = list_sites(geometry(fibonacci_lattice(4096), 2 / 0.0593**2))
    assert int(lists.lengths.max()) <= LONGEST
    assert float(lists.lengths.double().mean()) < 110
    assert len(lists.keys) < 4096


@pytest.mark.parametrize("name", CASES)
def test_hard_cases_do_not_refine_for_ever(name: str) -> None:
    for background in (None, -8.0):
        lists = list_sites(CASES[name]._replace(background=background), slack=Slack(0.1, 0.1, 0.2))
        assert len(lists.keys) < 6000


def test_absent_sites_are_in_no_list() -> None:
    lists = list_sites(CASES["a third absent"])
    assert torch.equal(lists.sites.unique().long(), (torch.arange(1000) % 3 > 0).nonzero()[:, 0])


def test_far_from_all_sites_a_background_leaves_the_lists_empty() -> None:
    sites = CASES["a kilometre apart, in one place"]._replace(background=-8.0)
    lists = list_sites(sites)
    assert int(lists.lengths[lists.find(-sites.positions)].max()) == 0


def test_the_same_sites_give_the_same_lists() -> None:
    sites = CASES["cities"]
    assert all(torch.equal(a, b) for a, b in zip(list_sites(sites), list_sites(sites), strict=True))


@needs_kernels
@pytest.mark.parametrize("background", [None, -8.0], ids=["no background", "background"])
@pytest.mark.parametrize("name", ["even", "cities", "every sharpness"])
def test_kernels_make_the_lists_of_the_plain_path(name: str, background: float | None) -> None:
    sites, slack = CASES[name]._replace(background=background), Slack(0.2, 0.15, 0.1)
    within = (2, int(CubeCells(4).keys(CubeCells(4).find(sites.positions[200:201]))))  # where sites are, and few cells
    present, rules = torch.arange(len(sites.positions)), []
    for device in ("cpu", DEVICE):
        there = SiteGeometry(*(part.to(device) for part in sites[:3]), background)
        rules.append(SiteRule(there, EPSILON, slack, LONGEST))
    plain = refine(present, rules[0], within=within)
    made = list_by_kernels(present.to(DEVICE), rules[1], within)
    for part, reference in zip(made, plain, strict=True):
        assert torch.equal(part.cpu(), reference)
