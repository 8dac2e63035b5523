"""A fine-tuned model over a table of places, a batch at a time: every row comes back with its prediction."""

from collections.abc import Callable
from pathlib import Path
from typing import IO, Any

import numpy as np
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import TableError
from tessearth.storage.files import atomic_write
from tessearth.storage.tables import PointBatch, open_points
from tessearth.training.finetuned import FineTuned

PREDICTION, PROBABILITY = "prediction", "probability"
Progress = Callable[[int, int | None], None]
"""Called with the rows done and, where the format tells, their number in all."""


def _csv(file: IO[bytes], schema: pa.Schema) -> Any:
    return pa.csv.CSVWriter(file, schema)


def _parquet(file: IO[bytes], schema: pa.Schema) -> Any:
    return pa.parquet.ParquetWriter(file, schema)


WRITERS: dict[str, Callable[[IO[bytes], pa.Schema], Any]] = {".csv": _csv, ".parquet": _parquet, ".pq": _parquet}


def predict_table(
    tuned: FineTuned,
    table: str,
    out: str | Path,
    *,
    lat: str | None = None,
    lon: str | None = None,
    progress: Progress | None = None,
) -> int:
    """Write a csv or Parquet table again with a column `prediction`, and `probability` for classes; the row count."""
    suffix = Path(out).suffix.lower()
    if suffix not in WRITERS:
        raise TableError(f"the suffix of {out} names no table; use one of {', '.join(WRITERS)}")
    done = 0
    with open_points(table, lat=lat, lon=lon) as points:
        taken = [name for name in (PREDICTION, PROBABILITY) if name in points.schema.names]
        if taken:
            raise TableError(f"{table} has a column {taken[0]!r} already; rename it first")
        schema = _with_prediction(points.schema, tuned)
        with atomic_write(out) as file, WRITERS[suffix](file, schema) as writer:
            for batch in points.batches:
                writer.write_batch(_predicted(batch, schema, tuned))
                done += len(batch.latlon)
                if progress is not None:
                    progress(done, points.total_rows)
    return done


def _with_prediction(schema: pa.Schema, tuned: FineTuned) -> pa.Schema:
    if tuned.kind == "regress":
        return schema.append(pa.field(PREDICTION, pa.float64()))
    return schema.append(pa.field(PREDICTION, pa.string())).append(pa.field(PROBABILITY, pa.float64()))


def _predicted(batch: PointBatch, schema: pa.Schema, tuned: FineTuned) -> pa.RecordBatch:
    values = tuned.values(batch.latlon)
    if tuned.kind == "regress":
        added = [pa.array(values, pa.float64())]
    else:
        names = np.array(tuned.classes, dtype=object)[values.argmax(-1)]
        added = [pa.array(names, pa.string()), pa.array(values.max(-1), pa.float64())]
    return pa.RecordBatch.from_arrays([*batch.rows.columns, *added], schema=schema)
