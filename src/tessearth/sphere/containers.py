"""Places in containers of any kind: the columns, geometry or coordinates of an object that hold them.

Objects are known by what they can do and not by their library, which need not be installed: a geometry with a
projection (geopandas), `__geo_interface__` (shapely, GeoJSON), coordinates along dimensions (xarray), columns by name
(pandas, polars, dicts), `__arrow_c_stream__` (pyarrow, DuckDB). The rule is one for all: columns that are named, else
the geometry, else columns of the usual names.
"""

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessearth.errors import CoordinateError
from tessearth.settings import did_you_mean

LATITUDE_NAMES = ("lat", "latitude", "decimallatitude", "lat_deg", "y")
LONGITUDE_NAMES = ("lon", "lng", "long", "longitude", "decimallongitude", "lon_deg", "x")


class Found(NamedTuple):
    """The two coordinates of places, in any form that numpy takes, and what they are called."""

    lat: Any
    lon: Any
    names: tuple[str, str] = ("lat", "lon")


def find_places(points: Any, lat: str | None = None, lon: str | None = None) -> Found | None:
    """The coordinates in a container; None for what is no container but numbers already."""
    is_named = lat is not None or lon is not None
    if hasattr(points, "geom_type") and hasattr(points, "crs") and not is_named:
        return _from_geometry(points)
    if hasattr(points, "dims") and hasattr(points, "coords"):
        return _from_grid(points, lat, lon)
    shape = _as_geojson(points)
    if shape is not None and not is_named:
        return _from_geojson(shape)
    if _is_lazy(points):
        names = find_columns(points.collect_schema().names(), lat, lon)
        frame = points.select(list(names)).collect()
        return Found(frame[names[0]], frame[names[1]], names)
    if _is_arrow(points):
        return _from_arrow(points, lat, lon)
    table = _as_table(points)
    if table is None:
        return None
    names = find_columns(table, lat, lon)
    return Found(table[names[0]], table[names[1]], (str(names[0]), str(names[1])))


def is_container(points: Any) -> bool:
    """Whether places stand in columns, a geometry or coordinates, and not in numbers alone."""
    has_geometry = hasattr(points, "geom_type") and hasattr(points, "crs")
    has_coordinates = hasattr(points, "dims") and hasattr(points, "coords")
    first = _first(points)
    return (
        has_geometry
        or has_coordinates
        or _is_lazy(points)
        or _is_arrow(points)
        or hasattr(points, "columns")
        or any(_is_mapping(one) or hasattr(one, "__geo_interface__") for one in (points, first))
    )


def find_columns(columns: Iterable[Any], lat: str | None = None, lon: str | None = None) -> tuple[Any, Any]:
    """The latitude and longitude columns of a table: those named, else those of the usual names."""
    names = list(columns)
    found = _find_column(names, lat, LATITUDE_NAMES, "lat"), _find_column(names, lon, LONGITUDE_NAMES, "lon")
    lat_name, lon_name = (str(name).lower() for name in found)
    if lat_name in LONGITUDE_NAMES or lon_name in LATITUDE_NAMES:
        raise CoordinateError(f"latitude is read from column {found[0]!r} and longitude from {found[1]!r}: swap them")
    return found


def _find_column(names: Sequence[Any], wanted: str | None, usual: tuple[str, ...], which: str) -> Any:
    if wanted is not None:
        if wanted in names:
            return wanted
        raise CoordinateError(f"there is no column {wanted!r}{did_you_mean(wanted, map(str, names))}")
    for candidate in usual:
        matches = [name for name in names if str(name).lower() == candidate]
        if len(matches) == 1:
            return matches[0]
    listed = ", ".join(map(str, names))
    raise CoordinateError(
        f"no column of {listed} reads as {which}: name the {which} column (one of {', '.join(usual)})"
    )


def _from_geometry(points: Any) -> Found:
    geometry = getattr(points, "geometry", points)
    if geometry.crs is not None:
        geometry = geometry.to_crs(4326)
    is_shape = geometry.notna() & (geometry.geom_type != "Point")
    if bool(is_shape.any()):
        raise CoordinateError(
            "the geometry holds shapes that are not points: take a point of each first, .representative_point() or "
            ".centroid"
        )
    return Found(geometry.y.to_numpy(np.float64), geometry.x.to_numpy(np.float64))


def _from_grid(points: Any, lat: str | None, lon: str | None) -> Found:
    """The coordinates of an xarray object: (lat, lon) of all cells where they lie along dimensions of their own."""
    known = {**getattr(points, "data_vars", {}), **points.coords}
    names = find_columns(known, lat, lon)
    rows, columns = (known[name] for name in names)
    if set(rows.dims) & set(columns.dims):
        if set(rows.dims) != set(columns.dims):
            raise CoordinateError(f"{names[0]} lies along {rows.dims} and {names[1]} along {columns.dims}")
        return Found(rows.values, columns.transpose(*rows.dims).values, names)
    return Found(rows.values.reshape(rows.shape + (1,) * columns.ndim), columns.values, names)


def _as_geojson(points: Any) -> Mapping[str, Any] | None:
    """What `__geo_interface__` says, or points that say it each."""
    if _is_mapping(points) and isinstance(points.get("type"), str):
        return points  # type: ignore[no-any-return]
    if hasattr(points, "__geo_interface__") and not hasattr(points, "columns"):
        return points.__geo_interface__  # type: ignore[no-any-return]
    first = _first(points)
    if _is_shape(first):
        return {"type": "FeatureCollection", "features": points}
    return None


def _is_mapping(one: Any) -> bool:
    """Whether this is a dict of columns; a sparse matrix may be a dict too."""
    return isinstance(one, Mapping) and not hasattr(one, "shape")


def _is_shape(one: Any) -> bool:
    return hasattr(one, "__geo_interface__") or (isinstance(one, Mapping) and isinstance(one.get("type"), str))


def _first(points: Any) -> Any:
    """The first entry of a list that is something, where its entries are objects."""
    if isinstance(points, list | tuple) or (
        isinstance(points, np.ndarray) and points.dtype == object and points.ndim > 0
    ):
        return next((one for one in points if one is not None), None)
    return None


def _from_geojson(shape: Any) -> Found:
    """Points of GeoJSON; a collection gives one place for each of its members."""
    try:
        if shape["type"] == "FeatureCollection":
            pairs = [_lonlat(member) for member in shape["features"]]
        elif shape["type"] == "MultiPoint":
            pairs = [(float(pair[0]), float(pair[1])) for pair in shape["coordinates"]]
        else:
            lon, lat = _lonlat(shape)
            return Found(lat, lon)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, CoordinateError):
            raise
        raise CoordinateError("the points are no GeoJSON: coordinates are numbers, longitude first") from None
    lonlat = np.array(pairs, dtype=np.float64).reshape(-1, 2)
    return Found(lonlat[:, 1], lonlat[:, 0])


def _lonlat(member: Any) -> tuple[float, float]:
    """Longitude and latitude of one point; NaN for none."""
    shape = getattr(member, "__geo_interface__", member)
    if shape is not None and shape.get("type") == "Feature":
        shape = shape.get("geometry")
    if shape is None or len(shape.get("coordinates", ())) == 0:
        return np.nan, np.nan
    if shape["type"] != "Point":
        raise CoordinateError(
            f"a {str(shape['type'])[:40]} is no point: take a point of it first, such as its centroid"
        )
    return float(shape["coordinates"][0]), float(shape["coordinates"][1])


def _as_table(points: Any) -> Mapping[Any, Any] | None:
    """The columns of a table by their names; None for what has no columns."""
    if _is_mapping(points):
        return points  # type: ignore[no-any-return]
    if hasattr(points, "columns") and hasattr(points, "to_numpy"):
        return _Frame(points)
    if _is_mapping(_first(points)):
        odd = [row for row, one in enumerate(points) if one is not None and not _is_mapping(one)]
        if odd:
            kind = type(points[odd[0]]).__name__
            raise CoordinateError(f"row {odd[0]} is of type {kind}, and others are dicts of their columns")
        names = dict.fromkeys(name for row in points if row is not None for name in row)
        return {name: [None if row is None else row.get(name) for row in points] for name in names}
    return None


class _Frame(dict[Any, Any]):
    """The columns of a frame, taken out when they are asked for."""

    def __init__(self, frame: Any) -> None:
        super().__init__(dict.fromkeys(frame.columns))
        self._frame = frame

    def __iter__(self) -> Any:
        return iter(self._frame.columns)  # one name may stand there twice

    def __getitem__(self, name: Any) -> Any:
        return self._frame[name]


def _is_lazy(points: Any) -> bool:
    """Whether this is a lazy frame of polars."""
    return hasattr(points, "collect_schema") and hasattr(points, "collect")


def _is_arrow(points: Any) -> bool:
    """Whether a table is best read as an Arrow stream: a frame gives single columns itself."""
    has_columns = hasattr(points, "schema") or hasattr(points, "columns")
    return has_columns and hasattr(points, "__arrow_c_stream__") and not hasattr(points, "to_numpy")


def _from_arrow(table: Any, lat: str | None, lon: str | None) -> Found:
    """Two columns of an Arrow stream; the others are let go batch by batch."""
    import pyarrow as pa

    reader = pa.RecordBatchReader.from_stream(table)
    names = find_columns(reader.schema.names, lat, lon)
    batches = [[batch.column(name) for name in names] for batch in reader]
    kinds = [reader.schema.field(name).type for name in names]
    columns = [pa.chunked_array([batch[i] for batch in batches], kind) for i, kind in enumerate(kinds)]
    found = [
        column.cast(kind.value_type) if pa.types.is_dictionary(kind) else column
        for column, kind in zip(columns, kinds, strict=True)
    ]
    return Found(found[0], found[1], names)
