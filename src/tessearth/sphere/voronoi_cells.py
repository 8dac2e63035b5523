"""The cells of the sites: the part of the sphere nearest to each, as polygons for maps.

A cell is an intersection of half spheres, so it is convex and its border consists of great-circle arcs. On a map of
longitude and latitude those arcs are bent, a cell across the antimeridian falls into two pieces, and a cell around a
pole has the pole's whole latitude for a side: `cell_rings` sees to all three.
"""

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.packages import require
from tessearth.sphere.coordinates import Floats, as_xyz

TURN = 360.0
AT_POLE = 1e-9
"""Directions this near to the axis, in radians, have no longitude of their own."""
SMALLEST_PIECE = 1e-12
"""Steradians (40 square metres): smaller pieces of a cut are rounding."""
MERGED = 1e-9
"""Corners nearer than this to each other, in radians, are one corner met by more than three cells."""


class Cells(NamedTuple):
    """The cells of K sites."""

    sites: Floats
    """(K, 3) unit vectors."""
    corners: Floats
    """(V, 3) unit vectors; each is shared by the cells that meet there."""
    rings: tuple[npt.NDArray[np.int64], ...]
    """For each site the rows of `corners` around its cell, counterclockwise seen from above, not closed."""

    def arcs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Every side of every cell, cell after cell: whose it is, and the corners it leads from and to, each (A,)."""
        owners = np.repeat(np.arange(len(self.rings)), [len(ring) for ring in self.rings])
        return owners, np.concatenate(self.rings), np.concatenate([np.roll(ring, -1) for ring in self.rings])

    def areas(self) -> Floats:
        """The solid angle of every cell in steradians, (K,): together 4 pi.

        Those of its triangles (site, corner, next corner) by tan(E/2) = a.(b x c) / (1 + a.b + b.c + c.a).
        """
        owners, starts, stops = self.arcs()
        a, b, c = self.sites[owners], self.corners[starts], self.corners[stops]
        volume = (a * np.cross(b, c)).sum(-1)
        triangles = 2 * np.arctan2(volume, 1 + (a * b).sum(-1) + (b * c).sum(-1) + (c * a).sum(-1))
        return np.asarray(np.bincount(owners, triangles, minlength=len(self.sites)), dtype=np.float64)

    def borders(self) -> npt.NDArray[np.int64]:
        """Every arc between two cells once, as two rows of `corners`, (E, 2)."""
        _, starts, stops = self.arcs()
        return np.unique(np.sort(np.stack((starts, stops), axis=-1), axis=1), axis=0)


def build_cells(xyz: npt.ArrayLike) -> Cells:
    """The cells of sites (K, 3), directions of any length; there must be four or more, no two at one place."""
    spatial = require("scipy.spatial", extra="plot", what="Voronoi cells")
    sites = as_xyz(xyz)
    if sites.ndim != 2 or len(sites) < 4:
        raise ConfigError(f"cells need at least 4 sites; {len(sites.reshape(-1, 3))} were given")
    try:
        found = spatial.SphericalVoronoi(sites, threshold=1e-9)
        found.sort_vertices_of_regions()
    except (ValueError, spatial.QhullError) as error:
        raise DataError(f"these sites have no cells: {str(error).splitlines()[0].lower()}") from None
    corners = found.vertices / np.linalg.norm(found.vertices, axis=1, keepdims=True)
    # Where more than three cells meet, Qhull gives several corners: the first stands for all.
    pairs = spatial.cKDTree(corners).query_pairs(MERGED, output_type="ndarray")
    one_of = np.arange(len(corners))
    np.minimum.at(one_of, pairs.max(axis=1), pairs.min(axis=1))
    merged = [one_of[ring] for ring in found.regions]
    rings = [ring[ring != np.roll(ring, 1)] for ring in merged]
    cells = Cells(sites, corners, tuple(rings))
    turned = [ring if area > 0 else ring[::-1] for ring, area in zip(rings, cells.areas(), strict=True)]
    return cells._replace(rings=tuple(turned))


def cell_rings(cells: Cells, step_degrees: float = 2.0) -> Iterator[list[Floats]]:
    """Each cell in turn as closed rings (M, 2) of degrees, latitude first, within -180 to 180 of longitude.

    One ring for most, two for a cell across the antimeridian; each runs counterclockwise, its arcs followed in steps of
    at most `step_degrees`.
    """
    if not 0 < step_degrees <= 90:
        raise ConfigError(f"step_degrees is {step_degrees}; it must be above 0 and at most 90")
    owners, points = _follow(cells, np.deg2rad(step_degrees))
    for around in np.split(points, np.flatnonzero(np.diff(owners)) + 1):
        yield _split(_unwrap(around))


def cells_geojson(cells: Cells, properties: Sequence[dict[str, Any]] | None = None, step_degrees: float = 2.0) -> Any:
    """The cells as a GeoJSON FeatureCollection (RFC 7946), ready for JSON; feature k is site k."""
    features = []
    for k, rings in enumerate(cell_rings(cells, step_degrees)):
        polygons = [[[[round(lon, 6), round(lat, 6)] for lat, lon in ring.tolist()]] for ring in rings]
        kind, coordinates = ("Polygon", polygons[0]) if len(polygons) == 1 else ("MultiPolygon", polygons)
        geometry = {"type": kind, "coordinates": coordinates}
        about = {} if properties is None else dict(properties[k])
        features.append({"type": "Feature", "id": k, "geometry": geometry, "properties": about})
    return {"type": "FeatureCollection", "features": features}


def ring_area(ring: Floats) -> float:
    """The solid angle inside a closed ring of degrees (M, 2) whose sides are great-circle arcs, counterclockwise.

    Between an arc and the equator lies E with tan(E/2) = tan(dlon/2) (t1 + t2) / (1 + t1 t2), t = tan(lat/2); between a
    pole and the equator, E = dlon. Meridians come out right by the same formula.
    """
    lat, lon = np.deg2rad(ring).T
    half, along = np.tan(lat / 2), np.diff(lon)
    before, after = half[:-1], half[1:]
    excess = 2 * np.arctan(np.tan(along / 2) * (before + after) / (1 + before * after))
    at_pole = np.abs(ring[:-1, 0] + ring[1:, 0]) == 180.0
    return float(-np.where(at_pole, np.sign(ring[:-1, 0]) * along, excess).sum())


def _follow(cells: Cells, step: float) -> tuple[npt.NDArray[np.int64], Floats]:
    """Points along all cells' arcs, cell after cell: whose they are (M,), and where (M, 3).

    They are the corners, steps between them, and where arcs cross the antimeridian or run over a pole.
    """
    owners, starts, stops = cells.arcs()
    start, stop = cells.corners[starts], cells.corners[stops]
    angle = np.arctan2(np.linalg.norm(np.cross(start, stop), axis=1), (start * stop).sum(-1))
    counts = np.maximum(1, np.ceil(angle / step)).astype(np.int64)
    arc = np.repeat(np.arange(len(owners)), counts)
    share = (np.arange(len(arc)) - np.repeat(np.cumsum(counts) - counts, counts)) / counts[arc]
    special, at, points = _special_points(start, stop, angle)
    arc, share = np.concatenate((arc, special)), np.concatenate((share, at))
    order = np.lexsort((share, arc))
    whole = np.concatenate((_between(start, stop, angle, arc[: len(arc) - len(special)], share), points))
    return owners[arc[order]], whole[order]


def _between(start: Floats, stop: Floats, angle: Floats, arc: npt.NDArray[np.int64], share: Floats) -> Floats:
    """Points at shares of their arcs; a corner is itself, to the last digit."""
    share = share[: len(arc), None]
    mixed = np.sin((1 - share) * angle[arc, None]) * start[arc] + np.sin(share * angle[arc, None]) * stop[arc]
    mixed = np.where(share == 0, start[arc], mixed)
    return np.asarray(mixed / np.linalg.norm(mixed, axis=1, keepdims=True))


def _special_points(start: Floats, stop: Floats, angle: Floats) -> tuple[npt.NDArray[np.int64], Floats, Floats]:
    """Where arcs run over a pole or cross the antimeridian (y = 0, x < 0): the arc, the share along it, the point."""
    opposite = (start[:, :2] * stop[:, :2]).sum(-1) < 0
    over = opposite & (np.abs(start[:, 0] * stop[:, 1] - start[:, 1] * stop[:, 0]) < AT_POLE)
    with np.errstate(divide="ignore", invalid="ignore"):
        crossing = start + (start[:, 1] / (start[:, 1] - stop[:, 1]))[:, None] * (stop - start)
    across = (start[:, 1] * stop[:, 1] < 0) & (crossing[:, 0] < 0) & ~over
    crossing[:, 1] = 0.0
    crossing[over] = np.stack((0 * angle, 0 * angle, np.sign(start[:, 2] + stop[:, 2])), axis=-1)[over]
    arc = np.flatnonzero(over | across)
    points = crossing[arc] / np.linalg.norm(crossing[arc], axis=1, keepdims=True)
    along = np.arctan2(np.linalg.norm(np.cross(start[arc], points), axis=1), (start[arc] * points).sum(-1))
    return arc, along / angle[arc], points


def _unwrap(points: Floats) -> Floats:
    """A closed ring (M, 2) in degrees whose longitudes run on past 180 instead of jumping.

    A pole on the border becomes two points, at the longitudes of its neighbours; around a pole inside, the ring is cut
    open at the antimeridian and closed along the pole.
    """
    polar = np.hypot(points[:, 0], points[:, 1]) < AT_POLE
    once = ~(polar & np.roll(polar, 1))  # a step along an arc may fall on the pole that stands there already
    points, polar = points[once], polar[once]
    lat = np.rad2deg(np.arctan2(points[:, 2], np.hypot(points[:, 0], points[:, 1])))
    lon = np.rad2deg(np.arctan2(points[:, 1], points[:, 0]))
    if polar.any():
        lat, lon = _twice_at_poles(lat, lon, polar)
    ring = np.stack((np.append(lat, lat[0]), np.append(lon, lon[0])), axis=-1)
    steps = np.mod(np.diff(ring[:, 1]) + 180.0, TURN) - 180.0
    if abs(steps.sum()) > TURN / 2:
        if not polar.any():
            return _around_pole(ring[:-1], steps)
        # A border straight over a pole turns by 180 degrees there, either way round: only one of them closes.
        steps[np.flatnonzero(np.abs(ring[:, 0]) == 90.0)[0]] -= steps.sum()
    ring[:, 1] = ring[0, 1] + np.concatenate(([0.0], np.cumsum(steps)))
    ring[-1] = ring[0]
    return ring


def _twice_at_poles(lat: Floats, lon: Floats, polar: npt.NDArray[np.bool_]) -> tuple[Floats, Floats]:
    """A pole on the border as two points: where its meridian is left, and where the next one's begins."""
    times = 1 + polar.astype(np.int64)
    before, after = np.where(polar, np.roll(lon, 1), lon), np.where(polar, np.roll(lon, -1), lon)
    second = np.zeros(times.sum(), dtype=bool)
    second[(np.cumsum(times) - 1)[polar]] = True
    lat = np.where(polar, np.sign(lat) * 90.0, lat)
    return np.repeat(lat, times), np.where(second, np.repeat(after, times), np.repeat(before, times))


def _around_pole(ring: Floats, steps: Floats) -> Floats:
    """An open ring (M, 2) around a pole, from -180 to 180 of longitude or back, closed along the pole's latitude."""
    eastward = steps.sum() > 0
    cut = int(np.argmax(np.abs(ring[:, 1])))  # the crossing that `_follow` put there is the point nearest to 180
    lat = np.roll(ring[:, 0], -cut)
    lon = np.concatenate(([0.0], np.cumsum(np.roll(steps, -cut)))) + (-180.0 if eastward else 180.0)
    lon[-1] = -lon[0]
    around = np.stack((np.append(lat, lat[0]), lon), axis=-1)
    # Counterclockwise around a cell leads eastward around a north pole, westward around a south pole.
    back = np.linspace(lon[-1], lon[0], 5)
    side = np.stack((np.full(5, 90.0 if eastward else -90.0), back), axis=-1)
    return np.concatenate((around, side, around[:1]))


def _split(ring: Floats) -> list[Floats]:
    """A ring of running longitudes cut into rings within -180 to 180."""
    first = int(np.floor((ring[:, 1].min() + 180.0) / TURN))
    last = int(np.ceil((ring[:, 1].max() - 180.0) / TURN))
    if first == last == 0:
        return [ring]
    pieces = []
    for turn in range(first, last + 1):
        piece = _cut(_cut(ring, TURN * turn - 180.0, keep=1), TURN * turn + 180.0, keep=-1) - (0.0, TURN * turn)
        if len(piece) > 3 and ring_area(piece) > SMALLEST_PIECE:
            pieces.append(piece)
    return pieces


def _cut(ring: Floats, lon: float, keep: int) -> Floats:
    """The part of a closed ring east (keep 1) or west (-1) of a longitude; a convex cell leaves one ring."""
    offset = (ring[:, 1] - lon) * keep
    kept: list[Floats] = []
    for i in range(len(ring) - 1):
        if offset[i] >= 0:
            kept.append(ring[i])
        if offset[i] * offset[i + 1] < 0:
            share = offset[i] / (offset[i] - offset[i + 1])
            kept.append(np.array([ring[i, 0] + share * (ring[i + 1, 0] - ring[i, 0]), lon]))
    return np.array([*kept, kept[0]]) if kept else np.empty((0, 2))
