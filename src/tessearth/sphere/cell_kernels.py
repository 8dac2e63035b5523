# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803
"""Adaptive cells on a GPU: what `cell_lists.refine` does, a level at a time, by one program for each cell.

A level takes two kernels, one that judges each cell's candidates (a rule of its own: `encoder.list_kernels` has that of
sites) and one that gathers what stays, where the plain path takes some hundred steps over pairs of cell and item.
"""

from collections.abc import Callable
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.sphere.cell_lists import CellLists, expand
from tessearth.sphere.geometry import DEPTH, CubeCells

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

FIRST_DEPTH = 2
"""Where the work begins: with 96 cells, since fewer leave most of a GPU without work."""
PICKED_AT_ONCE = 256


class Candidates(NamedTuple):
    """Cells of one level, whose lists are those of their parents: several cells share a list."""

    depth: int
    keys: Tensor
    """(C,)."""
    centres: Tensor
    """Of caps around the cells, (C, 3) in float64."""
    radii: Tensor
    """(C,), in radians."""
    starts: Tensor
    """Where each cell's list starts in `items`, (C,)."""
    lengths: Tensor
    """(C,)."""
    items: Tensor
    marked: Tensor
    """Where each cell's marks start, (C,)."""


class Marks(NamedTuple):
    """What a rule says of the cells of a level."""

    marks: Tensor
    """A number for each cell's candidates, (P,) int8: those stay that have at least as much as the cell asks for."""
    kept: tuple[Tensor, Tensor]
    """What a cell asks for that is done, and how many candidates then stay, (C,) each."""
    passed_on: tuple[Tensor, Tensor]
    """The same for a cell that is quartered."""
    done: Tensor
    """(C,)."""


Judge = Callable[[Candidates, Tensor], Marks]
"""Fills marks, (P,), for candidates."""


if triton is not None:

    @triton.jit
    def _pick(items, starts, lengths, marked, marks, asked, to, out, CHUNK: tl.constexpr):
        cell = tl.program_id(0).to(tl.int64)
        base, length, own = tl.load(starts + cell), tl.load(lengths + cell), tl.load(marked + cell)
        least, place = tl.load(asked + cell), tl.load(to + cell)
        first = length * 0
        while first < length:  # no `for`: the interpreter cannot count up to a tensor
            number = first + tl.arange(0, CHUNK)
            listed = number < length
            stays = listed & (tl.load(marks + own + number, mask=listed, other=-1) >= least)
            before = tl.cumsum(stays.to(tl.int64), axis=0) - 1
            tl.store(out + place + before, tl.load(items + base + number, mask=stays, other=0), mask=stays)
            place += tl.sum(stays.to(tl.int64), axis=0)
            first += CHUNK

    @triton.jit
    def _mark_near(items, starts, lengths, marked, points, centres, within, marks, kept, CHUNK: tl.constexpr):
        cell = tl.program_id(0).to(tl.int64)
        base, length, own = tl.load(starts + cell), tl.load(lengths + cell), tl.load(marked + cell)
        x, y, z = tl.load(centres + 3 * cell), tl.load(centres + 3 * cell + 1), tl.load(centres + 3 * cell + 2)
        most = tl.load(within + cell)
        near = tl.zeros((CHUNK,), tl.int64)
        first = length * 0
        while first < length:
            number = first + tl.arange(0, CHUNK)
            listed = number < length
            row = points + 3 * tl.load(items + base + number, mask=listed, other=0).to(tl.int64)
            a = x - tl.load(row, mask=listed, other=0.0)
            b = y - tl.load(row + 1, mask=listed, other=0.0)
            c = z - tl.load(row + 2, mask=listed, other=0.0)
            stays = listed & (a * a + b * b + c * c <= most)
            tl.store(marks + own + number, stays.to(tl.int8), mask=listed)
            near += stays.to(tl.int64)
            first += CHUNK
        tl.store(kept + cell, tl.sum(near, axis=0))


def mark_near(level: Candidates, points: Tensor, within: Tensor, marks: Tensor) -> Tensor:
    """Mark candidates, (K, 3) in float64, no farther from their cell's centre than the root of `within`; count them."""
    kept = torch.empty_like(level.lengths)
    _mark_near[(len(kept),)](
        level.items, level.starts, level.lengths, level.marked, points, level.centres.contiguous(), within, marks, kept,
        CHUNK=PICKED_AT_ONCE,
    )  # fmt: skip
    return kept


@torch.no_grad()
def refine_by_kernels(items: Tensor, judge: Judge, *, within: tuple[int, int] | None = None) -> CellLists:
    """`refine` with a rule that judges all cells of a level at once."""
    depth, key = within or (FIRST_DEPTH, 0)
    quarters = 1 if within else 6 * 4**depth
    whole = torch.tensor([len(items)], device=items.device)
    todo, leaves = (torch.full_like(whole, key), torch.zeros_like(whole), whole, items.int()), []
    while True:
        level = _quarter(*todo, depth, quarters)
        marks = judge(level, torch.empty(int(level.lengths.sum()), dtype=torch.int8, device=items.device))
        done = marks.done if depth < DEPTH else torch.ones_like(marks.done)
        asked, count = (torch.where(done, *choice) for choice in zip(marks.kept, marks.passed_on, strict=True))
        to = count.cumsum(0) - count
        picked = torch.empty(int(count.sum()), dtype=torch.int32, device=items.device)
        _pick[(len(done),)](
            level.items, level.starts, level.lengths, level.marked, marks.marks, asked, to, picked, CHUNK=PICKED_AT_ONCE
        )
        leaf, onward = done.nonzero()[:, 0], (~done).nonzero()[:, 0]
        leaves.append((level.keys[leaf] << 2 * (DEPTH - depth), to[leaf], count[leaf], picked))
        todo = (level.keys[onward], to[onward], count[onward], picked)
        if not len(todo[0]):
            return _join(leaves)
        depth, quarters = depth + 1, 4


def _quarter(keys: Tensor, starts: Tensor, lengths: Tensor, items: Tensor, depth: int, quarters: int) -> Candidates:
    """The cells of a level from their parents."""
    number = torch.arange(quarters, device=keys.device)
    keys = (keys[:, None] * quarters + number).flatten()
    starts, lengths = starts.repeat_interleave(quarters), lengths.repeat_interleave(quarters)
    cells = CubeCells(2**depth)
    centres, radii = cells.caps(cells.of_keys(keys))
    return Candidates(depth, keys, centres, radii, starts, lengths, items, lengths.cumsum(0) - lengths)


def _join(leaves: list[tuple[Tensor, Tensor, Tensor, Tensor]]) -> CellLists:
    """The cells of all levels in the order of their keys."""
    keys, starts, lengths, items = zip(*leaves, strict=True)
    sizes = [0, *(len(part) for part in items[:-1])]
    shifted = [part + sum(sizes[: i + 1]) for i, part in enumerate(starts)]
    order = torch.cat(keys).argsort()
    length = torch.cat(lengths)[order]
    sites = torch.cat(items)[expand(torch.cat(shifted)[order], length)]
    return CellLists(torch.cat(keys)[order], torch.nn.functional.pad(length.cumsum(0), (1, 0)), sites)
