"""Shapes as places: well-known binary and text, geoarrow points, shapely's objects, in any projection."""

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import TableError
from tessearth.packages import require
from tessearth.sphere.coordinates import Floats, Geometry, Places, Shape

if TYPE_CHECKING:
    import pyarrow as pa

POINT_TYPE = 1
MEAN_PLACES = 64
"""About how many places the mean over a shape is taken of."""
# Extended WKB sets these bits for Z, M and an SRID; ISO WKB adds 1000, 2000 or 3000 for Z, M and both.
_FLAGS, _HAS_SRID = 0xF0000000, 0x20000000


def read_shapes(column: "pa.Array", geometry: Geometry, shape: Shape = "point") -> Places:
    """The places of a geometry column: well-known binary or text, or a struct of x and y."""
    import pyarrow as pa

    kind = column.type
    if isinstance(kind, pa.ExtensionType):
        column, kind = column.storage, kind.storage_type
    if pa.types.is_struct(kind):
        return Places(_to_degrees(_read_struct(column, geometry.name), geometry))
    if pa.types.is_binary(kind) or pa.types.is_large_binary(kind):
        values = column.to_pylist()
        points = _read_points(values)
        if points is not None:
            return Places(_to_degrees(points, geometry))
        return place_shapes(_shapely().from_wkb(values, on_invalid="ignore"), geometry, shape)
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return place_shapes(_shapely().from_wkt(column.to_pylist(), on_invalid="ignore"), geometry, shape)
    raise TableError(f"column {geometry.name!r} is {kind}, neither well-known binary nor a struct of x and y")


def _read_struct(column: "pa.Array", name: str) -> Floats:
    import pyarrow as pa

    try:
        axes = [column.field(axis).cast(pa.float64()).to_numpy(zero_copy_only=False) for axis in ("x", "y")]
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise TableError(f"column {name!r} is {column.type}, not a struct of numbers x and y") from None
    lonlat = np.stack(axes, axis=-1).astype(np.float64)
    lonlat[column.is_null().to_numpy(zero_copy_only=False)] = np.nan
    return lonlat


def _read_points(values: Sequence[bytes | None]) -> Floats | None:
    """X and y of points, (N, 2), NaN where there is none; None when there are other shapes.

    Two-dimensional little-endian points are read all at once.
    """
    if values and all(value is not None and len(value) == 21 for value in values):
        packed = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, 21)  # type: ignore[arg-type]
        if (packed[:, :5] == (1, POINT_TYPE, 0, 0, 0)).all():
            return np.ascontiguousarray(packed[:, 5:]).view("<f8").astype(np.float64)
    lonlat = np.full((len(values), 2), np.nan)
    for row, value in enumerate(values):
        if value:
            point = _read_point(value)
            if point is None:
                return None
            lonlat[row] = point
    return lonlat


def _read_point(value: bytes) -> tuple[float, float] | None:
    order = "<" if value[:1] == b"\x01" else ">"
    kind = int(np.frombuffer(value, f"{order}u4", 1, 1)[0]) if len(value) >= 5 else 0
    flags, plain = kind & _FLAGS, kind & ~_FLAGS
    start = 9 if flags & _HAS_SRID else 5
    if plain % 1000 != POINT_TYPE or plain > 3001 or len(value) < start + 16:
        return None
    x, y = np.frombuffer(value, f"{order}f8", 2, start)
    return float(x), float(y)


def _shapely() -> Any:
    return require("shapely", extra="geo", what="a table with lines or polygons")


def place_shapes(shapes: npt.NDArray[Any], geometry: Geometry, shape: Shape) -> Places:
    """The places of shapely's objects of every kind, (N,)."""
    shapely = _shapely()
    chosen = shapely.centroid(shapes) if shape == "centroid" else shapely.point_on_surface(shapes)
    lonlat = np.stack((shapely.get_x(chosen), shapely.get_y(chosen)), axis=-1)
    places = Places(_to_degrees(lonlat, geometry))
    if shape != "mean":
        return places
    samples = [_spread_over(shapely, one, inside) for one, inside in zip(shapes, lonlat, strict=True)]
    owners = np.repeat(np.arange(len(samples)), [len(some) for some in samples])
    return places._replace(samples=_to_degrees(np.concatenate(samples), geometry), owners=owners)


def _spread_over(shapely: Any, shape: Any, inside: Floats) -> Floats:
    """X and y of places spread evenly over a shape, (M, 2): a grid over an area, steps along a line."""
    if shape is None or shape.is_empty:
        return np.empty((0, 2))
    if shape.area == 0:
        if shape.length == 0:
            return np.asarray(shapely.get_coordinates(shape)[:, :2])
        steps = (np.arange(MEAN_PLACES) + 0.5) / MEAN_PLACES
        return np.asarray(
            shapely.get_coordinates(shapely.line_interpolate_point(_as_line(shapely, shape), steps, True))
        )
    west, south, east, north = shape.bounds
    side = np.sqrt(shape.area / MEAN_PLACES)
    x, y = (np.arange(low + side / 2, high, side) for low, high in ((west, east), (south, north)))
    grid = np.stack(np.meshgrid(x, y), axis=-1).reshape(-1, 2)
    shapely.prepare(shape)
    kept = grid[shapely.contains_xy(shape, grid[:, 0], grid[:, 1])]
    return kept if len(kept) else inside[None]


def _as_line(shapely: Any, shape: Any) -> Any:
    """A line string of all the coordinates of a line in several parts."""
    is_whole = shape.geom_type in ("LineString", "LinearRing")
    return shape if is_whole else shapely.linestrings(shapely.get_coordinates(shape))


def _to_degrees(lonlat: Floats, geometry: Geometry) -> Floats:
    """Latitude and longitude from x and y."""
    if geometry.is_in_degrees():
        return np.ascontiguousarray(lonlat[:, ::-1])
    pyproj: Any = require("pyproj", extra="geo", what="a table that is not in degrees")
    try:
        crs = pyproj.CRS.from_user_input(geometry.crs)
    except pyproj.exceptions.CRSError as error:
        raise TableError(f"the projection of column {geometry.name!r} cannot be read: {error}") from None
    lon, lat = pyproj.Transformer.from_crs(crs, 4326, always_xy=True).transform(lonlat[:, 0], lonlat[:, 1])
    latlon = np.stack((lat, lon), axis=-1)
    latlon[~np.isfinite(latlon).all(1)] = np.nan
    return latlon
