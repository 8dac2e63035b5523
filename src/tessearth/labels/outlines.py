"""The outlines of the world's countries that ship with the package: Natural Earth 1:10m, public domain.

Vertices lie on a lattice of longitude and latitude (0.0036 x 0.0017 degrees, some 400 x 190 m). The file keeps the step
from each vertex to the next as bytes, small ones first, which deflate packs to about one byte per vertex and axis.
`tools/make_outlines` makes it and says from what.
"""

import functools
import io
import json
import zipfile
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.packages import package_file
from tessearth.sphere import Floats

OUTLINE_FILE = "labels/data/outlines.npz"
SMALLEST_ISLAND = 1.0
"""Degrees: rings of less extent are left out of a world map, where they would be a dot."""
WORLD_STEP_DEGREES = 0.15
"""Vertices nearer than this to the last one drawn are left out of a world map."""


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
    path = package_file("tessearth", OUTLINE_FILE, extra="earth", what="country outlines")
    return decode_outlines(path.read_bytes())


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


def outline_provenance() -> dict[str, str]:
    """Where the shipped outlines come from: package, version, sha256, licence."""
    path = package_file("tessearth", OUTLINE_FILE, extra="earth", what="country outlines")
    return dict(_read_parts(path.read_bytes())[0]["about"])


def encode_outlines(
    countries: Sequence[Mapping[str, str]],
    rings: Sequence[Sequence[npt.NDArray[np.integer[Any]]]],
    scale: npt.NDArray[np.float64],
    origin: npt.NDArray[np.float64],
    about: Mapping[str, str],
) -> bytes:
    """The content of an outline file: closed rings (M, 2) in lattice steps (east, north) for each country."""
    header = {"countries": [dict(row) for row in countries], "scale": list(scale), "origin": list(origin)}
    lengths = np.array([len(ring) - 1 for group in rings for ring in group], dtype=np.uint32)
    owners = np.repeat(np.arange(len(rings)), [len(group) for group in rings]).astype(np.uint16)
    vertices = np.concatenate([ring[:-1] for group in rings for ring in group]).astype(np.int32)
    steps = np.diff(vertices, axis=0, prepend=np.zeros((1, 2), np.int32))
    zigzag = ((steps << 1) ^ (steps >> 31)).astype("<u4")  # 0, -1, 1, -2 ... become 0, 1, 2, 3 ...
    planes = np.moveaxis(zigzag.T.copy().view(np.uint8).reshape(2, -1, 4), -1, 1)  # (axis, byte, vertex)
    text = json.dumps({**header, "about": dict(about)}, ensure_ascii=False).encode()
    buffer = io.BytesIO()
    np.savez_compressed(
        buffer, header=np.frombuffer(text, np.uint8), lengths=lengths, owners=owners, steps=np.ascontiguousarray(planes)
    )
    return buffer.getvalue()


def decode_outlines(content: bytes) -> tuple[Outline, ...]:
    """Read what `encode_outlines` wrote."""
    header, lengths, owners, planes = _read_parts(content)
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


def _read_parts(content: bytes) -> tuple[dict[str, Any], npt.NDArray[Any], npt.NDArray[Any], npt.NDArray[Any]]:
    try:
        with np.load(io.BytesIO(content), allow_pickle=False) as parts:
            header = json.loads(parts["header"].tobytes())
            return header, parts["lengths"], parts["owners"], parts["steps"]
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile) as error:
        raise DataError("the country outlines are damaged: reinstall tessearth") from error
