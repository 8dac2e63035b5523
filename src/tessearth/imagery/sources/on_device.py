"""Imagery decoded once and kept on a device, where tiles are cut from it: the tiles of the sources, at a GPU's speed.

A global raster is reduced once by its own source. A pyramid's tiles are decoded when a place first asks for one, and
kept as pages that a table for each zoom finds. Positions are float64, because a float32 of a world map's column is off
by a thousandth of a pixel; shares and pixels are float32, as in `sampling`, whose arithmetic this repeats.
"""

import threading
from collections.abc import Callable, Iterable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.imagery.source import Source
from tessearth.imagery.sources import cutting_kernels
from tessearth.imagery.sources.pyramid import MERCATOR_LATITUDE, TilePyramid, child_positions
from tessearth.imagery.sources.raster import GlobalRaster, RasterLayers
from tessearth.imagery.sources.tile_stores import Tile
from tessearth.packages import has_kernels
from tessearth.sphere import EARTH_RADIUS_KM, Floats, as_places
from tessearth.storage import usual_workers

Whole = npt.NDArray[np.int64]

POINTS_AT_ONCE = {"cpu": 2**15, "cuda": 2**24}
"""Points looked up together by device type: a processor's cache holds the first, the second fills a GPU."""
DEEPEST_ZOOM = 13
"""The table of a deeper pyramid would be larger than most tiles it finds."""
TILES_READ_AT_ONCE, TILES_CUT_AT_ONCE = 1024, 128
PAGES_AT_FIRST = 64


class DeviceSource(Protocol):
    """Tiles of places, on a device."""

    def tiles(self, latlon: Floats) -> Tensor:
        """Read places (N, 2) as float32 tiles (N, C, size, size), which is how the source on the host reads them."""


class DeviceImagery:
    """Imagery on one device; sources that read the same file at the same resolution share it."""

    def __init__(self, device: torch.device) -> None:
        self.device = device
        self._rasters: dict[tuple[object, ...], GlobalRaster] = {}
        self._pages: dict[tuple[object, ...], Pages] = {}

    def open(self, source: Source) -> DeviceSource | None:
        """The form of a source that reads on the device; None when there is none."""
        if isinstance(source, GlobalRaster):
            return DeviceRaster([self._shared(source)], source, self.device)
        if isinstance(source, RasterLayers):
            alike = len({(layer.shape, layer.west, layer.scale) for layer in source.layers}) == 1
            groups = [source.layers] if alike else [(layer,) for layer in source.layers]
            return DeviceLayers(
                [DeviceRaster([self._shared(layer) for layer in group], group[0], self.device) for group in groups]
            )
        if isinstance(source, TilePyramid) and source.store.zooms[-1] <= DEEPEST_ZOOM:
            key = (source.store, source.mode, source.tile_pixels)
            return DevicePyramid(source, self._pages.setdefault(key, Pages(source, self.device)))
        return None

    def load(self) -> None:
        """Decode all rasters now, several at a time, instead of when they are first read."""
        with ThreadPoolExecutor(usual_workers(8)) as pool:
            list(pool.map(GlobalRaster.load, self._rasters.values()))

    def _shared(self, raster: GlobalRaster) -> GlobalRaster:
        key = (raster.path.resolve(), raster.km_per_pixel, raster.west)
        return self._rasters.setdefault(key, raster)


class DeviceRaster:
    """Global rasters of one shape, read as the bands of one."""

    def __init__(self, layers: Sequence[GlobalRaster], settings: GlobalRaster, device: torch.device) -> None:
        """Take the pixels of `layers`, and sizes, scale and fill of `settings`, when first asked for tiles."""
        self.layers, self.settings, self.device = layers, settings, device
        self._pixels: Tensor | None = None

    def tiles(self, latlon: Floats) -> Tensor:
        """Read places as tiles."""
        if self._pixels is None:
            framed = np.concatenate([layer.load() for layer in self.layers])
            self._frame = framed.shape[1] - 2, framed.shape[2] - 2
            self._pixels = _as_pixels(framed, self.device)
            self._gaps = self._pixels.is_floating_point() and bool(self._pixels.isnan().any())
        if not self._gaps and has_kernels(self.device):
            result = self._cut(latlon)
        else:
            result = _sample(latlon, self.settings.size, self.device, self._read)
        result *= self.settings.scale
        if self._gaps and not np.isnan(self.settings.fill):
            result.nan_to_num_(nan=self.settings.fill)
        return result

    def _cut(self, latlon: Floats) -> Tensor:
        assert self._pixels is not None, "loaded by tiles"
        size, unit = self.settings.size, self.settings.km_per_pixel / EARTH_RADIUS_KM
        places = _to_device(latlon, self.device)
        return cutting_kernels.cut_raster(self._pixels, self._frame, places, size, unit, self.settings.west)

    def _read(self, places: Tensor) -> Tensor:
        assert self._pixels is not None, "loaded by tiles"
        height, width = self._frame
        lat, lon = tangent_degrees(places, self.settings.size, self.settings.km_per_pixel)
        turn = (lon - self.settings.west) / 360.0
        # Pixel centres lie half a pixel inside, and the frame moves everything by one.
        corners = find_corners((90.0 - lat) * (height / 180.0) + 0.5, (turn - turn.floor()) * width + 0.5)
        first, stride = corners.top * (width + 2) + corners.left, width + 2
        numbers = (first + step for step in (0, 1, stride, stride + 1))
        return (blend_around_gaps if self._gaps else blend)(self._pixels, numbers, corners.weights)


class DeviceLayers:
    """Rasters of several shapes read as one."""

    def __init__(self, layers: Sequence[DeviceRaster]) -> None:
        self.layers = layers

    def tiles(self, latlon: Floats) -> Tensor:
        """Read places as tiles of all layers' bands."""
        parts = [layer.tiles(latlon) for layer in self.layers]
        return parts[0] if len(parts) == 1 else torch.cat(parts, dim=1)


class DevicePyramid:
    """A pyramid read from its pages."""

    def __init__(self, source: TilePyramid, pages: "Pages") -> None:
        self.source, self.pages = source, pages

    def tiles(self, latlon: Floats) -> Tensor:
        """Read places as tiles: by a kernel, or those of one zoom and oversampling together."""
        zooms, factors = self.source.choose_zooms(latlon)
        with self.pages.lock:
            if not has_kernels(self.pages.device):
                return self._blend(latlon, zooms, factors)
            detail = torch.from_numpy(np.stack((zooms, factors), axis=1).astype(np.int32)).to(self.pages.device)
            return self._cut(_to_device(latlon, self.pages.device), detail)

    def _blend(self, latlon: Floats, zooms: Whole, factors: Whole) -> Tensor:
        size, bands, device = self.source.size, len(self.source.bands), self.pages.device
        result = torch.empty(len(latlon), bands, size, size, device=device, memory_format=torch.channels_last)
        for zoom, factor in sorted(set(zip(zooms.tolist(), factors.tolist(), strict=True))):
            chosen = np.flatnonzero((zooms == zoom) & (factors == factor))
            read = partial(self._read, zoom=zoom, factor=factor)
            fine = _sample(latlon[chosen], size * factor, device, read)
            result[torch.from_numpy(chosen).to(device)] = fine
        return result.div_(255)

    def _cut(self, places: Tensor, detail: Tensor) -> Tensor:
        """Cut, decode the tiles that were not there, and cut again until none is missing."""
        size, unit = self.source.size, self.source.km_per_pixel / EARTH_RADIUS_KM
        result = torch.empty(len(places), len(self.source.bands), size, size, device=places.device)
        while True:
            cutting_kernels.cut_pyramid(self.pages.packed, places, detail, unit, result)
            if not self.pages.load_wanted():
                return result

    def _read(self, places: Tensor, zoom: int, factor: int) -> Tensor:
        size, side = self.source.size, self.source.tile_pixels
        lat, lon = tangent_degrees(places, size * factor, self.source.km_per_pixel / factor)
        world = side << zoom
        corners = find_corners(*mercator_pixels(lat, lon, world))
        below = (corners.top + 1).clamp_max_(world - 1)  # below the map's last row nothing has a share
        rows, columns = torch.stack((corners.top, below)), torch.stack((corners.left, corners.left + 1))
        down, across = rows.div(side, rounding_mode="floor"), columns.div(side, rounding_mode="floor")
        tiles = (down << zoom)[:, None] + (across & ((1 << zoom) - 1))  # (2, 2, N, size, size)
        inside = (rows - down * side)[:, None] * side + (columns - across * side)
        numbers = self.pages.find(zoom, tiles).add_(inside).flatten(0, 1)
        return average_blocks(blend(self.pages.pixels, numbers, corners.weights), factor)


class Pages:
    """Decoded tiles of a pyramid, one after another, and a table of where each zoom's tiles begin."""

    def __init__(self, source: TilePyramid, device: torch.device) -> None:
        self.source, self.device = source, device
        self.lock = threading.Lock()
        """Held while tiles are cut: pages move when more come."""
        self._area = source.tile_pixels**2
        stored = 1 if len(source.bands) == 1 else 4  # colours fill a word, which is read at once
        self._stored = torch.empty(0, stored, dtype=torch.uint8, device=device)
        """(pages * side * side, bytes), with room for pages to come."""
        self._numbers: dict[Tile, int] = {}
        self._table: Tensor | None = None

    @property
    def pixels(self) -> Tensor:
        """(pages * side * side, C), with room for pages to come."""
        return self._stored[:, : len(self.source.bands)]

    @property
    def packed(self) -> cutting_kernels.Paged:
        """The same pages with each pixel as one number."""
        stored = self._stored if self._stored.shape[1] == 1 else self._stored.view(torch.int32)
        return cutting_kernels.Paged(stored.flatten(), self.table, self.source.tile_pixels)

    @property
    def table(self) -> Tensor:
        """The page of every tile of every zoom, in rows from the north-west, or a negative number."""
        if self._table is None:
            entries = first_entry(self.source.store.zooms[-1] + 1)
            self._table = torch.full((entries,), -1, dtype=torch.int32, device=self.device)
        return self._table

    def find(self, zoom: int, tiles: Tensor) -> Tensor:
        """Where the pixels of tiles, numbered in rows from the north-west, begin; decodes those seen first."""
        entries = tiles + first_entry(zoom)
        pages = self.table[entries]
        unknown = entries[pages < 0]
        if len(unknown):
            self._load_entries(torch.unique(unknown))
            pages = self.table[entries]
        return pages.long() * self._area

    def load_wanted(self) -> bool:
        """Decode the tiles that the table marks as wanted; tells whether there were any."""
        wanted = (self.table == cutting_kernels.WANTED).nonzero()[:, 0]
        self._load_entries(wanted)
        return len(wanted) > 0

    def _load_entries(self, entries: Tensor) -> None:
        for some in torch.split(entries, TILES_READ_AT_ONCE):
            wanted = {_tile_of(entry) for entry in some.tolist()} - self._numbers.keys()
            if wanted:
                self._load(wanted)

    def _load(self, wanted: set[Tile]) -> None:
        """Decode tiles; one that is missing is cut from its nearest parent."""
        found, before = self.source.find_tiles(wanted), len(self._numbers)
        homes = {home: pixels for home, pixels in found.values() if home not in self._numbers}
        if homes:
            planes = torch.from_numpy(np.stack(list(homes.values()))).to(self.device)
            self._add(list(homes), planes.flatten(2).mT)
        children = [(tile, home) for tile, (home, _) in found.items() if tile != home]
        for start in range(0, len(children), TILES_CUT_AT_ONCE):
            some = children[start : start + TILES_CUT_AT_ONCE]
            self._add([tile for tile, _ in some], self._cut(some))
        added = list(self._numbers)[before:]
        entries = torch.tensor([first_entry(tile.z) + (tile.y << tile.z) + tile.x for tile in added])
        numbers = torch.arange(before, len(self._numbers), dtype=torch.int32)
        self.table[entries.to(self.device)] = numbers.to(self.device)

    def _add(self, tiles: Sequence[Tile], pages: Tensor) -> None:
        """Append the pages of tiles, (n, side * side, C)."""
        first, needed = len(self._numbers), len(self._numbers) + len(tiles)
        if needed * self._area > len(self._stored):
            room = max(needed, 2 * first, PAGES_AT_FIRST) * self._area
            larger = self._stored.new_zeros(room, self._stored.shape[1])
            larger[: len(self._stored)] = self._stored
            self._stored = larger
        self.pixels[first * self._area : needed * self._area].view_as(pages).copy_(pages)
        self._numbers |= {tile: number for number, tile in enumerate(tiles, first)}

    def _cut(self, children: Sequence[tuple[Tile, Tile]]) -> Tensor:
        """Missing tiles cut from their parents' pages and enlarged, (n, side * side, C)."""
        side = self.source.tile_pixels
        positions = [child_positions(tile, tile.z - home.z, side) for tile, home in children]
        row, column = (torch.from_numpy(np.stack(axis)).to(self.device) for axis in zip(*positions, strict=True))
        corners = find_corners(row[:, :, None].expand(-1, -1, side), column[:, None, :].expand(-1, side, -1))
        start = torch.tensor([self._numbers[home] * self._area for _, home in children], device=self.device)
        rows = [start[:, None, None] + each.clamp_max(side - 1) * side for each in (corners.top, corners.top + 1)]
        columns = [each.clamp_max(side - 1) for each in (corners.left, corners.left + 1)]
        values = blend(self.pixels, (r + c for r in rows for c in columns), corners.weights)
        return values.round_().to(torch.uint8).flatten(1, 2)


def first_entry(zoom: int) -> int:
    """Where a zoom begins in the table: behind all tiles of the zooms above."""
    return ((1 << 2 * zoom) - 1) // 3


def _tile_of(entry: int) -> Tile:
    zoom = ((3 * entry + 1).bit_length() - 1) // 2
    number = entry - first_entry(zoom)
    return Tile(zoom, number % 2**zoom, number >> zoom)


class Corners(NamedTuple):
    """The four pixels around each point."""

    top: Tensor
    left: Tensor
    """Row and column of the upper left one."""
    weights: tuple[Tensor, Tensor, Tensor, Tensor]
    """Shares that sum to one: upper left, upper right, lower left, lower right."""


def find_corners(row: Tensor, column: Tensor) -> Corners:
    """Find the pixels around points given in pixel units, where whole numbers are pixel centres."""
    top, left = row.floor(), column.floor()
    down, right = (row - top).float(), (column - left).float()
    up, back = 1 - down, 1 - right
    return Corners(top.long(), left.long(), (up * back, up * right, down * back, down * right))


def blend(pixels: Tensor, numbers: Iterable[Tensor], weights: Iterable[Tensor]) -> Tensor:
    """Interpolate all bands: pixels (M, C), the four numbers (...) around each point -> (..., C)."""
    total: Tensor | None = None
    for number, weight in zip(numbers, weights, strict=True):
        part = pixels[number].float().mul_(weight[..., None])
        total = part if total is None else total.add_(part)
    assert total is not None, "four corners"
    return total


def blend_around_gaps(pixels: Tensor, numbers: Iterable[Tensor], weights: Iterable[Tensor]) -> Tensor:
    """Interpolate where some pixels are NaN: a point takes what its other corners say, if those hold half of it."""
    values = torch.stack([pixels[number] for number in numbers])
    shares = torch.stack(tuple(weights))[..., None] * ~values.isnan()
    share = shares.sum(0)
    return ((values.nan_to_num(0.0) * shares).sum(0) / share.clamp_min(0.5)).where(share >= 0.5, torch.nan)


def average_blocks(tiles: Tensor, factor: int) -> Tensor:
    """Shrink tiles (N, H, W, C) by a whole factor, each pixel the mean of a square of oversampled ones."""
    if factor == 1:
        return tiles
    count, height, width, bands = tiles.shape
    return tiles.reshape(count, height // factor, factor, width // factor, factor, bands).mean((2, 4))


def tangent_degrees(places: Tensor, size: int, km_per_pixel: float) -> tuple[Tensor, Tensor]:
    """Latitude and longitude of tile pixels, (N, size, size) each, as `sampling.tangent_latlon` has them."""
    steps = torch.arange(size, dtype=torch.float64, device=places.device)
    east = (steps - (size - 1) / 2) * (km_per_pixel / EARTH_RADIUS_KM)
    lat, lon = places[:, :1], places[:, 1, None, None]
    sine, cosine = lat.deg2rad().sin(), lat.deg2rad().cos()
    outward, upward = (cosine + east * sine)[:, :, None], (sine - east * cosine)[:, :, None]
    return torch.atan2(upward, torch.hypot(outward, east)).rad2deg(), torch.atan2(east, outward).rad2deg() + lon


def mercator_pixels(lat: Tensor, lon: Tensor, world: int) -> tuple[Tensor, Tensor]:
    """Rows and columns on a world map of `world` pixels a side, as `pyramid.mercator_pixels` has them."""
    height = lat.clamp(-MERCATOR_LATITUDE, MERCATOR_LATITUDE).deg2rad().sin().atanh()
    row = (1.0 - height / np.pi) * (world / 2) - 0.5
    return row.clamp(0, world - 1), (lon + 180.0) * (world / 360.0) - 0.5


def _sample(latlon: Floats, size: int, device: torch.device, read: Callable[[Tensor], Tensor]) -> Tensor:
    """Tiles (N, C, h, w) of a reader of few places at a time, each tile `size` points a side; bands lie innermost."""
    places = _to_device(latlon, device)
    step = max(1, POINTS_AT_ONCE.get(device.type, POINTS_AT_ONCE["cuda"]) // size**2)
    return torch.cat([read(some) for some in torch.split(places, step)]).permute(0, 3, 1, 2)


def _to_device(latlon: Floats, device: torch.device) -> Tensor:
    return torch.from_numpy(np.ascontiguousarray(as_places(latlon))).to(device)


def _as_pixels(planes: np.ndarray, device: torch.device) -> Tensor:
    """Planes (C, H, W) as pixels (H * W, C) on a device, bytes as they are and other numbers as float32."""
    there = torch.from_numpy(planes if planes.dtype == np.uint8 else planes.astype(np.float32)).to(device)
    return there.flatten(1).T.contiguous()
