"""The sites that matter in each cell of the sphere, with a bound on the weight of all others.

With affine logits l_k(x) = <a_k, x> + b_k, their log-sum L(x) is convex in x, so its tangent at a cell's centre c lies
below it everywhere: L(x) >= L(c) + <m, x - c>, m = sum_k w_k(c) a_k. Hence, for every x of the cell,

    log w_k(x) = l_k(x) - L(x) <= b_k - L(c) + <m, c> + max_x <a_k - m, x>,

and the maximum of a linear function over the cap around the cell has a closed form. Sites are dropped, the least
first, while their bounds add up to at most epsilon. Nothing is assumed of the sites: any mix of sharpness, any
territory, on the sphere or off it.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessearth.encoder import SoftVoronoi
from tessearth.sphere import DEPTH, CubeCells, cell_keys

EPSILON = 1e-6
"""The most that the weights of all sites left out may add up to, at any point."""
FINEST = 64
"""Cells per edge of a cube's face at the finest side; each coarser side is half the next finer one."""

NO_PART = -1e30
"""The logit of a site that takes no part: no weight, and no infinity in what is computed from it."""
BISECTIONS, SAMPLED_CELLS = 10, 24
CACHED_NUMBERS = 2**21
"""How many shares or bounds are held at once: 8 MB of float32 stay in a CPU's last cache."""


class AffineLogits(NamedTuple):
    """A tessellation's logits as an affine map of the position: l(x) = slopes x + offsets."""

    slopes: Tensor
    """tau_k s_k, (K, 3)."""
    offsets: Tensor
    """0, or territory - tau for decoupled logits, (K,)."""

    def at(self, xyz: Tensor) -> Tensor:
        """(N, 3) -> (N, K)."""
        return torch.addmm(self.offsets, xyz, self.slopes.T)

    def of(self, sites: Tensor) -> "AffineLogits":
        """The same for some of the sites."""
        return AffineLogits(self.slopes.index_select(0, sites), self.offsets.index_select(0, sites))


def read_logits(voronoi: SoftVoronoi) -> AffineLogits:
    """The affine map behind a tessellation's logits, in float64; a background is one more site, last."""
    sharpness = voronoi.log_sharpness.detach().double().exp()
    positions = voronoi.directions.detach().double()
    if voronoi.config.on_sphere:
        positions = torch.nn.functional.normalize(positions, dim=-1)
    slopes, offsets = positions * sharpness[:, None], torch.zeros_like(sharpness)
    if voronoi.config.logits != "paper":
        offsets = (voronoi.territory.detach().double() - sharpness).clamp(min=NO_PART)
    if voronoi.config.logits == "chord":
        # -tau / 2 |x - s|^2 = tau <x, s> - tau / 2 (1 + |s|^2)
        offsets = offsets + sharpness / 2 * (1 - positions.square().sum(-1))
    if voronoi.config.background is not None:
        slopes = torch.nn.functional.pad(slopes, (0, 0, 0, 1))
        offsets = torch.nn.functional.pad(offsets, (0, 1), value=voronoi.config.background)
    return AffineLogits(slopes, offsets)


def read_rows(voronoi: SoftVoronoi, *, cycles: bool = False) -> Tensor:
    """The embeddings of the sites of `read_logits`, (K, S), or all their numbers: those of the background are zero."""
    rows = voronoi.embeddings.detach()
    rows = rows if cycles or not voronoi.config.harmonics else rows[:, : voronoi.config.site_dim].contiguous()
    return rows if voronoi.config.background is None else torch.nn.functional.pad(rows, (0, 0, 0, 1))


def bound_weights(logits: AffineLogits, centres: Tensor, radii: Tensor) -> Tensor:
    """Upper bounds of every site's weight within caps, (M, K), from centres (M, 3) and radii (M,) in radians."""
    at_centre = logits.at(centres)
    log_sum = at_centre.logsumexp(dim=-1, keepdim=True)
    tangent = torch.softmax(at_centre, dim=-1) @ logits.slopes  # m, (M, 3)
    at_tangent = (tangent * centres).sum(-1, keepdim=True)  # <m, c>
    along = at_centre - logits.offsets - at_tangent  # <a_k - m, c>
    square = (logits.slopes.square().sum(-1) - 2 * tangent @ logits.slopes.T).add_(tangent.square().sum(-1, True))
    length = square.clamp_(min=0).sqrt()
    across = (length - along).clamp_(min=0).mul_((length + along).clamp_(min=0)).sqrt_()
    cosine, sine = radii.cos()[:, None], radii.sin()[:, None]
    # The cap's best point for a direction inside the cap is that direction, else the nearest one on its rim.
    highest = torch.where(along >= length * cosine, length, along * cosine + across * sine)
    return highest.add_(logits.offsets + at_tangent - log_sum).exp_().clamp_(max=1)


def keep_sites(bounds: Tensor, epsilon: float) -> Tensor:
    """Which sites stay, (M, K) bounds -> (M, K): the bounds of those left out add up to at most epsilon.

    Bisection finds a threshold per cell. The lower end always holds: K sites of epsilon / K add up to epsilon.
    """
    low = bounds.new_full((len(bounds), 1), math.log(epsilon / bounds.shape[1]))
    high = torch.full_like(low, math.log(2 * epsilon))
    for _ in range(BISECTIONS):
        middle = (low + high) / 2
        dropped = torch.where(bounds <= middle.exp(), bounds, 0).sum(-1, keepdim=True)
        fits = dropped <= epsilon
        low, high = torch.where(fits, middle, low), torch.where(fits, high, middle)
    return bounds > low.exp()


class SiteLists:
    """For cells of one size, the sites that can matter in each; a list is made when its cell is first met."""

    def __init__(self, logits: AffineLogits, side: int, epsilon: float = EPSILON) -> None:
        self.logits, self.epsilon, self.cells = logits, epsilon, CubeCells(side)
        self.known = torch.zeros(self.cells.count, dtype=torch.bool)
        self._lists: dict[int, Tensor] = {}
        count = self.cells.count
        sample = torch.linspace(0, count - 1, min(SAMPLED_CELLS, count), dtype=torch.float64).long()
        self.prepare(sample)
        self.expected = sum(len(self[cell]) for cell in sample.tolist()) / len(sample)
        """The mean length of a list, from a sample of cells."""

    def prepare(self, cells: Tensor) -> None:
        """Make the lists of these cells, (M,), that are not known yet."""
        wanted = cells[~self.known[cells]]
        for block in torch.split(wanted, max(1, CACHED_NUMBERS // len(self.logits.offsets))):
            kept = keep_sites(bound_weights(self.logits, *self.cells.caps(block)), self.epsilon)
            sites = torch.split(kept.nonzero()[:, 1].int(), kept.sum(-1).tolist())
            self._lists.update(zip(block.tolist(), (part.clone() for part in sites), strict=True))
        self.known[wanted] = True

    def __getitem__(self, cell: int) -> Tensor:
        """The sites of a prepared cell, whole numbers in rising order."""
        return self._lists[cell]


EMPTY = torch.zeros(0, dtype=torch.int64)


class SortedPlaces(NamedTuple):
    """Places sorted by finest cell, along a curve that fills each coarser cell before the next."""

    order: Tensor
    """The index of each place before sorting, (N,)."""
    fine: Tensor
    """The rank of each place's finest cell along the curve, rising, (N,)."""
    keys: Tensor = EMPTY
    """The key of each place as `sphere.cell_keys` gives it, rising, (N,), where places are sorted by it."""

    def part(self, rows: slice) -> "SortedPlaces":
        """Some of the places."""
        return SortedPlaces(self.order[rows], self.fine[rows], self.keys[rows])

    def count_cells(self, side: int) -> int:
        """How many cells of a coarser side hold places."""
        return len(torch.unique_consecutive(self.fine // fine_per_cell(side)))


def sort_places(xyz: Tensor) -> SortedPlaces:
    """Sort directions, (N, 3) on the CPU, along the curve; within a finest cell by their coordinates.

    The order of the input therefore changes neither this order nor the last bit of an embedding.
    """
    ranks = _ranks()[CubeCells(FINEST).find(xyz).numpy()]
    order = np.lexsort((*xyz.T.numpy(), ranks))
    return SortedPlaces(torch.from_numpy(order), torch.from_numpy(ranks[order].astype(np.int64)))


def sort_by_key(xyz: Tensor) -> SortedPlaces:
    """Sort directions, (N, 3) on the CPU, along the curve through the smallest cells; within one by their coordinates.

    The order of the input changes neither this order nor the last bit of an embedding.
    """
    unsorted = cell_keys(xyz)
    keys, order = unsorted.sort(stable=True)
    if bool((keys[1:] == keys[:-1]).any()):
        order = torch.from_numpy(np.lexsort((*xyz.T.numpy(), unsorted.numpy())))
        keys = unsorted[order]
    return SortedPlaces(order, keys >> 2 * (DEPTH - FINEST.bit_length() + 1), keys)


def fine_per_cell(side: int) -> int:
    """How many finest cells one of a coarser side holds."""
    return (FINEST // side) ** 2


@functools.cache
def cells_along_curve(side: int) -> Tensor:
    """The numbers in `CubeCells(side)` of the cells along the curve, (6 side^2,)."""
    step = torch.arange(side)
    rank = _interleave(step)[:, None] * 2 + _interleave(step)  # (side, side)
    return torch.cat([face * side**2 + rank.flatten().argsort() for face in range(6)])


@functools.cache
def _ranks() -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """The rank of each finest cell along the curve, in sixteen bits, which numpy sorts by counting."""
    return np.argsort(cells_along_curve(FINEST).numpy()).astype(np.int16)


def _interleave(numbers: Tensor) -> Tensor:
    """Bits spread apart: bit b goes to bit 2 b."""
    return sum((((numbers >> bit) & 1) << (2 * bit) for bit in range(8)), torch.zeros_like(numbers))
