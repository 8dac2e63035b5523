"""Places by name and names of places: the towns of GeoNames, and the countries.

A name finds a country, or the towns that are called so; towns of many inhabitants are also found by their other names
(Wien, Firenze). Where one town has ten times the inhabitants of all its namesakes it is meant, else the name is refused
with a list of them. "Springfield, IL" and "Paris, Canada" say which.
"""

import difflib
import functools
import json
import unicodedata
from collections.abc import Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from tessearth.errors import UnknownNameError
from tessearth.labels.countries import country_inside, country_names, to_xyz
from tessearth.labels.sources import Arrays, load_prepared, source_file
from tessearth.packages import require
from tessearth.sphere import Floats, country_table, fibonacci_lattice, load_outlines, xyz_to_latlon

LARGE_TOWN = 100_000
"""Inhabitants from which a town is found by its other names too."""
CLEARLY_LARGER = 10
"""How many times the inhabitants of all others the town has that a name means."""
SHOWN_TOWNS = 5
LATTICE_PLACES = 2**16


class NamedPlace(NamedTuple):
    """A place and what it is called."""

    name: str
    latlon: Floats
    """Degrees, (2,)."""


class _Towns(NamedTuple):
    latlon: Floats
    inhabitants: Floats
    titles: list[list[str]]
    """Name, region and country code of each."""
    by_key: dict[str, list[int]]


def find_place(text: str) -> NamedPlace:
    """The place that a name means: "Nairobi", "Paris, Canada", "Kenya" (a place in the middle of the country)."""
    name, *parts = [part.strip() for part in text.split(",")]
    code = None if parts else _countries().get(_key(name))
    if code is not None:
        return NamedPlace(country_names()[code], _inside_country(code))
    towns = _towns()
    rows = sorted({row for row in towns.by_key.get(_key(name), []) if _matches(towns.titles[row], parts)})
    if not rows:
        known = [_key(towns.titles[row][0]) for row in np.flatnonzero(towns.inhabitants >= LARGE_TOWN)]
        near = difflib.get_close_matches(_key(name), [*known, *_countries()], n=1)
        advice = f"did you mean {near[0]!r}?" if near else "give LAT LON instead"
        raise UnknownNameError(f"no town or country is called {text!r}; {advice}")
    rows.sort(key=lambda row: -towns.inhabitants[row])
    if len(rows) > 1 and towns.inhabitants[rows[0]] < CLEARLY_LARGER * towns.inhabitants[rows[1:]].sum():
        listed = "; ".join(f"{_title(row)} ({_degrees(towns.latlon[row])})" for row in rows[:SHOWN_TOWNS])
        more = f"; and {len(rows) - SHOWN_TOWNS} more" if len(rows) > SHOWN_TOWNS else ""
        raise UnknownNameError(f"{text!r} may be {listed}{more}: add the region or country after a comma, or LAT LON")
    return NamedPlace(_title(rows[0]), towns.latlon[rows[0]])


def nearest_towns(latlon: Floats) -> list[str]:
    """The town nearest to each place (N, 2), with its country."""
    _, rows = _town_tree().query(to_xyz(latlon))
    names = _country_titles()
    titles = [_towns().titles[row] for row in np.atleast_1d(rows)]
    return [f"{name}, {names.get(country, country)}" for name, _, country in titles]


def _key(name: str) -> str:
    """A name without accents, case and punctuation."""
    plain = "".join(one for one in unicodedata.normalize("NFKD", name) if not unicodedata.combining(one))
    return " ".join("".join(one if one.isalnum() else " " for one in plain.casefold()).split())


def _matches(title: list[str], parts: list[str]) -> bool:
    """Whether a town lies in the regions or countries that were named."""
    _, region, country = title
    known = {_key(region), _key(country), _key(_country_titles().get(country, ""))}
    return all(_key(part) in known for part in parts)


def _title(row: int) -> str:
    name, region, country = _towns().titles[row]
    return ", ".join((name, *([region] if region.isalpha() else []), country))


def _degrees(place: Floats) -> str:
    return f"{place[0]:.4f} {place[1]:.4f}"


@functools.cache
def _towns() -> _Towns:
    found = load_prepared("town-names", ["towns"], _build_names).arrays
    titles = [line.split("\t") for line in found["titles"].tobytes().decode().split("\n")]
    by_key: dict[str, list[int]] = {}
    keys = found["keys"].tobytes().decode().split("\n")
    for key, row in zip(keys, found["owners"].tolist(), strict=True):
        by_key.setdefault(key, []).append(row)
    return _Towns(found["latlon"], found["inhabitants"], titles, by_key)


@functools.cache
def _town_tree() -> Any:
    """A k-d tree of all towns as unit vectors."""
    spatial = require("scipy.spatial", extra="data", what="the nearest town")
    return spatial.cKDTree(to_xyz(_towns().latlon))


def _build_names() -> tuple[Arrays, Mapping[str, Any]]:
    """Names and positions of inhabited towns, off 80 MB of text."""
    with source_file("towns", "data/cities500.json").open(encoding="utf-8") as file:
        rows = [row for row in json.load(file).values() if row["population"] > 0]
    titles = ["\t".join((row["name"], row["admin1code"], row["countrycode"])) for row in rows]
    keys = [(key, number) for number, row in enumerate(rows) for key in _keys_of(row)]
    arrays: Arrays = {
        "latlon": np.array([(row["latitude"], row["longitude"]) for row in rows], dtype=np.float64),
        "inhabitants": np.array([row["population"] for row in rows], dtype=np.float64),
        "titles": np.frombuffer("\n".join(titles).encode(), dtype=np.uint8),
        "keys": np.frombuffer("\n".join(key for key, _ in keys).encode(), dtype=np.uint8),
        "owners": np.array([number for _, number in keys], dtype=np.int64),
    }
    return arrays, {}


def _keys_of(row: Mapping[str, Any]) -> Iterator[str]:
    """What a town is found by."""
    others = row["alternatenames"] if row["population"] >= LARGE_TOWN else []
    yield from dict.fromkeys(key for key in map(_key, (row["name"], *others)) if key)


@functools.cache
def _country_titles() -> dict[str, str]:
    """Names of countries by their two letters."""
    return {row["iso2"]: row["name"] for row in country_table()}


@functools.cache
def _countries() -> dict[str, int]:
    """Codes of the country label by name and by the three letters of ISO 3166-1."""
    outlines = load_outlines()
    by_number = {int(one.iso_numeric): code for code, one in enumerate(outlines) if one.iso_numeric and one.rings}
    found = {_key(one.name): code for code, one in enumerate(outlines) if one.rings}
    for row in country_table():
        number = int(row["iso_numeric"] or 0)
        if number in by_number:
            found |= dict.fromkeys((_key(row["name"]), _key(row["iso3"])), by_number[number])
    return found


def _inside_country(code: int) -> Floats:
    """A place of the country near its middle."""
    lattice = xyz_to_latlon(fibonacci_lattice(LATTICE_PLACES)).numpy()
    inside = lattice[country_inside(lattice) == code]
    if not len(inside):  # smaller than the lattice's spacing
        return np.asarray(np.concatenate(load_outlines()[code].rings).mean(0))
    xyz = to_xyz(inside)
    return np.asarray(inside[np.argmax(xyz @ xyz.mean(0))])
