"""Tiles from any georeferenced raster: GeoTIFF, COG or VRT, in any projection and with any bands."""

import math
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import check_km_per_pixel, check_tile_size, fingerprint
from tessearth.imagery.sources.images import damage_named, dataset_band_names, open_raster
from tessearth.imagery.sources.sampling import average_blocks, blend, find_corners, has_gaps, tangent_latlon
from tessearth.packages import package_version, require
from tessearth.sphere.coordinates import as_places

Degrees = npt.NDArray[np.float64]
ToPixels = Callable[[Degrees, Degrees], "PixelPositions"]


class PixelPositions(NamedTuple):
    """Positions on a raster in pixels from its upper left corner, so that pixel (0, 0) is centred on (0.5, 0.5)."""

    row: npt.NDArray[np.float64]
    column: npt.NDArray[np.float64]


class Window(NamedTuple):
    """A rectangle of a raster in whole pixels, and how many of them go into one along each side."""

    top: int
    bottom: int
    left: int
    right: int
    shrink: tuple[int, int]


class GeoTiff:
    """Tiles from a raster file, reading only the window each place needs.

    The pixels of a tile are projected into the raster's own coordinates. Where the raster is finer than
    `km_per_pixel` it is averaged down, from its overviews when it has them. Pixels without data, and pixels of a tile
    that reach beyond the raster, become `fill`; a place that lies outside is refused.
    """

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
        self.path = str(path)
        self.size = check_tile_size(size)
        self.km_per_pixel = check_km_per_pixel(km_per_pixel)
        self.fill = fill
        with open_raster(self.path) as dataset:
            if dataset.crs is None:
                raise DataError(
                    f"{self.path} does not say where it lies (no coordinate system); locate it or use patches"
                )
            self.band_numbers = _choose_bands(dataset, band_numbers, self.path)
            names = dataset_band_names(dataset)
            self._bands = tuple(names[number - 1] for number in self.band_numbers)
            self.scales, self.offsets = _scaling(dataset, self.band_numbers, scale)
            self.crs, self.shape = dataset.crs.to_wkt(), (dataset.height, dataset.width)

    @property
    def bands(self) -> tuple[str, ...]:
        """The names of the bands."""
        return self._bands

    def tiles(self, latlon: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Read places (N, 2) as tiles (N, C, size, size)."""
        places = as_places(latlon)
        result = np.empty((len(places), len(self._bands), self.size, self.size), dtype=np.float32)
        with open_raster(self.path) as dataset:
            with damage_named(self.path):  # a projection may be named that nobody can compute
                to_pixels = _projection(dataset)
            self._check_inside(dataset, places, to_pixels)
            for place, tile in zip(places, result, strict=True):
                tile[:] = self._read_tile(dataset, place[None], to_pixels)
        result *= np.asarray(self.scales, dtype=np.float32)[:, None, None]
        result += np.asarray(self.offsets, dtype=np.float32)[:, None, None]
        return result if math.isnan(self.fill) else np.nan_to_num(result, copy=False, nan=self.fill)

    def describe(self) -> dict[str, Any]:
        """The raster's record."""
        with open_raster(self.path) as dataset:
            files = [Path(name) for name in dataset.files]
        return {
            "kind": "geotiff",
            "files": [fingerprint(file) if file.is_file() else {"name": file.name} for file in files],
            "bands": list(self._bands),
            "band_numbers": list(self.band_numbers),
            "raster": list(self.shape),
            "crs": self.crs,
            "scales": list(self.scales),
            "offsets": list(self.offsets),
            "fill": None if math.isnan(self.fill) else self.fill,
            "size": self.size,
            "km_per_pixel": self.km_per_pixel,
            "packages": {name: package_version(name) for name in ("rasterio", "pyproj")},
        }

    def _check_inside(self, dataset: Any, places: Degrees, to_pixels: ToPixels) -> None:
        outside = ~_inside(to_pixels(places[:, 0], places[:, 1]), dataset)
        if outside.any():
            row = int(outside.argmax())
            lat, lon = places[row]
            with damage_named(self.path):
                west, south, east, north = _bounds_in_degrees(dataset)
            raise DataError(
                f"place {row} at lat {lat:.6g}, lon {lon:.6g} is outside {self.path}, "
                f"which covers lat {south:.6g} to {north:.6g}, lon {west:.6g} to {east:.6g}"
            )

    def _read_tile(self, dataset: Any, place: Degrees, to_pixels: ToPixels) -> npt.NDArray[np.float32]:
        step = self._pixels_per_tile_pixel(place, to_pixels)
        shrink = (max(1, min(int(step[0]), dataset.height)), max(1, min(int(step[1]), dataset.width)))
        factor = 2 if max(step) > 1 + 1e-3 else 1
        lat, lon = tangent_latlon(place, self.size * factor, self.km_per_pixel / factor)
        position = to_pixels(lat.reshape(-1), lon.reshape(-1))
        values = np.full((len(self._bands), lat.size), np.nan, dtype=np.float32)
        for group in _either_side_of_the_seam(position, _inside(position, dataset), step[1] * self.size):
            values[:, group] = self._interpolate(dataset, position.row[group], position.column[group], shrink)
        return average_blocks(values.reshape(len(values), *lat.shape[1:]), factor)

    def _pixels_per_tile_pixel(self, place: Degrees, to_pixels: ToPixels) -> tuple[float, float]:
        """How many rows and columns of the raster one tile pixel spans here, whatever way the raster is turned.

        Of the steps to either side the smaller is taken, because the other may leap over the edge of the map.
        """
        lat, lon = tangent_latlon(place, 3, self.km_per_pixel)
        row, column = (axis.reshape(3, 3) for axis in to_pixels(lat.reshape(-1), lon.reshape(-1)))
        return _step(row), _step(column)

    def _interpolate(
        self, dataset: Any, row: npt.NDArray[np.float64], column: npt.NDArray[np.float64], shrink: tuple[int, int]
    ) -> npt.NDArray[np.float32]:
        """Values at positions that lie near each other, (P,) -> (C, P), from one window of the raster."""
        window = _window_around(row, column, shrink, dataset)
        planes = self._read_window(dataset, window)
        count, height, width = planes.shape
        framed = np.pad(planes, ((0, 0), (1, 1), (1, 1)), mode="edge").reshape(count, -1)
        down = (row - window.top) * (height / (window.bottom - window.top)) + 0.5
        across = (column - window.left) * (width / (window.right - window.left)) + 0.5
        return blend(framed, find_corners(down, across, width + 2), gaps=has_gaps(framed))

    def _read_window(self, dataset: Any, window: Window) -> npt.NDArray[Any]:
        rasterio = require("rasterio", extra="geo", what="reading GeoTIFF")
        height, width = window.bottom - window.top, window.right - window.left
        with damage_named(self.path):
            pixels = dataset.read(
                list(self.band_numbers),
                window=((window.top, window.bottom), (window.left, window.right)),
                out_shape=(len(self._bands), math.ceil(height / window.shrink[0]), math.ceil(width / window.shrink[1])),
                masked=True,
                resampling=rasterio.enums.Resampling.average,
            )
        if np.ma.is_masked(pixels):
            return np.asarray(np.ma.filled(pixels.astype(np.float32), np.nan))
        return np.asarray(pixels.data)


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
    if scale is not None:
        return (scale,) * len(numbers), (0.0,) * len(numbers)
    scales = [float(dataset.scales[number - 1]) for number in numbers]
    offsets = [float(dataset.offsets[number - 1]) for number in numbers]
    plain = all(value == 1 for value in scales) and not any(offsets)
    if plain and all(dataset.dtypes[number - 1] == "uint8" for number in numbers):
        scales = [1 / 255] * len(numbers)
    return tuple(scales), tuple(offsets)


def _projection(dataset: Any) -> ToPixels:
    """From degrees to pixels of the dataset; what cannot be projected comes out infinite."""
    pyproj = require("pyproj", extra="geo", what="reading projected rasters")
    transformer = pyproj.Transformer.from_crs("EPSG:4326", dataset.crs.to_wkt(), always_xy=True)
    inverse = ~dataset.transform
    middle = (dataset.bounds.left + dataset.bounds.right) / 2 if dataset.crs.is_geographic else 0.0

    def to_pixels(lat: Degrees, lon: Degrees) -> PixelPositions:
        turned = np.mod(lon + 180.0, 360.0) - 180.0
        x, y = transformer.transform(turned, lat)
        if dataset.crs.is_geographic:
            # A raster may count its degrees from anywhere: 0 to 360, or 170 to 190 across the antimeridian.
            x = middle + np.mod(x - middle + 180.0, 360.0) - 180.0
        with np.errstate(invalid="ignore"):
            return PixelPositions(
                row=inverse.d * x + inverse.e * y + inverse.f, column=inverse.a * x + inverse.b * y + inverse.c
            )

    return to_pixels


def _inside(position: PixelPositions, dataset: Any) -> npt.NDArray[np.bool_]:
    row, column = position
    inside: npt.NDArray[np.bool_] = (row >= 0) & (row <= dataset.height) & (column >= 0) & (column <= dataset.width)
    return inside


def _step(position: npt.NDArray[np.float64]) -> float:
    """How far the middle of 3 x 3 positions is from its neighbours: sideways and upwards together."""
    with np.errstate(invalid="ignore"):
        sideways = np.abs(np.diff(position[1])).min()
        upwards = np.abs(np.diff(position[:, 1])).min()
        step = np.hypot(sideways, upwards)
    return float(step) if np.isfinite(step) else 1.0


def _either_side_of_the_seam(
    position: PixelPositions, inside: npt.NDArray[np.bool_], expected: float
) -> list[npt.NDArray[np.bool_]]:
    """Split the points of a tile that straddles the edge of a map of the world, where columns leap from end to end."""
    columns = np.sort(position.column[inside])
    if not len(columns):
        return []
    gaps = np.diff(columns, prepend=columns[0])
    widest = int(gaps.argmax())
    if gaps[widest] <= 2 * expected + 2:
        return [inside]
    beyond = position.column >= columns[widest]
    return [inside & beyond, inside & ~beyond]


def _window_around(
    row: npt.NDArray[np.float64], column: npt.NDArray[np.float64], shrink: tuple[int, int], dataset: Any
) -> Window:
    """The window that holds all positions and a neighbour on every side, starting at whole shrunken pixels."""
    (top, bottom), (left, right) = (
        _span(axis, step, most)
        for axis, step, most in zip((row, column), shrink, (dataset.height, dataset.width), strict=True)
    )
    return Window(top=top, bottom=bottom, left=left, right=right, shrink=shrink)


def _span(axis: npt.NDArray[np.float64], step: int, most: int) -> tuple[int, int]:
    first = max(0, (math.floor(axis.min() / step) - 1) * step)
    return first, max(first + 1, min(most, (math.ceil(axis.max() / step) + 1) * step))


def _bounds_in_degrees(dataset: Any) -> tuple[float, float, float, float]:
    rasterio_warp = require("rasterio.warp", extra="geo", what="reading GeoTIFF")
    west, south, east, north = rasterio_warp.transform_bounds(dataset.crs, "EPSG:4326", *dataset.bounds)
    return west, south, east, north
