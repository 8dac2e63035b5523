"""Tiles from Web Mercator pyramids, the format of web maps."""

import math
import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import MapSource, Tiles
from tessearth.imagery.sources.images import MODES, decode_picture
from tessearth.imagery.sources.sampling import average_blocks, blend, find_corners, place_chunks, tangent_latlon
from tessearth.imagery.sources.tile_stores import Tile, open_tiles
from tessearth.sphere import EARTH_RADIUS_KM, Box, Floats, check_box
from tessearth.storage import open_pool, usual_workers

MERCATOR_LATITUDE = math.degrees(math.atan(math.sinh(math.pi)))
"""Where the square world map ends, 85.0511 degrees."""
MOST_OVERSAMPLING = 16
WORTH_THREADS = 64
"""So many tiles at once are decoded by several threads."""

Pixels = npt.NDArray[np.uint8]
"""A decoded tile, (C, side, side)."""


class TilePyramid(MapSource):
    """Tiles from a pyramid in Web Mercator: an MBTiles file, a folder {z}/{x}/{y}.png, or a URL template.

    The zoom is chosen for each place so that the map is at least as fine there as `km_per_pixel` (Mercator maps grow
    finer towards the poles), and finer pixels are averaged; or it is given. A missing tile is cut from its nearest
    parent. The map ends at 85.0511 degrees: places beyond show its last row.

    Decoded tiles are kept up to `cache_mb`; reading neighbouring places together saves decoding.
    """

    kind = "tile-pyramid"
    packages = ("pillow",)

    def __init__(
        self,
        location: str | Path,
        *,
        size: int,
        km_per_pixel: float,
        zoom: int | None = None,
        max_zoom: int | None = None,
        mode: Literal["RGB", "L", "RGBA"] = "RGB",
        tile_pixels: int = 256,
        tms: bool = False,
        cache_mb: float = 1024,
    ) -> None:
        """Open a pyramid.

        Tiles are converted to `mode` (colour, gray, colour with transparency); `tile_pixels` is the side of
        the stored tiles; `tms` is for folders and servers that count rows from the south, as MBTiles always do.
        """
        super().__init__(size, km_per_pixel)
        self.store = open_tiles(location, max_zoom=max_zoom, tms=tms)
        if zoom is not None and zoom not in self.store.zooms:
            zooms = f"{self.store.zooms[0]} to {self.store.zooms[-1]}"
            raise ConfigError(f"zoom {zoom} is not in {self.store.name}, which has zooms {zooms}")
        if mode not in MODES or tile_pixels < 1:
            raise ConfigError(f"tiles of mode {mode!r} and {tile_pixels} pixels cannot be read; modes are RGB, L, RGBA")
        self.zoom, self.mode, self.tile_pixels = zoom, mode, tile_pixels
        self.bands = MODES[mode]
        self._cache = TileCache(int(cache_mb * 2**20))

    def choose_zooms(self, places: Floats) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The zoom for each place, and how many map pixels go into a tile's pixel along each side."""
        lat = np.clip(places[:, 0], -MERCATOR_LATITUDE, MERCATOR_LATITUDE)
        at_zoom_0 = 2 * np.pi * EARTH_RADIUS_KM * np.cos(np.deg2rad(lat)) / self.tile_pixels  # km per map pixel
        nearly = 1e-6  # so that a pyramid of exactly the wanted resolution is read one to one
        wanted = np.ceil(np.log2(at_zoom_0 / self.km_per_pixel) - nearly)
        zooms = np.clip(wanted, self.store.zooms[0], self.store.zooms[-1]).astype(np.int64)
        if self.zoom is not None:
            zooms[:] = self.zoom
        ratio = self.km_per_pixel / (at_zoom_0 / 2.0**zooms)
        return zooms, np.clip(np.ceil(ratio - nearly), 1, MOST_OVERSAMPLING).astype(np.int64)

    def bounds(self) -> Box:
        """The box of degrees around the tiles of the finest zoom that is read."""
        zooms, _ = self.choose_zooms(np.zeros((1, 2)))
        first, last = self.store.corners(int(zooms[0]))
        turns = np.array([first.x, last.x + 1, first.y, last.y + 1]) / 2**first.z
        north, south = np.rad2deg(np.arctan(np.sinh(np.pi * (1 - 2 * turns[2:]))))
        west, east = turns[:2] * 360 - 180
        return check_box((float(west), float(south), float(east), float(north)))

    def covers(self, places: Floats) -> npt.NDArray[np.bool_]:
        """Which places (N, 2) have their map tiles at the zoom they are read at, by the tile's corners and middle."""
        zooms, _ = self.choose_zooms(places)
        lat, lon = (axis.reshape(-1) for axis in tangent_latlon(places, 3, self.size * self.km_per_pixel / 2))
        counts = np.repeat(2**zooms, 9)
        row, column = mercator_pixels(lat, lon, counts)
        numbers = zip(np.repeat(zooms, 9), np.rint(column) % counts, np.rint(row), strict=True)
        tiles = [Tile(int(z), int(x), int(y)) for z, x, y in numbers]
        wanted = sorted(set(tiles))
        there = dict(zip(wanted, self.store.has_many(wanted), strict=True))
        return np.asarray(np.array([there[tile] for tile in tiles]).reshape(len(places), 9).all(axis=1), dtype=bool)

    def _read(self, places: Floats, result: Tiles) -> None:
        zooms, oversampling = self.choose_zooms(places)
        for zoom, factor in sorted(set(zip(zooms.tolist(), oversampling.tolist(), strict=True))):
            chosen = np.flatnonzero((zooms == zoom) & (oversampling == factor))
            for chunk in place_chunks(len(chosen), (self.size * factor) ** 2):
                result[chosen[chunk]] = self._sample(places[chosen[chunk]], zoom, factor)
        result /= 255

    def _record(self) -> dict[str, Any]:
        return {
            **self.store.describe(),
            "zooms": [self.store.zooms[0], self.store.zooms[-1]],
            "zoom": self.zoom,
            "tile_pixels": self.tile_pixels,
        }

    def _sample(self, places: Floats, zoom: int, factor: int) -> Tiles:
        lat, lon = tangent_latlon(places, self.size * factor, self.km_per_pixel / factor)
        row, column = mercator_pixels(lat, lon, self.tile_pixels << zoom)
        windows = _windows_of(row, column)
        planes, height, width = self._read_windows(windows, zoom)
        start = np.arange(len(places))[:, None, None] * (height * width)
        left, _, top, _ = windows.T[:, :, None, None]
        corners = find_corners(row - top, column - left, width, start)
        values = blend(planes.reshape(len(planes), -1), corners)
        tiles = values.reshape(len(planes), len(places), *lat.shape[1:]).swapaxes(0, 1)
        return average_blocks(tiles, factor)

    def _read_windows(self, windows: npt.NDArray[np.int64], zoom: int) -> tuple[Pixels, int, int]:
        """Cut every place's window out of the map: planes (C, N, height, width), as large as the largest needs."""
        side, across = self.tile_pixels, 2**zoom
        pieces = [
            (place, Tile(zoom, x % across, y), (slice(None), rows, columns), (slice(None), to_rows, to_columns))
            for place, (left, right, top, bottom) in enumerate(windows.tolist())
            for y, rows, to_rows in _cuts(top, min(bottom, across * side), side)  # a row below the map has no share
            for x, columns, to_columns in _cuts(left, right, side)
        ]
        decoded = self.decode_tiles({tile for _, tile, _, _ in pieces})
        width, height = (windows[:, 1::2] - windows[:, ::2]).max(axis=0).tolist()
        planes = np.zeros((len(self.bands), len(windows), height, width), dtype=np.uint8)
        for place, tile, inside, target in pieces:
            planes[:, place][target] = decoded[tile][inside]
        return planes, height, width

    def decode_tiles(self, wanted: Iterable[Tile]) -> dict[Tile, Pixels]:
        """Decoded tiles of one zoom, each cut from its nearest parent where it is missing."""
        found = self.find_tiles(set(wanted))
        decoded = {tile: _cut_child(pixels, tile, tile.z - home.z) for tile, (home, pixels) in found.items()}
        self._cache.put_many(decoded)
        return decoded

    def find_tiles(self, wanted: set[Tile]) -> dict[Tile, tuple[Tile, Pixels]]:
        """For each tile the nearest one that is there, itself or a parent, and its pixels."""
        found = self._find(wanted)
        if missing := sorted(wanted - found.keys()):
            raise DataError(f"{self.store.name} has neither tile {missing[0]} nor any parent of it")
        return found

    def _find(self, wanted: set[Tile]) -> dict[Tile, tuple[Tile, Pixels]]:
        """Those of the tiles that have one, from the cache or from the store."""
        found = {tile: (tile, pixels) for tile, pixels in self._cache.get_many(wanted).items()}
        unread = sorted(wanted - found.keys())
        there = [(tile, read) for tile, read in zip(unread, self.store.read_many(unread), strict=True) if read]
        with open_pool("threads" if len(there) >= WORTH_THREADS else "here", usual_workers(16)) as pool:
            decoded = dict(pool.run(self._decode_one, ((tile, (tile, content)) for tile, content in there)))
        found |= {tile: (tile, pixels) for tile, pixels in decoded.items()}
        self._cache.put_many(decoded)
        orphans = [tile for tile in unread if tile not in found and tile.z > self.store.zooms[0]]
        if orphans:
            above = self._find({tile.parent() for tile in orphans})
            found |= {tile: above[tile.parent()] for tile in orphans if tile.parent() in above}
        return found

    def _decode_one(self, read: tuple[Tile, bytes]) -> Pixels:
        tile, content = read
        return decode_picture(content, f"tile {tile} of {self.store.name}", mode=self.mode, side=self.tile_pixels)


class TileCache:
    """Decoded tiles up to a number of bytes, without the least recently used; empty where it is sent to."""

    def __init__(self, most_bytes: int) -> None:
        self.most_bytes, self.nbytes = most_bytes, 0
        self._kept: OrderedDict[Tile, Pixels] = OrderedDict()
        self._lock = threading.Lock()

    def get_many(self, tiles: Iterable[Tile]) -> dict[Tile, Pixels]:
        """Those of the tiles that are remembered."""
        with self._lock:
            found = {tile: self._kept[tile] for tile in tiles if tile in self._kept}
            for tile in found:
                self._kept.move_to_end(tile)
        return found

    def put_many(self, tiles: Mapping[Tile, Pixels]) -> None:
        """Remember tiles, forgetting older ones when there is no room."""
        with self._lock:
            for tile, pixels in tiles.items():
                if tile not in self._kept:
                    self._kept[tile] = pixels
                    self.nbytes += pixels.nbytes
            while self.nbytes > self.most_bytes:
                self.nbytes -= self._kept.popitem(last=False)[1].nbytes

    def __reduce__(self) -> tuple[Any, ...]:
        return TileCache, (self.most_bytes,)


def mercator_pixels(lat: Floats, lon: Floats, world: "int | npt.NDArray[np.int64]") -> tuple[Floats, Floats]:
    """Rows and columns on a world map of `world` pixels a side, whole numbers at pixel centres.

    column = world (lon + 180) / 360 - 1/2, row = world (1 - atanh(sin lat) / pi) / 2 - 1/2; columns run on past the
    antimeridian, rows stop at the centres of the first and the last.
    """
    column = (lon + 180.0) * (world / 360.0) - 0.5
    height = np.arctanh(np.sin(np.deg2rad(np.clip(lat, -MERCATOR_LATITUDE, MERCATOR_LATITUDE))))
    row = (1.0 - height / np.pi) * (world / 2) - 0.5
    return np.clip(row, 0, world - 1), column


def _cuts(start: int, stop: int, side: int) -> Iterator[tuple[int, slice, slice]]:
    """The tiles that a window reaches along one axis: number, part of the tile, and where it lies in the window."""
    for number in range(start // side, (stop - 1) // side + 1):
        first, last = max(start, number * side), min(stop, (number + 1) * side)
        yield number, slice(first - number * side, last - number * side), slice(first - start, last - start)


def _windows_of(row: Floats, column: Floats) -> npt.NDArray[np.int64]:
    """Left, right, top and bottom, (N, 4): all points of each place, with the column and the row after them."""
    edges = [np.floor(edge) for axis in (column, row) for edge in (axis.min(axis=(1, 2)), axis.max(axis=(1, 2)) + 2)]
    return np.stack(edges, axis=-1).astype(np.int64)


def _cut_child(picture: Pixels, tile: Tile, levels: int) -> Pixels:
    """A tile cut from its parent some levels above and enlarged, bilinearly between the parent's pixel centres."""
    if levels == 0:
        return picture
    count, side, _ = picture.shape
    row, column = child_positions(tile, levels, side)
    framed = np.pad(picture, ((0, 0), (0, 1), (0, 1)), mode="edge").reshape(count, -1)
    rows, columns = np.broadcast_arrays(row[:, None], column[None, :])
    values = blend(framed, find_corners(rows, columns, side + 1))
    return np.rint(values).astype(np.uint8).reshape(count, side, side)


def child_positions(tile: Tile, levels: int, side: int) -> tuple[Floats, Floats]:
    """Where a tile's rows and columns lie in its parent some levels above, in the parent's pixels; (side,) each."""
    parts = 2**levels
    inside = (np.arange(side) + 0.5) / (side * parts)
    row = np.clip((inside + (tile.y % parts) / parts) * side - 0.5, 0, side - 1)
    column = np.clip((inside + (tile.x % parts) / parts) * side - 0.5, 0, side - 1)
    return row, column
