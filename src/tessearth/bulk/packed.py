"""Tables in formats that cannot grow, each packed at the end from a Parquet file or an npy that did."""

import contextlib
import datetime
import functools
import itertools
import json
import math
import re
import shutil
import tempfile
import zipfile
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet

from tessearth.bulk.writers import EMBEDDING, NpyWriter, ParquetWriter, as_texts, text_of
from tessearth.errors import OutputError, TableError
from tessearth.packages import require
from tessearth.sphere import Floats
from tessearth.storage import EXACT, PointBatch, PointTable

UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
GDAL_TYPES = (
    *(pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean),
    *(pa.types.is_large_string, pa.types.is_date32),
)
EXCEL_ROWS = 1_048_576
"""The most rows of a sheet."""
EXCEL_TYPES = (str, bool, int, float, datetime.date, type(None))
DRIVERS = {"gpkg": "GPKG", "geojson": "GeoJSON", "fgb": "FlatGeobuf"}


class NpzWriter(NpyWriter):
    """Embeddings as an npy, from which an archive of `embedding` (N, D), `lat` and `lon` (N,) is packed at the end."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema) -> None:
        super().__init__(file, points, added)
        self._latlon: list[Floats] = []

    def write(self, batch: PointBatch, added: pa.RecordBatch) -> None:
        """Append some rows."""
        super().write(batch, added)
        self._latlon.append(batch.latlon)

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self._latlon.append(batch.latlon)
        return super().restore(batch, content)

    def pack(self, target: IO[bytes]) -> None:
        """Write the three arrays as an archive."""
        self.file.seek(0)
        latlon = np.concatenate(self._latlon)
        with zipfile.ZipFile(target, "w", allowZip64=True) as archive:
            for i, name in enumerate(("lat", "lon")):
                with archive.open(f"{name}.npy", "w") as entry:
                    np.save(entry, latlon[:, i])
            with archive.open(f"{EMBEDDING}.npy", "w", force_zip64=True) as entry:
                shutil.copyfileobj(self.file, entry)


class ArrowWriter(ParquetWriter):
    """An Arrow file (Feather)."""

    def pack(self, target: IO[bytes]) -> None:
        """Copy the rows."""
        with pa.ipc.new_file(target, self._schema) as out:
            for batch in self.finished():
                out.write_batch(batch.cast(self._schema))


class VectorWriter(ParquetWriter):
    """A GeoPackage, GeoJSON or FlatGeobuf file with a column for each number."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema, kind: str) -> None:
        self._kind, self._driver = kind, DRIVERS[kind]
        self._pyogrio: Any = require("pyogrio", extra="geo", what=f"a file of format {self._driver}")
        schema, shape = points.schema, points.geometry
        self._is_given = shape in schema.names and not pa.types.is_struct(schema.field(shape).type)
        self._kept = [name for name in schema.names if self._is_given or name != shape]
        self._shape = shape if self._is_given else self._free_name("geometry", "geom", "shape", "place")
        super().__init__(file, points, added)

    def _free_name(self, *names: str) -> str:
        """The first name that no column has: capitals do not count."""
        taken = {name.lower() for name in self._kept}
        return next(name for name in names if name not in taken)

    def carried(self, batch: PointBatch) -> pa.RecordBatch:
        """The columns of some rows that travel along; points where the table has no geometry of its own."""
        columns = {name: batch.rows.column(name) for name in self._kept}
        if not self._is_given:
            columns[str(self._shape)] = points_as_wkb(batch.latlon)
        return pa.RecordBatch.from_pydict(columns)

    def pack(self, target: IO[bytes]) -> None:
        """Write the rows through GDAL, which wants a path."""
        geo = json.loads((self._schema.metadata or {}).get(b"geo", b"{}"))
        crs = geo.get("columns", {}).get(self._shape, {}).get("crs")
        about = {"driver": self._driver, "layer": "places", "geometry_name": self._shape, "geometry_type": "Unknown"}
        about |= {"crs": json.dumps(crs) if crs else "EPSG:4326"}
        if self._kind == "gpkg":
            about |= {"FID": self._free_name("fid", "row_id", "row_number"), "GEOMETRY_NAME": self._shape}
        if self._kind == "fgb":
            about |= {"SPATIAL_INDEX": "NO"}  # which would sort the rows
        types = [self._type(field) for field in self._schema]
        batches = (self.flat(_as_types(batch, types)) for batch in self.finished())
        first = next(batches)
        rows = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
        with tempfile.TemporaryDirectory() as folder:
            path = Path(folder) / f"places.{self._kind}"
            with _gdal(self._pyogrio):
                self._pyogrio.write_arrow(rows, path, **about)
            with open(path, "rb") as made:
                shutil.copyfileobj(made, target)

    def _type(self, field: pa.Field) -> pa.DataType:
        """The type of a column that GDAL keeps as it is: text for many, as for times of less than a millisecond."""
        kind = field.type
        if pa.types.is_float16(kind):
            return pa.float32()
        if pa.types.is_timestamp(kind):
            times = pa.parquet.ParquetFile(self.file).read([field.name])[field.name]
            is_exact = pc.all(pc.equal(pc.floor_temporal(times, unit="millisecond"), times)).as_py() is not False
            return pa.timestamp("ms", kind.tz) if is_exact else pa.string()
        is_kept = any(is_one(kind) for is_one in GDAL_TYPES) and kind != pa.uint64()
        return kind if is_kept or field.name in (self._shape, EMBEDDING) else pa.string()


def _as_types(batch: pa.RecordBatch, types: Sequence[pa.DataType]) -> pa.RecordBatch:
    """The rows with columns of other types."""
    columns = {}
    for name, column, kind in zip(batch.schema.names, batch.columns, types, strict=True):
        if pa.types.is_string(kind):
            columns[name] = pa.array(as_texts(column), kind, mask=column.is_null().to_numpy(zero_copy_only=False))
        else:
            columns[name] = column.cast(kind, safe=False)
    return pa.RecordBatch.from_pydict(columns)


@contextlib.contextmanager
def _gdal(pyogrio: Any) -> Iterator[None]:
    """GDAL that notes no time, so that the same rows give the same bytes, with errors of one line."""
    errors = pyogrio.errors
    pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": "1970-01-01T00:00:00.000Z"})
    try:
        yield
    except (errors.DataSourceError, errors.DataLayerError, errors.FeatureError, errors.GeometryError) as error:
        raise OutputError(f"cannot be written: {error}") from None
    finally:
        pyogrio.set_gdal_config_options({"OGR_CURRENT_DATE": None})


def points_as_wkb(latlon: Floats) -> pa.Array:
    """Places as points in well-known binary, null where there is none."""
    packed = np.zeros((len(latlon), 21), np.uint8)
    packed[:, :2] = (1, 1)
    lonlat = latlon[:, ::-1] - np.where(latlon[:, ::-1] > 180, 360, 0)
    packed[:, 5:] = np.ascontiguousarray(lonlat, "<f8").view(np.uint8).reshape(-1, 16)
    points = [None if np.isnan(place).any() else row.tobytes() for place, row in zip(latlon, packed, strict=True)]
    return pa.array(points, pa.binary())


class ExcelWriter(ParquetWriter):
    """An Excel sheet with a column for each number."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema) -> None:
        self._openpyxl: Any = require("openpyxl", extra="geo", what="an Excel file")
        if points.total_rows >= EXCEL_ROWS:
            raise TableError(f"an Excel sheet has room for {EXCEL_ROWS:,} rows, not {points.total_rows:,}: write .csv")
        super().__init__(file, points, added)

    def carried(self, batch: PointBatch) -> pa.RecordBatch:
        """The columns that travel along, without shapes."""
        return self.plain_rows(batch)

    def pack(self, target: IO[bytes]) -> None:
        """Write the rows through openpyxl."""
        book = self._openpyxl.Workbook(write_only=True)
        sheet = book.create_sheet("places")
        cell = functools.partial(_excel_cell, functools.partial(self._openpyxl.cell.WriteOnlyCell, sheet))
        for i, batch in enumerate(map(self.flat, self.finished())):
            if i == 0:
                sheet.append([cell(name) for name in batch.schema.names])
            for row in zip(*map(_excel_values, batch.columns), strict=True):
                sheet.append([cell(value) for value in row])
        book.save(target)


def _excel_values(column: pa.Array) -> list[Any]:
    """The values of a column that Excel holds as they are, and the others as text; its times have no zone."""
    kind = column.type
    if pa.types.is_timestamp(kind) and kind.tz is None:
        with contextlib.suppress(pa.ArrowInvalid):  # of nanoseconds
            return list(column.cast(pa.timestamp("us")).to_pylist())
    if pa.types.is_timestamp(kind) or pa.types.is_nested(kind) or pa.types.is_decimal(kind) or pa.types.is_time(kind):
        return [text or None for text in as_texts(column)]
    return list(column.to_pylist())


def _excel_cell(make: Callable[..., Any], value: Any) -> Any:
    """A cell; text stays text, also when it begins like a formula."""
    if isinstance(value, float) and not math.isfinite(value):
        value = None if math.isnan(value) else str(value)
    is_old = isinstance(value, datetime.date) and (value.year < 1901 or getattr(value, "microsecond", 0) % 1000)
    if is_old or not isinstance(value, EXCEL_TYPES) or (isinstance(value, int) and abs(value) > EXACT):
        value = text_of(value)
    if not isinstance(value, str):
        return value
    if len(value) > 32_767 or UNPRINTABLE.search(value):
        raise TableError(f"an Excel cell cannot hold {value[:20]!r}...: a control character, or over 32,767 letters")
    cell = make(value)
    cell.data_type = "s"
    return cell


PACKERS: dict[str, Callable[[IO[bytes], PointTable, pa.Schema], Any]] = {
    "npz": NpzWriter,
    "arrow": ArrowWriter,
    "xlsx": ExcelWriter,
    **{kind: functools.partial(VectorWriter, kind=kind) for kind in DRIVERS},
}
