"""Places in containers of any kind: the columns, geometry or coordinates of an object that hold them.

Objects are known by what they can do and not by their library, which need not be installed: a geometry with a
projection (geopandas), `__geo_interface__` (shapely, GeoJSON), coordinates along dimensions (xarray), columns by name
(pandas, dicts), `__arrow_c_stream__` (pyarrow, polars, DuckDB). The rule is one for all: columns that are named, else
the geometry, else columns of the usual names.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from tessearth.errors import CoordinateError, first_line
from tessearth.packages import require
from tessearth.sphere.coordinates import Geometry, Places, Shape, find_columns, geometry_column
from tessearth.sphere.shapes import place_shapes, read_shapes


class Found(NamedTuple):
    """The two coordinates of places, in any form that numpy takes, and what they are called."""

    lat: Any
    lon: Any
    names: tuple[str, str] = ("lat", "lon")


class Frame(NamedTuple):
    """A table in memory."""

    names: list[Any]
    take: Callable[[Sequence[Any]], Any]
    """Some of its columns, as a mapping of their names."""
    geometry: Geometry | None = None


def find_places(points: Any, lat: str | None = None, lon: str | None = None, shape: Shape = "point") -> Any:
    """The places in a container, `Found` or `Places`; None for what is no container but numbers already."""
    is_named = lat is not None or lon is not None
    if _is_grid(points):
        return _from_grid(points, lat, lon)
    if not is_named and _is_geoseries(points):
        return _from_geoseries(getattr(points, "geometry", points), shape)
    geojson = _as_geojson(points)
    if geojson is not None and not is_named:
        return _from_geojson(geojson, shape)
    frame = open_frame(points)
    if frame is None:
        return None
    if frame.geometry is not None and not is_named:
        name = frame.geometry.name
        return read_shapes(frame.take([name])[name], frame.geometry, shape)
    names = find_columns(frame.names, lat, lon)
    columns = frame.take(names)
    return Found(columns[names[0]], columns[names[1]], (str(names[0]), str(names[1])))


def is_container(points: Any) -> bool:
    """Whether places stand in columns, a geometry or coordinates, and not in numbers alone."""
    entries = (points, _first(points))
    has_shapes = _is_geoseries(points) or any(hasattr(one, "__geo_interface__") for one in entries)
    return has_shapes or _is_grid(points) or is_frame(points) or _is_mapping(entries[1])


def is_frame(table: Any) -> bool:
    """Whether something is a table in memory, and not one column."""
    kind = type(table)  # to ask a lazy table for its columns is work
    is_stream = hasattr(kind, "__arrow_c_stream__") and not hasattr(kind, "dtype")
    return _is_mapping(table) or hasattr(kind, "columns") or is_stream


def open_frame(table: Any) -> Frame | None:
    """A table in memory by its columns; None for what has none."""
    if _is_mapping(table):
        return Frame(list(table), lambda names: table)
    if hasattr(table, "iloc"):  # pandas, which would hand all columns to Arrow
        geometry = Geometry(str(table.geometry.name), _crs_of(table)) if _is_geoseries(table) else None
        return Frame(list(table.columns), lambda names: {name: table[name] for name in names}, geometry)
    if is_frame(table):
        return _of_arrow(table)
    if _is_mapping(_first(table)):
        return _of_rows(table)
    return None


def take_dates(points: Sequence[Any], date: Any) -> Any:
    """The column of a table that `date` names; any other date as it is."""
    frame = open_frame(points[0]) if isinstance(date, str) and len(points) == 1 and is_container(points[0]) else None
    return frame.take([date])[date] if frame is not None and date in frame.names else date


def _of_arrow(table: Any) -> Frame:
    """A table that hands out an Arrow stream; of polars, which may be lazy, the columns wanted alone are computed."""
    import pyarrow as pa

    def stream(table: Any) -> Any:
        return pa.RecordBatchReader.from_stream(table.collect() if hasattr(table, "collect") else table)

    is_polars = hasattr(table, "collect_schema")
    reader = stream(table.head(0) if is_polars else table)

    def take(names: Sequence[str]) -> dict[str, Any]:
        found = stream(table.select(list(names))) if is_polars else reader
        batches = [[batch.column(name) for name in names] for batch in found]  # the others are let go one by one
        kinds = [found.schema.field(name).type for name in names]
        columns = (pa.chunked_array([batch[i] for batch in batches], kind) for i, kind in enumerate(kinds))
        return {name: _plain(column) for name, column in zip(names, columns, strict=True)}

    return Frame(reader.schema.names, take, geometry_column(reader.schema))


def _plain(column: Any) -> Any:
    """A column as one array, of a type that all readers of columns know."""
    import pyarrow as pa

    kind = column.type.value_type if pa.types.is_dictionary(column.type) else column.type
    plain = {"string_view": pa.string(), "binary_view": pa.binary()}.get(str(kind), kind)
    return column.cast(plain).combine_chunks()


def _of_rows(rows: Any) -> Frame:
    """A list of dicts of their columns."""
    for row, one in enumerate(rows):
        if one is not None and not _is_mapping(one):
            raise CoordinateError(f"row {row} is of type {type(one).__name__}, and others are dicts of their columns")
    names = list(dict.fromkeys(name for row in rows if row is not None for name in row))

    def take(names: Sequence[Any]) -> dict[Any, Any]:
        return {name: [None if row is None else row.get(name) for row in rows] for name in names}

    return Frame(names, take)


def _is_geoseries(points: Any) -> bool:
    """Whether this has a geometry and a projection, as the series and frames of geopandas do."""
    return hasattr(points, "geom_type") and hasattr(points, "crs")


def _crs_of(points: Any) -> Any:
    return points.crs and points.crs.to_json_dict()


def _from_geoseries(geometry: Any, shape: Shape) -> Places:
    return place_shapes(geometry.to_numpy(), Geometry(str(geometry.name), _crs_of(geometry)), shape)


def _is_grid(points: Any) -> bool:
    """Whether this has coordinates along dimensions, as the objects of xarray do."""
    return hasattr(points, "dims") and hasattr(points, "coords")


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


def _is_mapping(one: Any) -> bool:
    """Whether this is a dict of columns; a sparse matrix may be a dict too."""
    return isinstance(one, Mapping) and not hasattr(one, "shape")


def _first(points: Any) -> Any:
    """The first entry of a list that is something, where its entries are objects."""
    if isinstance(points, list | tuple) or (
        isinstance(points, np.ndarray) and points.dtype == object and points.ndim > 0
    ):
        return next((one for one in points if one is not None), None)
    return None


def _as_geojson(points: Any) -> Mapping[str, Any] | None:
    """What `__geo_interface__` says, or a collection of shapes that say it each."""
    if _is_mapping(points) and isinstance(points.get("type"), str):
        return points  # type: ignore[no-any-return]
    if hasattr(points, "__geo_interface__") and not hasattr(points, "columns"):
        return points.__geo_interface__  # type: ignore[no-any-return]
    first = _first(points)
    if hasattr(first, "__geo_interface__") or (isinstance(first, Mapping) and isinstance(first.get("type"), str)):
        return {"type": "FeatureCollection", "features": points}
    return None


def _from_geojson(shape: Mapping[str, Any], chosen: Shape) -> Any:
    """Shapes of GeoJSON; a collection gives one place for each of its members, and so do several points."""
    try:
        if shape["type"] == "FeatureCollection":
            members = [_bare(member) for member in shape["features"]]
        elif shape["type"] == "MultiPoint":
            members = [{"type": "Point", "coordinates": pair} for pair in shape["coordinates"]]
        else:
            members = [_bare(shape)]
        is_one = shape["type"] not in ("FeatureCollection", "MultiPoint")
        if any(one is not None and one["type"] != "Point" for one in members):
            return _from_shapes(members, chosen, is_one=is_one)
        lonlat = np.array([_lonlat(one) for one in members], dtype=np.float64).reshape(-1, 2)
    except (AttributeError, KeyError, IndexError, TypeError, ValueError, RuntimeError, OverflowError) as error:
        if isinstance(error, CoordinateError):
            raise
        raise CoordinateError("the points are no GeoJSON: coordinates are numbers, longitude first") from None
    return Found(lonlat[0, 1], lonlat[0, 0]) if is_one else Found(lonlat[:, 1], lonlat[:, 0])


def _bare(member: Any) -> Any:
    """The geometry of a member of GeoJSON; None for one without."""
    shape = getattr(member, "__geo_interface__", member)
    return shape.get("geometry") if shape is not None and shape.get("type") == "Feature" else shape


def _lonlat(point: Any) -> tuple[float, float]:
    """Longitude and latitude of one point; NaN for none."""
    pair: Sequence[Any] = () if point is None else point.get("coordinates", ())
    return (float(pair[0]), float(pair[1])) if len(pair) else (np.nan, np.nan)


def _from_shapes(members: Sequence[Any], chosen: Shape, *, is_one: bool) -> Places:
    """Lines and polygons, by shapely."""
    shapely: Any = require("shapely", extra="geo", what="a place by lines or polygons")
    try:
        shapes = np.array([None if one is None else shapely.geometry.shape(one) for one in members], dtype=object)
    except shapely.errors.ShapelyError as error:
        raise CoordinateError(f"the shapes are no GeoJSON: {first_line(error)}") from None
    places = place_shapes(shapes, Geometry("geometry"), chosen)
    return places._replace(latlon=places.latlon.reshape(-1)) if is_one else places
