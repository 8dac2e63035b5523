"""The spacing of points on the sphere: how far each is from its nearest neighbours."""

import math
from collections.abc import Iterator
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from tessearth.packages import has_kernels
from tessearth.sphere.cell_lists import Block, CellLists, Verdict, expand, refine
from tessearth.sphere.geometry import DEPTH, CubeCells

if TYPE_CHECKING:
    from tessearth.sphere.cell_kernels import Candidates, Marks

LONGEST = 96
"""A cell with more candidates than this is quartered, unless the neighbours of its points are far beyond it."""
DISTANCES_ON_CPU, DISTANCES_ON_GPU = 2**18, 2**24
"""Distances held at once."""


@torch.no_grad()
def mean_chord(points: Tensor, neighbours: int, alive: Tensor | None = None) -> Tensor:
    """The mean chord from each unit vector to its nearest others, (K, 3) -> (K,).

    Points that are not `alive`, (K,), are nobody's neighbours, and 2 from everything themselves, as are lonely points.
    """
    present = torch.arange(len(points), device=points.device) if alive is None else alive.nonzero()[:, 0]
    chords = points.new_full((len(points),), 2.0)
    neighbours = min(neighbours, len(present) - 1)
    if neighbours > 0:
        points = points[present]
        everyone = torch.arange(len(points), device=points.device)
        chords[present] = _measure(points, _list(everyone, _NeighbourRule(points, neighbours)), neighbours)
    return chords


def _list(items: Tensor, rule: "_NeighbourRule") -> CellLists:
    if items.is_cuda and has_kernels(items.device):
        from tessearth.sphere.cell_kernels import refine_by_kernels  # brings Triton in

        return refine_by_kernels(items, rule.judge)
    return refine(items, rule)


class _NeighbourRule:
    """Which points may be among the nearest of some point in a cell, for `refine`."""

    def __init__(self, points: Tensor, neighbours: int) -> None:
        self.points = points.double().contiguous()
        self.axes = self.points.T.contiguous()
        cells = CubeCells(2**DEPTH)
        self.keys, order = cells.keys(cells.find(points)).sort()
        self.farthest = _bound_chord(points[order].double(), neighbours)
        """No farther are the nearest neighbours of each point, in the order of `keys`."""

    def __call__(self, block: Block) -> Verdict:
        """A neighbour of a point in the cap is at most a radius farther from the centre than from the point."""
        within, is_far = self.reach(block.depth, block.keys, block.radii)
        square = torch.zeros(len(block.item), dtype=torch.float64, device=within.device)
        for point, centre in zip(self.axes, block.centres.T.contiguous(), strict=True):
            square.add_((point.index_select(0, block.item) - centre.index_select(0, block.cell)).square_())
        kept = square <= within.index_select(0, block.cell)
        return Verdict((block.tally(kept) <= LONGEST) | is_far, kept, kept)

    def judge(self, level: "Candidates", marks: Tensor) -> "Marks":
        """The same for all cells of a level, by a kernel."""
        within, is_far = self.reach(level.depth, level.keys, level.radii)
        from tessearth.sphere.cell_kernels import Marks, mark_near  # brings Triton in

        kept = mark_near(level, self.points, within, marks)
        asked = torch.ones_like(kept)
        return Marks(marks, (asked, kept), (asked, kept), (kept <= LONGEST) | is_far)

    def reach(self, depth: int, keys: Tensor, radii: Tensor) -> tuple[Tensor, Tensor]:
        """The square of how far from a cell's centre neighbours of its points lie, and whether far beyond it, (C,)."""
        starts, ends = (torch.searchsorted(self.keys, key << 2 * (DEPTH - depth)) for key in (keys, keys + 1))
        own, radius = ends - starts, 2 * torch.sin(radii / 2)
        chords = self.farthest[expand(starts, own)]
        farthest, least = (
            torch.segment_reduce(chords, reduce, lengths=own, unsafe=True, initial=initial)
            for reduce, initial in (("max", -math.inf), ("min", math.inf))
        )
        return (radius + farthest).clamp_min(0).square(), least > 4 * radius  # nothing, and far, where no point is


def _bound_chord(points: Tensor, neighbours: int) -> Tensor:
    """An upper bound of the chord to the last of the nearest, (K,): that to as many before and after along a curve."""
    around = [shift for shift in range(-neighbours, neighbours + 1) if shift]
    shifts = around if len(points) > len(around) else range(1, len(points))  # each other point once
    chords = torch.stack([(points - points.roll(shift, 0)).square().sum(-1) for shift in shifts])
    return chords.kthvalue(neighbours, dim=0).values.sqrt()


def _measure(points: Tensor, lists: CellLists, neighbours: int) -> Tensor:
    """The mean chord from each point to its nearest among the candidates of its cell."""
    cell = lists.find(points)
    lengths, order = lists.lengths[cell].sort()
    chords = points.new_empty(len(points))
    for rows, longest in _blocks(order, lengths, DISTANCES_ON_GPU if points.is_cuda else DISTANCES_ON_CPU):
        own, starts, count = points[rows], lists.starts[cell[rows]], lists.lengths[cell[rows]]
        column = torch.arange(longest, device=points.device)
        sites = lists.sites[(starts[:, None] + column).clamp_(max=len(lists.sites) - 1)]
        gaps = (points[sites] - own[:, None]).square_().sum(-1).sqrt_()
        gaps.masked_fill_(column >= count[:, None], 2.0)
        chords[rows] = gaps.topk(neighbours + 1, largest=False).values[:, 1:].mean(-1)  # itself first
    return chords


def _blocks(order: Tensor, lengths: Tensor, most: int) -> Iterator[tuple[Tensor, int]]:
    """Rows by rising length of their lists, in blocks of at most so many numbers, with the longest list of each."""
    longest = int(lengths[-1])
    first, ceiling = 0, min(longest, 8)
    while first < len(order):
        last = int(torch.searchsorted(lengths, ceiling, right=True))
        for rows in torch.split(order[first:last], max(1, most // ceiling)) if last > first else ():
            yield rows, ceiling
        first, ceiling = last, min(longest, 2 * ceiling)
