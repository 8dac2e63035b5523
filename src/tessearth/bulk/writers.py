"""Tables written a batch at a time: the rows that were read, with new columns behind them, in any format.

A csv that came from a csv is its own rows, byte by byte, each with more cells at the end. Formats that cannot grow are
made at the end from a Parquet file or an npy that did.
"""

import contextlib
import datetime
import functools
import itertools
import json
import math
import re
import shutil
import sys
import tempfile
import typing
import zipfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import OutputError, TableError
from tessearth.packages import require
from tessearth.sphere import Floats, Places
from tessearth.storage import (
    EXACT,
    PARQUET,
    STANDARD_STREAM,
    UNREADABLE,
    Dialect,
    PointBatch,
    PointTable,
    atomic_write,
    cut_records,
)

OutputFormat = Literal["npy", "npz", "parquet", "csv", "tsv", "jsonl", "arrow", "gpkg", "geojson", "fgb", "xlsx"]
SUFFIXES: dict[str, OutputFormat] = {
    ".npy": "npy",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".geoparquet": "parquet",
    ".csv": "csv",
    ".tsv": "tsv",
    ".txt": "csv",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
    ".arrow": "arrow",
    ".feather": "arrow",
    ".gpkg": "gpkg",
    ".geojson": "geojson",
    ".fgb": "fgb",
    ".xlsx": "xlsx",
}
ARRAYS_ONLY = ("npy", "npz")
NESTING = ("parquet", "jsonl", "arrow")
"""Formats in which an embedding is one cell."""
PACKED = ("npz", "arrow", "gpkg", "geojson", "fgb", "xlsx")
"""Formats that are made from another file at the end."""
UNPRINTABLE = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f]")
EXCEL = (1_048_576, 16_384)
"""The most rows and columns of a sheet."""
EXCEL_TYPES = (str, bool, int, float, datetime.date, type(None))
DRIVERS = {"gpkg": "GPKG", "geojson": "GeoJSON", "fgb": "FlatGeobuf"}
EMBEDDING, GEOMETRY, PLACE = "embedding", "geometry", ["lat", "lon"]

Embeddings = npt.NDArray[np.floating]
Width = Literal["float32", "float16"]
"""How many bits each number is stored in."""


class Writer(Protocol):
    """Appends batches in order to a file that holds whole batches at any time; `finish` completes it."""

    def write(self, batch: PointBatch, added: pa.RecordBatch) -> None:
        """Append some rows with their new columns."""

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same rows once more by the bytes they had in an unfinished file, if they give the same bytes."""

    def finish(self) -> None:
        """Complete the file; nothing is written after it."""

    def abandon(self) -> None:
        """Let go of a file that is not completed."""


def output_format(path: str, chosen: str | None = None) -> OutputFormat:
    """The chosen format, else the one that the path's suffix names."""
    formats = typing.get_args(OutputFormat)
    if chosen is not None:
        if chosen not in formats:
            raise TableError(f"there is no output format {chosen!r}; there are: {', '.join(formats)}")
        return typing.cast("OutputFormat", chosen)
    if path == STANDARD_STREAM:
        raise TableError(f"standard output has no suffix that names a format: add --format ({', '.join(formats)})")
    suffix = Path(path).suffix.lower()
    if suffix == ".shp":
        raise TableError("a Shapefile has room for 255 columns with names of ten letters: write .gpkg instead")
    if suffix not in SUFFIXES:
        raise TableError(f"the suffix of {path} names no output format; use one of {', '.join(SUFFIXES)} or --format")
    return SUFFIXES[suffix]


def check_schema(kind: OutputFormat, schema: pa.Schema, added: pa.Schema) -> None:
    """Refuse a table whose columns collide with the new ones, or that a format cannot hold, before any work."""
    if kind in ARRAYS_ONLY:
        return
    new = [*(added.names if kind not in ("csv", "tsv") else ()), *(flat_names(added) if kind not in NESTING else ())]
    taken = [name for name in new if name in schema.names]
    if taken:
        raise TableError(f"the table has a column {taken[0]!r} already: rename it, or leave it out with --keep")
    if kind == "xlsx" and len(schema) + len(new) > EXCEL[1]:
        raise TableError(f"an Excel sheet has room for {EXCEL[1]:,} columns, not {len(schema) + len(new):,}: use .csv")
    if kind == "gpkg" and len(schema) + len(new) > 1990:
        raise TableError(f"a GeoPackage has room for 2,000 columns, not {len(schema) + len(new):,}: keep fewer --dims")
    seen: dict[str, str] = {}
    for name in schema.names if kind == "gpkg" else ():
        if (other := seen.setdefault(name.lower(), name)) != name:
            raise TableError(f"columns {other!r} and {name!r} differ in capitals only, which a GeoPackage ignores")


def check_width(width: str) -> Width:
    """The width when there is such a one."""
    if width not in typing.get_args(Width):
        raise TableError(f"embeddings are stored as {' or '.join(typing.get_args(Width))}, not as {width!r}")
    return typing.cast("Width", width)


def embedding_schema(dim: int, width: Width) -> pa.Schema:
    """The one new column of embeddings."""
    return pa.schema([(EMBEDDING, pa.list_(pa.from_numpy_dtype(np.dtype(width)), dim))])


def as_column(embeddings: Embeddings, latlon: Floats, schema: pa.Schema) -> pa.RecordBatch:
    """Embeddings (N, D) as the column of a schema, null where there is no place."""
    kind = schema.field(EMBEDDING).type
    numbers = pa.array(embeddings.astype(kind.value_type.to_pandas_dtype(), copy=False).reshape(-1))
    is_missing = np.isnan(latlon).any(axis=1)
    mask = pa.array(is_missing) if is_missing.any() else None
    column = pa.FixedSizeListArray.from_arrays(numbers, kind.list_size, mask=mask)
    return pa.RecordBatch.from_arrays([column], schema=schema)


def flat_names(schema: pa.Schema) -> list[str]:
    """The names of columns where an embedding is a column for each number."""
    names = ([f"{field.name}_{i}" for i in range(_width_of(field))] or [field.name] for field in schema)
    return [name for some in names for name in some]


def _width_of(field: pa.Field) -> int:
    """How many columns an embedding becomes; 0 for any other column."""
    return field.type.list_size if field.name == EMBEDDING and pa.types.is_fixed_size_list(field.type) else 0


def flat_columns(rows: pa.RecordBatch) -> pa.RecordBatch:
    """Some rows with a column for each number of an embedding."""
    arrays: list[pa.Array] = []
    for field, column in zip(rows.schema, rows.columns, strict=True):
        width = _width_of(field)
        if not width:
            arrays.append(column)
            continue
        values = column.values.to_numpy(zero_copy_only=False).reshape(-1, width)
        values = values[column.offset : column.offset + len(column)]
        missing = column.is_null().to_numpy(zero_copy_only=False) if column.null_count else None
        arrays += [pa.array(np.ascontiguousarray(one), column.type.value_type, mask=missing) for one in values.T]
    return pa.RecordBatch.from_arrays(arrays, names=flat_names(rows.schema))


@contextlib.contextmanager
def open_writer(path: str, kind: OutputFormat, points: PointTable, added: pa.Schema) -> Iterator[Writer]:
    """A writer whose file appears under its name only when the block ends well ("-" is standard output)."""
    check_schema(kind, points.schema, added)
    with _open_target(path) as target, contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(tempfile.TemporaryFile()) if kind in PACKED else target
        writer = WRITERS[kind](file, points, added)
        stack.callback(writer.abandon)
        yield writer
        writer.finish()
        if isinstance(writer, Packed):
            writer.pack(target)


@contextlib.contextmanager
def _open_target(path: str) -> Iterator[IO[bytes]]:
    if path != STANDARD_STREAM:
        with atomic_write(path) as file:
            yield file
        return
    try:
        with tempfile.TemporaryFile() as file:
            yield typing.cast("IO[bytes]", file)
            file.seek(0)
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {(error.strerror or str(error)).lower()}") from error


class _FileWriter:
    """What all writers share."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema) -> None:
        self.file, self.points, self.added = file, points, added

    def plain_rows(self, batch: PointBatch) -> pa.RecordBatch:
        """The columns that travel along; latitude and longitude in the place of shapes, or where nothing is kept."""
        names = [name for name in batch.rows.schema.names if name != self.points.geometry]
        columns = {name: batch.rows.column(name) for name in names}
        if not names or len(names) < len(batch.rows.schema):
            for name, degrees in zip(PLACE, batch.latlon.T, strict=True):
                columns.setdefault(name, pa.array(degrees, from_pandas=True))
        return pa.RecordBatch.from_pydict(columns)

    def plain_schema(self) -> pa.Schema:
        """Their schema."""
        arrays = [pa.array([], field.type) for field in self.points.schema]
        empty = pa.RecordBatch.from_arrays(arrays, schema=self.points.schema)
        return self.plain_rows(PointBatch(empty, Places(np.empty((0, 2))))).schema

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self.file.write(content)
        return True

    def finish(self) -> None:
        """Nothing follows the last row."""

    def abandon(self) -> None:
        """Nothing is held."""


class Packed(_FileWriter):
    """A writer whose file is made into another one at the end."""

    def pack(self, target: IO[bytes]) -> None:
        """Write the finished table."""
        raise NotImplementedError


class NpyWriter(_FileWriter):
    """Embeddings alone, (N, D); NaN where a row has no place."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema) -> None:
        super().__init__(file, points, added)
        kind = added.field(EMBEDDING).type
        self.dim, self.rows = kind.list_size, 0
        self.dtype = np.dtype(kind.value_type.to_pandas_dtype()).newbyteorder("<")
        self._write_header()

    def write(self, batch: PointBatch, added: pa.RecordBatch) -> None:
        """Append some rows."""
        column = added.column(EMBEDDING)
        values = column.values.to_numpy(zero_copy_only=False).reshape(-1, self.dim)
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.rows += len(column)

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self.rows += len(batch.latlon)
        return super().restore(batch, content)

    def finish(self) -> None:
        """Complete the header: numpy leaves room in it for a growing number of rows."""
        end = self.file.tell()
        self.file.seek(0)
        self._write_header()
        self.file.seek(end)

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, self.dim)}
        np.lib.format.write_array_header_1_0(self.file, header)


class NpzWriter(NpyWriter, Packed):
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


class _OneRowGroup(NamedTuple):
    """The bytes of a Parquet file of one row group, without the magic number it begins with."""

    rows: bytes
    footer: bytes


def _list_field(field: pa.Field) -> pa.Field:
    """A list of any length in the place of one of a fixed length, whose gaps few readers of Parquet know."""
    fixed = pa.types.is_fixed_size_list(field.type)
    return pa.field(field.name, pa.list_(field.type.value_type)) if fixed else field


def _to_list(column: pa.Array) -> pa.Array:
    """A column of such a field."""
    if not pa.types.is_fixed_size_list(column.type):
        return column
    missing = column.is_null().to_numpy(zero_copy_only=False)
    ends = np.cumsum(~missing) * column.type.list_size
    values = column.values.to_numpy(zero_copy_only=False).reshape(-1, column.type.list_size)[~missing]
    offsets = pa.array(np.concatenate(([0], ends)), pa.int32())
    return pa.ListArray.from_arrays(
        offsets, pa.array(values.reshape(-1), column.type.value_type), mask=pa.array(missing)
    )


def _to_fixed(column: pa.Array, added: pa.Schema, name: str) -> pa.Array:
    """The same column as the fixed lists that `added` has under its name."""
    kind = added.field(name).type if name in added.names else column.type
    if column.type == kind or not pa.types.is_list(column.type):
        return column
    missing = column.is_null().to_numpy(zero_copy_only=False)
    values = np.zeros((len(column), kind.list_size), kind.value_type.to_pandas_dtype())
    values[~missing] = column.flatten().to_numpy(zero_copy_only=False).reshape(-1, kind.list_size)
    return pa.FixedSizeListArray.from_arrays(pa.array(values.reshape(-1)), kind.list_size, mask=pa.array(missing))


class ParquetWriter(_FileWriter):
    """The columns that travel along, and the new ones; a list of numbers is not compressed.

    Lists have a fixed length, and any length where rows have none.
    """

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema) -> None:
        super().__init__(file, points, added)
        carried = self.carried(points)
        written = [_list_field(field) if points.has_gaps else field for field in added]
        self._schema = pa.schema([*carried, *written], carried.metadata)
        # Columns in columns have paths of their own, as Parquet's options name them, and keep the defaults.
        plain = [field.name for field in self._schema if not pa.types.is_nested(field.type)]
        lists = [f"{field.name}.list.element" for field in added if pa.types.is_nested(field.type)]
        compression = dict.fromkeys(plain, "zstd") | dict.fromkeys(lists, "none")
        self._options = {"compression": compression, "use_dictionary": plain, "write_statistics": False}
        self._writer = self._open(file)

    def carried(self, points: PointTable) -> pa.Schema:
        """The columns that travel along."""
        return points.schema

    def columns(self, batch: PointBatch) -> Sequence[pa.Array]:
        """Those columns of some rows."""
        return list(batch.rows.columns)

    def write(self, batch: PointBatch, added: pa.RecordBatch) -> None:
        """Append some rows as one row group."""
        self._writer.write_batch(self._rows(batch, added))

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append a row group by its bytes.

        A file of the same rows with zeros for embeddings has the same layout, since embeddings are not compressed: with
        `content` in the place of its row group it is read back. Rows that do not give `content` again are refused.
        """
        kind = self.added.field(EMBEDDING).type
        values = np.zeros((len(batch.latlon), kind.list_size), kind.value_type.to_pandas_dtype())
        blank = self._alone(batch, as_column(values, batch.latlon, self.added))
        if len(blank.rows) != len(content):
            return False
        try:
            column = pa.parquet.read_table(pa.BufferReader(PARQUET + content + blank.footer), columns=[EMBEDDING])
            known = column[EMBEDDING].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            values[np.isfinite(batch.latlon).all(axis=1)] = known.reshape(-1, kind.list_size)
        except UNREADABLE:
            return False
        added = as_column(values, batch.latlon, self.added)
        if self._alone(batch, added).rows != content:
            return False
        self.write(batch, added)
        return True

    def _rows(self, batch: PointBatch, added: pa.RecordBatch) -> pa.RecordBatch:
        written = [_to_list(column) if self.points.has_gaps else column for column in added.columns]
        return pa.RecordBatch.from_arrays([*self.columns(batch), *written], schema=self._schema)

    def flat(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Some rows of the finished file, with a column for each number of an embedding."""
        named = zip(rows.schema.names, rows.columns, strict=True)
        columns = [_to_fixed(column, self.added, name) for name, column in named]
        return flat_columns(pa.RecordBatch.from_arrays(columns, names=rows.schema.names))

    def _open(self, file: Any) -> Any:
        return pa.parquet.ParquetWriter(file, self._schema, **self._options)

    def _alone(self, batch: PointBatch, added: pa.RecordBatch) -> _OneRowGroup:
        """A file of this batch alone: its first bytes, the row group, the footer with its length and the last bytes."""
        with pa.BufferOutputStream() as stream:
            with self._open(stream) as writer:
                writer.write_batch(self._rows(batch, added))
            whole = stream.getvalue().to_pybytes()
        footer = int.from_bytes(whole[-8:-4], "little") + 8
        return _OneRowGroup(whole[len(PARQUET) : -footer], whole[-footer:])

    def finish(self) -> None:
        """Write the footer."""
        self._writer.close()

    def abandon(self) -> None:
        """Keep pyarrow from completing the file when it is collected."""
        self._writer.is_open = False


class ArrowWriter(ParquetWriter, Packed):
    """An Arrow file (Feather), packed at the end from Parquet."""

    def pack(self, target: IO[bytes]) -> None:
        """Copy the rows."""
        self.file.seek(0)
        with pa.parquet.ParquetFile(self.file) as whole, pa.ipc.new_file(target, self._schema) as out:
            for batch in whole.iter_batches():
                out.write_batch(batch.cast(self._schema))


class VectorWriter(ParquetWriter, Packed):
    """A GeoPackage, GeoJSON or FlatGeobuf file with a column for each number, packed at the end from Parquet."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema, driver: str) -> None:
        self._driver = driver
        _pyogrio(driver)  # is it there? before any work
        schema = points.schema
        is_kept = points.geometry in schema.names and not pa.types.is_struct(schema.field(points.geometry).type)
        self._kept = [name for name in schema.names if is_kept or name != points.geometry]
        taken = {name.lower() for name in self._kept}
        free = next(name for name in (GEOMETRY, "geom", "shape", "place") if name not in taken)
        self._given, self._shape = is_kept, points.geometry if is_kept and points.geometry else free
        self._row_name = next(name for name in ("fid", "row_id", "row_number") if name not in taken)
        super().__init__(file, points, added)

    def carried(self, points: PointTable) -> pa.Schema:
        """The columns that travel along; points where the table has no geometry of its own."""
        kept = [points.schema.field(name) for name in self._kept]
        return pa.schema([*kept, *([] if self._given else [(self._shape, pa.binary())])], points.schema.metadata)

    def columns(self, batch: PointBatch) -> Sequence[pa.Array]:
        """Those columns of some rows."""
        kept = [batch.rows.column(name) for name in self._kept]
        return [*kept, *([] if self._given else [points_as_wkb(batch.latlon)])]

    def pack(self, target: IO[bytes]) -> None:
        """Write the rows through GDAL, which wants a path."""
        pyogrio: Any = _pyogrio(self._driver)
        self.file.seek(0)
        geo = json.loads((self._schema.metadata or {}).get(b"geo", b"{}"))
        crs = geo.get("columns", {}).get(self._shape, {}).get("crs")
        about = {"driver": self._driver, "layer": "places", "geometry_name": self._shape, "geometry_type": "Unknown"}
        about |= {"crs": json.dumps(crs) if crs else "EPSG:4326"}
        if self._driver == "GPKG":
            about |= {"FID": self._row_name, "GEOMETRY_NAME": self._shape}
        if self._driver == "FlatGeobuf":
            about |= {"SPATIAL_INDEX": "NO"}  # which would sort the rows
        with pa.parquet.ParquetFile(self.file) as whole, tempfile.TemporaryDirectory() as folder:
            types = self._types(whole)
            batches = (self.flat(_as_types(batch, types)) for batch in whole.iter_batches())
            first = next(batches)
            rows = pa.RecordBatchReader.from_batches(first.schema, itertools.chain([first], batches))
            path = Path(folder) / f"places.{next(kind for kind, name in DRIVERS.items() if name == self._driver)}"
            with _gdal(pyogrio):
                pyogrio.write_arrow(rows, path, **about)
            with open(path, "rb") as made:
                shutil.copyfileobj(made, target)

    def _types(self, whole: Any) -> list[pa.DataType]:
        """The type of each column that GDAL keeps as it is: text for many, as for times of less than a millisecond."""
        known = (pa.types.is_floating, pa.types.is_integer, pa.types.is_boolean, pa.types.is_large_string,
                 pa.types.is_date32)  # fmt: skip
        types = []
        for field in self._schema:
            kind = field.type
            is_kept = field.name in (self._shape, EMBEDDING) or any(is_one(kind) for is_one in known)
            types.append(kind if is_kept and kind != pa.uint64() else pa.string())
            if pa.types.is_float16(kind):
                types[-1] = pa.float32()
            if pa.types.is_timestamp(kind):
                times = whole.read([field.name])[field.name]
                if pc.all(pc.equal(pc.floor_temporal(times, unit="millisecond"), times)).as_py() is not False:
                    types[-1] = pa.timestamp("ms", kind.tz)
        return types


def _pyogrio(driver: str) -> Any:
    return require("pyogrio", extra="geo", what=f"a file of format {driver}")


def _as_types(batch: pa.RecordBatch, types: Sequence[pa.DataType]) -> pa.RecordBatch:
    """The rows with columns of other types."""
    columns = {}
    for name, column, kind in zip(batch.schema.names, batch.columns, types, strict=True):
        if pa.types.is_string(kind):
            columns[name] = pa.array(_texts(column), kind, mask=column.is_null().to_numpy(zero_copy_only=False))
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


class CsvWriter(_FileWriter):
    """Rows with one more cell for each number; those of a csv stay as they are to the byte."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema, separator: str | None = None) -> None:
        super().__init__(file, points, added)
        found = points.csv.dialect if points.csv else Dialect(",", "utf-8", b"\n")
        self._dialect = found._replace(separator=separator or found.separator)
        self._is_copy = points.csv is not None and found == self._dialect
        self._separator = self._dialect.separator.encode()
        head = points.csv.header if points.csv and self._is_copy else self._cells([self.plain_schema().names])[0]
        self._write_lines([head], self._cells([flat_names(added)]))

    def write(self, batch: PointBatch, added: pa.RecordBatch) -> None:
        """Append some rows."""
        self._write_lines(self._lines(batch), self._text(flat_columns(added)))

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes when they are the same rows with more cells."""
        rows = cut_records(content, self._dialect.separator)
        lines = self._lines(batch)
        if len(rows) != len(lines) or not all(row.startswith(line) for row, line in zip(rows, lines, strict=True)):
            return False
        return super().restore(batch, content)

    def _lines(self, batch: PointBatch) -> Sequence[bytes]:
        """The rows as they came, or as csv."""
        is_copy = self._is_copy and batch.lines is not None
        return batch.lines.cut() if is_copy and batch.lines else self._text(self.plain_rows(batch))

    def _write_lines(self, lines: Sequence[bytes], ends: Sequence[bytes]) -> None:
        parts = ((line, self._separator, end, self._dialect.line_end) for line, end in zip(lines, ends, strict=True))
        self.file.write(b"".join(itertools.chain.from_iterable(parts)))

    def _text(self, rows: pa.RecordBatch) -> Sequence[bytes]:
        """Columns as lines: numbers by pyarrow, which is fast, text by the csv module, which quotes as needed."""
        if not all(pa.types.is_floating(kind) or pa.types.is_integer(kind) for kind in rows.schema.types):
            return self._cells(zip(*(_texts(column) for column in rows.columns), strict=True))
        with pa.BufferOutputStream() as stream:
            options = pa.csv.WriteOptions(include_header=False, delimiter=self._dialect.separator)
            pa.csv.write_csv(rows, stream, options)
            text: bytes = stream.getvalue().to_pybytes()
        return text.split(b"\n")[:-1]

    def _cells(self, rows: Iterable[Sequence[str]]) -> list[bytes]:
        try:
            return [self._dialect.cells(row) for row in rows]
        except UnicodeEncodeError as error:
            letter = error.object[error.start]
            raise TableError(
                f"{letter!r} cannot be written in {self._dialect.encoding}: write another format"
            ) from None


def _texts(column: pa.Array) -> list[str]:
    """The cells of a column as text that reads back as the same values."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())
    return [
        "" if value is None else value if isinstance(value, str) else _text_of(value) for value in column.to_pylist()
    ]


def _text_of(value: Any) -> str:
    """A value as text: lists and objects as JSON, bytes in hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, ensure_ascii=False, default=_text_of) if isinstance(value, list | dict) else str(value)


class JsonLinesWriter(_FileWriter):
    """One object a line: that of the input, or the columns that travel along, and the new ones."""

    def write(self, batch: PointBatch, added: pa.RecordBatch) -> None:
        """Append some rows."""
        is_copy = self.points.csv is None and batch.lines is not None
        kept = batch.lines.cut() if is_copy and batch.lines else _objects(self.plain_rows(batch))
        for line, new in zip(kept, _objects(added), strict=True):
            head = line[:-1].rstrip()
            self.file.write(head + (b", " if head != b"{" else b"") + new[1:] + b"\n")


def _objects(rows: pa.RecordBatch) -> list[bytes]:
    """Each row as a JSON object."""
    columns = zip(*map(_short, rows.columns), strict=True)
    objects = (dict(zip(rows.schema.names, row, strict=True)) for row in columns)
    return [json.dumps(one, ensure_ascii=False, default=_text_of).encode() for one in objects]


def _short(column: pa.Array) -> list[Any]:
    """Values as JSON has them: numbers of few bits with no more digits than read the same ones back, NaN as null.

    JSON has no infinite numbers: they are text.
    """
    if pa.types.is_timestamp(column.type):
        return list(column.cast(pa.string()).to_pylist())
    if pa.types.is_fixed_size_list(column.type):
        dtype = column.type.value_type.to_pandas_dtype()
        return [None if row is None else short_floats(np.array(row, dtype)) for row in column.to_pylist()]
    if not pa.types.is_floating(column.type):
        return list(column.to_pylist())
    texts = column.cast(pa.float32() if pa.types.is_float16(column.type) else column.type).cast(pa.string()).to_pylist()
    numbers = [None if text in (None, "nan") else float(text) for text in texts]
    return [f"{number}" if number in (math.inf, -math.inf) else number for number in numbers]


def short_floats(values: Embeddings) -> list[float]:
    """Values with no more digits than it takes to read the same ones back in their own precision."""
    return [float(str(value)) for value in values]


class ExcelWriter(ParquetWriter, Packed):
    """An Excel sheet with a column for each number, packed at the end from Parquet."""

    def carried(self, points: PointTable) -> pa.Schema:
        """The columns that travel along, without shapes."""
        require("openpyxl", extra="geo", what="an Excel file")
        if points.total_rows >= EXCEL[0]:
            raise TableError(f"an Excel sheet has room for {EXCEL[0]:,} rows, not {points.total_rows:,}: write .csv")
        return self.plain_schema()

    def columns(self, batch: PointBatch) -> Sequence[pa.Array]:
        """Those columns of some rows."""
        return list(self.plain_rows(batch).columns)

    def pack(self, target: IO[bytes]) -> None:
        """Write the rows through openpyxl."""
        openpyxl: Any = require("openpyxl", extra="geo", what="an Excel file")
        self.file.seek(0)
        book = openpyxl.Workbook(write_only=True)
        sheet = book.create_sheet("places")
        cell = functools.partial(_excel_cell, functools.partial(openpyxl.cell.WriteOnlyCell, sheet))
        with pa.parquet.ParquetFile(self.file) as whole:
            for i, batch in enumerate(map(self.flat, whole.iter_batches())):
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
        return [text or None for text in _texts(column)]
    return list(column.to_pylist())


def _excel_cell(make: Callable[..., Any], value: Any) -> Any:
    """A cell; text stays text, also when it begins like a formula."""
    if isinstance(value, float) and not math.isfinite(value):
        value = None if math.isnan(value) else str(value)
    is_old = isinstance(value, datetime.date) and (value.year < 1901 or getattr(value, "microsecond", 0) % 1000)
    if is_old or not isinstance(value, EXCEL_TYPES) or (isinstance(value, int) and abs(value) > EXACT):
        value = _text_of(value)
    if not isinstance(value, str):
        return value
    if len(value) > 32_767 or UNPRINTABLE.search(value):
        raise TableError(f"an Excel cell cannot hold {value[:20]!r}...: a control character, or over 32,767 letters")
    cell = make(value)
    cell.data_type = "s"
    return cell


WRITERS: dict[str, Callable[[IO[bytes], PointTable, pa.Schema], Any]] = {
    "npy": NpyWriter,
    "npz": NpzWriter,
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "tsv": functools.partial(CsvWriter, separator="\t"),
    "jsonl": JsonLinesWriter,
    "arrow": ArrowWriter,
    "xlsx": ExcelWriter,
    **{kind: functools.partial(VectorWriter, driver=driver) for kind, driver in DRIVERS.items()},
}
