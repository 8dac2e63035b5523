"""Tables of places in any format, checked as a whole before any work is done with them.

`open_points` reads places a batch at a time; `read_labelled` reads a whole table of places with one target column.
"""

import contextlib
import csv
import io
import re
import typing
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tessearth.errors import ConfigError, CoordinateError, OutputError, TableError
from tessearth.settings import Kind, did_you_mean
from tessearth.sphere import (
    FORMS,
    LARGEST_DEGREES,
    PAIRS,
    SHAPES,
    Floats,
    Form,
    OnBad,
    Places,
    Shape,
    are_radians,
    check_latlon,
    find_columns,
    fits_axis,
    guess_form,
    read_angle,
    read_pair,
    read_shapes,
    warn_of_radians,
)
from tessearth.storage.csv_text import CsvFile, Lines
from tessearth.storage.files import write_bytes
from tessearth.storage.formats import RawTable, Rows, open_any, open_table, table_name

SHOWN_ROWS = 5
LISTED = "row,problem"
"""How a list of bad rows begins."""
WELL_KNOWN_TEXT = re.compile(r"\s*(MULTI)?(POINT|LINESTRING|POLYGON|GEOMETRYCOLLECTION)\b", re.IGNORECASE)
BLANK = ("", "nan", "NaN", "null")
"""What a missing value looks like in any table."""
PANDAS_BLANK = (
    *BLANK,
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "None", "n/a"),
)
"""What pandas takes for missing, which the published numbers were computed with (an ecoregion's biome can be "N/A")."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """How places are read from a table."""

    lat: str | None = None
    """The latitude column, or the column of a pair; None is the geometry, else the column of a usual name."""
    lon: str | None = None
    geometry: Shape = "point"
    """What stands for a line or a polygon."""
    coordinates: Form = "degrees"
    """How coordinates are written."""
    separator: str | None = None
    """Of a csv; None looks for it."""
    encoding: str | None = None
    """Of a csv; None is UTF-8 where that is possible."""
    on_bad: OnBad = "error"
    bad_file: str | None = None
    """A csv to write the rows without a usable place into, with their problem."""

    def __post_init__(self) -> None:
        choices = {
            "geometry": (self.geometry, SHAPES),
            "coordinates": (self.coordinates, FORMS),
            "on_bad": (self.on_bad, typing.get_args(OnBad)),
        }
        for name, (value, known) in choices.items():
            if value not in known:
                raise ConfigError(f"{name} is {value!r}; it must be one of {' | '.join(known)}")
        if self.coordinates in PAIRS and self.lon is not None:
            raise ConfigError("a pair stands in one column: name it by lat and leave lon out")


AS_USUAL = Reading()


class PointBatch(NamedTuple):
    """Some consecutive rows of a table."""

    rows: pa.RecordBatch
    """The columns that are kept."""
    places: Places
    """Checked; NaN for rows that are kept without a place."""
    lines: Lines | None = None
    """The rows of a csv, or the objects of JSON, as they stand in the file; None where columns are left out."""

    @property
    def latlon(self) -> Floats:
        """Degrees, (N, 2)."""
        return self.places.latlon


class PointTable(NamedTuple):
    """An open table of places, all of which are checked."""

    name: str
    schema: pa.Schema
    """Of the rows in every batch, with the file's own metadata."""
    batches: Iterator[PointBatch]
    total_rows: int
    """How many rows the batches have."""
    bad_rows: int = 0
    """How many rows have no usable place."""
    has_gaps: bool = False
    """Whether rows without a usable place are among those of the batches."""
    csv: CsvFile | None = None
    """The file, when all columns of a csv are kept, whose rows can then be copied."""
    geometry: str | None = None
    """The name of the geometry column that was read."""


class _Columns(NamedTuple):
    """Where places stand in a table."""

    names: tuple[str, ...]
    """The geometry, a pair, or latitude and longitude."""
    raw: RawTable
    reading: Reading

    def read(self, rows: Rows) -> Places:
        """The places of some rows, NaN where there is none."""
        if len(self.names) == 1 and self.reading.coordinates not in PAIRS:
            assert self.raw.geometry is not None
            return read_shapes(rows.columns.column(self.names[0]), self.raw.geometry, self.reading.geometry)
        columns = [_plain(rows.columns.column(name), name) for name in self.names]
        if len(columns) == 1:
            pairs = [read_pair(text or "", self.reading.coordinates) for text in columns[0].to_pylist()]
            return Places(np.array(pairs, dtype=np.float64).reshape(-1, 2))
        numbers = [_to_numbers(column, self.reading.coordinates, axis) for axis, column in enumerate(columns)]
        return Places(np.stack(numbers, axis=-1))

    def problem(self, rows: Rows, index: int, row: int, latlon: Floats) -> str:
        """Why a row has no usable place; rows count from 1, header not counted."""
        if rows.ragged and index in rows.ragged:
            return f"row {row} has {rows.ragged[index]} fields, the header has {len(self.raw.schema)}"
        if np.isfinite(latlon).all():
            try:
                check_latlon(latlon[None], first_row=row)
            except CoordinateError as error:
                return str(error)
        for name in self.names:
            value = rows.columns.column(name)[index].as_py()
            if value is None or (isinstance(value, str) and not value.strip()):
                return f"row {row}: column {name!r} is empty"
            if isinstance(value, bytes | dict):
                return f"row {row}: column {name!r} holds no usable shape"
        for name, number in zip(self.names, latlon if len(self.names) == 2 else latlon[:1], strict=True):
            value = rows.columns.column(name)[index].as_py()
            if isinstance(value, str) and not np.isfinite(number) and not _names_no_number(value):
                form = self.reading.coordinates
                what = "not a number" if form == "degrees" else f"not degrees as {form}"
                return f"row {row}: column {name!r} holds {value!r}, {what}"
        shown = ", ".join(f"{value:.10g}" for value in latlon)
        return f"row {row} is ({shown}): latitude or longitude is missing or not finite"

    def texts(self, rows: Rows, index: int) -> list[str]:
        """The cells of a row's place as text."""
        found = [rows.columns.column(name)[index].as_py() for name in self.names]
        return ["" if value is None else value if isinstance(value, str) else repr(value)[:80] for value in found]


@contextlib.contextmanager
def open_points(path: Any, reading: Reading = AS_USUAL, *, keep: Sequence[str] | None = None) -> Iterator[PointTable]:
    """Open a file of places in any format of `storage.formats` ("-" is standard input), or a table in memory.

    Places come from the columns named, from the geometry, or from the columns of the usual names. Every place is read
    and checked first, so that no work is done for a table that is refused. `keep` lists the columns that travel along;
    None is all of them. Columns of a csv other than coordinates are carried as the text they are.
    """
    name = table_name(path)
    try:
        with open_any(path, reading.separator, reading.encoding) as raw:
            columns = _find_columns(raw, reading)
            kept = _find_kept(raw.schema.names, keep)
            checked = _check_all(columns)
            about = dict(raw.schema.metadata or {})
            if raw.geometry and raw.geometry.name not in kept:
                about.pop(b"geo", None)
            schema = pa.schema([_kept_field(columns, raw.schema.field(one)) for one in kept], about)
            total = checked.rows - (checked.bad if reading.on_bad == "skip" else 0)
            yield PointTable(
                name=name,
                schema=schema,
                batches=_batches(columns, schema),
                total_rows=total,
                bad_rows=checked.bad,
                has_gaps=checked.bad > 0 and reading.on_bad == "null",
                csv=raw.csv if kept == raw.schema.names else None,
                geometry=columns.names[0] if len(columns.names) == 1 and raw.geometry else None,
            )
    except (CoordinateError, TableError) as error:
        raise TableError(f"{name}: {error}") from None


def _find_columns(raw: RawTable, reading: Reading) -> _Columns:
    names = raw.schema.names
    if reading.coordinates in PAIRS:
        return _Columns((_one_column(names, reading.lat),), raw, reading)
    if raw.geometry is not None and reading.lat is None and reading.lon is None:
        return _Columns((raw.geometry.name,), raw, reading)
    try:
        return _Columns(find_columns(names, reading.lat, reading.lon), raw, reading)
    except CoordinateError as error:
        raise CoordinateError(f"{error}{_advice_on_columns(raw, reading)}") from None


def _one_column(names: Sequence[str], wanted: str | None) -> str:
    if wanted is None:
        raise TableError(f"which column holds the pairs? Name it with --lat (one of {', '.join(names)})")
    if wanted not in names:
        raise TableError(f"there is no column {wanted!r}{did_you_mean(wanted, names)}")
    return wanted


def _advice_on_columns(raw: RawTable, reading: Reading) -> str:
    """The options to add where no columns have the usual names."""
    if reading.lat is not None:
        return ""
    if raw.csv is not None and len(raw.schema) == 1 and _advice_on_pairs(raw) == "":
        return ": the first line is one column; if it is no header remove it, if columns are cut otherwise add --sep"
    return _advice_on_pairs(raw) or "; add --lat COLUMN --lon COLUMN"


def _advice_on_pairs(raw: RawTable) -> str:
    """The options that read a column in which both coordinates stand."""
    names = [field.name for field in raw.schema if pa.types.is_string(field.type)]
    some = next(raw.read(names), None)
    for name in names if some else ():
        texts = [text for text in some.columns.column(name)[:100].to_pylist() if text]  # type: ignore[union-attr]
        if texts and guess_form(texts) == "lat,lon" and not any(np.isfinite(read_angle(text, "dms")) for text in texts):
            if all(text.strip().upper().startswith("POINT") for text in texts):
                return f"; column {name!r} holds points as text: add --lat {name} --coordinates lon,lat"
            return f"; column {name!r} holds pairs: add --lat {name} --coordinates lat,lon (or lon,lat)"
        if texts and all(WELL_KNOWN_TEXT.match(text) for text in texts):
            convert = f"ogr2ogr places.gpkg FILE -oo GEOM_POSSIBLE_NAMES={name} -a_srs EPSG:4326"
            return f"; column {name!r} holds shapes as text, which {convert} makes a file of shapes of"
    return ""


def _find_kept(names: Sequence[str], keep: Sequence[str] | None) -> list[str]:
    """The columns that travel along."""
    for column in keep or ():
        if column not in names:
            raise TableError(f"there is no column {column!r}{did_you_mean(column, names)}")
    return list(names if keep is None else keep)


class _Checked(NamedTuple):
    """What the first pass over a table found."""

    rows: int
    bad: int


def _check_all(columns: _Columns) -> _Checked:
    """Read every place once: the rows, and those without a usable place, which `on_bad` may refuse."""
    rows = bad = 0
    shown: list[str] = []
    texts: list[list[str]] = []
    listed = io.StringIO(newline="")
    writer = csv.writer(listed, lineterminator="\n")
    writer.writerow([*LISTED.split(","), *columns.names])
    small = True
    for batch in columns.raw.read(columns.names):
        latlon = columns.read(batch).latlon
        is_bad = _bad_rows(batch, latlon)
        for index in np.flatnonzero(is_bad) if columns.reading.bad_file or bad < SHOWN_ROWS else ():
            row = rows + int(index) + 1
            problem = columns.problem(batch, int(index), row, latlon[index])
            if len(shown) < SHOWN_ROWS:
                shown.append(problem)
                texts.append(columns.texts(batch, int(index)))
            writer.writerow([row, problem, *columns.texts(batch, int(index))])
        small = small and are_radians(latlon[~is_bad])
        rows, bad = rows + len(latlon), bad + int(is_bad.sum())
    if columns.reading.bad_file and bad:
        _write_list(columns.reading.bad_file, listed.getvalue().encode())
    if rows == 0:
        raise TableError("the table holds no rows")
    if bad and columns.reading.on_bad == "error":
        raise TableError(_refusal(rows, bad, shown, texts, columns))
    if bad == rows:
        raise TableError(f"none of the {rows:,} rows has a usable place: {shown[0]}{_advice(texts, columns)}")
    if small:
        warn_of_radians(latlon[~is_bad])
    return _Checked(rows, bad)


def _write_list(path: str, content: bytes) -> None:
    """Write the list of bad rows, in the place of an older one or of nothing."""
    if Path(path).is_file() and not Path(path).read_bytes().startswith(LISTED.encode()):
        raise OutputError(f"{path} exists already and is no list of bad rows: choose another file")
    write_bytes(path, content)


def _bad_rows(rows: Rows, latlon: Floats) -> npt.NDArray[np.bool_]:
    """Rows without a possible place, (N,)."""
    is_bad = np.asarray(~(np.abs(latlon) <= LARGEST_DEGREES).all(axis=1))  # NaN too
    for index in rows.ragged or ():
        is_bad[index] = True
    return is_bad


def _refusal(rows: int, bad: int, shown: Sequence[str], texts: Sequence[Sequence[str]], columns: _Columns) -> str:
    """The error about the bad rows of a table: how many, the first of them, what to do."""
    more = f"; and {bad - len(shown):,} more" if bad > len(shown) else ""
    count = "" if bad == 1 else f"{bad:,} of {rows:,} rows have no usable place: "
    advice = (
        _advice(texts, columns)
        or "; to go on without such rows add --bad-rows skip, or null to keep them (Python: on_bad)"
    )
    return f"{count}{'; '.join(shown)}{more}{advice}"


def _advice(texts: Sequence[Sequence[str]], columns: _Columns) -> str:
    """The option that reads the texts that are no plain numbers."""
    odd = [text for row in texts for text in row if text.strip() and not np.isfinite(read_angle(text))]
    forms = [form for form in map(guess_form, ([text] for text in odd)) if form]
    form = max(forms, key=forms.count, default=None)
    if len(columns.names) != 2 or form in (None, columns.reading.coordinates, *PAIRS):
        return ""
    return f"; to read these add --coordinates {form}"


def _kept_field(columns: _Columns, field: pa.Field) -> pa.Field:
    """A column that travels along: the coordinates of a csv become numbers, its other columns stay text."""
    return pa.field(field.name, pa.float64()) if _becomes_number(columns, field.name) else field


def _becomes_number(columns: _Columns, name: str) -> bool:
    return columns.raw.csv is not None and columns.reading.coordinates == "degrees" and name in columns.names


def _batches(columns: _Columns, schema: pa.Schema) -> Iterator[PointBatch]:
    """Checked places with the columns that travel along."""
    reading = columns.reading
    wanted = [name for name in columns.raw.schema.names if name in {*schema.names, *columns.names}]
    for rows in columns.raw.read(wanted):
        places = columns.read(rows)
        is_bad = _bad_rows(rows, places.latlon)
        if is_bad.any() and reading.on_bad == "error":
            raise TableError("the file changed while it was read")
        places.latlon[is_bad] = np.nan
        arrays = [
            pa.array(places.latlon[:, columns.names.index(name)], from_pandas=True)
            if _becomes_number(columns, name)
            else rows.columns.column(name)
            for name in schema.names
        ]
        batch = PointBatch(
            pa.RecordBatch.from_arrays(arrays, schema=schema) if arrays else _no_columns(len(is_bad)),
            places,
            rows.lines if schema.names == columns.raw.schema.names else None,
        )
        yield _without(batch, is_bad) if reading.on_bad == "skip" and is_bad.any() else batch


def _no_columns(rows: int) -> pa.RecordBatch:
    """A batch of some rows and no columns."""
    return pa.RecordBatch.from_struct_array(pa.array([{}] * rows, pa.struct([])))


def _without(batch: PointBatch, is_bad: npt.NDArray[np.bool_]) -> PointBatch:
    """The batch without some rows."""
    lines = None if batch.lines is None else batch.lines[~is_bad]
    return PointBatch(batch.rows.filter(pa.array(~is_bad)), batch.places.only(~is_bad), lines)


def _plain(column: pa.Array, name: str) -> pa.Array:
    """A coordinate column as text without blanks around it, or as numbers."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary_decode()
    if pa.types.is_string(column.type) or pa.types.is_large_string(column.type) or pa.types.is_string_view(column.type):
        return pc.utf8_trim_whitespace(column.cast(pa.string()))
    if pa.types.is_decimal(column.type) or pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return column
    if pa.types.is_null(column.type):
        return column.cast(pa.float64())
    raise TableError(f"column {name!r} is {column.type}, where degrees as numbers belong")


def _to_numbers(column: pa.Array, form: Form, axis: int) -> Floats:
    """A coordinate column as float64, NaN where there is no number."""
    if not pa.types.is_string(column.type):
        return np.array(column.cast(pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    plain = pc.replace_substring(column, ",", ".") if form == "comma" else column
    for texts in (plain, pc.if_else(pc.equal(plain, ""), None, plain)) if form in ("degrees", "comma") else ():
        with contextlib.suppress(pa.ArrowInvalid):
            return np.array(pc.cast(texts, pa.float64()).to_numpy(zero_copy_only=False), dtype=np.float64)
    texts = [text if text and fits_axis(text, axis) else "" for text in column.to_pylist()]
    return np.array([read_angle(text, form) for text in texts], dtype=np.float64)


def _names_no_number(text: str) -> bool:
    """Whether a text is a number that is not finite."""
    return text.strip().lower().lstrip("+-") in ("nan", "inf", "infinity")


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
    """How many rows had no target or no usable place."""


def read_labelled(
    path: Any,
    target: str,
    kind: Kind | None = None,
    reading: Reading = AS_USUAL,
    *,
    blank: Sequence[str] = BLANK,
) -> Labelled:
    """Read places and one column; without a kind, a column of numbers is a regression and any other a classification.

    The table is a file or in memory. Rows without a usable place are left out unless `reading` refuses them.
    """
    chosen = reading if reading.on_bad == "error" else replace(reading, on_bad="skip")
    with open_points(path, chosen, keep=[target]) as points:
        batches, bad, name = list(points.batches), points.bad_rows, points.name
    places = np.concatenate([batch.latlon for batch in batches])
    chunks = pa.chunked_array([batch.rows.column(target) for batch in batches]).combine_chunks()
    column = chunks.chunk(0) if isinstance(chunks, pa.ChunkedArray) else chunks
    column, known = _blank_to_null(column, blank)
    if not known.any():
        raise TableError(f"{name}: column {target!r} is empty in all {len(known)} rows")
    column, places = column.filter(pa.array(known)), places[known]
    numbers = _numbers_or_none(column)
    if numbers is None and kind != "classify" and pa.types.is_string(column.type):
        with_commas = np.array([read_angle(text, "comma") for text in column.to_pylist()])
        if np.isfinite(with_commas).all():
            if reading.coordinates != "comma":
                what = f"column {target!r} holds {column[0].as_py()!r}"
                raise TableError(
                    f"{name}: {what}: add --coordinates comma to read numbers, or --kind classify for names"
                )
            numbers = with_commas
    if kind == "regress" and numbers is None:
        first = next(value for value in _as_text(column) if not np.isfinite(read_angle(value)))
        raise TableError(f"{name}: column {target!r} holds {first!r}, not a number; give kind classify (:classify)")
    if numbers is not None and kind != "classify":
        if not np.isfinite(numbers).all():
            raise TableError(f"{name}: column {target!r} holds infinite values")
        return Labelled(places, numbers, "regress", (), bad + int((~known).sum()))
    names, codes = np.unique(np.array(_as_text(column), dtype=object), return_inverse=True)
    return Labelled(places, codes.astype(np.int64), "classify", tuple(names), bad + int((~known).sum()))


def column_names(path: str | PathLike[str]) -> list[str]:
    """The columns of a table."""
    try:
        with open_table(str(path)) as raw:
            return list(raw.schema.names)
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
