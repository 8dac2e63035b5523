"""Series with the sites' rows multiplied in: made when a cell is first met, and kept while there is room."""

import math
import threading
from collections import OrderedDict
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON, AffineLogits, CubeCells, bound_weights, keep_sites
from tessearth.embedding.fast.grouping import FINEST, cells_along_curve, fine_per_cell
from tessearth.embedding.fast.series import MOST_DEGREE, Charts, build_charts, evaluate_terms, expand, series_degree

TABLE_BYTES = 2**30
"""The most that one tessellation's tables may take; the least lately used are dropped and made again when needed."""

COARSE = 4
"""Cells per edge of a cube's face that sites are sought in first."""
COARSE_SHARE = 1 / 16
"""How much of epsilon that may leave out."""

CHANGES = threading.RLock()
"""Held while what is kept changes: blocks are embedded by several threads, and making a table twice does no harm."""

SAMPLED_CELLS = 8
UNKNOWN, WITHOUT_SERIES = -1, -2


class CellTable(NamedTuple):
    """A cell's series."""

    rows: Tensor
    """(terms, W): what the terms add to the sum above; the terms of one row side by side in memory."""
    total: Tensor
    """(terms,): and to the sum below."""


class Frame(NamedTuple):
    """What turns a place into the terms of a leaf, on the CPU."""

    across: Tensor
    """(2, 3)."""
    half: Tensor
    """(2,)."""
    total: Tensor
    """The table's, with zeros up to the longest series there may be."""


class Leaf(NamedTuple):
    """A cell that has a series."""

    side: int
    position: int
    """Along the curve."""


class Sample(NamedTuple):
    """What a few places tell of all cells."""

    terms: float
    """How long the series of a place is on average."""
    all_terms: float
    """How long all series of the sphere are together."""
    share: float
    """For which share of the sphere there is one."""
    side: int
    """Of a leaf of the average size."""


class CellTables:
    """Series for cells of one size, and for smaller ones within those that are too sharp to have one.

    `rows` are the sites' own (K, S), `onwards` the map (W, S) behind their mixture: folded into the tables while those
    of the whole sphere find room, and left to the caller (`is_folded` False) when only the narrower ones do.
    """

    def __init__(
        self,
        logits: AffineLogits,
        rows: Tensor,
        onwards: Tensor,
        side: int,
        *,
        epsilon: float = EPSILON,
        most_degree: int = MOST_DEGREE,
        room: int | None = None,
    ) -> None:
        """Everything is made where `logits`, `rows` and `onwards` lie; `room` is in bytes, `TABLE_BYTES` by default."""
        self.logits, self.rows, self.onwards, self.side = logits, rows, onwards, side
        self.epsilon, self.most_degree, self.room = epsilon, most_degree, room
        self.leaf_of = torch.full((6 * FINEST**2,), UNKNOWN, dtype=torch.long)
        """The leaf that each finest cell lies in."""
        self.leaves: list[Leaf] = []
        self._divided: set[tuple[int, int]] = set()
        self._frames: list[Frame] = []
        self._stacked: Frame | None = None
        self._tables: OrderedDict[int, CellTable] = OrderedDict()
        self._bytes = 0
        self._near: dict[int, Tensor] = {}
        self.is_folded = True
        self.sample = self._sample()
        self.is_folded = self._size_of_all(len(onwards)) <= self.space
        self._tables.clear()
        self._bytes = 0

    def find(self, fine: Tensor) -> Tensor:
        """The leaf of each place from its finest cell, (N,) -> (N,); below 0 where there is no series."""
        leaves = self.leaf_of[fine]
        unknown = torch.unique_consecutive(fine[leaves == UNKNOWN])
        for cell in unknown.tolist():
            if self.leaf_of[cell] == UNKNOWN:
                self._search(cell)
        return self.leaf_of[fine] if len(unknown) else leaves

    def frames(self) -> Frame:
        """Those of all leaves found so far, (L, ...) each."""
        with CHANGES:
            if self._stacked is None or len(self._stacked.half) < len(self._frames):
                self._stacked = Frame(*(torch.stack(parts) for parts in zip(*self._frames, strict=True)))
            return self._stacked

    def terms(self, xyz: Tensor, leaves: Tensor, count: int) -> Tensor:
        """The first terms of places in their leaves, each divided by the sum below, (N, 3), (N,) -> (count, N)."""
        across, half, total = (part.index_select(0, leaves) for part in self.frames())
        flat = torch.einsum("nax,nx->an", across, xyz).div_(half.T).clamp_(-1, 1)
        terms = evaluate_terms(flat, series_degree(count))
        return terms.div_((terms * total[:, :count].T).sum(0))

    def table(self, leaf: int) -> CellTable:
        """A leaf's table."""
        with CHANGES:
            if leaf in self._tables:
                self._tables.move_to_end(leaf)
                return self._tables[leaf]
        side, position = self.leaves[leaf]
        made = self._make(side, position)
        if made is None:
            raise AssertionError("a cell that had a series has none")
        return self._keep(leaf, made[1])

    @property
    def width(self) -> int:
        """How wide the tables' rows are."""
        return len(self.onwards) if self.is_folded else self.rows.shape[1]

    @property
    def space(self) -> int:
        """How many bytes of tables are kept."""
        return TABLE_BYTES if self.room is None else self.room

    @property
    def fits(self) -> bool:
        """Whether the tables of the whole sphere find room, roughly."""
        return self._size_of_all(self.width) <= self.space

    def _size_of_all(self, width: int) -> float:
        return 4.0 * self.sample.all_terms * width

    def _search(self, cell: int) -> None:
        """Find the largest cell around a finest one that has a series."""
        side = self.side
        while side <= FINEST:
            position, size = cell // fine_per_cell(side), fine_per_cell(side)
            made = None if (side, position) in self._divided else self._make(side, position)
            within = slice(position * size, (position + 1) * size)
            if made is not None:
                self._add(Leaf(side, position), within, *made)
                return
            self._divided.add((side, position))
            side *= 2
        self.leaf_of[within] = WITHOUT_SERIES

    def _add(self, leaf: Leaf, within: slice, chart: Charts, table: CellTable) -> None:
        most = (self.most_degree + 1) * (self.most_degree + 2) // 2
        total = torch.nn.functional.pad(table.total.cpu(), (0, most - len(table.total)))
        frame = Frame(chart.across[0].float(), chart.half[0].float(), total)
        with CHANGES:
            if self.leaf_of[within.start] != UNKNOWN:  # another thread made the same one meanwhile
                return
            self._frames.append(frame)
            self._keep(len(self.leaves), table)
            self.leaves.append(leaf)
            self.leaf_of[within] = len(self.leaves) - 1

    def _make(self, side: int, position: int) -> tuple[Charts, CellTable] | None:
        chart = build_charts(CubeCells(side), cells_along_curve(side)[position : position + 1])
        near = self._near_sites(position // (side // COARSE) ** 2)
        series = expand(self.logits.of(near), chart, 0, (1 - COARSE_SHARE) * self.epsilon, self.most_degree)
        if series is None:
            return None
        rows = series.coefficients.float() @ self.rows.index_select(0, near[series.sites])
        across = self.onwards @ rows.T if self.is_folded else rows.T.contiguous()
        return chart, CellTable(across.T, series.coefficients.sum(1).float())

    def _near_sites(self, position: int) -> Tensor:
        """The sites that can matter somewhere in a coarse cell, so that the cells in it look at these alone."""
        if position not in self._near:
            centre, radius = CubeCells(COARSE).caps(cells_along_curve(COARSE)[position : position + 1])
            device = self.logits.slopes.device
            bounds = bound_weights(self.logits, centre.to(device), radius.to(device))
            self._near[position] = keep_sites(bounds, COARSE_SHARE * self.epsilon)[0].nonzero()[:, 0]
        return self._near[position]

    def _keep(self, leaf: int, table: CellTable) -> CellTable:
        with CHANGES:
            if leaf not in self._tables:
                self._tables[leaf] = table
                self._bytes += _size(table)
            while self._bytes > self.space and len(self._tables) > 1:
                self._bytes -= _size(self._tables.popitem(last=False)[1])
        return table

    def _sample(self) -> Sample:
        found = self.find(torch.linspace(0, len(self.leaf_of) - 1, SAMPLED_CELLS, dtype=torch.float64).long())
        leaves = [leaf for leaf in found.tolist() if leaf >= 0]
        terms = [len(self.table(leaf).total) for leaf in leaves]
        # A place falls into a leaf as often as the leaf is large, so 6 side^2 counts every leaf once on average.
        counts = [6 * self.leaves[leaf].side ** 2 for leaf in leaves]
        every = sum(count * length for count, length in zip(counts, terms, strict=True)) / SAMPLED_CELLS
        length = sum(terms) / max(1, len(terms))
        side = 2 ** round(math.log2(max(self.side**2, every / max(1.0, length) / 6)) / 2)
        return Sample(length, every, len(terms) / SAMPLED_CELLS, min(side, FINEST))

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_tables": OrderedDict(), "_bytes": 0, "_near": {}}


def _size(table: CellTable) -> int:
    return table.rows.nbytes + table.total.nbytes
