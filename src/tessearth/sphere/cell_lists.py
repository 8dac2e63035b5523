"""Cells of the sphere, as fine as needed, each with a list of what matters in it."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.sphere.cube_cells import CubeCells

DEPTH = 16
"""How often a face of the cube is quartered at most: its finest cells are 150 m wide."""
PAIRS_ON_CPU, PAIRS_ON_GPU = 2**17, 2**23
"""Pairs of cell and item judged at once: what a CPU's cache, and a GPU's memory, hold."""


class CellLists(NamedTuple):
    """Cells that cover the sphere without overlap, each with a list of sites."""

    keys: Tensor
    """The first key of each cell at the finest depth, (C,) int64, rising; the first is 0."""
    starts: Tensor
    """Where each cell's list starts in `sites`, (C + 1,) int64."""
    sites: Tensor
    """The lists one after another, (M,) int32, rising within a list."""

    def find(self, xyz: Tensor) -> Tensor:
        """The cell that each direction lies in, (N, 3) -> (N,)."""
        cells = CubeCells(2**DEPTH)
        return torch.searchsorted(self.keys, cells.keys(cells.find(xyz)), right=True) - 1

    @property
    def lengths(self) -> Tensor:
        """The length of each list, (C,)."""
        return self.starts.diff()


class Block(NamedTuple):
    """Cells of one depth with the items that may matter in them, as pairs of cell and item."""

    depth: int
    keys: Tensor
    """The cells' keys at their depth, (C,)."""
    centres: Tensor
    """Of caps around the cells, (C, 3) in float64."""
    radii: Tensor
    """(C,), in radians."""
    lengths: Tensor
    """How many pairs each cell has, (C,)."""
    cell: Tensor
    """The row of each pair's cell, (P,), rising."""
    item: Tensor
    """(P,)."""

    def total(self, values: Tensor) -> Tensor:
        """Sums over each cell's pairs, (P,) -> (C,), the same bits on every run."""
        return torch.segment_reduce(values, "sum", lengths=self.lengths, unsafe=True, initial=0)

    def largest(self, values: Tensor, least: float) -> Tensor:
        """The largest value, and at least `least`, of each cell's pairs, (P,) -> (C,)."""
        return torch.segment_reduce(values, "max", lengths=self.lengths, unsafe=True, initial=least)

    def tally(self, chosen: Tensor) -> Tensor:
        """How many of each cell's pairs are chosen, (P,) -> (C,)."""
        return torch.zeros_like(self.lengths).index_add_(0, self.cell, chosen.long())

    def histogram(self, place: Tensor, count: int) -> Tensor:
        """How many of each cell's pairs lie in each of some bins, (P,) numbers of bins -> (C, count)."""
        slots = torch.zeros(len(self.keys) * count, dtype=torch.int32, device=place.device)
        ones = torch.ones((), dtype=torch.int32, device=place.device).expand(len(place))
        return slots.scatter_add_(0, self.cell * count + place, ones).view(-1, count)


class Verdict(NamedTuple):
    """What a rule says of a block."""

    done: Tensor
    """Which cells need no quartering, (C,)."""
    kept: Tensor
    """Which pairs are in the list of a cell that is done, (P,)."""
    passed_on: Tensor
    """Which pairs the quarters of a cell that is not done are to look at, (P,)."""


Rule = Callable[[Block], Verdict]


class _Ragged(NamedTuple):
    """Keys, each with a list of items."""

    keys: Tensor
    lengths: Tensor
    items: Tensor


@torch.no_grad()
def refine(items: Tensor, rule: Rule, depth: int = DEPTH) -> CellLists:
    """Quarter the six faces of a cube until a rule is content with every cell, at most `depth` times.

    Quarters look only at the items that their cell passed on. `items` are whole numbers, (K,), which the rule
    understands; they lie where the work is done.
    """
    items = items.int()
    faces = torch.arange(6, device=items.device)
    todo, leaves = _Ragged(faces, torch.full_like(faces, len(items)), items.repeat(6)), []
    for level in range(depth + 1):
        onward = []
        for block in _blocks(todo, level):
            verdict = rule(block)
            done = verdict.done if level < depth else torch.ones_like(verdict.done)
            leaf = _select(block, done, verdict.kept)
            leaves.append(leaf._replace(keys=leaf.keys << 2 * (DEPTH - level)))
            onward.append(_select(block, ~done, verdict.passed_on))
        todo = _join(onward)
        if not len(todo.keys):
            break
    found = _take(leaf := _join(leaves), leaf.keys.argsort())
    return CellLists(found.keys, _starts(found.lengths), found.items)


def _blocks(parents: _Ragged, level: int) -> Iterator[Block]:
    """The cells of a level, whose lists are those of their parents, in blocks of bounded size."""
    most, quarters = PAIRS_ON_GPU if parents.items.is_cuda else PAIRS_ON_CPU, 1 if level == 0 else 4
    ends = parents.lengths.cumsum(0) * quarters
    marks = torch.searchsorted(ends, torch.arange(0, int(ends[-1]) + most, most, device=ends.device)).tolist()
    for first, last in itertools.pairwise([0, *sorted(set(marks) - {0, len(ends)}), len(ends)]):
        rows = torch.arange(first, last, device=ends.device).repeat_interleave(quarters)
        part = _take(parents, rows)
        keys = part.keys if level == 0 else 4 * part.keys + torch.arange(4, device=ends.device).repeat(last - first)
        cells = CubeCells(2**level)
        cell = torch.repeat_interleave(part.lengths, output_size=len(part.items))
        yield Block(level, keys, *cells.caps(cells.of_keys(keys)), part.lengths, cell, part.items)


def _select(block: Block, cells: Tensor, pairs: Tensor) -> _Ragged:
    """Some of a block's cells with some of their pairs."""
    pairs = pairs & cells[block.cell]
    return _Ragged(block.keys[cells], block.tally(pairs)[cells], block.item[pairs])


def _take(lists: _Ragged, rows: Tensor) -> _Ragged:
    """Lists in another order, or several times."""
    lengths = lists.lengths[rows]
    ends = lengths.cumsum(0)
    shift = _starts(lists.lengths)[rows] - ends + lengths
    count = int(ends[-1]) if len(ends) else 0
    places = torch.arange(count, device=rows.device) + shift.repeat_interleave(lengths, output_size=count)
    return _Ragged(lists.keys[rows], lengths, lists.items[places])


def _join(parts: list[_Ragged]) -> _Ragged:
    return _Ragged(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _starts(lengths: Tensor) -> Tensor:
    """Where lists of these lengths start, and where the last ends, (C,) -> (C + 1,)."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
