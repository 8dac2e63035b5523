"""Places in an order that keeps neighbours together, and cells within cells in that order."""

import functools
from typing import NamedTuple

import numpy as np
import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import CubeCells

FINEST = 64
"""Cells per edge of a cube's face at the finest; coarser sides are this one halved again and again."""


class SortedPlaces(NamedTuple):
    """Places one finest cell after another, cells along a curve that fills each coarser cell before the next."""

    order: Tensor
    """Which place comes where, (N,)."""
    fine: Tensor
    """The rank of its finest cell along the curve, rising, (N,)."""

    def cells(self, side: int) -> Tensor:
        """The cells at a coarser side, (N,)."""
        return self.fine // fine_per_cell(side)


def sort_places(xyz: Tensor) -> SortedPlaces:
    """Sort directions, (N, 3) on the CPU, along the curve; within a finest cell by their coordinates.

    So the order does not depend on how places were given, and nor does the last bit of their embeddings.
    """
    ranks = _ranks()[CubeCells(FINEST).find(xyz).numpy()]
    order = np.lexsort((*xyz.T.numpy(), ranks))
    return SortedPlaces(torch.from_numpy(order), torch.from_numpy(ranks[order].astype(np.int64)))


def fine_per_cell(side: int) -> int:
    """How many finest cells one of a coarser side holds."""
    return (FINEST // side) ** 2


@functools.cache
def cells_along_curve(side: int) -> Tensor:
    """The number, in `CubeCells(side)`, of each cell along the curve, (6 side^2,)."""
    step = torch.arange(side)
    rank = _interleave(step)[:, None] * 2 + _interleave(step)  # (side, side)
    return torch.cat([face * side**2 + rank.flatten().argsort() for face in range(6)])


@functools.cache
def _ranks() -> np.ndarray[tuple[int], np.dtype[np.int16]]:
    """Where each finest cell stands along the curve; sixteen bits, for which numpy sorts by counting."""
    along = cells_along_curve(FINEST).numpy()
    ranks = np.empty(len(along), dtype=np.int16)
    ranks[along] = np.arange(len(along), dtype=np.int16)
    return ranks


def _interleave(numbers: Tensor) -> Tensor:
    """Bits spread apart: bit b goes to bit 2 b."""
    return sum((((numbers >> bit) & 1) << (2 * bit) for bit in range(8)), torch.zeros_like(numbers))
