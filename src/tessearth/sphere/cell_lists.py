"""Cells of the sphere, as fine as needed, each with a list of what matters in it."""

import itertools
from collections.abc import Callable, Iterator
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.sphere.geometry import DEPTH, CubeCells, cell_keys

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
        return self.at(cell_keys(xyz))

    def at(self, keys: Tensor) -> Tensor:
        """The cell that holds each key of `cell_keys`, (N,) -> (N,)."""
        return torch.searchsorted(self.keys, keys, right=True) - 1

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
        return torch.zeros_like(self.lengths, dtype=torch.int32).scatter_add_(0, self.cell, chosen.int())

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
def refine(items: Tensor, rule: Rule, depth: int = DEPTH, *, within: tuple[int, int] | None = None) -> CellLists:
    """Quarter the six faces of a cube until a rule is content with every cell, at most `depth` times.

    Quarters look only at the items that their cell passed on. `items` are whole numbers, (K,), which the rule
    understands; they lie where the work is done. `within`, a depth and a key, begins with that cell alone.
    """
    items = items.int()
    first, key = within or (0, 0)
    roots = torch.arange(key, key + 1 if within else 6, device=items.device)
    todo, leaves = _Ragged(roots, torch.full_like(roots, len(items)), items.repeat(len(roots))), []
    for level in range(first, depth + 1):
        onward = []
        for block in _blocks(todo, level, 1 if level == first else 4):
            verdict = rule(block)
            done = verdict.done if level < depth else torch.ones_like(verdict.done)
            if bool(done.any()):
                leaf = _select(block, done, verdict.kept)
                leaves.append(leaf._replace(keys=leaf.keys << 2 * (DEPTH - level)))
            if not bool(done.all()):
                onward.append(_select(block, ~done, verdict.passed_on))
        if not onward:
            break
        todo = _join(onward)
    found = _take(leaf := _join(leaves), leaf.keys.argsort())
    return CellLists(found.keys, _starts(found.lengths), found.items)


def _blocks(parents: _Ragged, level: int, quarters: int) -> Iterator[Block]:
    """The cells of a level, whose lists are those of their parents, in blocks of bounded size."""
    most = PAIRS_ON_GPU if parents.items.is_cuda else PAIRS_ON_CPU
    ends = parents.lengths.repeat_interleave(quarters).cumsum(0)
    marks = torch.searchsorted(ends, torch.arange(0, int(ends[-1]) + most, most, device=ends.device)).tolist()
    for first, last in itertools.pairwise([0, *sorted(set(marks) - {0, len(ends)}), len(ends)]):
        rows = torch.arange(first, last, device=ends.device)
        part = _take(parents, rows // quarters)
        keys, cells = part.keys * quarters + rows % quarters, CubeCells(2**level)
        cell = torch.repeat_interleave(part.lengths, output_size=len(part.items))
        yield Block(level, keys, *cells.caps(cells.of_keys(keys)), part.lengths, cell, part.items)


def _select(block: Block, cells: Tensor, pairs: Tensor) -> _Ragged:
    """Some of a block's cells with some of their pairs."""
    pairs = pairs & cells[block.cell]
    return _Ragged(block.keys[cells], block.tally(pairs)[cells].long(), block.item[pairs])


def _take(lists: _Ragged, rows: Tensor) -> _Ragged:
    """Lists in another order, or several times."""
    lengths = lists.lengths[rows]
    return _Ragged(lists.keys[rows], lengths, lists.items[expand(_starts(lists.lengths)[rows], lengths)])


def expand(starts: Tensor, lengths: Tensor) -> Tensor:
    """The numbers from each start on, (C,) and (C,) lengths -> (sum of lengths,)."""
    ends = lengths.cumsum(0)
    count = int(ends[-1]) if len(ends) else 0
    return torch.arange(count, device=ends.device).add_(
        (starts - ends + lengths).repeat_interleave(lengths, output_size=count)
    )


def _join(parts: list[_Ragged]) -> _Ragged:
    return _Ragged(*(torch.cat(part) for part in zip(*parts, strict=True)))


def _starts(lengths: Tensor) -> Tensor:
    """Where lists of these lengths start, and where the last ends, (C,) -> (C + 1,)."""
    return torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
