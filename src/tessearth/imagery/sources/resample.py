"""Making a global raster no finer than the tiles read from it, so that they are not aliased.

Pixels are cells that tile the globe; a reduced pixel is the exact mean over its own cell, fractions included. Towards
the poles columns crowd together while tile pixels do not, so every row is averaged along longitude as well, over as
many columns as one tile pixel covers there.
"""

import functools
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.sphere.geometry import EARTH_RADIUS_KM

ROWS_AT_ONCE = 64
WORTH_REDUCING = 1.25
"""A raster up to this much finer than the tiles is read as it is: bilinear sampling itself averages about as much."""

Block = npt.NDArray[np.float64]


def reduced_size(cells: int, kilometres: float, km_per_pixel: float) -> int:
    """How many cells to keep along a side of this length so that none is coarser than a tile's pixel."""
    wanted = math.ceil(kilometres / km_per_pixel)
    return cells if wanted * WORTH_REDUCING > cells else max(1, wanted)


def load_global(
    read_rows: Callable[[int, int], npt.NDArray[Any]], height: int, width: int, km_per_pixel: float
) -> npt.NDArray[Any]:
    """Read a global raster at the resolution tiles need: padded planes (C, H + 2, W + 2) in the file's own type.

    The frame of one pixel holds the neighbours across the antimeridian and across the poles.
    """
    new_height = reduced_size(height, math.pi * EARTH_RADIUS_KM, km_per_pixel)
    new_width = reduced_size(width, 2 * math.pi * EARTH_RADIUS_KM, km_per_pixel)
    row_edges = np.linspace(0, height, new_height + 1)
    spans = _columns_per_pixel(new_height, new_width, km_per_pixel)
    blocks = []
    for start in range(0, new_height, ROWS_AT_ONCE):
        stop = min(start + ROWS_AT_ONCE, new_height)
        first, last = int(row_edges[start]), math.ceil(row_edges[stop])
        rows = read_rows(first, last)
        cells = _shrink(rows, row_edges[start : stop + 1] - first, new_width)
        blocks.append(_like(rows, _smooth_rows(cells, spans[start:stop])))
    planes = np.concatenate(blocks).transpose(2, 0, 1)
    # Blocks with gaps come as floats among blocks of integers.
    return _pad(planes.astype(np.float32, copy=False) if np.issubdtype(planes.dtype, np.floating) else planes)


def _columns_per_pixel(height: int, width: int, km_per_pixel: float) -> Block:
    """How many columns of each row one tile pixel spans, between 1 and all of them."""
    lat = np.pi * ((np.arange(height) + 0.5) / height - 0.5)
    column_km = 2 * np.pi * EARTH_RADIUS_KM / width * np.cos(lat)
    return np.clip(km_per_pixel / column_km, 1.0, width)


def _shrink(rows: npt.NDArray[Any], row_edges: Block, new_width: int) -> Block:
    """Average rows (h, W, C) to the cells between the row edges and to `new_width` columns."""
    cells = rows.astype(np.float64)
    if new_width != cells.shape[1]:
        column_edges = np.linspace(0, cells.shape[1], new_width + 1)
        cells = _ignoring_gaps(cells, lambda block: _average_cells(block.swapaxes(0, 1), column_edges).swapaxes(0, 1))
    if len(row_edges) - 1 != len(cells):
        cells = _ignoring_gaps(cells, lambda block: _average_cells(block, row_edges))
    return cells


def _average_cells(block: Block, edges: Block) -> Block:
    """Mean of a piecewise constant function between edges, along the first axis, from its running integral."""
    integral = np.concatenate((np.zeros_like(block[:1]), np.cumsum(block, axis=0)))
    below = np.minimum(edges.astype(np.int64), len(block) - 1)
    part = (edges - below)[:, None, None]
    totals = integral[below] + part * block[below]
    mean: Block = np.diff(totals, axis=0) / np.diff(edges)[:, None, None]
    return mean


def _smooth_rows(block: Block, spans: Block) -> Block:
    """Average every row (W, C) along the circle over its own span of columns; a span of one column changes nothing."""
    result = block.copy()
    for row in np.flatnonzero(spans > 1.0):
        result[row] = _ignoring_gaps(block[row], functools.partial(_smooth_circle, span=float(spans[row])))
    return result


def _smooth_circle(values: Block, span: float) -> Block:
    width = len(values)
    pad = math.ceil(span / 2 + 0.5)
    around = np.concatenate((values[-pad:], values, values[:pad]))
    integral = np.concatenate((np.zeros_like(around[:1]), np.cumsum(around, axis=0)))

    def integral_at(shift: float) -> Block:
        whole = math.floor(shift)
        here: Block = integral[whole : whole + width] + (shift - whole) * around[whole : whole + width]
        return here

    return (integral_at(pad + 0.5 + span / 2) - integral_at(pad + 0.5 - span / 2)) / span


def _ignoring_gaps(block: Block, average: Callable[[Block], Block]) -> Block:
    """Average what is there; a cell of which more than half is missing (NaN) is missing."""
    gaps = np.isnan(block)
    if not gaps.any():
        return average(block)
    share = average((~gaps).astype(np.float64))
    total = average(np.where(gaps, 0.0, block))
    return np.where(share >= 0.5, total / np.maximum(share, 0.5), np.nan)


def _like(original: npt.NDArray[Any], block: Block) -> npt.NDArray[Any]:
    """Back to the type read: integers rounded, floats as float32."""
    if np.issubdtype(original.dtype, np.integer):
        return np.rint(block).astype(original.dtype)
    return block.astype(np.float32)


def _pad(planes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add one pixel all around: over a pole lies the opposite meridian, over the antimeridian the other end."""
    padded = np.empty((planes.shape[0], planes.shape[1] + 2, planes.shape[2] + 2), dtype=planes.dtype)
    padded[:, 1:-1, 1:-1] = planes
    padded[:, 0, 1:-1] = _opposite(planes[:, 0])
    padded[:, -1, 1:-1] = _opposite(planes[:, -1])
    padded[:, :, 0], padded[:, :, -1] = padded[:, :, -2], padded[:, :, 1]
    return padded


def _opposite(row: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values half a turn away, (C, W); with an odd number of columns, the mean of the two that share that meridian."""
    half = row.shape[1] // 2
    if row.shape[1] % 2 == 0:
        return np.roll(row, half, axis=1)
    mean = (np.roll(row, half, axis=1).astype(np.float64) + np.roll(row, half + 1, axis=1)) / 2
    return _like(row, mean)
