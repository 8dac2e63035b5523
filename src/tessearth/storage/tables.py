"""Tables of places in any format, checked as a whole before any work is done with them.

`open_points` reads places a batch at a time; `read_labelled` reads a whole table of places with one target column.
"""

import contextlib
import csv
import io
import re
import shlex
import typing
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tessearth.errors import ConfigError, CoordinateError, OutputError, TableError, TessearthError
from tessearth.seasons import ABOUT_DATES, try_dates
from tessearth.settings import did_you_mean
from tessearth.sphere import (
    FORMS,
    IN_ONE_COLUMN,
    SHAPES,
    Floats,
    Form,
    Geometry,
    OnBad,
    Places,
    Shape,
    are_radians,
    check_latlon,
    find_bad,
    find_columns,
    fits_axis,
    guess_form,
    read_angle,
    read_pair,
    read_shapes,
    say_bad,
    warn_of_radians,
)
from tessearth.storage.csv_text import CsvFile, Lines
from tessearth.storage.files import write_bytes
from tessearth.storage.formats import RawTable, Rows, open_any, table_name

LOOKED_AT = 100
"""Bad rows that tell how coordinates are written."""
PARTS = ("lat|latitude", "lon|lng|long|longitude")
"""Words that the name of a column of coordinates has among others, such as gps_lat."""
LISTED = "row,problem"
"""How a list of bad rows begins."""
WELL_KNOWN_TEXT = re.compile(r"\s*(MULTI)?(POINT|LINESTRING|POLYGON|GEOMETRYCOLLECTION)\b", re.IGNORECASE)


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
    date: str | None = None
    """The column of dates at which places are meant; None is the whole year. Rows without a date are bad ones."""
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
        if self.coordinates in IN_ONE_COLUMN and self.lon is not None:
            raise ConfigError("pairs and shapes stand in one column: name it by lat and leave lon out")


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
    geometry: Geometry | None = None

    @property
    def all_names(self) -> tuple[str, ...]:
        """The names, and that of the dates."""
        return self.names if self.reading.date is None else (*self.names, self.reading.date)

    def read(self, rows: Rows) -> Places:
        """The places of some rows and their season, NaN where there is none."""
        places = self._read_places(rows)
        if self.reading.date is None:
            return places
        dates = rows.columns.column(self.reading.date).to_numpy(zero_copy_only=False)
        return places._replace(season=try_dates(dates))

    def _read_places(self, rows: Rows) -> Places:
        if self.geometry is not None:
            return read_shapes(rows.columns.column(self.names[0]), self.geometry, self.reading.geometry)
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
            if self.reading.date is not None:
                value = rows.columns.column(self.reading.date)[index].as_py()
                return f"row {row}: column {self.reading.date!r} holds {value!r}, which is no date; {ABOUT_DATES}"
        for name, number in zip(self.names, latlon, strict=False):
            value, form = rows.columns.column(name)[index].as_py(), self.reading.coordinates
            if value is None or (isinstance(value, str) and not value.strip()):
                return f"row {row}: column {name!r} is empty"
            if self.geometry is not None:
                return f"row {row}: column {name!r} holds no usable shape"
            if isinstance(value, str) and not np.isfinite(number) and not _names_no_number(value):
                what = "not a number" if form == "degrees" else f"not degrees as {form}"
                return f"row {row}: column {name!r} holds {value!r}, {what}"
        shown = ", ".join(f"{value:.10g}" for value in latlon)
        return f"row {row} is ({shown}): latitude or longitude is missing or not finite"

    def texts(self, rows: Rows, index: int) -> list[str]:
        """The cells of a row's place as text."""
        found = [rows.columns.column(name)[index].as_py() for name in self.all_names]
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
            if reading.date is not None and reading.date not in raw.schema.names:
                raise TableError(f"there is no column {reading.date!r}{did_you_mean(reading.date, raw.schema.names)}")
            if reading.date in columns.names:
                raise TableError(f"column {reading.date!r} holds the places: name the column of dates")
            kept = _find_kept(raw.schema.names, keep)
            checked = _check_all(columns)
            about = dict(raw.schema.metadata or {})
            if raw.geometry and raw.geometry.name not in kept:
                about.pop(b"geo", None)
            schema = pa.schema([_kept_field(columns, raw.schema.field(one)) for one in kept], about)
            yield PointTable(
                name=name,
                schema=schema,
                batches=_batches(columns, schema, checked.rows),
                total_rows=checked.rows - (checked.bad if reading.on_bad == "skip" else 0),
                bad_rows=checked.bad,
                has_gaps=checked.bad > 0 and reading.on_bad == "null",
                csv=raw.csv if kept == raw.schema.names else None,
                geometry=columns.names[0] if columns.geometry and raw.geometry else None,
            )
    except (CoordinateError, TableError) as error:
        raise TableError(f"{name}: {error}{_remedy(path, reading, error)}") from None


def _remedy(path: Any, reading: Reading, error: TessearthError) -> str:
    """All options that a refused table needs, found by trying those of one error after another."""
    added: dict[str, Any] = {}
    changes: dict[str, Any] = getattr(error, "changes", {})
    while changes and not changes.keys() <= added.keys():
        added |= changes
        tried = replace(reading, bad_file=None, **added)
        try:
            with warnings.catch_warnings(), open_any(path, tried.separator, tried.encoding) as raw:
                warnings.simplefilter("ignore")
                _check_all(_find_columns(raw, tried), in_haste=True)
            break
        except (CoordinateError, TableError) as other:
            changes = getattr(other, "changes", {})
    words = " ".join(f"--{name} {shlex.quote(value)}".replace("on_bad", "bad-rows") for name, value in added.items())
    if list(added) == ["on_bad"]:
        kept = "" if reading.date else ", or null to keep them"
        return f"; to go on without such rows add {words}{kept} (Python: on_bad)"
    return words and f"; to read these add {words}"


def _find_columns(raw: RawTable, reading: Reading) -> _Columns:
    names = raw.schema.names
    if reading.coordinates in IN_ONE_COLUMN:
        name = _one_column(names, reading)
        return _Columns((name,), raw, reading, Geometry(name) if reading.coordinates == "wkt" else None)
    if raw.geometry is not None and reading.lat is None and reading.lon is None:
        return _Columns((raw.geometry.name,), raw, reading, raw.geometry)
    try:
        return _Columns(find_columns(names, reading.lat, reading.lon), raw, reading)
    except CoordinateError as error:
        more, changes = ("", {}) if reading.lat is not None else _other_columns(raw)
        raise TableError(f"{error}{more}", **changes) from None


def _one_column(names: Sequence[str], reading: Reading) -> str:
    if reading.lat is None:
        what = "shapes" if reading.coordinates == "wkt" else "pairs"
        raise TableError(f"which column holds the {what}? Name it with --lat (one of {', '.join(names)})")
    if reading.lat not in names:
        raise TableError(f"there is no column {reading.lat!r}{did_you_mean(reading.lat, names)}")
    return reading.lat


def _other_columns(raw: RawTable) -> tuple[str, dict[str, str]]:
    """What to say of a table without columns of the usual names, and how it may be read."""
    patterns = [re.compile(rf"(^|[\W_])({part})($|[\W_])", re.IGNORECASE) for part in PARTS]
    found = [[name for name in raw.schema.names if pattern.search(name)] for pattern in patterns]
    if all(len(names) == 1 for names in found) and found[0] != found[1]:
        return "", {"lat": found[0][0], "lon": found[1][0]}
    names = [field.name for field in raw.schema if pa.types.is_string(field.type)]
    some = next(raw.read(names), None)
    for name in names if some else ():
        texts = [text for text in some.columns.column(name)[:100].to_pylist() if text]  # type: ignore[union-attr]
        if texts and all(WELL_KNOWN_TEXT.match(text) for text in texts):
            is_point = all(text.strip().upper().startswith("POINT") for text in texts)
            form = "lon,lat" if is_point else "wkt"  # points are read without shapely
            return f"; column {name!r} holds shapes as text", {"lat": name, "coordinates": form}
        if texts and guess_form(texts) == "lat,lon" and not any(np.isfinite(read_angle(text, "dms")) for text in texts):
            return f"; column {name!r} holds pairs (lat,lon or lon,lat)", {"lat": name, "coordinates": "lat,lon"}
    if raw.csv is not None and len(raw.schema) == 1:
        why = "if it is no header remove it, if columns are cut otherwise add --sep"
        return f": the first line is one column; {why}", {}
    return "; add --lat COLUMN --lon COLUMN", {}


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


def _check_all(columns: _Columns, *, in_haste: bool = False) -> _Checked:
    """Read every place once: the rows, and those without a usable place, which `on_bad` may refuse.

    In haste the first bad row is refused at once.
    """
    reading, rows, bad, small = columns.reading, 0, 0, True
    problems: list[str] = []
    texts: list[str] = []
    undated = ""
    listed = io.StringIO(newline="")
    writer = csv.writer(listed, lineterminator="\n")
    writer.writerow([*LISTED.split(","), *columns.all_names])
    for batch in columns.raw.read(columns.all_names):
        places = columns.read(batch)
        latlon, is_bad = places.latlon, _bad_rows(batch, places)
        for index in np.flatnonzero(is_bad)[: None if reading.bad_file else max(0, LOOKED_AT - bad)].tolist():
            row, cells = rows + index + 1, columns.texts(batch, index)
            problem = columns.problem(batch, index, row, latlon[index])
            if len(problems) < LOOKED_AT:
                problems.append(problem)
                texts += cells
            writer.writerow([row, problem, *cells])
        if places.season is not None and not undated:
            for index in np.flatnonzero(np.isnan(places.season) & ~find_bad(latlon))[:1].tolist():
                undated = columns.problem(batch, index, rows + index + 1, latlon[index])
        small = small and are_radians(latlon[~is_bad])
        rows, bad = rows + len(latlon), bad + int(is_bad.sum())
        if in_haste and bad and reading.on_bad == "error":
            break
    if reading.bad_file and bad:
        _write_list(reading.bad_file, listed.getvalue().encode())
    if rows == 0:
        raise TableError("the table holds no rows")
    changes = _guess_changes(texts, columns) if bad == rows or reading.on_bad == "error" else {}
    if bad and reading.on_bad == "error":
        raise TableError(say_bad(problems, bad, rows), **changes or {"on_bad": "skip"})
    if undated and reading.on_bad == "null":
        raise TableError(f"a row without a date cannot be kept: {undated}", on_bad="skip")
    if bad == rows:
        raise TableError(f"none of the {rows:,} rows has a usable place: {problems[0]}", **changes)
    if small:
        warn_of_radians(latlon[~is_bad])
    return _Checked(rows, bad)


def _write_list(path: str, content: bytes) -> None:
    """Write the list of bad rows, in the place of an older one or of nothing."""
    if Path(path).is_file() and not Path(path).read_bytes().startswith(LISTED.encode()):
        raise OutputError(f"{path} exists already and is no list of bad rows: choose another file")
    write_bytes(path, content)


def _bad_rows(rows: Rows, places: Places) -> npt.NDArray[np.bool_]:
    """Rows without a possible place, or without the date that is asked for, (N,)."""
    is_bad = find_bad(places.latlon)
    if places.season is not None:
        is_bad = is_bad | np.isnan(places.season)
    is_bad[list(rows.ragged or ())] = True
    return is_bad


def _guess_changes(texts: Sequence[str], columns: _Columns) -> dict[str, str]:
    """How the cells that are no plain numbers may be read."""
    odd = [text for text in texts if text.strip() and not np.isfinite(read_angle(text))]
    forms = [form for form in map(guess_form, ([text] for text in odd)) if form]
    form = max(forms, key=forms.count, default=None)
    known = len(columns.names) != 2 or form in (None, columns.reading.coordinates, *IN_ONE_COLUMN)
    return {} if known else {"coordinates": str(form)}


def _kept_field(columns: _Columns, field: pa.Field) -> pa.Field:
    """A column that travels along: the coordinates of a csv become numbers, its other columns stay text."""
    return pa.field(field.name, pa.float64()) if _becomes_number(columns, field.name) else field


def _becomes_number(columns: _Columns, name: str) -> bool:
    return columns.raw.csv is not None and columns.reading.coordinates == "degrees" and name in columns.names


def _batches(columns: _Columns, schema: pa.Schema, total_rows: int) -> Iterator[PointBatch]:
    """Checked places with the columns that travel along."""
    reading, rows_read = columns.reading, 0
    wanted = [name for name in columns.raw.schema.names if name in {*schema.names, *columns.all_names}]
    for rows in columns.raw.read(wanted):
        places = columns.read(rows)
        is_bad = _bad_rows(rows, places)
        rows_read += len(is_bad)
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
    if rows_read != total_rows:
        raise TableError("the file changed while it was read, or is damaged: columns have different numbers of rows")


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
