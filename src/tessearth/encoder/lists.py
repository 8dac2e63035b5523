"""The sites that matter in each cell of the sphere, with a bound on the weight of all others, for chord logits.

On the sphere the logit of a site, l(x) = b - tau / 2 |x - s|^2, is an affine function of x with the slope tau s, and
the log-sum of affine functions is convex, so its tangent at a cell's centre lies below it everywhere. A site's weight
in the cap around a cell is therefore at most the exponential of an affine function, whose maximum over the cap has a
closed form. Sites are dropped, the least first, while their bounds add up to at most epsilon.

A site that may move by m before the lists are made again is at a distance of at least r - m and at most r + m, where
r <= |c - s| + rho in a cap of centre c and radius rho; so its logit lies between two affine functions, of which the
lower takes part in the log-sum and the upper is bounded. Nothing is assumed of the sites but unit length.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.packages import has_kernels
from tessearth.sphere import Block, CellLists, Verdict, expand, refine

EPSILON = 1e-6
"""The most that the weights of all sites left out may add up to, at any place."""
LONGEST = 128
"""A cell with a longer list is quartered, unless its centre alone needs most of it."""
SPREAD = 1.5
"""A cell whose list is longer by no more than this than what its centre needs is not quartered."""
SHARP = 4.0
"""tau rho^2 of a site for which a cell is large."""
SHARE_ABOVE = 1 / 32
"""The share of epsilon that each depth may drop before the last, which has half of it: there are 16 at most."""
BINS, STEP = 32, 0.7
"""Bounds are sorted into bins; a million sites in the lowest weigh less than epsilon / 1000 together."""
WEIGHTS_AT_ONCE = 2**22
"""Weights of all sites held at once."""
MARGIN = 1e-6
"""Added to every bound on a logarithm, for rounding."""


class Slack(NamedTuple):
    """How far each site may go from where it was when lists were made; the bound holds for all that stay within it."""

    shift: float = 0.0
    """The most that the position may move, in units of 1 / sqrt(tau)."""
    log_sharpness: float = 0.0
    territory: float | Tensor = 0.0
    """For all sites, or for each, (K,)."""


STILL = Slack()


class SiteGeometry(NamedTuple):
    """What decides the weights of sites."""

    positions: Tensor
    """Unit vectors, (K, 3)."""
    sharpness: Tensor
    """tau, (K,)."""
    territory: Tensor
    """b, (K,); a site with -inf is in no list."""
    background: float | None = None
    """The logit of no site at all."""


def list_sites(
    geometry: SiteGeometry,
    *,
    epsilon: float = EPSILON,
    slack: Slack = STILL,
    longest: int = LONGEST,
    within: tuple[int, int] | None = None,
) -> CellLists:
    """Cells of the sphere with the sites that matter in them: those left out weigh at most epsilon together.

    `within` names one cell, as for `refine`, and lists nothing outside.
    """
    present = (geometry.territory > -math.inf).nonzero()[:, 0]
    rule = SiteRule(geometry, epsilon, slack, longest)
    if present.is_cuda and has_kernels(present.device):
        from tessearth.encoder.list_kernels import list_by_kernels  # brings Triton in

        return list_by_kernels(present, rule, within)
    return refine(present, rule, within=within)


@torch.no_grad()
def weigh_left_out(geometry: SiteGeometry, lists: CellLists, xyz: Tensor) -> Tensor:
    """The weight that lists leave out at each place, by all sites in float64, (N, 3) -> (N,): what epsilon bounds."""
    positions, tau, territory = (part.double() for part in geometry[:3])
    cells, left_out = lists.find(xyz), []
    for rows in torch.split(torch.arange(len(xyz), device=xyz.device), max(1, WEIGHTS_AT_ONCE // len(tau))):
        gaps = [x[rows].double()[:, None] - s for x, s in zip(xyz.T, positions.T, strict=True)]
        logits = territory - tau / 2 * (gaps[0].square() + gaps[1].square() + gaps[2].square())
        background = -math.inf if geometry.background is None else geometry.background
        weights = torch.softmax(torch.nn.functional.pad(logits, (0, 1), value=background), dim=-1)[:, :-1]
        lengths = lists.lengths[cells[rows]]
        listed = lists.sites[expand(lists.starts[cells[rows]], lengths)].long()
        weights[torch.repeat_interleave(lengths), listed] = 0
        left_out.append(weights.sum(-1))
    return torch.cat(left_out)


class SiteRule:
    """Which sites a cell needs, for `refine`."""

    def __init__(self, geometry: SiteGeometry, epsilon: float, slack: Slack, longest: int) -> None:
        self.log_epsilon, self.slack, self.longest = math.log(epsilon), slack, longest
        self.background = -math.inf if geometry.background is None else geometry.background
        positions, tau = geometry.positions.double(), geometry.sharpness.double()
        square, self.blunting = 1 + positions.square().sum(-1), math.exp(-2 * slack.log_sharpness)
        sharp = tau * math.exp(slack.log_sharpness)
        step = slack.shift / tau.sqrt()
        self.axes = positions.T.contiguous().unbind()
        self.square, self.sharp, self.pull = square, sharp, sharp * step
        """1 + |s|^2; the largest tau; what a metre of distance adds to the logit's uncertainty, tau times the shift."""
        self.low = geometry.territory.double() - slack.territory - sharp / 2 * (square + step.square())
        self.high = geometry.territory.double() + slack.territory - sharp * (self.blunting / 2) * square
        self.edges = (torch.arange(1 - BINS, 1, dtype=torch.float64, device=tau.device) * STEP).exp()
        """The upper end of each bin but the last, in units of epsilon."""

    def __call__(self, block: Block) -> Verdict:
        """Keep the sites of each cell until those left out fit into epsilon."""
        at_centre, bounds = self.bound(block)
        bins, (last, above), length = self.cut(block, bounds)
        done = length <= self.longest
        if bool(self.may_be_stuck(length, block.lengths).any()):
            done |= self.is_stuck(
                length, block.lengths, self.cut(block, at_centre)[2], block.tally(self.is_inside(block))
            )
        kept, passed_on = (bins >= least.index_select(0, block.cell) for least in (last, above))
        return Verdict(done, kept, passed_on)

    def may_be_stuck(self, length: Tensor, before: Tensor) -> Tensor:
        """Which cells' lists are too long and not even half as long as their parents', (C,)."""
        return (length > self.longest) & (2 * length > before)

    def is_stuck(self, length: Tensor, before: Tensor, needed: Tensor, inside: Tensor) -> Tensor:
        """Which cells are not worth quartering, (C,): little more is in their lists than their centres need.

        Unless many sites lie inside that are so sharp that most of the cell is far from them.
        """
        few_more = (length <= SPREAD * needed) & (SPREAD * (length - inside) >= length)
        return self.may_be_stuck(length, before) & few_more

    def cut(self, block: Block, bounds: Tensor) -> tuple[Tensor, list[Tensor], Tensor]:
        """The bin of each bound, (P,), each cell's first bin that a list keeps, and that is passed on; lists' lengths.

        What lies in the bins before adds up to at most the share of epsilon.
        """
        bins = ((bounds - self.log_epsilon) / STEP + BINS).clamp_(0, BINS).int()  # the last is kept whatever its size
        counts = block.histogram(bins, BINS + 1)[:, :-1]
        dropped = counts.mul(self.edges).cumsum(-1)
        first = [(dropped <= share).sum(-1, dtype=torch.int32) for share in (0.5, SHARE_ABOVE)]
        return bins, first, block.lengths - counts.mul_(dropped <= 0.5).sum(-1)

    def is_inside(self, block: Block) -> Tensor:
        """Which sites lie in the cell's cap and are so sharp that most of the cell is far from them, (P,).

        A cell with many is quartered even if its centre, far from all of them, needs as many sites as the whole cell.
        """
        radius = block.radii[block.cell]
        gap = block.centres[block.cell].T - torch.stack([axis[block.item] for axis in self.axes])
        return (gap.square().sum(0) < radius.square()) & (self.sharp[block.item] * radius.square() > SHARP)

    def bound(self, block: Block) -> tuple[Tensor, Tensor]:
        """Upper bounds of the logarithms of weights at the cells' centres, and all over the cells, (P,) each."""
        x, y, z = (axis.index_select(0, block.item) for axis in self.axes)
        sharp = self.sharp.index_select(0, block.item)
        low, high = self.low.index_select(0, block.item), self.high.index_select(0, block.item)
        centre = [axis.index_select(0, block.cell) for axis in block.centres.T.contiguous()]
        cosine = _dot((x, y, z), centre)
        low.addcmul_(sharp, cosine)
        high.addcmul_(sharp, cosine, value=self.blunting)
        if self.slack.shift:
            pull = self.pull.index_select(0, block.item)
            distance = (self.square.index_select(0, block.item) - 2 * cosine).clamp_(min=0).sqrt_()
            reach = distance.add_(block.radii.index_select(0, block.cell)).mul_(pull)
            low.sub_(reach)
            high.add_(reach, alpha=self.blunting)

        top = block.largest(low, self.background)
        share = low.sub_(top.index_select(0, block.cell)).exp_()
        total = block.total(share) + (self.background - top).exp()
        share.mul_(sharp)
        tangent = [block.total(share * axis) / total for axis in (x, y, z)]  # the slope of the log-sum, 3 times (C,)
        high.sub_((top + total.log() - MARGIN).index_select(0, block.cell))
        sharp.mul_(self.blunting)
        slope = [
            axis.mul_(sharp).sub_(mean.index_select(0, block.cell))
            for axis, mean in zip((x, y, z), tangent, strict=True)
        ]
        return high, high + _highest(slope, centre, block)


def _dot(a: Sequence[Tensor], b: Sequence[Tensor]) -> Tensor:
    return (a[0] * b[0]).addcmul_(a[1], b[1]).addcmul_(a[2], b[2])


def _highest(slope: list[Tensor], centre: list[Tensor], block: Block) -> Tensor:
    """The maximum of <slope, x - c> over the caps, (P,); `slope` is used up."""
    along = _dot(slope, centre)
    across = torch.zeros_like(along)
    for axis, part in zip(slope, centre, strict=True):
        across.add_(axis.addcmul_(along, part, value=-1).square_())
    across.sqrt_()
    sine, cosine = block.radii.sin().index_select(0, block.cell), block.radii.cos().index_select(0, block.cell)
    rim = (across * sine).sub_(along * (1 - cosine))
    # The cap's best place for a direction inside the cap is that direction, else the nearest one on its rim.
    inside = across.square() / (torch.hypot(across, along) + along)
    return torch.where(along * sine > across * cosine, inside, rim)
