"""Growth: sites are born where the residual gathers and die where nothing passes.

Between events every site adds up, over places, its weight, the residual that it carries (its weight times the place's
squared error) and the second moment of that residual about it. At an event the sites that carry most residual split
along the direction in which theirs is spread, and those with hardly any weight begin to fade. Nothing jumps: the two
halves begin as good as at one position, share the weight of their parent and drift apart until the next event; a site
that fades has lost all but e^-16 of its weight when its slot is free.

Of a site k are added up: sum_i w_ik, sum_i w_ik r_i, and the six numbers of sum_i w_ik r_i y_i y_i^T with
y_i = (x_i - s_k) / d_k, the offset in units of the site's spacing.
"""

import math
from typing import NamedTuple

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder import SoftVoronoi, SparseMixer
from tessearth.errors import ConfigError
from tessearth.sphere import CellLists
from tessearth.training.levels import APART, Level, Levels
from tessearth.training.objective import is_distributed
from tessearth.training.sites_recipe import GrowthRecipe

FADE = 16.0
"""How far the territory of a site falls before it is taken away: to a ten millionth of its weight."""
AT_FIRST = 1e-3
"""How far it is from there at first, in units of 1 / sqrt(tau)."""
PLACES_AT_ONCE = 1024
SUMS = 8
"""A site's weight, its residual, and the second moment's xx, yy, zz, xy, xz, yz."""
ROWS, COLUMNS = (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)


class Births(NamedTuple):
    """What an event brought to one tessellation."""

    level: int
    """The tessellation's number."""
    parents: Tensor
    """(B,), their slots."""
    children: Tensor
    """(B,), the slots of those that were born, of no parent among them."""


class GrowingLevel:
    """What a level adds up between events, and what it does at them."""

    def __init__(self, level: Level, start: int, optimiser: torch.optim.Optimizer) -> None:
        self.level, self.start, self.budget = level, start, level.voronoi.config.num_sites
        self.optimiser = optimiser
        device = level.voronoi.directions.device
        self.sums = torch.zeros(self.budget, SUMS, dtype=torch.float64, device=device)
        self.counts = torch.zeros(2, dtype=torch.int64, device=device)  # births and deaths so far
        self.heaviest = torch.zeros((), dtype=torch.float64, device=device)  # share of the residual at the last event

    def state(self) -> dict[str, Tensor]:
        """The tensors that change while training, by name."""
        return {"sums": self.sums, "counts": self.counts, "heaviest": self.heaviest}

    def wanted(self, passed: float) -> int:
        """How many sites there should be when this share of the events has come, growing at an even rate."""
        return round(self.start * math.pow(self.budget / self.start, passed))

    @torch.no_grad()
    def accumulate_(self, xyz: Tensor, residual: Tensor) -> None:
        """Add places (N, 3) with their residual (N,), those of all processes."""
        sums = add_up(self.level.voronoi, xyz, residual)
        if is_distributed():
            dist.all_reduce(sums)
        self.sums += sums

    @torch.no_grad()
    def end_(self) -> None:
        """End the drifts, and free the slots of sites that have faded."""
        fading = self.level.territory_step < 0
        self.level.voronoi.territory.masked_fill_(fading, -math.inf)
        self.level.territory_step.zero_()
        self.level.drift.zero_()

    @torch.no_grad()
    def change_(self, passed: float, die_below: float, every: int) -> tuple[Tensor, Tensor]:
        """One event: sites begin to fade, others split; the slots of parents and children."""
        staying = self.level.staying()
        weight, residual = self.sums[staying, 0], self.sums[staying, 1]
        self.heaviest.copy_(residual.max() / residual.sum().clamp_min(1e-300))
        dying = staying[weight < die_below * weight.mean()] if passed < 1 else staying[:0]
        dying = dying[: max(0, len(staying) - self.level.voronoi.config.neighbours - 1)]
        self.level.territory_step[dying] = -FADE / every
        parents, children = self._choose(passed)
        self._split_(parents, children, every)
        self.counts += torch.tensor([len(children), len(dying)], device=self.counts.device)
        self.sums.zero_()
        return parents, children

    def _choose(self, passed: float) -> tuple[Tensor, Tensor]:
        """The sites that split, those with most residual first and of equal ones the first; and free slots."""
        staying = self.level.staying()
        free = (~self.level.voronoi.takes_part()).nonzero().flatten()
        residual = self.sums[staying, 1]
        number = min(self.wanted(passed) - len(staying), len(free), int((residual > 0).sum()))
        heaviest = residual.sort(descending=True, stable=True).indices[: max(0, number)]
        return staying[heaviest], free[: len(heaviest)]

    def _split_(self, parents: Tensor, children: Tensor, every: int) -> None:
        voronoi, level = self.level.voronoi, self.level
        for parameter in (voronoi.directions, voronoi.log_sharpness, voronoi.territory, voronoi.embeddings):
            parameter[children] = parameter[parents]
            for name in ("exp_avg", "exp_avg_sq"):
                if name in self.optimiser.state.get(parameter, {}):
                    moment = self.optimiser.state[parameter][name]
                    moment[children] = moment[parents]
        voronoi.spacing[children] = voronoi.spacing[parents]
        positions = voronoi.directions[parents]
        along = main_axis(positions, self.sums[parents, 2:].to(positions.dtype))
        for slots, sign in ((parents, 1.0), (children, -1.0)):
            voronoi.territory[slots] -= math.log(2)
            offset = sign * AT_FIRST * (-0.5 * voronoi.log_sharpness[slots]).exp()
            voronoi.directions[slots] = F.normalize(positions + offset[:, None] * along, dim=-1)
            level.drift[slots] = sign * APART / every * voronoi.spacing[slots, None] * along


class Growth:
    """The growing levels of a run and the steps at which they change."""

    def __init__(self, levels: Levels, recipe: GrowthRecipe, steps: int, optimiser: torch.optim.Optimizer) -> None:
        self.recipe, self.events = recipe, recipe.events(steps)
        starts = {i: int(level.voronoi.takes_part().sum()) for i, level in levels.levels.items()}
        self.levels = {i: GrowingLevel(level, starts[i], optimiser) for i, level in levels.levels.items()}
        for i, level in self.levels.items():
            self._check(i, level, steps)

    def _check(self, i: int, level: GrowingLevel, steps: int) -> None:
        """Refuse schedules by which not even doubling at every event reaches the budget."""
        needed = max(1, math.ceil(math.log2(level.budget / level.start)))
        if len(self.events) < needed:
            raise ConfigError(
                f"tessellation {i} grows from {level.start} sites to {level.budget}, which takes {needed} events at "
                f"least; {steps} steps have {len(self.events)}: lower sites.growth.every or start with more"
            )

    def state(self) -> dict[str, Tensor]:
        """The tensors that change while training, by name."""
        return {f"growth.{i}.{name}": part for i, level in self.levels.items() for name, part in level.state().items()}

    def wants(self, step: int) -> bool:
        """Whether this step's residuals are added up: every so often in the interval before each event."""
        coming = (step // self.recipe.every + 1) * self.recipe.every
        return coming in self.events and step % self.recipe.accumulate_every == 0

    def accumulate_(self, xyz: Tensor, residual: Tensor) -> None:
        """Add places (N, 3) with their residual (N,)."""
        for level in self.levels.values():
            level.accumulate_(xyz, residual)

    def change_(self, step: int) -> list[Births]:
        """What is due before this step: the end of the last event, and the next one."""
        if step % self.recipe.every:
            return []
        for level in self.levels.values():
            level.end_()
        if step not in self.events:
            return []
        passed = (self.events.index(step) + 1) / len(self.events)
        found = [
            Births(i, *level.change_(passed, self.recipe.die_below, self.recipe.every))
            for i, level in self.levels.items()
        ]
        return [births for births in found if len(births.children)]

    def report(self) -> dict[str, dict[str, float]]:
        """For the log, by the tessellation's number: births and deaths so far, the largest share of residual."""
        return {
            str(i): {
                "births": float(level.counts[0]),
                "deaths": float(level.counts[1]),
                "heaviest": float(level.heaviest),
            }
            for i, level in self.levels.items()
        }


def main_axis(positions: Tensor, moments: Tensor) -> Tensor:
    """The direction on the ground in which second moments are largest: (B, 3), (B, 6) -> (B, 3) unit vectors."""
    least = positions.abs().argmin(-1, keepdim=True)
    other = torch.zeros_like(positions).scatter_(-1, least, 1.0)
    east = F.normalize(torch.linalg.cross(positions, other), dim=-1)
    north = torch.linalg.cross(positions, east)
    matrix = moments[:, [0, 3, 4, 3, 1, 5, 4, 5, 2]].view(-1, 3, 3)
    ee, nn_, en = (torch.einsum("ba,bac,bc->b", a, matrix, b) for a, b in ((east, east), (north, north), (east, north)))
    angle = 0.5 * torch.atan2(2 * en, ee - nn_)
    axis: Tensor = angle.cos()[:, None] * east + angle.sin()[:, None] * north
    return axis


def add_up(voronoi: SoftVoronoi, xyz: Tensor, residual: Tensor) -> Tensor:
    """What every site adds up, (K, SUMS), by lists where it is mixed by lists."""
    mixer = voronoi.mixer
    if isinstance(mixer, SparseMixer):
        return listed_sums(voronoi, mixer.lists, xyz, residual)
    return site_sums(voronoi, xyz, residual)


@torch.no_grad()
def site_sums(voronoi: SoftVoronoi, xyz: Tensor, residual: Tensor) -> Tensor:
    """What every site adds up over places (N, 3) with their residual (N,), in float64, (K, SUMS)."""
    total = voronoi.spacing.new_zeros(voronoi.config.num_sites, 2 + 3 + 6, dtype=torch.float64)
    for places, values in zip(torch.split(xyz, PLACES_AT_ONCE), torch.split(residual, PLACES_AT_ONCE), strict=True):
        r, x = values.double()[:, None], places.double()
        terms = torch.cat((torch.ones_like(r), r, r * x, r * x[:, ROWS] * x[:, COLUMNS]), dim=-1)
        total += voronoi.exact_weights(places).double().T @ terms
    site, first, second = voronoi.positions().double(), total[:, 2:5], total[:, 5:]
    mixed = site[:, ROWS] * first[:, COLUMNS] + first[:, ROWS] * site[:, COLUMNS]
    about = second - mixed + total[:, 1:2] * site[:, ROWS] * site[:, COLUMNS]
    sums: Tensor = torch.cat((total[:, :2], about / voronoi.spacing.double().square()[:, None]), dim=-1)
    return sums


@torch.no_grad()
def listed_sums(voronoi: SoftVoronoi, lists: CellLists, xyz: Tensor, residual: Tensor) -> Tensor:
    """`site_sums` over the sites in the lists of the places' cells alone."""
    total = voronoi.spacing.new_zeros(SUMS, voronoi.config.num_sites, dtype=torch.float64)
    sharpness, positions = voronoi.sharpness().double(), voronoi.positions().double()
    for places, values in zip(
        torch.split(xyz.double(), PLACES_AT_ONCE), torch.split(residual, PLACES_AT_ONCE), strict=True
    ):
        leaf = lists.find(places)
        slots = torch.arange(int(lists.lengths[leaf].max()), device=leaf.device)
        listed = slots < lists.lengths[leaf][:, None]
        sites = lists.sites[(lists.starts[leaf][:, None] + slots).clamp_max(len(lists.sites) - 1)].long()
        offset = places[:, None] - positions[sites]
        logits = voronoi.territory[sites] - sharpness[sites] / 2 * offset.square().sum(-1)
        weights = voronoi.share(logits.masked_fill(~listed, -math.inf))
        share, offset = weights * values.double()[:, None], offset / voronoi.spacing[sites, None]
        moments = (share * offset[..., a] * offset[..., b] for a, b in zip(ROWS, COLUMNS, strict=True))
        for row, part in zip(total, (weights, share, *moments), strict=True):
            row.index_add_(0, sites.flatten(), part.flatten())
    return total.T.contiguous()
