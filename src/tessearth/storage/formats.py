"""Formats of tables, each as a `RawTable`: its columns, and its rows a batch at a time, as often as asked for."""

import codecs
import contextlib
import datetime
import itertools
import json
import re
import shutil
import sys
import tempfile
import zipfile
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from os import PathLike
from pathlib import Path
from types import MappingProxyType
from typing import IO, Any, NamedTuple

import pyarrow as pa
import pyarrow.parquet

from tessearth.errors import TableError, TessearthError, first_line
from tessearth.packages import require
from tessearth.settings import did_you_mean
from tessearth.sphere import Geometry, geometry_column, open_frame
from tessearth.storage.csv_text import CsvFile, Lines, Opened, join_lines, open_csv

ROWS_AT_ONCE = 16_384
BUFFERED_BYTES = 2**20
"""Read of a Parquet column at once; without a limit a whole row group is held, however long its writer made it."""
SMALL_BYTES = 2**26
"""A Parquet file no larger is read a column of a row group at a time: a buffered reader believes any size that the
header of a page claims, and makes room for it."""
STANDARD_STREAM = "-"
EXACT = 2**53
"""The largest whole number up to which float64 holds them all."""
PARQUET = b"PAR1"
"""The first bytes of a Parquet file."""
ARROW = b"ARROW1\0\0"
UNREADABLE = (pa.ArrowException, OSError, ValueError, EOFError, zipfile.BadZipFile, zlib.error, SyntaxError)
"""What the readers raise for a damaged file: text that is no UTF-8 is a ValueError, XML that is none a SyntaxError."""
COMPRESSIONS = {b"\x1f\x8b": "gzip", b"\x28\xb5\x2f\xfd": "zstd", b"BZh": "bz2"}
VECTOR = (b"SQLite format 3\0", b"fgb\x03", b"\x00\x00\x27\x0a")
"""First bytes of GeoPackage, FlatGeobuf and Shapefile."""
GEOJSON_OPTIONS = MappingProxyType({"DATE_AS_STRING": "YES"})
"""Without it text that looks like a date is rewritten."""
JSON_BEGINS = re.compile(rb'(\xef\xbb\xbf)?\s*(\{\s*["}]|\[\s*["\[{\]\d])')
STRANGERS = {
    b"%PDF": "a PDF document",
    b"\xd0\xcf\x11\xe0": "an Excel file of the old kind (.xls): save it as .xlsx",
    b"<!": "a web page",
    b"<h": "a web page",
    b"<?xml": "XML",
    b"7z\xbc\xaf": "a 7z archive: unpack it first",
    b"\x89HDF": "HDF5 or NetCDF, whose cells xarray reads",
    b"CDF\x01": "NetCDF, whose cells xarray reads",
    b"CDF\x02": "NetCDF, whose cells xarray reads",
    b"\x80\x04\x95": "a Python pickle",
    b"RDX3\n": "an R workspace",
    b"X\n\x00\x00": "an R object",
    b"<stata_dta": "a Stata file",
    b"$FL2@": "an SPSS file",
    b"\x93NUMPY": "a numpy array: pass np.load(...) to Embedder",
    b"II*\0": "a TIFF picture",
    b"MM\0*": "a TIFF picture",
    b"\x89PNG": "a picture",
    b"\xff\xd8\xff": "a picture",
}
"""First bytes of files that are mistaken for tables, and what they are."""
XML_SHAPES = (".kml", ".gpx", ".gml")
ZIPPED_SHAPES = (".shp", ".gpkg", ".geojson", ".fgb", *XML_SHAPES)


class Rows(NamedTuple):
    """Some consecutive rows."""

    columns: pa.RecordBatch
    """The columns asked for."""
    lines: Lines | None = None
    """The rows of a csv, or the objects of JSON, as they stand in the file."""
    ragged: dict[int, int] | None = None
    """The number of fields of rows that have not as many as the header."""


class RawTable(NamedTuple):
    """A table of any format."""

    schema: pa.Schema
    """Of all columns; those of a csv are text."""
    read: Callable[[Sequence[str]], Iterator[Rows]]
    """All rows from the beginning, with the columns named."""
    geometry: Geometry | None = None
    csv: CsvFile | None = None


def table_name(table: Any) -> str:
    """What messages call a table."""
    if not isinstance(table, str | PathLike):
        return f"the {type(table).__name__}"
    return "standard input" if table == STANDARD_STREAM else str(table)


@contextlib.contextmanager
def open_any(table: Any, separator: str | None = None, encoding: str | None = None) -> Iterator[RawTable]:
    """Open a file by its path, or a table in memory."""
    if not isinstance(table, str | PathLike):
        yield _of_frame(table)
        return
    with open_table(str(table), separator, encoding) as raw:
        yield raw


def _of_frame(frame: Any) -> RawTable:
    """A table in memory as the readers of files give it."""
    found = open_frame(frame)
    if found is None:
        raise TableError(f"a {type(frame).__name__} is no table: give a file or a frame with named columns")
    try:
        columns = found.take(found.names)
        table = pa.table({str(name): _to_arrow(columns[name]) for name in found.names})
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TableError(f"the {type(frame).__name__} is no table of columns: {first_line(error)}") from None

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        yield from map(Rows, table.select(list(columns)).to_batches(ROWS_AT_ONCE))

    return RawTable(table.schema, read, found.geometry)


def _to_arrow(column: Any) -> pa.Array:
    """A column as Arrow: shapes as well-known binary, values of several types as text."""
    if isinstance(column, pa.Array):
        return column
    column = column.to_wkb() if hasattr(column, "to_wkb") else column
    try:
        return pa.array(column, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        if not hasattr(column, "isna"):
            raise
        missing = column.isna()
        return pa.array([None if gone else str(value) for value, gone in zip(column, missing, strict=True)])


@contextlib.contextmanager
def open_table(path: str, separator: str | None = None, encoding: str | None = None) -> Iterator[RawTable]:
    """Open a file of any format ("-" is standard input, which is first copied to a temporary file)."""
    with contextlib.ExitStack() as stack:
        if path == STANDARD_STREAM:
            path = str(Path(stack.enter_context(tempfile.TemporaryDirectory())) / "input")
            with open(path, "wb") as copy:
                shutil.copyfileobj(sys.stdin.buffer, copy)
        with reading_named():
            table = _open(path, separator, encoding)
        counts = Counter(table.schema.names)
        twice = sorted(name for name, count in counts.items() if count > 1)
        if twice:
            raise TableError(f"two columns are named {twice[0]!r}")
        yield table._replace(read=lambda columns: _guarded(table.read(columns)))


@contextlib.contextmanager
def reading_named() -> Iterator[None]:
    """Errors of a reader as one line."""
    try:
        yield
    except TessearthError:
        raise
    except FileNotFoundError:
        raise TableError("there is no such file") from None
    except UNREADABLE as error:
        reason = error.strerror.lower() if isinstance(error, OSError) and error.strerror else first_line(error)
        raise TableError(f"cannot be read: {reason}") from None


def _guarded(stream: Iterator[Rows]) -> Iterator[Rows]:
    """Errors of the reader as one line; errors of the code that takes the rows pass unchanged."""
    while True:
        with reading_named():
            rows = next(stream, None)
            if rows is None:
                return
            rows.columns.validate(
                full=True
            )  # a file may hold text that is no UTF-8, or places in a column that are none
        yield rows


def _open(path: str, separator: str | None, encoding: str | None) -> RawTable:
    """The table of a file, whose format its first bytes tell."""
    layer = path.partition("#")[2] if not Path(path).exists() else ""
    path = path.removesuffix(f"#{layer}") if layer else path
    if Path(path).is_dir() and Path(path).suffix != ".gdb":
        raise TableError("cannot be read: it is a folder")
    if Path(path).suffix == ".gdb":
        return _open_vector(path, layer)
    head = _bytes_of(path, None)()
    with head as file:
        start = file.read(4096)
    if not start:
        raise TableError("the file is empty")
    if start.startswith(PARQUET):
        return _open_parquet(path)
    if start.startswith(ARROW):
        return _open_arrow(path)
    if start.startswith(b"PK\x03\x04"):
        return _open_zip(path, layer)
    if start.startswith(VECTOR) or Path(path).suffix.lower() in XML_SHAPES:
        return _open_vector(path, layer)
    compression = next((name for mark, name in COMPRESSIONS.items() if start.startswith(mark)), None)
    opened = _bytes_of(path, compression)
    if compression:
        with opened() as file:
            start = file.read(4096)
    for mark, kind in STRANGERS.items():
        if start.lower().startswith(mark.lower()):
            raise TableError(f"this is {kind}, not a table of places")
    if JSON_BEGINS.match(start):
        if re.search(rb'"type"\s*:\s*"(Feature|FeatureCollection)"', start):
            return _open_vector(f"/vsigzip/{path}" if compression else path, layer, GEOJSON_OPTIONS)
        return _open_json_lines(opened)
    return _open_csv(opened, separator, encoding)


def _open_zip(path: str, layer: str) -> RawTable:
    """Excel, or shapes in an archive."""
    with zipfile.ZipFile(path) as archive:
        names = archive.namelist()
    if "xl/workbook.xml" in names:
        return _open_excel(path, layer)
    if "word/document.xml" in names:
        raise TableError("this is a Word document, not a table of places")
    if any(name.lower().endswith(ZIPPED_SHAPES) or ".gdb/" in name for name in names):
        return _open_vector(path, layer)
    raise TableError(f"this is a zip archive ({', '.join(names[:3])}): unpack it first")


def _bytes_of(path: str, compression: str | None) -> Opened:
    """Opens the decompressed bytes of a file."""

    @contextlib.contextmanager
    def opened() -> Iterator[IO[bytes]]:
        with open(path, "rb") as file:
            plain = pa.PythonFile(file, mode="r")
            yield pa.CompressedInputStream(plain, compression) if compression else file

    return opened


def _open_csv(opened: Opened, separator: str | None, encoding: str | None) -> RawTable:
    file = open_csv(opened, separator, encoding)

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        for block in file.blocks(columns):
            for start in range(0, len(block.lines), ROWS_AT_ONCE):
                end = start + ROWS_AT_ONCE
                ragged = {row - start: count for row, count in block.ragged.items() if start <= row < end}
                yield Rows(block.rows[start:end], block.lines[start:end], ragged)

    return RawTable(pa.schema([(name, pa.string()) for name in file.names]), read, csv=file)


def _open_parquet(path: str) -> RawTable:
    is_small = Path(path).stat().st_size <= SMALL_BYTES
    options = {"pre_buffer": False, "buffer_size": 0 if is_small else BUFFERED_BYTES}
    with pa.parquet.ParquetFile(path, **options) as parquet:
        schema = parquet.schema_arrow

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        with pa.parquet.ParquetFile(path, **options) as parquet:
            yield from map(Rows, parquet.iter_batches(ROWS_AT_ONCE, columns=list(columns)))

    return RawTable(schema, read, geometry_column(schema))


def _open_arrow(path: str) -> RawTable:
    """Feather or any Arrow file."""
    with pa.ipc.open_file(path) as file:
        schema = file.schema

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        with pa.ipc.open_file(path) as file:
            for i in range(file.num_record_batches):
                batch = file.get_batch(i).select(list(columns))
                yield from (Rows(batch[start : start + ROWS_AT_ONCE]) for start in range(0, len(batch), ROWS_AT_ONCE))

    return RawTable(schema, read, geometry_column(schema))


def _open_vector(path: str, layer: str, options: Mapping[str, str] = MappingProxyType({})) -> RawTable:
    """GeoPackage, GeoJSON, Shapefile, FlatGeobuf and whatever else GDAL reads, by pyogrio."""
    pyogrio: Any = require(
        "pyogrio", extra="geo", what="a table of shapes (GeoPackage, GeoJSON, Shapefile, FlatGeobuf)"
    )
    try:
        layers = [str(name) for name, _ in pyogrio.list_layers(path)]
    except pyogrio.errors.DataSourceError as error:
        raise TableError(f"cannot be read: {first_line(error)}") from None
    if layer and layer not in layers:
        raise TableError(f"there is no layer {layer!r}{did_you_mean(layer, layers)}")
    if not layer and len(layers) > 1:
        raise TableError(
            f"the file has {len(layers)} layers ({', '.join(layers)}): name one as {Path(path).name}#{layers[0]}"
        )
    chosen = {"layer": layer or layers[0], "batch_size": ROWS_AT_ONCE, "use_pyarrow": True, **options}
    with pyogrio.open_arrow(path, **chosen) as (about, reader):
        schema, name = reader.schema, about["geometry_name"] or "wkb_geometry"
    has_shapes = name in schema.names
    if has_shapes:
        schema = schema.with_metadata(_geoparquet_metadata(name, about["crs"]))

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        fields = [column for column in columns if column != name]
        with pyogrio.open_arrow(path, **chosen, columns=fields, read_geometry=name in columns) as (_, reader):
            for batch in reader:
                yield Rows(batch.select(list(columns)))

    return RawTable(schema, read, Geometry(name, about["crs"]) if has_shapes else None)


def _geoparquet_metadata(name: str, crs: str | None) -> dict[str, str]:
    """What makes a Parquet file with this geometry a GeoParquet file."""
    column: dict[str, Any] = {"encoding": "WKB", "geometry_types": []}
    if crs:
        pyproj: Any = require("pyproj", extra="geo", what="a table with a projection")
        column["crs"] = pyproj.CRS.from_user_input(crs).to_json_dict()
    return {"geo": json.dumps({"version": "1.1.0", "primary_column": name, "columns": {name: column}})}


def _open_json_lines(opened: Opened) -> RawTable:
    """One object a line, or one list of objects."""

    def objects() -> Iterator[tuple[bytes, dict[str, Any]]]:
        with opened() as file:
            text = codecs.getreader("utf-8-sig")(file)
            first = text.readline()
            if first.startswith("["):
                for value in _loaded(first + text.read(), 1):
                    yield json.dumps(value, ensure_ascii=False).encode(), _checked_object(value)
                return
            for number, line in enumerate(itertools.chain([first], text), 1):
                if line.strip():
                    yield line.strip().encode(), _checked_object(_loaded(line, number))

    return _of_objects(objects)


def _loaded(text: str, number: int) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        raise TableError(f"line {number} is no JSON object: a table has one on each line, or a list of them") from None


def _checked_object(value: Any) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise TableError(f"the file holds {json.dumps(value)[:40]} where an object with named values belongs")
    return value


def _open_excel(path: str, sheet: str) -> RawTable:
    """A sheet of an Excel file, by default the first, whose first row names the columns."""
    openpyxl: Any = require("openpyxl", extra="geo", what="an Excel file")

    def objects() -> Iterator[tuple[None, dict[str, Any]]]:
        book = openpyxl.load_workbook(path, read_only=True, data_only=True)
        with contextlib.closing(book):
            if sheet and sheet not in book.sheetnames:
                raise TableError(f"there is no sheet {sheet!r}{did_you_mean(sheet, book.sheetnames)}")
            rows = (book[sheet] if sheet else book.worksheets[0]).iter_rows(values_only=True)
            names = ["" if name is None else str(name) for name in next(rows, ())]
            if len(set(names) - {""}) < len([name for name in names if name]):
                raise TableError("two columns of the sheet have the same name")
            for row in rows:
                if any(cell is not None for cell in row):
                    yield None, {name: cell for name, cell in zip(names, row, strict=False) if name}

    return _of_objects(objects)


def _of_objects(objects: Callable[[], Iterator[tuple[bytes | None, dict[str, Any]]]]) -> RawTable:
    """A table of rows as Python values: a column has the type of all its values, and is text where they differ."""
    kinds: dict[str, set[str]] = {}
    for _, row in objects():
        for name, value in row.items():
            kinds.setdefault(name, set()).add(_kind(value))
    if not kinds:
        raise TableError("the table holds no rows")
    schema = pa.schema([(name, _arrow_type(found - {"nothing"})) for name, found in kinds.items()])

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        chosen = pa.schema([schema.field(name) for name in columns])
        rows = objects()
        while some := list(itertools.islice(rows, ROWS_AT_ONCE)):
            lines = [line for line, _ in some if line is not None]
            yield Rows(_to_batch([row for _, row in some], chosen), join_lines(lines) if lines else None)

    return RawTable(schema, read)


def _kind(value: Any) -> str:
    if value is None:
        return "nothing"
    if isinstance(value, int) and not isinstance(value, bool):
        return "int" if abs(value) <= EXACT else "long" if abs(value) < 2**63 else "text"
    for kind, name in ((bool, "bool"), (float, "float"), (datetime.datetime, "time"), (datetime.date, "date")):
        if isinstance(value, kind):
            return name
    return "text"


def _arrow_type(kinds: set[str]) -> pa.DataType:
    if kinds <= {"int", "long"} and kinds:
        return pa.int64()
    if kinds <= {"int", "float"} and kinds:
        return pa.float64()
    return {"bool": pa.bool_(), "time": pa.timestamp("us"), "date": pa.date32()}.get("".join(kinds), pa.string())


def _to_batch(rows: Sequence[Mapping[str, Any]], schema: pa.Schema) -> pa.RecordBatch:
    arrays = [pa.array([_cell(row.get(field.name), field.type) for row in rows], field.type) for field in schema]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)


def _cell(value: Any, kind: pa.DataType) -> Any:
    """A value as its column holds it: lists, objects and values of a mixed column as text."""
    if value is None or not pa.types.is_string(kind) or isinstance(value, str):
        return value
    return json.dumps(value, ensure_ascii=False) if isinstance(value, dict | list | bool) else str(value)
