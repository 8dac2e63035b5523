"""The land, as data that ships with the package: a mask of it, and the outlines of countries.

The mask has cells of 30 arc seconds (lakes count as land). Its 933 million cells change between land and sea only
772,881 times along its rows. Those changes are all that land.npz holds, as the bytes of the steps from each to the
next; `tools/make_land` makes it from the package global-land-mask. A lookup is one binary search.

The outlines are those of Natural Earth 1:10m (public domain). Vertices lie on a lattice of longitude and latitude
(0.0036 x 0.0017 degrees, some 400 x 190 m). The file keeps the step from each vertex to the next as bytes, small ones
first, which deflate packs to about one byte per vertex and axis. `tools/make_outlines` makes it and says from what.

For lookups of countries the Earth is cut into the rows of the mask. Along the middle of each, the outlines leave
stretches of longitude that belong to one country; all of them, row after row, are one sorted list, so a lookup is one
binary search too. A place is thus moved by at most 460 m to the north or south, about what the outlines' own lattice
allows.
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

ROWS, COLUMNS = 21_600, 43_200
CELLS_PER_DEGREE = 120
TURN = 360.0
ANTARCTIC_LATITUDE = -60.0
"""Land south of this does not count as inhabited."""
SMALLEST_ISLAND = 1.0
"""Degrees: rings of less extent are left out of a world map, where they would be a dot."""
WORLD_STEP_DEGREES = 0.15
"""Vertices nearer than this to the last one drawn are left out of a world map."""


def is_land(latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each place (..., 2), degrees, lies on land."""
    lat, lon = np.moveaxis(np.asarray(latlon, dtype=np.float64), -1, 0)
    row = _rows(lat).astype(np.int64)
    column = np.floor(np.mod(lon + 180.0, 360.0) * CELLS_PER_DEGREE).astype(np.int64) % COLUMNS
    # The first cell is sea; every change passed on the way to a cell flips it.
    passed = np.searchsorted(_land_changes(), row * COLUMNS + column, side="right")
    return np.asarray(passed % 2 == 1)


def is_inhabited_land(latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each place lies on land north of 60 S: where sites start and where training places are drawn."""
    places = np.asarray(latlon, dtype=np.float64)
    return is_land(places) & (places[..., 0] > ANTARCTIC_LATITUDE)


def _rows(lat: Floats) -> Floats:
    """The row of each latitude, from the north pole down."""
    return np.asarray(np.clip(np.floor((90.0 - lat) * CELLS_PER_DEGREE), 0, ROWS - 1))


@functools.cache
def _land_changes() -> npt.NDArray[np.int64]:
    """Flat cell numbers, in row order, at which sea turns to land or back, (772881,)."""
    with np.load(Path(__file__).with_name("land.npz"), allow_pickle=False) as file:
        steps = np.ascontiguousarray(file["steps"].T).view("<u4")
    return np.cumsum(steps, dtype=np.int64)


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
        along = _rows(latlon[:, 0]) * TURN + np.mod(latlon[:, 1] + 180.0, TURN)
        before = np.searchsorted(self.starts, along, side="right") - 1
        inside = (before >= 0) & (along < self.stops[before])
        return np.where(inside, self.owners[before], -1)


def find_stretches(outlines: tuple[Outline, ...]) -> Stretches:
    """Where countries begin and end along the middle of every row (even-odd rule)."""
    edges, owners = outline_edges(outlines)
    # Always from south to north: the two countries along a border must find it at the very same longitude.
    south, north = np.where((edges[:, :1, 0] <= edges[:, 1:, 0])[..., None], edges, edges[:, ::-1]).swapaxes(0, 1)
    # Row r's middle is at latitude 90 - (r + 1/2) / 120; an edge holds its southern end, not its northern one.
    first = np.floor((90.0 - north[:, 0]) * CELLS_PER_DEGREE - 0.5).astype(np.int64) + 1
    last = np.floor((90.0 - south[:, 0]) * CELLS_PER_DEGREE - 0.5).astype(np.int64)
    count = last - first + 1
    edge = np.repeat(np.arange(len(edges)), count)
    row = first[edge] + np.arange(len(edge)) - np.repeat(np.cumsum(count) - count, count)
    share = (90.0 - (row + 0.5) / CELLS_PER_DEGREE - south[edge, 0]) / (north[edge, 0] - south[edge, 0])
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
