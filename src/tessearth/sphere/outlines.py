"""The outlines of countries that ship with the package, Natural Earth 1:10m (public domain).

Vertices lie on a lattice of longitude and latitude (0.0036 x 0.0017 degrees, some 400 x 190 m). The file keeps the step
from each vertex to the next as bytes, small ones first, which deflate packs to about one byte per vertex and axis.
`tools/make_outlines` makes it and says from what.

For lookups the Earth is cut into rows of 30 arc seconds. Along the middle of each, the outlines leave stretches of
longitude that belong to one country; all of them, row after row, are one sorted list, so a lookup is one binary search.
A place is thus moved by at most 460 m to the north or south, about what the outlines' own lattice allows.
"""

import functools
import io
import json
import zipfile
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.sphere.coordinates import Floats

SMALLEST_ISLAND = 1.0
"""Degrees: rings of less extent are left out of a world map, where they would be a dot."""
WORLD_STEP_DEGREES = 0.15
"""Vertices nearer than this to the last one drawn are left out of a world map."""

ROWS = 21_600
ROWS_PER_DEGREE = 120
TURN = 360.0


class Outline(NamedTuple):
    """One country, or territory drawn apart from any, as Natural Earth has it."""

    name: str
    iso_numeric: str
    """The three digits of ISO 3166-1; empty where the standard has none."""
    rings: tuple[npt.NDArray[np.float64], ...]
    """Closed rings (M, 2), degrees, latitude first, each within one turn of longitude: what crosses the antimeridian
    is cut there, what encloses a pole is closed along it. Outer rings run counterclockwise seen from above and are
    followed by their holes, which run clockwise. Empty for a country smaller than the lattice (the Vatican)."""


@functools.cache
def load_outlines() -> tuple[Outline, ...]:
    """Every country's outline, in the order of the country label's codes."""
    return decode_outlines(Path(__file__).with_name("outlines.npz").read_bytes())


@functools.cache
def outline_rings() -> tuple[Floats, ...]:
    """Every ring of every country, (M, 2) degrees, latitude first."""
    return tuple(ring for outline in load_outlines() for ring in outline.rings)


@functools.cache
def world_rings() -> tuple[Floats, ...]:
    """The larger rings, with as many vertices as a world map can show."""
    large = [ring for ring in outline_rings() if np.ptp(ring, axis=0).max() >= SMALLEST_ISLAND]
    return tuple(_thinned(ring) for ring in large)


def _thinned(ring: Floats) -> Floats:
    """A ring with one vertex for every stretch of `WORLD_STEP_DEGREES` along it."""
    length = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(ring, axis=0).T))))
    kept = np.concatenate(([True], np.diff(np.floor(length / WORLD_STEP_DEGREES)) > 0))
    kept[-1] = True
    return np.asarray(ring[kept])


def decode_outlines(content: bytes) -> tuple[Outline, ...]:
    """Read what `tools/make_outlines` wrote."""
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as parts:
            header = json.loads(parts["header"].tobytes())
            lengths, owners, planes = parts["lengths"], parts["owners"], parts["steps"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError("the country outlines are damaged: reinstall tessearth") from error
    zigzag = np.ascontiguousarray(np.moveaxis(planes, 1, -1)).view("<u4")[..., 0].astype(np.int64).T
    lattice = np.cumsum((zigzag >> 1) ^ -(zigzag & 1), axis=0)
    latlon = (lattice * np.array(header["scale"]) + np.array(header["origin"]))[:, ::-1]
    latlon = np.clip(latlon, (-90.0, -180.0), (90.0, 180.0))  # the last lattice step may reach past a pole
    open_rings = np.split(latlon, np.cumsum(lengths)[:-1])
    rings = [np.concatenate((ring, ring[:1])) for ring in open_rings]
    bounds = np.searchsorted(owners, np.arange(len(header["countries"]) + 1))
    return tuple(
        Outline(row["name"], row["iso_numeric"], tuple(rings[start:stop]))
        for row, start, stop in zip(header["countries"], bounds[:-1], bounds[1:], strict=True)
    )


class Stretches(NamedTuple):
    """The stretches of longitude of each country along each row, in the order of the rows."""

    starts: Floats
    """row 360 + degrees east of the antimeridian at which a stretch begins, ascending, (S,)."""
    stops: Floats
    """The end in the same measure."""
    owners: npt.NDArray[np.int64]
    """The country: a code of `country_names`."""

    def owner(self, latlon: Floats) -> npt.NDArray[np.int64]:
        """The country whose stretch holds each place (N, 2), -1 where none does."""
        row = np.clip(np.floor((90.0 - latlon[:, 0]) * ROWS_PER_DEGREE), 0, ROWS - 1)
        along = row * TURN + np.mod(latlon[:, 1] + 180.0, TURN)
        before = np.searchsorted(self.starts, along, side="right") - 1
        inside = (before >= 0) & (along < self.stops[before])
        return np.where(inside, self.owners[before], -1)


def find_stretches(outlines: tuple[Outline, ...]) -> Stretches:
    """Where countries begin and end along the middle of every row (even-odd rule)."""
    edges, owners = outline_edges(outlines)
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


def outline_edges(outlines: tuple[Outline, ...]) -> tuple[Floats, npt.NDArray[np.int64]]:
    """All edges of some outlines as (E, 2 ends, 2) degrees, and their countries (E,)."""
    rings = [(number, ring) for number, outline in enumerate(outlines) for ring in outline.rings]
    edges = np.concatenate([np.stack((ring[:-1], ring[1:]), axis=1) for _, ring in rings])
    return edges, np.repeat([number for number, _ in rings], [len(ring) - 1 for _, ring in rings])
