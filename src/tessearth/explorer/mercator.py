"""Map tiles: where their pixels lie on the Earth, and values sampled there.

Tiles are those of web maps: 2^z by 2^z squares of the Mercator plane, x to the east and y to the south from the
north-west corner, each 256 pixels wide.
"""

import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import UnknownNameError
from tessearth.sphere.coordinates import Floats

Array = npt.NDArray[Any]

TILE_PIXELS = 256
DEEPEST_ZOOM = 12


class Tile(NamedTuple):
    """One square of a web map."""

    z: int
    x: int
    y: int

    def axes(self, positions: Floats) -> tuple[Floats, Floats]:
        """Latitudes of rows and longitudes of columns at positions from 0 to 1 across the tile, each (n,)."""
        count = 2**self.z
        north = math.pi * (1 - 2 * (self.y + positions) / count)
        lat = np.rad2deg(np.arctan(np.sinh(north)))
        return lat, (self.x + positions) / count * 360.0 - 180.0

    def pixel_axes(self) -> tuple[Floats, Floats]:
        """The same for the centres of its pixels."""
        return self.axes((np.arange(TILE_PIXELS) + 0.5) / TILE_PIXELS)


def check_tile(z: int, x: int, y: int) -> Tile:
    """The tile when there is one of these numbers."""
    if not (0 <= z <= DEEPEST_ZOOM and 0 <= x < 2**z and 0 <= y < 2**z):
        raise UnknownNameError(f"there is no tile {z}/{x}/{y}: z lies between 0 and {DEEPEST_ZOOM}, x and y below 2^z")
    return Tile(z, x, y)


def grid_of(lat: Floats, lon: Floats) -> Floats:
    """Places (rows, columns, 2) from the latitudes of rows and the longitudes of columns."""
    return np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1)


def sample_world(values: Array, lat: Floats, lon: Floats) -> Array:
    """Values (H, W, C) of equal cells of latitude and longitude, read bilinearly at rows lat and columns lon.

    Longitudes wrap; past the outermost rows, half a cell from the poles, the outermost value holds.
    """
    height, width = values.shape[:2]
    row = np.clip((90.0 - lat) * (height / 180.0) - 0.5, 0, height - 1)
    column = np.mod(lon + 180.0, 360.0) * (width / 360.0) - 0.5
    return _bilinear(values, row, column, wrap=True)


def stretch(values: Array) -> Array:
    """Values (n + 1, n + 1, C) on the lattice from edge to edge of a tile, read at its pixels: (256, 256, C)."""
    at = (np.arange(TILE_PIXELS) + 0.5) / TILE_PIXELS * (len(values) - 1)
    return _bilinear(values, at, at, wrap=False)


def _bilinear(values: Array, row: Floats, column: Floats, *, wrap: bool) -> Array:
    height, width = values.shape[:2]
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    down, right = ((row - top)[:, None, None], (column - left)[None, :, None])
    below = np.minimum(top + 1, height - 1)
    beside = (left + 1) % width if wrap else np.minimum(left + 1, width - 1)
    left = left % width
    # Rows first: far fewer of the grid's rows than pixels are needed, and the columns then work on what is left.
    rows = values[top] * (1 - down).astype(np.float32) + values[below] * down.astype(np.float32)
    right = right.astype(np.float32)
    return np.asarray(rows[:, left] * (1 - right) + rows[:, beside] * right)
