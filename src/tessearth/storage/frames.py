"""Tables in memory as a `RawTable`: whatever `sphere.open_frame` reads."""

from collections.abc import Iterator, Sequence
from typing import Any

import pyarrow as pa

from tessearth.errors import TableError, first_line
from tessearth.sphere import open_frame
from tessearth.storage.formats import ROWS_AT_ONCE, RawTable, Rows


def of_frame(frame: Any) -> RawTable:
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
