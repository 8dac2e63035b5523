"""One tessellation's part in a block of places, in the cheapest way: series, lists of sites, or all of them.

The way is a function of the places alone, never of earlier calls: the same places give the same bytes.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import (
    CACHED_NUMBERS,
    FINEST,
    AffineLogits,
    SiteLists,
    SortedPlaces,
    cells_along_curve,
    fine_per_cell,
)
from tessearth.embedding.fast.series import CellTable, CellTables

SIDES = (4, 8, 16, 32, 64)
"""Cells per edge of a cube's face that are considered, coarse to fine."""

FEWEST_SITES, FEWEST_PLACES = 512, 256
"""Below either the plain form is so cheap that nothing else is tried."""

SHORT_RUN = 24
"""Below this many places in a row of one cell, a product by rows is faster than one by columns."""


class Cost:
    """The cost of each step, in multiply-adds of a matrix product; measured on two AVX2 cores, only ratios matter."""

    weight = 200.0
    """One logit and its share in a softmax."""
    gathered = 16.0
    """One number of a site's row brought together with others."""
    cell = 2e6
    """Handling a cell's list, however few places it holds."""
    bound = 100.0
    """One site considered for a list."""
    term = 60.0
    """One term of a series at one place, beyond its product."""
    leaf = 2e5
    """Handling a cell's series, however few places it holds."""
    series = 3e8
    """Making a cell's series, for a few thousand sites."""
    few_places = 6000.0
    """In a batch of this many places or fewer, what is kept must pay at once. In a larger one it is assumed to be used
    again, the more often the larger the batch: full batches have others behind them."""


class Way(NamedTuple):
    """How a batch is mixed: by series, by lists, or by all sites where both are None."""

    series: CellTables | None = None
    lists: SiteLists | None = None


class TessellationMixture:
    """onwards (sum_k w_k(x) row_k), (W, S) times the mixture of rows (K, S), added to columns of mixed rows (W, N)."""

    def __init__(self, logits: AffineLogits, rows: Tensor, onwards: Tensor) -> None:
        self.wide, self.rows, self.onwards = logits, rows, onwards
        self.logits = AffineLogits(*(part.float() for part in logits))
        self._series: dict[int, CellTables] = {}
        self._lists: dict[int, SiteLists] = {}
        self._folded: Tensor | None = None

    def choose(self, places: SortedPlaces) -> Way:
        """The cheapest way for a batch."""
        count = len(places.fine)
        best, least = Way(), self._plain_cost(count)
        if len(self.rows) < FEWEST_SITES or count < FEWEST_PLACES:
            return best
        for offers in (self._offer_series(places), self._offer_lists(places)):
            for way, cost in offers:
                if cost > 1.5 * least:  # finer cells hold fewer places each: past the best it only gets worse
                    break
                if cost < least:
                    best, least = way, cost
        return best

    def add_to(self, mixed: Tensor, xyz: Tensor, fine: Tensor, way: Way) -> None:
        """Add the mixture at each direction, (N, 3) in sorted order with their finest cells, to `mixed`, (W, N)."""
        if way.series is not None:
            self._add_by_finest_lists(mixed, xyz, fine, self._add_series(mixed, xyz, fine, way.series))
            return
        left = torch.arange(len(xyz)) if way.lists is None else self._add_listed(mixed, xyz, fine, way.lists)
        for part in torch.split(left, max(1, CACHED_NUMBERS // len(self.rows))) if len(left) else ():
            mixture = torch.softmax(self.logits.at(xyz.index_select(0, part)), dim=-1) @ self.rows
            if len(part) == mixed.shape[1]:
                mixed.addmm_(self.onwards, mixture.T)
            else:
                mixed.index_add_(1, part, self.onwards @ mixture.T)

    def _add_series(self, mixed: Tensor, xyz: Tensor, fine: Tensor, series: CellTables) -> Tensor:
        """Add the places that have a series; the positions of the others are returned, (M,)."""
        leaves = series.find(fine)
        found, counts = torch.unique_consecutive(leaves, return_counts=True)
        tables = [series.table(leaf) if leaf >= 0 else None for leaf in found.tolist()]
        longest = max((len(table.total) for table in tables if table is not None), default=0)
        if not longest:
            return torch.arange(len(xyz))
        terms = series.terms(xyz, leaves.clamp(min=0), longest)
        runs = list(zip(tables, counts.tolist(), strict=True))
        if series.is_folded and len(xyz) >= SHORT_RUN * len(runs):
            for table, here in _in_runs(runs):
                mixed[:, here].addmm_(table.rows.T, terms[: len(table.total), here])
        else:
            rows, by_place = torch.zeros(len(xyz), series.width), terms.T.contiguous()
            for table, here in _in_runs(runs):
                torch.mm(by_place[here, : len(table.total)], table.rows, out=rows[here])
            mixed.add_(rows.T) if series.is_folded else mixed.addmm_(self.onwards, rows.T)
        return (leaves < 0).nonzero()[:, 0]

    def _add_by_finest_lists(self, mixed: Tensor, xyz: Tensor, fine: Tensor, left: Tensor) -> None:
        """Add places where sharp sites meet, so that no cell around them has a series: a list for each finest cell."""
        if not len(left):
            return
        lists = self._lists_at(FINEST)
        positions, counts = torch.unique_consecutive(fine[left], return_counts=True)
        cells = cells_along_curve(FINEST)[positions]
        lists.prepare(cells)
        mixture, start = torch.empty(len(left), self.rows.shape[1]), 0
        for cell, count in zip(cells.tolist(), counts.tolist(), strict=True):
            here = slice(start, start + count)
            weights = torch.softmax(self.logits.of(lists[cell]).at(xyz.index_select(0, left[here])), dim=-1)
            mixture[here] = weights @ self.rows.index_select(0, lists[cell])
            start += count
        mixed.index_add_(1, left, self.onwards @ mixture.T)

    def _add_listed(self, mixed: Tensor, xyz: Tensor, fine: Tensor, lists: SiteLists) -> Tensor:
        """Add the places in cells that hold enough of them; the positions of the others are returned, (M,)."""
        if self._folded is None:
            self._folded = self.rows @ self.onwards.T
        positions, counts = torch.unique_consecutive(fine // fine_per_cell(lists.cells.side), return_counts=True)
        cells = cells_along_curve(lists.cells.side)[positions]
        listed = counts >= self._fewest(lists)
        lists.prepare(cells[listed])
        left, start = [], 0
        for cell, count, is_listed in zip(cells.tolist(), counts.tolist(), listed.tolist(), strict=True):
            if is_listed:
                sites = lists[cell]
                weights = torch.softmax(self.logits.of(sites).at(xyz[start : start + count]), dim=-1)
                mixed[:, start : start + count].addmm_(self._folded.index_select(0, sites).T, weights.T)
            else:
                left.append(torch.arange(start, start + count))
            start += count
        return torch.cat(left) if left else torch.arange(0)

    def _offer_series(self, places: SortedPlaces) -> Iterator[tuple[Way, float]]:
        """Series of each size that may pay, with what they cost."""
        count = len(places.fine)
        uses, plain = _expected_uses(count), self._plain_cost(count)
        for side in SIDES[:-1]:
            if places.count_cells(side) * Cost.series / uses > plain:
                break
            series = self._series_at(side)
            met = places.count_cells(series.sample.side)
            making = met * (Cost.leaf + Cost.series / (uses if series.fits else 1))
            each = series.sample.terms * (series.width + Cost.term)
            each += 0 if series.is_folded else self.rows.shape[1] * len(self.onwards)
            share = series.sample.share
            yield Way(series=series), making + count * share * each + (1 - share) * plain

    def _offer_lists(self, places: SortedPlaces) -> Iterator[tuple[Way, float]]:
        """Lists of each size that may pay, with what they cost."""
        count = len(places.fine)
        uses = _expected_uses(count)
        for side in SIDES:
            met = places.count_cells(side)
            if met * Cost.cell > self._plain_cost(count):
                break
            lists = self._lists_at(side)
            cell, place = self._listed_costs(lists)
            yield Way(lists=lists), met * (cell + len(self.rows) * Cost.bound / uses) + count * place

    def _series_at(self, side: int) -> CellTables:
        if side not in self._series:
            self._series[side] = CellTables(self.wide, self.rows, self.onwards, side)
        return self._series[side]

    def _lists_at(self, side: int) -> SiteLists:
        if side not in self._lists:
            self._lists[side] = SiteLists(self.wide, side)
        return self._lists[side]

    def _plain_cost(self, places: int) -> float:
        width = self.rows.shape[1]
        return places * (len(self.rows) * (width + Cost.weight) + width * len(self.onwards))

    def _listed_costs(self, lists: SiteLists) -> tuple[float, float]:
        """What a cell's list costs, and each place in it."""
        width = len(self.onwards)
        return lists.expected * width * Cost.gathered + Cost.cell, lists.expected * (width + Cost.weight)

    def _fewest(self, lists: SiteLists) -> int:
        """How many places a cell must hold for its list to pay."""
        cell, place = self._listed_costs(lists)
        saved = self._plain_cost(1) - place
        return math.ceil(cell / saved) if saved > 0 else 2**62

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_series": {}, "_lists": {}, "_folded": None}


def _expected_uses(places: int) -> float:
    return max(1.0, (places / Cost.few_places) ** 2)


def _in_runs(runs: list[tuple[CellTable | None, int]]) -> Iterator[tuple[CellTable, slice]]:
    """The tables that exist, each with the places it is for."""
    start = 0
    for table, count in runs:
        if table is not None:
            yield table, slice(start, start + count)
        start += count
