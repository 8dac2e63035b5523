"""Points in GeoParquet columns, decoded with numpy alone."""

import json
from typing import Any

import numpy as np
import pyarrow as pa

from tessearth.errors import TableError
from tessearth.sphere.coordinates import Floats

POINT = 1
# Extended WKB sets these bits for Z, M and an SRID; ISO WKB adds 1000, 2000 or 3000 for Z, M and both.
_HAS_Z, _HAS_M, _HAS_SRID = 0x80000000, 0x40000000, 0x20000000


def geometry_column(schema: pa.Schema) -> str | None:
    """The primary geometry column that a Parquet file's metadata names, after checking that it holds degrees."""
    raw = (schema.metadata or {}).get(b"geo")
    if raw is None:
        return None
    try:
        described = json.loads(raw)
        name: str = described["primary_column"]
        crs = dict(described["columns"][name]).get("crs", "OGC:CRS84")
    except (ValueError, LookupError, TypeError, RecursionError):
        raise TableError("the GeoParquet metadata cannot be read") from None
    if name not in schema.names:
        raise TableError(f"the GeoParquet metadata names the geometry {name!r}, and there is no such column")
    _check_degrees(crs, name)
    return name


def decode_points(column: pa.Array, name: str, first_row: int) -> Floats:
    """Latitude and longitude, (N, 2), of a column of points: well-known binary, or a struct of x and y."""
    if column.null_count:
        row = first_row + int(np.flatnonzero(column.is_null().to_numpy(zero_copy_only=False))[0])
        raise TableError(f"row {row}: column {name!r} is empty")
    if pa.types.is_struct(column.type):
        return _decode_struct(column, name)
    if not (pa.types.is_binary(column.type) or pa.types.is_large_binary(column.type)):
        raise TableError(f"column {name!r} is {column.type}, neither well-known binary nor a struct of x and y")
    return _decode_wkb(column, name, first_row)


def _decode_struct(column: pa.Array, name: str) -> Floats:
    try:
        x, y = (np.asarray(column.field(axis).cast(pa.float64()), dtype=np.float64) for axis in ("x", "y"))
    except (KeyError, pa.ArrowInvalid, pa.ArrowNotImplementedError):
        raise TableError(f"column {name!r} is {column.type}, not a struct of numbers x and y") from None
    return np.stack((y, x), axis=-1)


def _decode_wkb(column: pa.Array, name: str, first_row: int) -> Floats:
    """Two-dimensional little-endian points all at once, anything else one by one."""
    values = column.to_pylist()
    if all(len(value) == 21 for value in values) and len(values):
        packed = np.frombuffer(b"".join(values), dtype=np.uint8).reshape(-1, 21)
        if (packed[:, :5] == (1, POINT, 0, 0, 0)).all():
            lonlat = np.ascontiguousarray(packed[:, 5:]).view("<f8")
            return np.ascontiguousarray(lonlat[:, ::-1], dtype=np.float64)
    points = [_decode_one(value, name, first_row + i) for i, value in enumerate(values)]
    return np.array(points, dtype=np.float64).reshape(-1, 2)


def _decode_one(value: bytes, name: str, row: int) -> tuple[float, float]:
    order = "<" if value[:1] == b"\x01" else ">"
    kind = int(np.frombuffer(value, f"{order}u4", 1, 1)[0]) if len(value) >= 5 else 0
    flags, plain = kind & 0xF0000000, kind & 0x0FFFFFFF
    if len(value) < (25 if flags & _HAS_SRID else 21):
        raise TableError(f"row {row}: column {name!r} holds no point in well-known binary")
    if plain % 1000 != POINT or plain > 3001:
        raise TableError(f"row {row}: column {name!r} holds a shape that is not a point; take centroids first")
    start = 9 if flags & _HAS_SRID else 5
    lon, lat = np.frombuffer(value, f"{order}f8", 2, start)
    return float(lat), float(lon)


def _check_degrees(crs: Any, name: str) -> None:
    """Longitude and latitude in degrees: OGC:CRS84 (also the default) or EPSG:4326, whose order GeoParquet fixes."""
    if crs is None or crs == "OGC:CRS84":
        return
    identifier = crs.get("id") if isinstance(crs, dict) else None
    known = (
        f"{identifier.get('authority')}:{identifier.get('code')}" if isinstance(identifier, dict) else "no known one"
    )
    if known not in ("OGC:CRS84", "EPSG:4326"):
        spoken = crs.get("name", known) if isinstance(crs, dict) else str(crs)
        raise TableError(f"column {name!r} is in {spoken}, not in degrees: reproject it to EPSG:4326 first")
