"""Parts of the Earth by name: countries, continents, a few boxes of general use, and the world.

Countries go by the names of Natural Earth and of GeoNames and by their ISO 3166-1 codes of two and three letters
(countries.csv, after GeoNames); a country is its whole outline, overseas parts included. A continent is the outlines of
its countries as GeoNames assigns them, but Russia is cut at 60 E, and overseas parts of European countries belong to
the continent on which they lie.
"""

import csv
import functools
import re
import unicodedata
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.settings import did_you_mean
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.grids import GLOBE, Box, check_box
from tessearth.sphere.land import Outline, Stretches, find_stretches, load_outlines

URALS = 60.0
"""The longitude between Europe and Asia in Russia."""
SOUTH_OF_EUROPE, MIDDLE_OF_ATLANTIC, NORTH_OF_GUIANA = 34.0, -30.0, 7.0

BOXES = {
    "caribbean": Box(-92, 7, -58, 28),
    "central-europe": Box(2, 44, 22, 56),
    "east-asia": Box(98, 20, 148, 52),
    "mediterranean": Box(-10, 29, 38, 47),
    "middle-east": Box(30, 11, 66, 43),
    "south-asia": Box(64, 4, 98, 37),
    "southeast-asia": Box(92, -12, 142, 24),
}
"""Regions without an outline of their own."""
CONTINENTS = {
    "africa": "AF",
    "asia": "AS",
    "europe": "EU",
    "north-america": "NA",
    "oceania": "OC",
    "south-america": "SA",
}
"""GeoNames' codes; Antarctica has an outline like a country."""
CONTINENTS_WITHOUT_CODE = {
    "AF": ("Somaliland",),
    "AS": ("Baikonur", "Scarborough Reef", "Siachen Glacier", "Spratly Is."),
    "EU": ("Akrotiri", "Cyprus U.N. Buffer Zone", "Dhekelia", "Kosovo", "N. Cyprus"),
    "NA": ("Bajo Nuevo Bank", "Clipperton I.", "Serranilla Bank", "USNB Guantanamo Bay"),
    "OC": ("Coral Sea Is.", "Indian Ocean Ter."),
}
"""The territories of Natural Earth that have no number in ISO 3166-1, by their continents."""
OTHER_NAMES = {"czech-republic": "CZ", "drc": "CD", "turkiye": "TR", "uae": "AE", "uk": "GB", "united-states": "US"}


@dataclass(frozen=True, eq=False, kw_only=True)
class Region:
    """A part of the Earth."""

    name: str
    box: Box
    """The smallest box around it."""
    rings: tuple[Floats, ...] = ()
    """Its outline: closed rings (M, 2), degrees, latitude first, none across the antimeridian; empty for a region that
    is its box."""

    def contains(self, latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
        """Which places (..., 2) lie inside, to about 400 m."""
        given = np.asarray(latlon, dtype=np.float64)
        places = given.reshape(-1, 2)
        inside = self._stretches.owner(places) >= 0 if self.rings else self.box.contains(places)
        return np.asarray(inside).reshape(given.shape[:-1])

    @functools.cached_property
    def _stretches(self) -> Stretches:
        return find_stretches((Outline(self.name, "", self.rings),))


def find_area(bbox: Sequence[float] | None, region: str | None) -> tuple[Box, Region | None]:
    """The box of a map, and the region that it is drawn around: a box, a region by name, or the world."""
    if bbox is not None and region is not None:
        raise ConfigError("bbox and region both say where: give one of them")
    found = None if region is None else find_region(region)
    return (check_box(GLOBE if bbox is None else bbox) if found is None else found.box), found


@functools.cache
def find_region(name: str) -> Region:
    """A country, a continent, a box of `BOXES`, or "world"; case, accents and spaces do not matter."""
    wanted = _plain(name)
    if wanted == "world":
        return Region(name="world", box=GLOBE)
    if wanted in BOXES:
        return Region(name=wanted, box=BOXES[wanted])
    if wanted in CONTINENTS:
        return _region(wanted, tuple(_continent_rings(CONTINENTS[wanted])))
    countries = _countries()
    if wanted not in countries:
        known = ("world", *CONTINENTS, *BOXES)
        near = did_you_mean(wanted, (*known, *(country for country in countries if len(country) > 3)))
        advice = near if "did you mean" in near else f"; there are: {', '.join(known)}, and countries by name or code"
        raise UnknownNameError(f"there is no region named {name!r}{advice}")
    outlines = countries[wanted]
    rings = tuple(ring for outline in outlines for ring in outline.rings)
    if not rings:
        raise UnknownNameError(f"{outlines[0].name} is too small for the outlines that ship: give a bbox instead")
    return _region(outlines[0].name, rings)


@functools.cache
def outline_continents() -> tuple[str, ...]:
    """The continent of each outline as GeoNames assigns it: AF, AN, AS, EU, NA, OC or SA."""
    by_number = {row["iso_numeric"]: row["continent"] for row in country_table() if row["iso_numeric"]}
    by_name = {name: continent for continent, names in CONTINENTS_WITHOUT_CODE.items() for name in names}
    return tuple(by_number.get(outline.iso_numeric) or by_name[outline.name] for outline in load_outlines())


def _plain(name: str) -> str:
    """A name in lower case without accents, its words joined by hyphens."""
    letters = unicodedata.normalize("NFKD", name).encode("ascii", "ignore").decode().lower()
    return re.sub("[^a-z0-9]+", "-", letters).strip("-").removeprefix("the-")


@functools.cache
def country_table() -> tuple[dict[str, str], ...]:
    """The rows of countries.csv: iso_numeric, iso2, iso3, continent and name of every country."""
    with open(Path(__file__).with_name("countries.csv"), encoding="utf-8", newline="") as file:
        return tuple(csv.DictReader(file))


@functools.cache
def _countries() -> dict[str, tuple[Outline, ...]]:
    """The outlines of each country by all of its names and codes."""
    by_number: dict[str, list[Outline]] = {}
    for outline in load_outlines():
        by_number.setdefault(outline.iso_numeric or outline.name, []).append(outline)
    found: dict[str, tuple[Outline, ...]] = {}
    for row in country_table():
        same = tuple(by_number.get(row["iso_numeric"] or row["name"], ()))
        others = [other for other, code in OTHER_NAMES.items() if code == row["iso2"]]
        if same:
            found |= {_plain(name): same for name in (row["iso2"], row["iso3"], row["name"], same[0].name, *others)}
    return {_plain(outline.name): (outline,) for outline in load_outlines()} | found


def _region(name: str, rings: tuple[Floats, ...]) -> Region:
    return Region(name=name, box=_box_around(rings), rings=rings)


def _box_around(rings: tuple[Floats, ...]) -> Box:
    """The box that leaves out the widest gap of longitudes between rings."""
    low, high = (np.array([reduce(ring, axis=0) for ring in rings]) for reduce in (np.min, np.max))
    south, north = float(low[:, 0].min()), float(high[:, 0].max())
    order = np.argsort(low[:, 1])
    west, reach = low[order, 1], np.maximum.accumulate(high[order, 1])
    gaps = np.append(west[1:], west[0] + 360.0) - reach
    widest = int(gaps.argmax())
    if gaps[widest] <= 0:
        return Box(-180.0, south, 180.0, north)
    start, end = float(west[(widest + 1) % len(west)]), float(reach[widest])
    return Box(start, south, end if end > start else end + 360.0, north)


def _continent_rings(code: str) -> Iterator[Floats]:
    for outline, home in zip(load_outlines(), outline_continents(), strict=True):
        for ring in outline.rings:
            for continent, part in _of_europe(ring) if home == "EU" else [(home, ring)]:
                if continent == code:
                    yield part


def _of_europe(ring: Floats) -> list[tuple[str, Floats]]:
    """The parts of a European country's ring, each with the continent on which it lies."""
    (south, west), (north, east) = ring.min(axis=0), ring.max(axis=0)
    lat, lon = (south + north) / 2, (west + east) / 2
    if west < URALS < east:
        return [("EU", _cut(ring, URALS, east=False)), ("AS", _cut(ring, URALS, east=True))]
    if lon > URALS or (lat > URALS and lon < -2 * URALS):
        return [("AS", ring)]
    if lat >= SOUTH_OF_EUROPE:
        return [("EU", ring)]
    if lon > MIDDLE_OF_ATLANTIC:
        return [("AF", ring)]
    return [("SA" if lat < NORTH_OF_GUIANA else "NA", ring)]


def _cut(ring: Floats, lon: float, *, east: bool) -> Floats:
    """The part of a ring on one side of a meridian, closed along it."""
    start, stop = ring[:-1], ring[1:]
    crossing = np.flatnonzero((start[:, 1] < lon) != (stop[:, 1] < lon))
    share = (lon - start[crossing, 1]) / (stop[crossing, 1] - start[crossing, 1])
    lat = start[crossing, 0] + share * (stop[crossing, 0] - start[crossing, 0])
    points = np.insert(start, crossing + 1, np.stack((lat, np.full_like(lat, lon)), axis=-1), axis=0)
    kept = points[points[:, 1] >= lon] if east else points[points[:, 1] <= lon]
    return np.concatenate((kept, kept[:1]))
