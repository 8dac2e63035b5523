"""Embeddings written a batch at a time: npy, npz, Parquet, JSON lines; to a file in one step, or to a pipe."""

import contextlib
import io
import json
import shutil
import sys
import tempfile
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from tessearth.errors import OutputError, TableError
from tessearth.storage.files import atomic_write
from tessearth.storage.tables import STANDARD_STREAM, PointBatch

OutputFormat = Literal["npy", "npz", "parquet", "jsonl"]
SUFFIXES: dict[str, OutputFormat] = {
    ".npy": "npy",
    ".npz": "npz",
    ".parquet": "parquet",
    ".pq": "parquet",
    ".geoparquet": "parquet",
    ".jsonl": "jsonl",
    ".ndjson": "jsonl",
}
EMBEDDING = "embedding"

Embeddings = npt.NDArray[np.floating]
Width = Literal["float32", "float16"]
"""How many bits each number is stored in."""


class Writer(Protocol):
    """Takes batches in order; `finish` completes the file."""

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""

    def finish(self) -> None:
        """Complete the file; nothing is written after it."""


def output_format(path: str, chosen: str | None = None) -> OutputFormat:
    """The format asked for, else the one the path's suffix names."""
    if chosen is not None:
        if chosen not in typing.get_args(OutputFormat):
            raise TableError(f"there is no output format {chosen!r}; there are: {', '.join(SUFFIXES.values())}")
        return typing.cast("OutputFormat", chosen)
    if path == STANDARD_STREAM:
        raise TableError("standard output has no suffix that names a format: add --format npy, npz, parquet or jsonl")
    suffix = Path(path).suffix.lower()
    if suffix not in SUFFIXES:
        raise TableError(f"the suffix of {path} names no output format; use one of {', '.join(SUFFIXES)} or --format")
    return SUFFIXES[suffix]


def check_schema(kind: OutputFormat, schema: pa.Schema) -> None:
    """Refuse a table whose columns would collide with the embeddings, before anything is computed."""
    if kind == "parquet" and EMBEDDING in schema.names:
        raise TableError(f"the table has a column {EMBEDDING!r} already: leave it out with --keep")


def check_width(width: str) -> Width:
    """The width when there is such a one."""
    if width not in typing.get_args(Width):
        raise TableError(f"embeddings are stored as {' or '.join(typing.get_args(Width))}, not as {width!r}")
    return typing.cast("Width", width)


@contextlib.contextmanager
def open_writer(
    path: str, kind: OutputFormat, schema: pa.Schema, dim: int, width: Width = "float32"
) -> Iterator[Writer]:
    """A writer whose file appears under its name only when the block ends well ("-" is standard output)."""
    check_schema(kind, schema)
    with _open_target(path) as file:
        writer = _WRITERS[kind](file, schema, dim, width)
        yield writer
        writer.finish()


@contextlib.contextmanager
def _open_target(path: str) -> Iterator[IO[bytes]]:
    if path != STANDARD_STREAM:
        with atomic_write(path) as file:
            yield file
        return
    try:
        with tempfile.TemporaryFile() as file:
            yield typing.cast("IO[bytes]", file)
            file.seek(0)
            shutil.copyfileobj(file, sys.stdout.buffer)
            sys.stdout.buffer.flush()
    except BrokenPipeError:
        raise
    except OSError as error:
        raise OutputError(f"cannot write to standard output: {(error.strerror or str(error)).lower()}") from error


class _NpyFile:
    """One growing two-dimensional array as .npy: room for the header first, its row count last."""

    HEADER = 128

    def __init__(self, file: IO[bytes], dim: int, width: Width) -> None:
        self.file, self.dim, self.rows = file, dim, 0
        self.dtype = np.dtype(width).newbyteorder("<")
        file.write(b"\0" * self.HEADER)

    def append(self, values: Embeddings) -> None:
        self.file.write(np.ascontiguousarray(values, dtype=self.dtype).data)
        self.rows += len(values)

    def finish(self) -> None:
        """Write the header: magic, version 1.0, length, and the array's description padded to the room left."""
        text = f"{{'descr': '{self.dtype.str}', 'fortran_order': False, 'shape': ({self.rows}, {self.dim}), }}"
        body = text.ljust(self.HEADER - 11) + "\n"
        self.file.seek(0)
        self.file.write(b"\x93NUMPY\x01\x00" + len(body).to_bytes(2, "little") + body.encode("latin1"))
        self.file.seek(0, io.SEEK_END)


class NpyWriter:
    """Embeddings alone, (N, D)."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        self._array = _NpyFile(file, dim, width)

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""
        self._array.append(embeddings)

    def finish(self) -> None:
        """Complete the header."""
        self._array.finish()


class NpzWriter:
    """`embedding` (N, D), `lat` and `lon` (N,)."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        self._file = file
        self._spool = typing.cast("IO[bytes]", tempfile.TemporaryFile())  # noqa: SIM115
        self._array = _NpyFile(self._spool, dim, width)
        self._latlon: list[npt.NDArray[np.float64]] = []

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""
        self._array.append(embeddings)
        self._latlon.append(batch.latlon)

    def finish(self) -> None:
        """Put the three arrays into the archive."""
        self._array.finish()
        self._spool.seek(0)
        latlon = np.concatenate(self._latlon)
        with self._spool, zipfile.ZipFile(self._file, "w", allowZip64=True) as archive:
            for i, name in enumerate(("lat", "lon")):
                with archive.open(f"{name}.npy", "w") as entry:
                    np.save(entry, latlon[:, i])
            with archive.open(f"{EMBEDDING}.npy", "w", force_zip64=True) as entry:
                shutil.copyfileobj(self._spool, entry)


class ParquetWriter:
    """The columns that travel along, and `embedding` as a fixed-size list of float32 or float16."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        self._dtype = np.dtype(width)
        self._schema = schema.append(pa.field(EMBEDDING, pa.list_(pa.from_numpy_dtype(self._dtype), dim)))
        compression = dict.fromkeys(_leaves(schema), "zstd") | {f"{EMBEDDING}.list.element": "none"}
        self._writer = pa.parquet.ParquetWriter(
            file, self._schema, compression=compression, use_dictionary=list(_leaves(schema)), write_statistics=False
        )

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows as one row group."""
        numbers = pa.array(embeddings.astype(self._dtype, copy=False).reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(numbers, embeddings.shape[1])
        self._writer.write_batch(pa.RecordBatch.from_arrays([*batch.rows.columns, column], schema=self._schema))

    def finish(self) -> None:
        """Write the footer."""
        self._writer.close()


class JsonLinesWriter:
    """One object a line: lat, lon and the embedding."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        self._file, self._dtype = file, np.dtype(width)

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""
        stored = embeddings.astype(self._dtype, copy=False)
        for (lat, lon), embedding in zip(batch.latlon.tolist(), stored, strict=True):
            line = json.dumps({"lat": lat, "lon": lon, EMBEDDING: short_floats(embedding)})
            self._file.write(line.encode() + b"\n")

    def finish(self) -> None:
        """Nothing follows the last line."""


def short_floats(values: Embeddings) -> list[float]:
    """Values with no more digits than it takes to read the same ones back in their own precision."""
    return [float(str(value)) for value in values]


def _leaves(schema: pa.Schema) -> Iterator[str]:
    """Column paths as Parquet's options name them; nested columns have paths of their own and keep the defaults."""
    return (field.name for field in schema if not pa.types.is_nested(field.type))


_WRITERS: dict[str, Callable[[IO[bytes], Any, int, Width], Writer]] = {
    "npy": NpyWriter,
    "npz": NpzWriter,
    "parquet": ParquetWriter,
    "jsonl": JsonLinesWriter,
}
