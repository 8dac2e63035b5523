"""Tables of places with a target: csv (plain or compressed) or Parquet, read whole, rows without a target left out."""

import csv
import gzip
import io
import zlib
from collections.abc import Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv

from tessearth.errors import CoordinateError, TableError
from tessearth.labels.table import Kind
from tessearth.settings import did_you_mean
from tessearth.sphere.coordinates import Floats, check_latlon, find_columns
from tessearth.storage.tables import csv_lines, open_points

BLANK = ("", "nan", "NaN", "null")
"""What a missing value looks like in anybody's table."""
PANDAS_BLANK = (
    *BLANK,
    *("#N/A", "#N/A N/A", "#NA", "-1.#IND", "-1.#QNAN", "-NaN", "-nan", "1.#IND", "1.#QNAN", "<NA>", "N/A", "NA"),
    *("NULL", "None", "n/a"),
)
"""What pandas takes for missing, which the published numbers were computed with (an ecoregion's biome can be "N/A")."""


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
    places, column = (_read_parquet if _is_parquet(path) else _read_csv)(path, target, lat, lon)
    column, known = _blank_to_null(column, blank)
    if not known.any():
        raise TableError(f"{path}: column {target!r} is empty in all {len(known)} rows")
    column, places = column.filter(pa.array(known)), places[known]
    numbers = _as_numbers(column)
    if kind == "regress" and numbers is None:
        raise TableError(f"{path}: column {target!r} holds {_first_text(column)!r}, not a number; give it as :classify")
    if numbers is not None and kind != "classify":
        if not np.isfinite(numbers).all():
            raise TableError(f"{path}: column {target!r} holds infinite values")
        return Labelled(places, numbers, "regress", (), int((~known).sum()))
    names, codes = np.unique(np.array(_as_text(column), dtype=object), return_inverse=True)
    return Labelled(places, codes.astype(np.int64), "classify", tuple(names), int((~known).sum()))


def column_names(path: str | PathLike[str]) -> list[str]:
    """The columns of a csv file, from its first line."""
    try:
        with (
            (gzip.open if str(path).endswith(".gz") else open)(path, "rb") as binary,
            io.TextIOWrapper(binary, encoding="utf-8-sig", newline="") as text,
        ):
            return next(csv.reader(csv_lines(text)), [])
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such file") from None
    except (OSError, EOFError, UnicodeDecodeError, csv.Error, zlib.error):
        raise TableError(f"{path}: neither csv in UTF-8 nor Parquet") from None


def _read_csv(path: str | PathLike[str], target: str, lat: str | None, lon: str | None) -> tuple[Floats, pa.Array]:
    """All three columns as text first, so that a column's type is known from all its rows, not from the first ones."""
    names = column_names(path)
    _check_column(path, target, names)
    try:
        wanted = [*find_columns(names, lat, lon), target]
        options = pa.csv.ConvertOptions(
            include_columns=list(dict.fromkeys(wanted)), column_types=dict.fromkeys(wanted, pa.string())
        )
        table = pa.csv.read_csv(str(path), convert_options=options).combine_chunks()
        places = np.stack([_coordinate(table[name], name) for name in wanted[:2]], axis=-1)
        return check_latlon(places, first_row=1), _one_chunk(table[target])
    except (CoordinateError, TableError, pa.ArrowInvalid, OSError) as error:
        raise TableError(f"{path}: {(str(error).splitlines() or ['cannot be read'])[0]}") from None


def _read_parquet(path: str | PathLike[str], target: str, lat: str | None, lon: str | None) -> tuple[Floats, pa.Array]:
    with open_points(str(path), lat=lat, lon=lon, keep=None) as points:
        _check_column(path, target, points.schema.names)
    with open_points(str(path), lat=lat, lon=lon, keep=[target]) as points:
        batches = list(points.batches)
    column = pa.chunked_array([batch.rows.column(target) for batch in batches])
    return np.concatenate([batch.latlon for batch in batches]), _one_chunk(column)


def _is_parquet(path: str | PathLike[str]) -> bool:
    try:
        with Path(path).open("rb") as file:
            return file.read(4) == b"PAR1"
    except FileNotFoundError:
        raise TableError(f"{path}: there is no such file") from None
    except OSError as error:
        raise TableError(f"{path}: cannot be read: {(error.strerror or str(error)).lower()}") from None


def _check_column(path: str | PathLike[str], target: str, names: Sequence[str]) -> None:
    if target not in names:
        raise TableError(f"{path}: there is no column {target!r}{did_you_mean(target, names)}")


def _coordinate(column: pa.ChunkedArray, name: str) -> Floats:
    numbers: Floats | None = _as_numbers(pc.utf8_trim_whitespace(_one_chunk(column)))
    if numbers is None:
        raise TableError(f"column {name!r} holds {_first_text(column)!r}, not a number")
    return numbers


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


def _as_numbers(column: pa.Array) -> Floats | None:
    """The column as float64, or None when any of it is something else."""
    if pa.types.is_boolean(column.type):
        return None
    try:
        return np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
    except (pa.ArrowInvalid, pa.ArrowNotImplementedError):
        return None


def _as_text(column: pa.Array) -> list[str]:
    return [str(value) for value in column.to_pylist()]


def _first_text(column: pa.Array | pa.ChunkedArray) -> str:
    """The first value that is no number."""
    return next(value for value in _as_text(column) if _as_numbers(pa.array([value])) is None)


def _one_chunk(column: pa.ChunkedArray) -> pa.Array:
    chunk = column.combine_chunks()
    return chunk.chunk(0) if isinstance(chunk, pa.ChunkedArray) else chunk
