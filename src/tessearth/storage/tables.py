"""Tables of places, read a batch at a time: csv (plain or compressed), Parquet, GeoParquet; from a file or a pipe."""

import contextlib
import csv
import gzip
import io
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from typing import IO, Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import CoordinateError, TableError
from tessearth.settings import did_you_mean
from tessearth.sphere.coordinates import Floats, check_latlon, find_columns, warn_of_radians
from tessearth.storage.geoparquet import decode_points, geometry_column

ROWS_AT_ONCE = 16_384
BUFFERED_BYTES = 2**20
"""Read of a Parquet column at once; without a limit a whole row group is held, however long its writer made it."""
SMALL_BYTES = 2**26
"""A Parquet file no larger is read a column of a row group at a time: a buffered reader believes whatever size the
header of a page claims, and makes room for it."""
LONGEST_LINE = 2**20
"""Characters; the rows of a csv are limited to as many bytes by its reader."""
STANDARD_STREAM = "-"
UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""What the readers raise for a damaged file; a name that is no UTF-8 is a ValueError."""


class PointBatch(NamedTuple):
    """Some consecutive rows of a table."""

    rows: pa.RecordBatch
    """The columns that are kept, coordinates as numbers."""
    latlon: Floats
    """Checked degrees, (N, 2)."""


class PointTable(NamedTuple):
    """An open table of places."""

    name: str
    schema: pa.Schema
    """Of the rows in every batch, with the file's own metadata."""
    batches: Iterator[PointBatch]
    total_rows: int | None
    """How many rows there are, when the format tells."""
    share_read: Callable[[], float | None]
    """How much of the input has been read, 0 to 1, when that can be known."""

    def expected_rows(self, read: int) -> int | None:
        """How many rows there will be; a csv does not say, but the share of its bytes that `read` rows took does."""
        share = self.share_read()
        return round(read / share) if share else self.total_rows


@contextlib.contextmanager
def open_points(
    path: str, *, lat: str | None = None, lon: str | None = None, keep: Sequence[str] | None = None
) -> Iterator[PointTable]:
    """Open a csv or Parquet file of places ("-" is standard input).

    Coordinates come from the columns named, from those of the usual names, or from a GeoParquet geometry. `keep` lists
    the columns that travel along; None is all of them. Rows in errors count from 1, header not counted.
    """
    name = "standard input" if path == STANDARD_STREAM else str(path)
    try:
        with _open_file(path) as file:
            yield _open_table(file, name, lat, lon, keep)
    except (CoordinateError, TableError) as error:
        raise TableError(f"{name}: {error}") from None


@contextlib.contextmanager
def _open_file(path: str) -> Iterator[IO[bytes]]:
    """The input as a seekable binary file; a pipe is first copied to a temporary one."""
    if path == STANDARD_STREAM:
        with tempfile.TemporaryFile() as copy:
            shutil.copyfileobj(sys.stdin.buffer, copy)
            copy.seek(0)
            yield copy
        return
    try:
        file = open(path, "rb")  # noqa: SIM115
    except FileNotFoundError:
        raise TableError("there is no such file") from None
    except OSError as error:
        raise TableError(f"cannot be read: {(error.strerror or str(error)).lower()}") from None
    with file:
        yield file


def _open_table(file: IO[bytes], name: str, lat: str | None, lon: str | None, keep: Sequence[str] | None) -> PointTable:
    head = file.read(4)
    file.seek(0)
    if not head:
        raise TableError("the file is empty")
    try:
        return (_open_parquet if head == b"PAR1" else _open_csv)(file, name, lat, lon, keep)
    except (CoordinateError, TableError):
        raise
    except UNREADABLE as error:
        raise TableError(f"cannot be read: {_first_line(error)}") from None


def _open_parquet(
    file: IO[bytes], name: str, lat: str | None, lon: str | None, keep: Sequence[str] | None
) -> PointTable:
    is_small = file.seek(0, 2) <= SMALL_BYTES
    file.seek(0)
    parquet = pa.parquet.ParquetFile(file, pre_buffer=False, buffer_size=0 if is_small else BUFFERED_BYTES)
    schema = parquet.schema_arrow
    _check_once(schema.names)
    rows = parquet.metadata.num_rows
    _check_some_rows(rows)
    geometry = geometry_column(schema) if lat is None and lon is None else None
    read: Callable[[pa.RecordBatch, int], Floats]
    if geometry is not None:
        read = lambda batch, first: decode_points(batch.column(geometry), geometry, first)  # noqa: E731
        places: tuple[str, ...] = (geometry,)
    else:
        places = find_columns(schema.names, lat, lon)
        read = lambda batch, first: _read_columns(batch, places, first)  # noqa: E731
    kept = _kept_columns(schema.names, keep)
    stream = parquet.iter_batches(ROWS_AT_ONCE, columns=sorted({*kept, *places}, key=schema.names.index))
    kept_schema = pa.schema([schema.field(column) for column in kept], schema.metadata)
    return PointTable(
        name=name,
        schema=kept_schema,
        batches=_batches(stream, read, kept_schema),
        total_rows=rows,
        share_read=lambda: None,
    )


def _open_csv(file: IO[bytes], name: str, lat: str | None, lon: str | None, keep: Sequence[str] | None) -> PointTable:
    """Coordinates are read as text and turned into numbers here, so that the row of a bad one can be named."""
    names = _csv_header(file)
    places = find_columns(names, lat, lon)
    size = file.seek(0, 2)
    file.seek(0)
    options = pa.csv.ConvertOptions(column_types=dict.fromkeys(places, pa.string()), strings_can_be_null=False)
    stream = pa.csv.open_csv(_csv_stream(file), convert_options=options)
    kept = _kept_columns(names, keep)
    field = {column: pa.field(column, pa.float64()) for column in places}
    kept_schema = pa.schema([field.get(column, stream.schema.field(column)) for column in kept])
    read: Callable[[pa.RecordBatch, int], Floats] = lambda batch, first: _read_columns(batch, places, first)  # noqa: E731
    return PointTable(
        name=name,
        schema=kept_schema,
        batches=_batches(_sliced(stream), read, kept_schema),
        total_rows=None,
        share_read=lambda: 1.0 if file.closed else file.tell() / size,
    )


def _csv_header(file: IO[bytes]) -> list[str]:
    """The column names, read apart from the rows because the csv reader closes what it was given."""
    plain = gzip.GzipFile(fileobj=file) if _is_gzip(file) else file
    text = io.TextIOWrapper(plain, encoding="utf-8-sig", newline="")
    try:
        names = next(csv.reader(csv_lines(text)), [])
    except (UnicodeDecodeError, csv.Error, OSError, EOFError, zlib.error):
        raise TableError("neither csv in UTF-8 nor Parquet") from None
    finally:
        text.detach()
        file.seek(0)
    _check_once(names)
    return names


def csv_lines(text: io.TextIOWrapper) -> Iterator[str]:
    """Lines no longer than a line is: a small compressed file may hold gigabytes without an end of line."""
    while line := text.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise TableError(f"a line has more than {LONGEST_LINE} characters: this is no csv")
        yield line


def _check_once(names: Sequence[str]) -> None:
    counts = Counter(names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise TableError(f"two columns are named {twice[0]!r}")


def _csv_stream(file: IO[bytes]) -> Any:
    stream = pa.PythonFile(file, mode="r")
    return pa.CompressedInputStream(stream, "gzip") if _is_gzip(file) else stream


def _is_gzip(file: IO[bytes]) -> bool:
    magic = file.read(2)
    file.seek(0)
    return magic == b"\x1f\x8b"


def _sliced(stream: Any) -> Iterator[pa.RecordBatch]:
    for batch in stream:
        for start in range(0, batch.num_rows, ROWS_AT_ONCE):
            yield batch.slice(start, ROWS_AT_ONCE)


def _batches(
    stream: Iterator[pa.RecordBatch], read: Callable[[pa.RecordBatch, int], Floats], schema: pa.Schema
) -> Iterator[PointBatch]:
    """Checked places beside the columns that travel along, coordinates of text replaced by the numbers read."""
    first = 1
    for batch in _guarded(stream):
        latlon = check_latlon(read(batch, first), first_row=first)
        warn_of_radians(latlon)
        columns = [
            column if column.type == field.type else _as_numbers(column, field.name, first)
            for field, column in ((field, batch.column(field.name)) for field in schema)
        ]
        yield PointBatch(pa.RecordBatch.from_arrays(columns, schema=schema), latlon)
        first += batch.num_rows
    _check_some_rows(first - 1)


def _guarded(stream: Iterator[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
    """The reader's own complaints as one line; what the consumer of the batches raises passes by."""
    while True:
        try:
            batch = next(stream)
            batch.validate(full=True)  # a file may hold text that is no UTF-8, or places in a column that are none
        except StopIteration:
            return
        except UNREADABLE as error:
            raise TableError(f"cannot be read: {_first_line(error)}") from None
        yield batch


def _read_columns(batch: pa.RecordBatch, places: Sequence[str], first_row: int) -> Floats:
    numbers = (_as_numbers(batch.column(place), place, first_row) for place in places)
    return np.stack([column.to_numpy(zero_copy_only=False) for column in numbers], axis=-1)


def _as_numbers(column: pa.Array, name: str, first_row: int) -> pa.Array:
    """A column as float64, or an error that names the first row holding something else."""
    text = pa.types.is_string(column.type) or pa.types.is_large_string(column.type)
    if text:
        column = pc.utf8_trim_whitespace(column)
    empty = pc.or_(pc.is_null(column), pc.equal(column, "")) if text else pc.is_null(column)
    if pc.any(empty).as_py():
        raise TableError(f"row {first_row + pc.index(empty, True).as_py()}: column {name!r} is empty")
    try:
        return pc.cast(column, pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        row, value = next((i, v) for i, v in enumerate(column.to_pylist()) if not _is_number(v))
        raise TableError(f"row {first_row + row}: column {name!r} holds {value!r}, not a number") from None


def _is_number(value: object) -> bool:
    try:
        pc.cast(pa.array([value]), pa.float64())
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return False
    return True


def _kept_columns(names: Sequence[str], keep: Sequence[str] | None) -> list[str]:
    for column in keep or ():
        if column not in names:
            raise TableError(f"there is no column {column!r} to keep{did_you_mean(column, names)}")
    return list(names if keep is None else keep)


def _check_some_rows(rows: int) -> None:
    if rows == 0:
        raise TableError("the table holds no rows")


def _first_line(error: Exception) -> str:
    return (str(error).splitlines() or [type(error).__name__])[0]
