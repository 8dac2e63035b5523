"""Tiles from any georeferenced raster: GeoTIFF, COG or VRT, in any projection and with any bands."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import MapSource, Tiles, fingerprint
from tessearth.imagery.sources.images import damage_named, dataset_band_names, open_raster, read_pixels
from tessearth.imagery.sources.sampling import average_blocks, blend, find_corners, has_gaps, tangent_latlon
from tessearth.packages import require
from tessearth.sphere import Box, Floats, check_box

Mask = npt.NDArray[np.bool_]
MASK_SIDE = 2048
"""Most rows and columns of the mask of a raster's data that is looked at for its places."""
ToPixels = Callable[[Floats, Floats], Floats]
"""From latitudes and longitudes (P,) to rows and columns (2, P) in pixels from the raster's upper left corner, so that
pixel (0, 0) is centred on (0.5, 0.5)."""


class GeoTiff(MapSource):
    """Tiles from a raster file, reading only the window each place needs.

    The pixels of a tile are projected into the raster's own coordinates. Where the raster is finer than
    `km_per_pixel` it is averaged down, from its overviews when it has them. Pixels without data, and pixels of a tile
    that reach beyond the raster, become `fill`; a place that lies outside is refused.
    """

    kind = "geotiff"
    packages = ("rasterio", "pyproj")

    def __init__(
        self,
        path: str | Path,
        *,
        size: int,
        km_per_pixel: float,
        band_numbers: Sequence[int] | None = None,
        scale: float | None = None,
        fill: float = float("nan"),
    ) -> None:
        """Open a raster.

        `band_numbers` count from 1; left out, all bands but transparency are read. Values are multiplied by `scale`:
        left out, the file's own scale and offset are applied, and 8-bit values without one are brought to [0, 1].
        """
        super().__init__(size, km_per_pixel)
        self.path, self.fill = str(path), fill
        with open_raster(self.path) as dataset:
            if dataset.crs is None:
                raise DataError(
                    f"{self.path} does not say where it lies (no coordinate system); locate it or use patches"
                )
            self.band_numbers = _choose_bands(dataset, band_numbers, self.path)
            names = dataset_band_names(dataset)
            self.bands = tuple(names[number - 1] for number in self.band_numbers)
            self.scales, self.offsets = _scaling(dataset, self.band_numbers, scale)
            self.crs, self.shape = dataset.crs.to_wkt(), (dataset.height, dataset.width)

    def bounds(self) -> Box:
        """The box of degrees around the raster."""
        with open_raster(self.path) as dataset:
            return check_box(self._bounds(dataset))

    def covers(self, places: Floats) -> Mask:
        """Which places (N, 2) have a whole tile of imagery, as far as its corners and its middle tell."""
        lat, lon = tangent_latlon(places, 3, self.size * self.km_per_pixel / 2)
        with open_raster(self.path) as dataset, damage_named(self.path):
            shape = (min(MASK_SIDE, dataset.height), min(MASK_SIDE, dataset.width))
            mask = dataset.dataset_mask(out_shape=shape) > 0
            position = _projection(dataset)(lat.reshape(-1), lon.reshape(-1))
            inside = _inside(position, dataset)
            row, column = np.where(inside, position, 0.0) * np.divide(shape, dataset.shape)[:, None]
        held = mask[row.astype(np.int64).clip(max=shape[0] - 1), column.astype(np.int64).clip(max=shape[1] - 1)]
        return np.asarray((inside & held).reshape(len(places), 9).all(axis=1))

    def _bounds(self, dataset: Any) -> tuple[float, float, float, float]:
        """West, south, east, north in degrees."""
        rasterio_warp = require("rasterio.warp", extra="geo", what="reading GeoTIFF")
        with damage_named(self.path):
            west, south, east, north = rasterio_warp.transform_bounds(dataset.crs, "EPSG:4326", *dataset.bounds)
        return west, south, east, north

    def _read(self, places: Floats, result: Tiles) -> None:
        with open_raster(self.path) as dataset:
            with damage_named(self.path):  # a file may name a projection that cannot be computed
                to_pixels = _projection(dataset)
            self._check_inside(dataset, places, to_pixels)
            for place, tile in zip(places, result, strict=True):
                tile[:] = self._read_tile(dataset, place[None], to_pixels)
        result *= np.asarray(self.scales, dtype=np.float32)[:, None, None]
        result += np.asarray(self.offsets, dtype=np.float32)[:, None, None]
        if not math.isnan(self.fill):
            np.nan_to_num(result, copy=False, nan=self.fill)

    def _record(self) -> dict[str, Any]:
        with open_raster(self.path) as dataset:
            files = [Path(name) for name in dataset.files]
        return {
            "files": [fingerprint(file) if file.is_file() else {"name": file.name} for file in files],
            "band_numbers": list(self.band_numbers),
            "raster": list(self.shape),
            "crs": self.crs,
            "scales": list(self.scales),
            "offsets": list(self.offsets),
            "fill": None if math.isnan(self.fill) else self.fill,
        }

    def _check_inside(self, dataset: Any, places: Floats, to_pixels: ToPixels) -> None:
        outside = ~_inside(to_pixels(places[:, 0], places[:, 1]), dataset)
        if outside.any():
            row = int(outside.argmax())
            lat, lon = places[row]
            west, south, east, north = self._bounds(dataset)
            raise DataError(
                f"place {row} at lat {lat:.6g}, lon {lon:.6g} is outside {self.path}, "
                f"which covers lat {south:.6g} to {north:.6g}, lon {west:.6g} to {east:.6g}"
            )

    def _read_tile(self, dataset: Any, place: Floats, to_pixels: ToPixels) -> Tiles:
        step = self._pixels_per_tile_pixel(place, to_pixels)
        shrink = (max(1, min(int(step[0]), dataset.height)), max(1, min(int(step[1]), dataset.width)))
        factor = 2 if max(step) > 1 + 1e-3 else 1
        lat, lon = tangent_latlon(place, self.size * factor, self.km_per_pixel / factor)
        position = to_pixels(lat.reshape(-1), lon.reshape(-1))
        values = np.full((len(self.bands), lat.size), np.nan, dtype=np.float32)
        for group in _either_side_of_the_seam(position, _inside(position, dataset), step[1] * self.size):
            values[:, group] = self._interpolate(dataset, position[:, group], shrink)
        return average_blocks(values.reshape(len(values), *lat.shape[1:]), factor)

    def _pixels_per_tile_pixel(self, place: Floats, to_pixels: ToPixels) -> tuple[float, float]:
        """How many rows and columns of the raster one tile pixel spans here, even on a turned raster.

        Of the steps to either side the smaller is taken, because the other may leap over the edge of the map.
        """
        lat, lon = tangent_latlon(place, 3, self.km_per_pixel)
        row, column = to_pixels(lat.reshape(-1), lon.reshape(-1)).reshape(2, 3, 3)
        return _step(row), _step(column)

    def _interpolate(self, dataset: Any, position: Floats, shrink: tuple[int, int]) -> npt.NDArray[np.float32]:
        """Values at positions that lie near each other, (2, P) -> (C, P), from one window of the raster."""
        row, column = position
        top, bottom = _span(row, shrink[0], dataset.height)
        left, right = _span(column, shrink[1], dataset.width)
        shape = (math.ceil((bottom - top) / shrink[0]), math.ceil((right - left) / shrink[1]))
        averaged = require("rasterio", extra="geo", what="reading GeoTIFF").enums.Resampling.average
        planes = read_pixels(
            dataset,
            indexes=list(self.band_numbers),
            window=((top, bottom), (left, right)),
            out_shape=(len(self.bands), *shape),
            resampling=averaged,
        )
        count, height, width = planes.shape
        framed = np.pad(planes, ((0, 0), (1, 1), (1, 1)), mode="edge").reshape(count, -1)
        down = (row - top) * (height / (bottom - top)) + 0.5
        across = (column - left) * (width / (right - left)) + 0.5
        return blend(framed, find_corners(down, across, width + 2), gaps=has_gaps(framed))


def _choose_bands(dataset: Any, wanted: Sequence[int] | None, path: str) -> tuple[int, ...]:
    if wanted is None:
        visible = [
            number for number, role in zip(dataset.indexes, dataset.colorinterp, strict=True) if role.name != "alpha"
        ]
        return tuple(visible or dataset.indexes)
    wrong = [number for number in wanted if number not in dataset.indexes]
    if wrong or not wanted:
        raise ConfigError(
            f"{path} has bands 1 to {dataset.count}; band {wrong[0] if wrong else 'list ()'} cannot be read"
        )
    return tuple(wanted)


def _scaling(
    dataset: Any, numbers: tuple[int, ...], scale: float | None
) -> tuple[tuple[float, ...], tuple[float, ...]]:
    nothing = (0.0,) * len(numbers)
    if scale is not None:
        return (scale,) * len(numbers), nothing
    scales, offsets = (tuple(float(of[n - 1]) for n in numbers) for of in (dataset.scales, dataset.offsets))
    bytes_as_they_are = all(dataset.dtypes[number - 1] == "uint8" for number in numbers) and set(scales) == {1.0}
    if bytes_as_they_are and offsets == nothing:
        scales = (1 / 255,) * len(numbers)
    return scales, offsets


def _projection(dataset: Any) -> ToPixels:
    """A function from degrees to pixels of the dataset; places that cannot be projected become infinite."""
    pyproj = require("pyproj", extra="geo", what="reading projected rasters")
    transformer = pyproj.Transformer.from_crs("EPSG:4326", dataset.crs.to_wkt(), always_xy=True)
    inverse = ~dataset.transform
    middle = (dataset.bounds.left + dataset.bounds.right) / 2 if dataset.crs.is_geographic else 0.0

    def to_pixels(lat: Floats, lon: Floats) -> Floats:
        turned = np.mod(lon + 180.0, 360.0) - 180.0
        x, y = transformer.transform(turned, lat)
        if dataset.crs.is_geographic:
            # A raster may count its degrees from anywhere: 0 to 360, or 170 to 190 across the antimeridian.
            x = middle + np.mod(x - middle + 180.0, 360.0) - 180.0
        with np.errstate(invalid="ignore"):
            row, column = inverse.d * x + inverse.e * y + inverse.f, inverse.a * x + inverse.b * y + inverse.c
            return np.stack((row, column))

    return to_pixels


def _inside(position: Floats, dataset: Any) -> Mask:
    row, column = position
    return np.asarray((row >= 0) & (row <= dataset.height) & (column >= 0) & (column <= dataset.width))


def _step(position: Floats) -> float:
    """How far the middle of 3 x 3 positions is from its neighbours: sideways and upwards together."""
    with np.errstate(invalid="ignore"):
        sideways = np.abs(np.diff(position[1])).min()
        upwards = np.abs(np.diff(position[:, 1])).min()
        step = np.hypot(sideways, upwards)
    return float(step) if np.isfinite(step) else 1.0


def _either_side_of_the_seam(position: Floats, inside: Mask, expected: float) -> list[Mask]:
    """Split the points of a tile that straddles the edge of a map of the world, where columns leap from end to end."""
    columns = np.sort(position[1, inside])
    if not len(columns):
        return []
    gaps = np.diff(columns, prepend=columns[0])
    widest = int(gaps.argmax())
    if gaps[widest] <= 2 * expected + 2:
        return [inside]
    beyond = position[1] >= columns[widest]
    return [inside & beyond, inside & ~beyond]


def _span(axis: Floats, step: int, most: int) -> tuple[int, int]:
    """The rows or columns that hold all positions and a neighbour on either side, from a whole shrunken pixel on."""
    first = max(0, (math.floor(axis.min() / step) - 1) * step)
    return first, max(first + 1, min(most, (math.ceil(axis.max() / step) + 1) * step))
