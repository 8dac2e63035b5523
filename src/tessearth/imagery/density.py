"""How densely places are wanted over the Earth, read from a picture, a pyramid or a table: evaluated, and drawn from.

A density is constant in each cell of a grid whose columns are even in longitude: the pixels of an equirectangular
picture or of a GeoTIFF, those of a zoom of a Web Mercator pyramid, or cells in which the rows of a table are counted.
"""

import math
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.sources.images import RASTERIO_SUFFIXES, open_raster, read_pixels
from tessearth.imagery.sources.pyramid import TilePyramid
from tessearth.imagery.sources.raster import GlobalRaster
from tessearth.imagery.sources.tile_stores import Tile
from tessearth.packages import require
from tessearth.sphere import EARTH_RADIUS_KM, GLOBE, Box, Floats, as_places
from tessearth.storage import column_names, open_points, read_labelled

PICTURES = {".jpg", ".jpeg", ".png", ".webp"}
MOST_CELLS = 2**25
"""Of a density's grid; finer rasters are averaged."""
PICTURE_KM = 10.0
"""The cells of pictures of the globe, and about those of pyramids at the equator."""
DEEPEST_ZOOM = 4
LEAST_KM = 5.0
"""The narrowest cells of a table's density."""
WEIGHT = "weight"
Wanted = Callable[[Floats], npt.NDArray[np.bool_]]
"""Which of places (N, 2) are wanted."""
DRAWN_AT_ONCE, MOST_DRAWS = 2**16, 50
"""Draws without a single wanted place, after which there is taken to be none."""


class Density(NamedTuple):
    """A density over a grid of cells."""

    name: str
    """What messages call it."""
    values: Floats
    """The weight of an area in each cell, relative to others, (rows, columns), from north to south and west to east."""
    lat: Floats
    """The edges of the rows in degrees, falling, (rows + 1,)."""
    west: float
    width: float
    """Degrees from the western to the eastern edge."""

    def at(self, latlon: npt.ArrayLike) -> Floats:
        """The density at places (N, 2), (N,); nothing beyond the grid."""
        lat, lon = as_places(latlon).T
        rows, columns = self.values.shape
        row = np.searchsorted(-self.lat, -lat, side="right") - 1
        row = np.where((lat == self.lat[-1]), rows - 1, row)
        column = np.floor(np.mod(lon - self.west, 360.0) * (columns / self.width)).astype(np.int64)
        inside = (row >= 0) & (row < rows) & (column < columns)
        return np.where(inside, self.values[np.clip(row, 0, rows - 1), np.clip(column, 0, columns - 1)], 0.0)

    def draw(self, count: int, seed: int, *, box: Box = GLOBE, wanted: Wanted | None = None) -> Floats:
        """Draw places in proportion to the density, within a box and where they are wanted, (count, 2) in degrees.

        A cell is drawn by its weight and area, a place evenly within it. A larger draw begins with the smaller one.
        """
        total = np.cumsum(self._within(box) * self._areas()[:, None])
        if not total[-1] > 0:
            raise ConfigError(f"the density {self.name} has no weight where places are asked for")
        generator, found, missing, without = np.random.default_rng([seed, *b"density"]), [np.empty((0, 2))], count, 0
        while missing > 0:
            draw = self._draw_from(total, generator.random((DRAWN_AT_ONCE, 3)))
            kept = box.contains(draw) & (wanted(draw) if wanted else True)
            found.append(draw[kept][:missing])
            missing -= len(found[-1])
            without = 0 if len(found[-1]) else without + 1
            if without == MOST_DRAWS:
                raise ConfigError(f"the density {self.name} has no weight where places are asked for")
        return np.concatenate(found)

    def _draw_from(self, total: Floats, shares: Floats) -> Floats:
        """Places of numbers in [0, 1), (n, 3): which cell by the running total of weights, and where in it."""
        cell = np.searchsorted(total, shares[:, 0] * total[-1], side="right").clip(0, len(total) - 1)
        row, column = np.divmod(cell, self.values.shape[1])
        low, high = np.sin(np.deg2rad(self.lat[row + 1])), np.sin(np.deg2rad(self.lat[row]))
        lat = np.rad2deg(np.arcsin(low + (high - low) * shares[:, 1]))
        lon = self.west + (column + shares[:, 2]) * (self.width / self.values.shape[1])
        return np.stack((lat, np.mod(lon + 180.0, 360.0) - 180.0), axis=-1)

    def _areas(self) -> Floats:
        """Of a cell of each row, relative to others."""
        areas: Floats = -np.diff(np.sin(np.deg2rad(self.lat)))
        return areas

    def _within(self, box: Box) -> Floats:
        """The values of cells that touch a box, 0 elsewhere: so few places are drawn in vain."""
        columns = self.values.shape[1]
        step = self.width / columns
        west = np.mod(self.west + step * np.arange(columns) - box.west, 360.0)
        across = (west < box.width) | (west + step > 360.0)
        down = (self.lat[1:] < box.north) & (self.lat[:-1] > box.south)
        return np.where(down[:, None] & across, self.values, 0.0)


def read_density(path: str | Path, *, above: float = 0.0, km: float = 50.0) -> Density:
    """Read a density: a GeoTIFF, a picture of the whole globe, a Web Mercator pyramid, or a table of places.

    Of pixels only what they have `above` a value counts, and missing ones count nothing. A table has one place in each
    row, and its weight in a column `weight`, 1 by default; each is spread over a cell of about `km` kilometres.
    """
    suffix, file = Path(path).suffix.lower(), Path(path)
    if not file.exists():
        raise DataError(f"there is no density {path}; give a GeoTIFF, an .mbtiles file or a table of places")
    if suffix in RASTERIO_SUFFIXES:
        found = _of_geotiff(file)
    elif suffix in PICTURES:
        framed = GlobalRaster(file, size=1, km_per_pixel=PICTURE_KM).load().mean(axis=0, dtype=np.float64)
        found = Density(str(path), framed[1:-1, 1:-1], _even_rows(90.0, -90.0, len(framed) - 2), -180.0, 360.0)
    elif suffix == ".mbtiles" or file.is_dir():
        found = _of_pyramid(file)
    else:
        return _of_table(file, km)
    values = np.maximum(np.nan_to_num(found.values, nan=0.0, posinf=0.0, neginf=0.0) - above, 0.0)
    if not values.any():
        raise ConfigError(f"the density {path} has no weight: no pixel lies above {above:g}")
    return found._replace(values=values)


def _of_geotiff(path: Path) -> Density:
    """The first band of a GeoTIFF in any projection, averaged to degrees."""
    vrt = require("rasterio.vrt", extra="geo", what="reading GeoTIFF")
    with open_raster(path) as dataset:
        if dataset.crs is None:
            raise DataError(f"{path} does not say where it lies; a density needs a projection")
        resampling = require("rasterio", extra="geo", what="reading GeoTIFF").enums.Resampling.average
        with vrt.WarpedVRT(dataset, crs="EPSG:4326", resampling=resampling) as warped:
            shrink = max(1.0, math.sqrt(warped.width * warped.height / MOST_CELLS))
            shape = max(1, round(warped.height / shrink)), max(1, round(warped.width / shrink))
            values = read_pixels(warped, indexes=[1], out_shape=(1, *shape), resampling=resampling)[0]
            west, south, east, north = warped.bounds
    rows = _even_rows(min(north, 90.0), max(south, -90.0), shape[0])
    return Density(str(path), values.astype(np.float64), rows, west, min(east - west, 360.0))


def _of_pyramid(path: Path) -> Density:
    """The brightness of a zoom of a pyramid."""
    source = TilePyramid(path, size=1, km_per_pixel=PICTURE_KM, mode="L")
    zoom = min(DEEPEST_ZOOM, source.store.zooms[-1])
    tiles = [Tile(zoom, x, y) for y in range(2**zoom) for x in range(2**zoom)]
    found = source.decode_tiles(tiles)
    rows = [np.concatenate([found[tile][0] for tile in tiles[y << zoom :][: 2**zoom]], axis=1) for y in range(2**zoom)]
    values = np.concatenate(rows).astype(np.float64)
    height = math.pi * (1 - 2 * np.arange(len(values) + 1) / len(values))
    return Density(str(path), values, np.rad2deg(np.arctan(np.sinh(height))), -180.0, 360.0)


def _of_table(path: Path, km: float) -> Density:
    """Weights of places counted in cells of about `km`, per area."""
    if not LEAST_KM <= km <= 2000:
        raise ConfigError(f"the cells of a density are {km:g} km wide; choose from {LEAST_KM:g} to 2000")
    if WEIGHT in column_names(path):
        labelled = read_labelled(path, WEIGHT, "regress")
        latlon, weight = labelled.latlon, np.asarray(labelled.target, dtype=np.float64)
    else:
        with open_points(path, keep=[]) as points:
            latlon = np.concatenate([np.empty((0, 2)), *(batch.latlon for batch in points.batches)])
        weight = np.ones(len(latlon))
    if (weight < 0).any() or not weight.any():
        raise ConfigError(f"the weights of {path} are {'not all positive' if weight.any() else 'all 0'}")
    rows = max(2, round(math.pi * EARTH_RADIUS_KM / km))
    row = np.clip((90.0 - latlon[:, 0]) * (rows / 180.0), 0, rows - 1).astype(np.int64)
    column = np.floor((latlon[:, 1] + 180.0) * (rows / 180.0)).astype(np.int64) % (2 * rows)
    total = np.zeros((rows, 2 * rows))
    np.add.at(total, (row, column), weight)
    found = Density(str(path), total, _even_rows(90.0, -90.0, rows), -180.0, 360.0)
    return found._replace(values=total / found._areas()[:, None] / rows)


def _even_rows(north: float, south: float, count: int) -> Floats:
    return np.linspace(north, south, count + 1)
