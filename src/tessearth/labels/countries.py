"""The country of a place, from the shipped outlines.

The Earth is cut into rows of 30 arc seconds. Along the middle of each, the outlines leave stretches of longitude that
belong to one country; all of them, row after row, are one sorted list, so a lookup is one binary search. A place is
thus moved by at most 460 m to the north or south, about what the outlines' own lattice allows.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.labels.outlines import Outline, load_outlines
from tessearth.labels.sources import Arrays, load_prepared, source_file
from tessearth.packages import require
from tessearth.sphere import Floats, is_land, latlon_to_xyz

ROWS = 21_600
ROWS_PER_DEGREE = 120
TURN = 360.0
NEAREST_STEP_DEGREES = 0.02
"""Spacing of the points along outlines among which the nearest is found: some 2 km."""

CONTINENTS_WITHOUT_CODE = {
    "Akrotiri": "EU",
    "Baikonur": "AS",
    "Bajo Nuevo Bank": "NA",
    "Clipperton I.": "NA",
    "Coral Sea Is.": "OC",
    "Cyprus U.N. Buffer Zone": "EU",
    "Dhekelia": "EU",
    "Indian Ocean Ter.": "OC",
    "Kosovo": "EU",
    "N. Cyprus": "EU",
    "Scarborough Reef": "AS",
    "Serranilla Bank": "NA",
    "Siachen Glacier": "AS",
    "Somaliland": "AF",
    "Spratly Is.": "AS",
    "USNB Guantanamo Bay": "NA",
}
"""Continents of the territories of Natural Earth that have no number in ISO 3166-1."""


class Stretches(NamedTuple):
    """The stretches of longitude of each country along each row, in the order of the rows."""

    starts: Floats
    """row 360 + degrees east of the antimeridian at which a stretch begins, ascending, (S,)."""
    stops: Floats
    """The end in the same measure."""
    owners: npt.NDArray[np.int64]
    """The country: a code of `country_names`."""


def country(latlon: Floats) -> npt.NDArray[np.int64]:
    """The country each place (N, 2) lies in, a code of `country_names`; -1 at sea.

    Land outside every outline (the coasts of two maps never agree) belongs to the nearest one.
    """
    codes = country_inside(latlon)
    stray = np.flatnonzero((codes < 0) & is_land(latlon))
    if len(stray):
        codes[stray] = nearest_country(latlon[stray])
    return codes


def country_names() -> tuple[str, ...]:
    """The countries and territories as Natural Earth names them, in the order of their codes."""
    return tuple(outline.name for outline in load_outlines())


@functools.cache
def country_continents() -> tuple[str, ...]:
    """The continent of each country code as GeoNames assigns it: AF, AN, AS, EU, NA, OC or SA."""
    states = json.loads(source_file("states", "data/countries.json").read_text(encoding="utf-8"))
    by_number = {row["isonumeric"]: row["continentcode"] for row in states.values()}
    return tuple(
        by_number[int(outline.iso_numeric)] if outline.iso_numeric else CONTINENTS_WITHOUT_CODE[outline.name]
        for outline in load_outlines()
    )


def to_xyz(latlon: Floats) -> Floats:
    """Places (N, 2) as unit vectors (N, 3)."""
    return np.asarray(latlon_to_xyz(torch.tensor(latlon, dtype=torch.float64)).numpy())


def country_inside(latlon: Floats) -> npt.NDArray[np.int64]:
    """The country whose outline holds each place, -1 where none does."""
    stretches = _stretches()
    row = np.clip(np.floor((90.0 - latlon[:, 0]) * ROWS_PER_DEGREE), 0, ROWS - 1)
    along = row * TURN + np.mod(latlon[:, 1] + 180.0, TURN)
    before = np.searchsorted(stretches.starts, along, side="right") - 1
    inside = (before >= 0) & (along < stretches.stops[before])
    return np.where(inside, stretches.owners[before], -1)


def nearest_country(latlon: Floats) -> npt.NDArray[np.int64]:
    """The country whose outline passes nearest to each place."""
    tree, owners = _outline_tree()
    _, found = tree.query(to_xyz(latlon))
    return np.asarray(owners[found])


@functools.cache
def _stretches() -> Stretches:
    def build() -> tuple[Arrays, Mapping[str, Any]]:
        return find_stretches(load_outlines())._asdict(), {"rows": ROWS}

    return Stretches(**load_prepared("countries", ["outlines"], build).arrays)


def find_stretches(outlines: tuple[Outline, ...]) -> Stretches:
    """Where countries begin and end along the middle of every row (even-odd rule)."""
    edges, owners = _edges(outlines)
    # Always from south to north: the two countries along a border must find it at the very same longitude.
    south, north = np.where((edges[:, :1, 0] <= edges[:, 1:, 0])[..., None], edges, edges[:, ::-1]).swapaxes(0, 1)
    # Row r's middle is at latitude 90 - (r + 1/2) / 120; an edge holds its southern end, not its northern one.
    first = np.floor((90.0 - north[:, 0]) * ROWS_PER_DEGREE - 0.5).astype(np.int64) + 1
    last = np.floor((90.0 - south[:, 0]) * ROWS_PER_DEGREE - 0.5).astype(np.int64)
    count = last - first + 1
    edge = np.repeat(np.arange(len(edges)), count)
    row = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
    share = (90.0 - (row + 0.5) / ROWS_PER_DEGREE - south[edge, 0]) / (north[edge, 0] - south[edge, 0])
    east = south[edge, 1] + share * (north[edge, 1] - south[edge, 1]) + 180.0
    order = np.lexsort((east, row, owners[edge]))
    along = (row * TURN + np.clip(east, 0.0, TURN))[order]
    starts, stops, owner = along[0::2], along[1::2], owners[edge][order][0::2]
    order = np.argsort(starts, kind="stable")
    return Stretches(starts[order], stops[order], owner[order])


def _edges(outlines: tuple[Outline, ...]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """All edges as (E, 2 ends, 2) degrees, and their countries (E,)."""
    rings = [(number, ring) for number, outline in enumerate(outlines) for ring in outline.rings]
    edges = np.concatenate([np.stack((ring[:-1], ring[1:]), axis=1) for _, ring in rings])
    return edges, np.repeat([number for number, _ in rings], [len(ring) - 1 for _, ring in rings])


@functools.cache
def _outline_tree() -> tuple[Any, npt.NDArray[np.int64]]:
    """A k-d tree of points along all outlines as unit vectors, and the country of each."""
    spatial = require("scipy.spatial", extra="earth", what="the nearest country")
    edges, owners = _edges(load_outlines())
    length = np.hypot(edges[:, 1, 0] - edges[:, 0, 0], edges[:, 1, 1] - edges[:, 0, 1])
    pieces = np.maximum(np.ceil(length / NEAREST_STEP_DEGREES), 1).astype(np.int64)
    edge = np.repeat(np.arange(len(edges)), pieces)
    share = (np.arange(len(edge)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) / pieces[edge]
    points = edges[edge, 0] + share[:, None] * (edges[edge, 1] - edges[edge, 0])
    return spatial.cKDTree(to_xyz(points), balanced_tree=False), owners[edge]
