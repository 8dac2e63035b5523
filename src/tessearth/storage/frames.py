"""Tables in memory as a `RawTable`: pandas, geopandas, polars, pyarrow, any Arrow stream, columns by name."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import pyarrow as pa

from tessearth.errors import TableError, first_line
from tessearth.storage.formats import ROWS_AT_ONCE, RawTable, Rows, geometry_column, is_frame
from tessearth.storage.shapes import Geometry


def of_frame(frame: Any) -> RawTable:
    """A table in memory as the readers of files give it."""
    geometry = None
    if hasattr(frame, "geom_type") and hasattr(frame, "to_wkb"):  # geopandas
        geometry = Geometry(str(frame.geometry.name), frame.crs and frame.crs.to_json_dict())
        frame = frame.to_wkb()
    table = _to_arrow(frame.collect() if hasattr(frame, "collect") else frame)

    def read(columns: Sequence[str]) -> Iterator[Rows]:
        yield from map(Rows, table.select(list(columns)).to_batches(ROWS_AT_ONCE))

    return RawTable(table.schema, read, geometry or geometry_column(table.schema))


def _to_arrow(frame: Any) -> pa.Table:
    """A table in memory as Arrow, its text of the plain kind."""
    if not is_frame(frame):
        raise TableError(f"a {type(frame).__name__} is no table: give a file or a frame with named columns")
    try:
        if hasattr(frame, "dtypes") and hasattr(frame, "to_numpy") and not hasattr(frame, "to_arrow"):  # pandas
            table = pa.table({str(name): _to_column(frame[name]) for name in frame.columns})
        else:
            table = pa.table(dict(frame) if isinstance(frame, Mapping) else frame)
    except (pa.ArrowException, TypeError, ValueError) as error:
        raise TableError(f"the {type(frame).__name__} is no table of columns: {first_line(error)}") from None
    views = [i for i, field in enumerate(table.schema) if pa.types.is_string_view(field.type)]
    for i in views:
        table = table.set_column(i, table.schema.field(i).name, table.column(i).cast(pa.string()))
    return table


def _to_column(series: Any) -> pa.Array:
    """A column of pandas; one of values of several types is text."""
    try:
        return pa.array(series, from_pandas=True)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        missing = series.isna()
        return pa.array(
            [None if gone else str(value) for value, gone in zip(series, missing, strict=True)], pa.string()
        )
