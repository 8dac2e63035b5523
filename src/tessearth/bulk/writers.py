"""Tables written a batch at a time: the rows that were read, with new columns behind them, in any format.

A csv that came from a csv is its own rows, byte by byte, each with more cells at the end. Formats that cannot grow are
made at the end from a Parquet file or an npy that did (see `packed`).
"""

import contextlib
import functools
import itertools
import json
import math
import shutil
import sys
import tempfile
import typing
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import OutputError, TableError
from tessearth.sphere import Floats, Places
from tessearth.storage import (
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
MOST_COLUMNS = {
    "xlsx": (16_384, "an Excel sheet has room for 16,384 columns, not {}: use .csv"),
    "gpkg": (1990, "a GeoPackage has room for 2,000 columns, not {}: keep fewer --dims"),
}
EMBEDDING, PLACE = "embedding", ["lat", "lon"]

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
    most, words = MOST_COLUMNS.get(kind, (math.inf, ""))
    if len(schema) + len(new) > most:
        raise TableError(words.format(f"{len(schema) + len(new):,}"))
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
        writer = make_writer(kind, file, points, added)
        stack.callback(writer.abandon)
        yield writer
        writer.finish()
        if kind in PACKED:
            writer.pack(target)


def make_writer(kind: OutputFormat, file: IO[bytes], points: PointTable, added: pa.Schema) -> Any:
    """A writer of a format into an open file; those of the formats in `PACKED` are packed into another at the end."""
    if kind not in PACKED:
        return WRITERS[kind](file, points, added)
    from tessearth.bulk.packed import PACKERS  # they are made of the writers here

    return PACKERS[kind](file, points, added)


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


class FileWriter:
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

    def no_rows(self) -> PointBatch:
        """A batch of the table without rows."""
        arrays = [pa.array([], field.type) for field in self.points.schema]
        return PointBatch(pa.RecordBatch.from_arrays(arrays, schema=self.points.schema), Places(np.empty((0, 2))))

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self.file.write(content)
        return True

    def finish(self) -> None:
        """Nothing follows the last row."""

    def abandon(self) -> None:
        """Nothing is held."""


class NpyWriter(FileWriter):
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


class ParquetWriter(FileWriter):
    """The columns that travel along, and the new ones; a list of numbers is not compressed.

    Lists have a fixed length, and any length where rows have none: few readers of Parquet know gaps between fixed ones.
    """

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema) -> None:
        super().__init__(file, points, added)
        carried = self.carried(self.no_rows()).schema
        self._written = [_list_type(field.type) if points.has_gaps else field.type for field in added]
        self._schema = pa.schema([*carried, *zip(added.names, self._written, strict=True)], points.schema.metadata)
        # Columns in columns have paths of their own, as Parquet's options name them, and keep the defaults.
        plain = [field.name for field in self._schema if not pa.types.is_nested(field.type)]
        lists = [f"{field.name}.list.element" for field in added if pa.types.is_nested(field.type)]
        compression = dict.fromkeys(plain, "zstd") | dict.fromkeys(lists, "none")
        self._options = {"compression": compression, "use_dictionary": plain, "write_statistics": False}
        self._writer = self._open(file)

    def carried(self, batch: PointBatch) -> pa.RecordBatch:
        """The columns of some rows that travel along."""
        return batch.rows

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
        rows, footer = self._alone(batch, as_column(values, batch.latlon, self.added))
        if len(rows) != len(content):
            return False
        try:
            column = pa.parquet.read_table(pa.BufferReader(PARQUET + content + footer), columns=[EMBEDDING])
            known = column[EMBEDDING].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            values[np.isfinite(batch.latlon).all(axis=1)] = known.reshape(-1, kind.list_size)
        except UNREADABLE:
            return False
        added = as_column(values, batch.latlon, self.added)
        if self._alone(batch, added)[0] != content:
            return False
        self.write(batch, added)
        return True

    def _rows(self, batch: PointBatch, added: pa.RecordBatch) -> pa.RecordBatch:
        columns = [_cast(column, kind) for column, kind in zip(added.columns, self._written, strict=True)]
        return pa.RecordBatch.from_arrays([*self.carried(batch).columns, *columns], schema=self._schema)

    def finished(self) -> Iterator[pa.RecordBatch]:
        """The rows of the finished file."""
        self.file.seek(0)
        with pa.parquet.ParquetFile(self.file) as whole:
            yield from whole.iter_batches()

    def flat(self, rows: pa.RecordBatch) -> pa.RecordBatch:
        """Some rows of the finished file, with a column for each number of an embedding."""
        columns = dict(zip(rows.schema.names, rows.columns, strict=True))
        added = {field.name: columns[field.name].cast(field.type) for field in self.added}
        return flat_columns(pa.RecordBatch.from_pydict(columns | added))

    def _open(self, file: Any) -> Any:
        return pa.parquet.ParquetWriter(file, self._schema, **self._options)

    def _alone(self, batch: PointBatch, added: pa.RecordBatch) -> tuple[bytes, bytes]:
        """A file of this batch alone: its row group, and what stands behind it; the magic number stands before."""
        with pa.BufferOutputStream() as stream:
            with self._open(stream) as writer:
                writer.write_batch(self._rows(batch, added))
            whole = stream.getvalue().to_pybytes()
        footer = int.from_bytes(whole[-8:-4], "little") + 8
        return whole[len(PARQUET) : -footer], whole[-footer:]

    def finish(self) -> None:
        """Write the footer."""
        self._writer.close()

    def abandon(self) -> None:
        """Keep pyarrow from completing the file when it is collected."""
        self._writer.is_open = False


def _list_type(kind: pa.DataType) -> pa.DataType:
    return pa.list_(kind.value_type) if pa.types.is_fixed_size_list(kind) else kind


def _cast(column: pa.Array, kind: pa.DataType) -> pa.Array:
    """A column of another type; lists that are null lose the numbers that stand in their place, as Parquet wants it."""
    if column.type == kind:
        return column
    missing = column.is_null().to_numpy(zero_copy_only=False)
    return column.cast(kind).take(pa.array(np.arange(len(column)), mask=missing))


class CsvWriter(FileWriter):
    """Rows with one more cell for each number; those of a csv stay as they are to the byte."""

    def __init__(self, file: IO[bytes], points: PointTable, added: pa.Schema, separator: str | None = None) -> None:
        super().__init__(file, points, added)
        found = points.csv.dialect if points.csv else Dialect(",", "utf-8", b"\n")
        self._dialect = found._replace(separator=separator or found.separator)
        self._is_copy = points.csv is not None and found == self._dialect
        self._separator = self._dialect.separator.encode()
        head = (
            points.csv.header
            if points.csv and self._is_copy
            else self._cells([self.plain_rows(self.no_rows()).schema.names])[0]
        )
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
            return self._cells(zip(*(as_texts(column) for column in rows.columns), strict=True))
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


def as_texts(column: pa.Array) -> list[str]:
    """The cells of a column as text that reads back as the same values."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_float16(column.type):
        column = column.cast(pa.float32())
    if pa.types.is_floating(column.type) or pa.types.is_integer(column.type) or pa.types.is_timestamp(column.type):
        column = column.cast(pa.string())
    return [
        "" if value is None else value if isinstance(value, str) else text_of(value) for value in column.to_pylist()
    ]


def text_of(value: Any) -> str:
    """A value as text: lists and objects as JSON, bytes in hexadecimal."""
    if isinstance(value, bytes):
        return value.hex()
    return json.dumps(value, ensure_ascii=False, default=text_of) if isinstance(value, list | dict) else str(value)


class JsonLinesWriter(FileWriter):
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
    return [json.dumps(one, ensure_ascii=False, default=text_of).encode() for one in objects]


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


WRITERS: dict[str, Callable[[IO[bytes], PointTable, pa.Schema], Writer]] = {
    "npy": NpyWriter,
    "parquet": ParquetWriter,
    "csv": CsvWriter,
    "tsv": functools.partial(CsvWriter, separator="\t"),
    "jsonl": JsonLinesWriter,
}
