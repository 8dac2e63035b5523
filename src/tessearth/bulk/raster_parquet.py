"""H3 cells as Parquet: each window is a small file on the way, joined into one table at the end."""

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tessearth.bulk.h3_cells import H3Cells, cell_names
from tessearth.bulk.raster_values import Array, Stored
from tessearth.packages import require
from tessearth.storage.files import atomic_write

ARROW_TYPES = {"int8": pa.int8(), "float16": pa.float16(), "float32": pa.float32()}


class ParquetTarget:
    """Columns h3 (text), h3_index (uint64), lat, lon, and embedding as a fixed-size list.

    The schema's metadata holds the facts as JSON under `tessearth`, for int8 with each dimension's scale and offset.
    """

    one_scale = False

    def __init__(self, folder: Path, layout: H3Cells, stored: Stored) -> None:
        self.folder, self.layout, self.stored = folder, layout, stored

    @staticmethod
    def check_installed() -> None:
        """H3 knows the cells; Parquet is always there."""
        require("h3", extra="geo", what="an H3 table")

    @staticmethod
    def bytes_per_value(dtype: str) -> float:
        """On disk while it is made: the windows, and the table beside them."""
        return 2 * np.dtype(dtype).itemsize

    def prepare(self) -> None:
        """Nothing stands before the first window."""

    def put(self, number: int, numbers: Array) -> None:
        """Write a window as a file of its own."""
        self._path(number).write_bytes(np.ascontiguousarray(numbers).tobytes())

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk, (n, dims)."""
        try:
            content = self._path(number).read_bytes()
        except OSError:
            return None
        numbers = np.frombuffer(content[: len(content) - len(content) % self._row_bytes()], dtype=self.stored.dtype)
        return numbers.reshape(-1, self.stored.dims)

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Join the windows, a row group each."""
        values = pa.list_(ARROW_TYPES[self.stored.dtype], self.stored.dims)
        fields = {"h3": pa.string(), "h3_index": pa.uint64(), "lat": pa.float64(), "lon": pa.float64()}
        scaling = {"scale": self.stored.scale, "offset": self.stored.offset} if self.stored.scale else {}
        told = json.dumps({**facts, **scaling}, sort_keys=True)
        schema = pa.schema(list((fields | {"embedding": values}).items()), metadata={"tessearth": told})
        with atomic_write(out) as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for number in range(self.layout.num_windows):
                cells, latlon = self.layout.cells(number)
                numbers = intact(number)
                if len(cells):
                    lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), self.stored.dims)
                    columns = [pa.array(cell_names(cells)), pa.array(cells), *map(pa.array, latlon.T), lists]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _path(self, number: int) -> Path:
        return self.folder / f"window-{number:07d}.raw"

    def _row_bytes(self) -> int:
        return self.stored.dims * np.dtype(self.stored.dtype).itemsize
