"""Where tile pixels lie on the Earth, bilinear interpolation between pixels, and reduced global rasters.

A global raster is made no finer than the tiles read from it, so that they are not aliased. Towards the poles columns
crowd together while tile pixels do not, so every row is averaged along longitude as well.
"""

import functools
import math
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.sphere import EARTH_RADIUS_KM, Floats

POINTS_AT_ONCE = 32_767
"""One less than the size from which torch spreads an operation over threads.

Arrays of this size stay in the cache, and readers in several threads or processes do not fight with torch's threads.
"""


class PixelPlaces(NamedTuple):
    """Degrees of every pixel, each (N, size, size); longitudes run on from the tile's centre, past 180 where needed."""

    lat: Floats
    lon: Floats


def tangent_latlon(latlon: Floats, size: int, km_per_pixel: float) -> PixelPlaces:
    """The places of tile pixels, row 0 north and column 0 west, on the plane that touches the sphere at the place.

    This gnomonic projection is as undistorted at a pole as on the equator. With u east and v north of the place in
    Earth radii, phi its latitude and lambda its longitude, the direction up + u east + v north, seen in the place's own
    meridian, is (cos phi - v sin phi, u, sin phi + v cos phi), so
        lon = lambda + atan2(u, cos phi - v sin phi)
        lat = atan2(sin phi + v cos phi, hypot(u, cos phi - v sin phi)).
    Two of the three components depend on the row alone and one on the column alone: a third of the arithmetic.
    """
    offset = (np.arange(size) - (size - 1) / 2) * (km_per_pixel / EARTH_RADIUS_KM)
    sine, cosine = np.sin(np.deg2rad(latlon[:, :1])), np.cos(np.deg2rad(latlon[:, :1]))
    outward = torch.from_numpy(cosine + offset * sine)[:, :, None]  # (N, size, 1); row 0 is north, so v = -offset
    upward = torch.from_numpy(sine - offset * cosine)[:, :, None]
    east = torch.from_numpy(offset)
    lon = torch.atan2(east, outward).numpy()
    lat = torch.atan2(upward, torch.hypot(east, outward)).numpy()
    return PixelPlaces(np.rad2deg(lat, out=lat), np.rad2deg(lon, out=lon) + latlon[:, 1, None, None])


def place_chunks(count: int, points_per_place: int) -> Iterator[slice]:
    """Cut a batch into runs of places that together have few enough points to work on at once."""
    step = max(1, POINTS_AT_ONCE // points_per_place)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def average_blocks(tiles: npt.NDArray[np.float32], factor: int) -> npt.NDArray[np.float32]:
    """Shrink tiles (..., H, W) by a whole factor, each pixel the mean of a square of oversampled ones."""
    if factor == 1:
        return tiles
    *front, height, width = tiles.shape
    blocks = tiles.reshape(*front, height // factor, factor, width // factor, factor)
    return np.asarray(blocks.mean(axis=(-3, -1), dtype=np.float32))


class Corners(NamedTuple):
    """The four pixels around each of P points and their shares."""

    number: npt.NDArray[np.int64]
    """Flat pixel numbers, (4, P)."""
    weight: npt.NDArray[np.float32]
    """Shares that sum to one, (4, P)."""


def find_corners(row: Floats, column: Floats, stride: int, start: npt.NDArray[np.int64] | int = 0) -> Corners:
    """Find the pixels around points given in pixel units, where whole numbers are pixel centres.

    Pixel (r, c) is number start + r * stride + c; the row and the column after a point's own must exist as well.
    """
    top, left = np.floor(row), np.floor(column)
    down, right = (row - top).astype(np.float32), (column - left).astype(np.float32)
    first = (top.astype(np.int64) * stride + left.astype(np.int64) + start).reshape(-1)
    number = first + np.array([[0], [1], [stride], [stride + 1]])
    up, back = 1 - down, 1 - right
    return Corners(number, np.stack((up * back, up * right, down * back, down * right)).reshape(4, -1))


def has_gaps(planes: npt.NDArray[Any]) -> bool:
    """Whether some pixel is NaN."""
    return bool(np.issubdtype(planes.dtype, np.floating) and np.isnan(planes).any())


def blend(planes: npt.NDArray[Any], corners: Corners, *, gaps: bool = False) -> npt.NDArray[np.float32]:
    """Interpolate every band: planes (C, M) of pixels, P points -> (C, P).

    With `gaps`, NaN marks pixels without a value: a point takes what its other corners say, and is a gap itself when
    gaps hold more than half of it.
    """
    blend_plane = _blend_around_gaps if gaps else _blend_plane
    result = np.empty((len(planes), corners.number.shape[1]), dtype=np.float32)
    for plane, out in zip(planes, result, strict=True):
        blend_plane(plane, corners, out)
    return result


def _blend_plane(plane: npt.NDArray[Any], corners: Corners, out: npt.NDArray[np.float32]) -> None:
    part = np.empty_like(out)
    np.multiply(plane.take(corners.number[0]), corners.weight[0], out=out, dtype=np.float32, casting="same_kind")
    for number, weight in zip(corners.number[1:], corners.weight[1:], strict=True):
        np.multiply(plane.take(number), weight, out=part, dtype=np.float32, casting="same_kind")
        out += part


def _blend_around_gaps(plane: npt.NDArray[Any], corners: Corners, out: npt.NDArray[np.float32]) -> None:
    values = plane.take(corners.number)
    gaps = np.isnan(values)
    share = np.where(gaps, 0, corners.weight).sum(axis=0)
    total = np.where(gaps, 0, values * corners.weight).sum(axis=0)
    out[:] = np.where(share >= 0.5, total / np.maximum(share, 0.5), np.nan)


WORTH_REDUCING = 1.25
"""A raster up to this much finer than the tiles is read as it is: bilinear sampling itself averages about as much."""


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
    blocks, rows_at_once = [], 64
    for start in range(0, new_height, rows_at_once):
        stop = min(start + rows_at_once, new_height)
        first, last = int(row_edges[start]), math.ceil(row_edges[stop])
        rows = read_rows(first, last)
        cells = _shrink(rows, row_edges[start : stop + 1] - first, new_width)
        blocks.append(_like(rows, _smooth_rows(cells, spans[start:stop])))
    planes = np.concatenate(blocks).transpose(2, 0, 1)
    # Blocks with gaps come as floats among blocks of integers.
    return _frame(planes.astype(np.float32, copy=False) if np.issubdtype(planes.dtype, np.floating) else planes)


def _columns_per_pixel(height: int, width: int, km_per_pixel: float) -> Floats:
    """How many columns of each row one tile pixel spans, between 1 and all of them."""
    lat = np.pi * ((np.arange(height) + 0.5) / height - 0.5)
    column_km = 2 * np.pi * EARTH_RADIUS_KM / width * np.cos(lat)
    return np.clip(km_per_pixel / column_km, 1.0, width)


def _shrink(rows: npt.NDArray[Any], row_edges: Floats, new_width: int) -> Floats:
    """Average rows (h, W, C) to the cells between the row edges and to `new_width` columns."""
    cells = rows.astype(np.float64)
    if new_width != cells.shape[1]:
        column_edges = np.linspace(0, cells.shape[1], new_width + 1)
        cells = _ignoring_gaps(cells, lambda block: _average_cells(block.swapaxes(0, 1), column_edges).swapaxes(0, 1))
    if len(row_edges) - 1 != len(cells):
        cells = _ignoring_gaps(cells, lambda block: _average_cells(block, row_edges))
    return cells


def _average_cells(block: Floats, edges: Floats) -> Floats:
    """Mean of a piecewise constant function between edges, along the first axis, from its running integral."""
    integral = np.concatenate((np.zeros_like(block[:1]), np.cumsum(block, axis=0)))
    below = np.minimum(edges.astype(np.int64), len(block) - 1)
    part = (edges - below)[:, None, None]
    totals = integral[below] + part * block[below]
    mean: Floats = np.diff(totals, axis=0) / np.diff(edges)[:, None, None]
    return mean


def _smooth_rows(block: Floats, spans: Floats) -> Floats:
    """Average every row (W, C) along the circle over its own span of columns; a span of one column changes nothing."""
    result = block.copy()
    for row in np.flatnonzero(spans > 1.0):
        result[row] = _ignoring_gaps(block[row], functools.partial(_smooth_circle, span=float(spans[row])))
    return result


def _smooth_circle(values: Floats, span: float) -> Floats:
    width = len(values)
    pad = math.ceil(span / 2 + 0.5)
    around = np.concatenate((values[-pad:], values, values[:pad]))
    integral = np.concatenate((np.zeros_like(around[:1]), np.cumsum(around, axis=0)))

    def integral_at(shift: float) -> Floats:
        whole = math.floor(shift)
        here: Floats = integral[whole : whole + width] + (shift - whole) * around[whole : whole + width]
        return here

    return (integral_at(pad + 0.5 + span / 2) - integral_at(pad + 0.5 - span / 2)) / span


def _ignoring_gaps(block: Floats, average: Callable[[Floats], Floats]) -> Floats:
    """Average what is there; a cell of which more than half is missing (NaN) is missing."""
    gaps = np.isnan(block)
    if not gaps.any():
        return average(block)
    share = average((~gaps).astype(np.float64))
    total = average(np.where(gaps, 0.0, block))
    return np.where(share >= 0.5, total / np.maximum(share, 0.5), np.nan)


def _like(original: npt.NDArray[Any], block: Floats) -> npt.NDArray[Any]:
    """Back to the type read: integers rounded, floats as float32."""
    if np.issubdtype(original.dtype, np.integer):
        return np.rint(block).astype(original.dtype)
    return block.astype(np.float32)


def _frame(planes: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Add one pixel all around: over a pole lies the opposite meridian, over the antimeridian the other end."""
    framed = np.empty((planes.shape[0], planes.shape[1] + 2, planes.shape[2] + 2), dtype=planes.dtype)
    framed[:, 1:-1, 1:-1] = planes
    framed[:, 0, 1:-1], framed[:, -1, 1:-1] = _opposite(planes[:, 0]), _opposite(planes[:, -1])
    framed[:, :, 0], framed[:, :, -1] = framed[:, :, -2], framed[:, :, 1]
    return framed


def _opposite(rows: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """Values half a turn away; with an odd number of columns, the mean of the two that share that meridian."""
    half = rows.shape[-1] // 2
    if rows.shape[-1] % 2 == 0:
        return np.roll(rows, half, axis=-1)
    mean = (np.roll(rows, half, axis=-1).astype(np.float64) + np.roll(rows, half + 1, axis=-1)) / 2
    return _like(rows, mean)
