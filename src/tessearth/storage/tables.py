"""Tables of places: csv (plain or compressed), Parquet, GeoParquet; from a file or a pipe.

`open_points` reads places a batch at a time; `read_labelled` reads a whole table of places with one target column.
"""

import contextlib
import csv
import gzip
import io
import json
import shutil
import sys
import tempfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from os import PathLike
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import CoordinateError, TableError, first_line
from tessearth.settings import Kind, did_you_mean
from tessearth.sphere import Floats, check_latlon, find_columns, warn_of_radians

ROWS_AT_ONCE = 16_384
BUFFERED_BYTES = 2**20
"""Read of a Parquet column at once; without a limit a whole row group is held, however long its writer made it."""
SMALL_BYTES = 2**26
"""A Parquet file no larger is read a column of a row group at a time: a buffered reader believes any size that the
header of a page claims, and makes room for it."""
LONGEST_LINE = 2**20
"""Characters; the rows of a csv are limited to as many bytes by its reader."""
STANDARD_STREAM = "-"
PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""
UNREADABLE = (pa.ArrowException, OSError, ValueError)
"""What the readers raise for a damaged file; a name that is no UTF-8 is a ValueError."""

POINT = 1
# Extended WKB sets these bits for Z, M and an SRID; ISO WKB adds 1000, 2000 or 3000 for Z, M and both.
_HAS_Z, _HAS_M, _HAS_SRID = 0x80000000, 0x40000000, 0x20000000

BLANK = ("", "nan", "NaN", "null")
"""What a missing value looks like in any table."""
PANDAS_BLANK = (
    *BLANK,
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "None", "n/a"),
)
"""What pandas takes for missing, which the published numbers were computed with (an ecoregion's biome can be "N/A")."""


class PointBatch(NamedTuple):
    """Some consecutive rows of a table."""

    rows: pa.RecordBatch
    """The columns that are kept, coordinates as numbers."""
    latlon: Floats
    """Checked degrees, (N, 2)."""


class Columns(NamedTuple):
    """Which columns of a table are read, and how."""

    lat: str | None
    lon: str | None
    keep: Sequence[str] | None
    text: Sequence[str]

    def find_places(self, names: Sequence[str]) -> tuple[str, str]:
        """The columns of the coordinates."""
        return find_columns(names, self.lat, self.lon)

    def find_kept(self, names: Sequence[str]) -> list[str]:
        """The columns that travel along."""
        for column in self.keep or ():
            if column not in names:
                raise TableError(f"there is no column {column!r}{did_you_mean(column, names)}")
        return list(names if self.keep is None else self.keep)


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
    path: str,
    *,
    lat: str | None = None,
    lon: str | None = None,
    keep: Sequence[str] | None = None,
    text: Sequence[str] = (),
) -> Iterator[PointTable]:
    """Open a csv or Parquet file of places ("-" is standard input).

    Coordinates come from the columns named, from those of the usual names, or from a GeoParquet geometry. `keep` lists
    the columns that travel along; None is all of them. A csv's columns in `text` are not converted: the type of others
    is known from their first rows only. Rows in errors count from 1, header not counted.
    """
    name = "standard input" if path == STANDARD_STREAM else str(path)
    try:
        with _open_file(path) as file:
            yield _open_table(file, Columns(lat, lon, keep, text), name)
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


def _open_table(file: IO[bytes], columns: Columns, name: str) -> PointTable:
    head = file.read(4)
    file.seek(0)
    if not head:
        raise TableError("the file is empty")
    try:
        return (_open_parquet if head == PARQUET else _open_csv)(file, columns, name)
    except (CoordinateError, TableError):
        raise
    except UNREADABLE as error:
        raise TableError(f"cannot be read: {first_line(error)}") from None


def _open_parquet(file: IO[bytes], columns: Columns, name: str) -> PointTable:
    is_small = file.seek(0, 2) <= SMALL_BYTES
    file.seek(0)
    parquet = pa.parquet.ParquetFile(file, pre_buffer=False, buffer_size=0 if is_small else BUFFERED_BYTES)
    schema = parquet.schema_arrow
    _check_once(schema.names)
    rows = parquet.metadata.num_rows
    _check_some_rows(rows)
    geometry = geometry_column(schema) if columns.lat is None and columns.lon is None else None
    read: Callable[[pa.RecordBatch, int], Floats]
    if geometry is not None:
        read = lambda batch, first: decode_points(batch.column(geometry), geometry, first)  # noqa: E731
        places: tuple[str, ...] = (geometry,)
    else:
        places = columns.find_places(schema.names)
        read = lambda batch, first: _read_columns(batch, places, first)  # noqa: E731
    kept = columns.find_kept(schema.names)
    stream = parquet.iter_batches(ROWS_AT_ONCE, columns=sorted({*kept, *places}, key=schema.names.index))
    kept_schema = pa.schema([schema.field(column) for column in kept], schema.metadata)
    return PointTable(
        name=name,
        schema=kept_schema,
        batches=_batches(stream, read, kept_schema),
        total_rows=rows,
        share_read=lambda: None,
    )


def _open_csv(file: IO[bytes], columns: Columns, name: str) -> PointTable:
    """Coordinates are read as text and turned into numbers here, so that the row of a bad one can be named."""
    names = _csv_header(file)
    places, kept = columns.find_places(names), columns.find_kept(names)
    size = file.seek(0, 2)
    file.seek(0)
    zipped = _is_gzip(file)
    options = pa.csv.ConvertOptions(
        column_types=dict.fromkeys([*places, *columns.text], pa.string()),
        include_columns=[name for name in names if name in {*places, *kept}],
        strings_can_be_null=False,
    )
    plain = pa.PythonFile(file, mode="r")
    stream = pa.csv.open_csv(pa.CompressedInputStream(plain, "gzip") if zipped else plain, convert_options=options)
    slices = (batch.slice(i, ROWS_AT_ONCE) for batch in stream for i in range(0, batch.num_rows, ROWS_AT_ONCE))
    field = {column: pa.field(column, pa.float64()) for column in places}
    kept_schema = pa.schema([field.get(column, stream.schema.field(column)) for column in kept])
    read: Callable[[pa.RecordBatch, int], Floats] = lambda batch, first: _read_columns(batch, places, first)  # noqa: E731
    return PointTable(
        name=name,
        schema=kept_schema,
        batches=_batches(slices, read, kept_schema),
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
    """Lines up to a limit: a small compressed file may hold gigabytes without an end of line."""
    while line := text.readline(LONGEST_LINE):
        if len(line) == LONGEST_LINE:
            raise TableError(f"a line has more than {LONGEST_LINE} characters: this is no csv")
        yield line


def _check_once(names: Sequence[str]) -> None:
    counts = Counter(names)
    twice = sorted(name for name, count in counts.items() if count > 1)
    if twice:
        raise TableError(f"two columns are named {twice[0]!r}")


def _is_gzip(file: IO[bytes]) -> bool:
    magic = file.read(2)
    file.seek(0)
    return magic == b"\x1f\x8b"


def _batches(
    stream: Iterator[pa.RecordBatch], read: Callable[[pa.RecordBatch, int], Floats], schema: pa.Schema
) -> Iterator[PointBatch]:
    """Checked places with the columns that travel along, text coordinates replaced by the numbers read."""
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
    """Errors of the reader as one line; errors of the code that takes the batches pass unchanged."""
    while True:
        try:
            batch = next(stream)
            batch.validate(full=True)  # a file may hold text that is no UTF-8, or places in a column that are none
        except StopIteration:
            return
        except UNREADABLE as error:
            raise TableError(f"cannot be read: {first_line(error)}") from None
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


def _check_some_rows(rows: int) -> None:
    if rows == 0:
        raise TableError("the table holds no rows")


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
        named = crs.get("name", known) if isinstance(crs, dict) else str(crs)
        raise TableError(f"column {name!r} is in {named}, not in degrees: reproject it to EPSG:4326 first")


class Labelled(NamedTuple):
    """The rows of a table that have a target."""

    latlon: Floats
    """Checked degrees, (N, 2)."""
    target: npt.NDArray[Any]
    """Codes of `classes` or numbers, (N,)."""
    kind: Kind
    classes: tuple[str, ...]
    """Names in the order of their codes (sorted); empty for numbers."""
    dropped: int
    """How many rows had no target."""


def read_labelled(
    path: str | PathLike[str],
    target: str,
    kind: Kind | None = None,
    *,
    lat: str | None = None,
    lon: str | None = None,
    blank: Sequence[str] = BLANK,
) -> Labelled:
    """Read places and one column; without a kind, a column of numbers is a regression and any other a classification.

    Coordinates come from the columns named or from those of the usual names (Parquet: also from a GeoParquet geometry).
    """
    with open_points(str(path), lat=lat, lon=lon, keep=[target], text=[target]) as points:
        batches = list(points.batches)
    places = np.concatenate([batch.latlon for batch in batches])
    chunks = pa.chunked_array([batch.rows.column(target) for batch in batches]).combine_chunks()
    column = chunks.chunk(0) if isinstance(chunks, pa.ChunkedArray) else chunks
    column, known = _blank_to_null(column, blank)
    if not known.any():
        raise TableError(f"{path}: column {target!r} is empty in all {len(known)} rows")
    column, places = column.filter(pa.array(known)), places[known]
    numbers = _numbers_or_none(column)
    if kind == "regress" and numbers is None:
        first = next(value for value in _as_text(column) if not _is_number(value))
        raise TableError(f"{path}: column {target!r} holds {first!r}, not a number; give it as :classify")
    if numbers is not None and kind != "classify":
        if not np.isfinite(numbers).all():
            raise TableError(f"{path}: column {target!r} holds infinite values")
        return Labelled(places, numbers, "regress", (), int((~known).sum()))
    names, codes = np.unique(np.array(_as_text(column), dtype=object), return_inverse=True)
    return Labelled(places, codes.astype(np.int64), "classify", tuple(names), int((~known).sum()))


def column_names(path: str | PathLike[str]) -> list[str]:
    """The columns of a csv file, from its first line."""
    try:
        with _open_file(str(path)) as file:
            return _csv_header(file)
    except TableError as error:
        raise TableError(f"{path}: {error}") from None


def _blank_to_null(column: pa.Array, blank: Sequence[str]) -> tuple[pa.Array, npt.NDArray[np.bool_]]:
    """The column with text trimmed, and which of its rows hold something."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type):
        column = pc.utf8_trim_whitespace(column)
        missing = pc.or_(pc.is_null(column), pc.is_in(column, value_set=pa.array(blank, column.type)))
    elif pa.types.is_floating(column.type):
        missing = pc.is_nan(column)
    else:
        missing = pc.is_null(column)
    known = ~pc.fill_null(missing, True).to_numpy(zero_copy_only=False).astype(bool)
    return column, known


def _numbers_or_none(column: pa.Array) -> Floats | None:
    """The column as float64, or None when any of it is something else."""
    if pa.types.is_boolean(column.type):
        return None
    try:
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _as_text(column: pa.Array) -> list[str]:
    return [str(value) for value in column.to_pylist()]
