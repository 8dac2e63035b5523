"""Tables of places with one column that is learned."""

import contextlib
from collections.abc import Sequence
from dataclasses import replace
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from tessearth.errors import TableError
from tessearth.settings import Kind
from tessearth.sphere import Floats, read_angle
from tessearth.storage.formats import open_table
from tessearth.storage.tables import AS_USUAL, Reading, open_points

BLANK = ("", "nan", "NaN", "null")
"""What a missing value looks like in any table."""
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
    dropped = bad + int((~known).sum())
    numbers = None if kind == "classify" else _read_numbers(column, kind, reading, f"{name}: column {target!r} holds")
    if numbers is not None:
        return Labelled(places, numbers, "regress", (), dropped)
    names, codes = np.unique(np.array(_as_text(column), dtype=object), return_inverse=True)
    return Labelled(places, codes.astype(np.int64), "classify", tuple(names), dropped)


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


def _read_numbers(column: pa.Array, kind: Kind | None, reading: Reading, holds: str) -> Floats | None:
    """The column as float64, or None when any of it is something else; `holds` begins what errors say."""
    numbers = None
    with contextlib.suppress(pa.ArrowInvalid, pa.ArrowNotImplementedError):
        if not pa.types.is_boolean(column.type):
            numbers = np.asarray(pc.cast(column, pa.float64()).to_numpy(zero_copy_only=False))
    if numbers is None and pa.types.is_string(column.type):
        with_commas = np.array([read_angle(text, "comma") for text in column.to_pylist()])
        if np.isfinite(with_commas).all():
            if reading.coordinates != "comma":
                what = f"{holds} {column[0].as_py()!r}"
                raise TableError(f"{what}: add --coordinates comma to read numbers, or --kind classify for names")
            numbers = with_commas
    if kind == "regress" and numbers is None:
        first = next(value for value in _as_text(column) if not np.isfinite(read_angle(value)))
        raise TableError(f"{holds} {first!r}, not a number; give kind classify (:classify)")
    if numbers is not None and not np.isfinite(numbers).all():
        raise TableError(f"{holds} infinite values")
    return numbers


def _as_text(column: pa.Array) -> list[str]:
    return [str(value) for value in column.to_pylist()]
