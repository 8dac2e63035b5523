"""Embeddings written a batch at a time: npy, npz, Parquet, JSON lines; to a file, or to a pipe."""

import contextlib
import json
import shutil
import sys
import tempfile
import typing
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from tessearth.errors import OutputError, TableError
from tessearth.sphere import Floats
from tessearth.storage import PARQUET, STANDARD_STREAM, UNREADABLE, PointBatch, atomic_write

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
    """Appends batches in order to a file that holds whole batches at any time; `finish` completes it."""

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same rows once more by the bytes they had in an unfinished file, if they give the same bytes."""

    def finish(self) -> None:
        """Complete the file; nothing is written after it."""


def output_format(path: str, chosen: str | None = None) -> OutputFormat:
    """The chosen format, else the one that the path's suffix names."""
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
    with _open_target(path) as target, contextlib.ExitStack() as stack:
        file: Any = stack.enter_context(tempfile.TemporaryFile()) if kind == "npz" else target
        writer = WRITERS[kind](file, schema, dim, width)
        yield writer
        writer.finish()
        if isinstance(writer, NpzWriter):
            writer.pack(target)


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


class NpyWriter:
    """Embeddings alone, (N, D)."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        self.file, self.dim, self.rows = file, dim, 0
        self.dtype = np.dtype(width).newbyteorder("<")
        self._write_header()

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""
        self.file.write(np.ascontiguousarray(embeddings, dtype=self.dtype).data)
        self.rows += len(embeddings)

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self.file.write(content)
        self.rows += len(batch.latlon)
        return True

    def finish(self) -> None:
        """Complete the header: numpy leaves room in it for a growing number of rows."""
        end = self.file.tell()
        self.file.seek(0)
        self._write_header()
        self.file.seek(end)

    def _write_header(self) -> None:
        header = {"descr": self.dtype.str, "fortran_order": False, "shape": (self.rows, self.dim)}
        np.lib.format.write_array_header_1_0(self.file, header)


class NpzWriter(NpyWriter):
    """Embeddings as an npy, from which an archive of `embedding` (N, D), `lat` and `lon` (N,) is packed at the end."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        super().__init__(file, schema, dim, width)
        self._latlon: list[Floats] = []

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows."""
        super().write(batch, embeddings)
        self._latlon.append(batch.latlon)

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self._latlon.append(batch.latlon)
        return super().restore(batch, content)

    def pack(self, target: IO[bytes]) -> None:
        """Write the three arrays as an archive."""
        self.file.seek(0)
        latlon = np.concatenate(self._latlon)
        with zipfile.ZipFile(target, "w", allowZip64=True) as archive:
            for i, name in enumerate(("lat", "lon")):
                with archive.open(f"{name}.npy", "w") as entry:
                    np.save(entry, latlon[:, i])
            with archive.open(f"{EMBEDDING}.npy", "w", force_zip64=True) as entry:
                shutil.copyfileobj(self.file, entry)


class _OneRowGroup(NamedTuple):
    """The bytes of a Parquet file of one row group, without the magic number it begins with."""

    rows: bytes
    footer: bytes


class ParquetWriter:
    """The columns that travel along, and `embedding` as a fixed-size list of float32 or float16."""

    def __init__(self, file: IO[bytes], schema: pa.Schema, dim: int, width: Width) -> None:
        self._dtype, self._dim = np.dtype(width), dim
        self._schema = schema.append(pa.field(EMBEDDING, pa.list_(pa.from_numpy_dtype(self._dtype), dim)))
        # Columns in columns have paths of their own, as Parquet's options name them, and keep the defaults.
        plain = [field.name for field in schema if not pa.types.is_nested(field.type)]
        compression = dict.fromkeys(plain, "zstd") | {f"{EMBEDDING}.list.element": "none"}
        self._options = {"compression": compression, "use_dictionary": plain, "write_statistics": False}
        self._writer = self._open(file)

    def write(self, batch: PointBatch, embeddings: Embeddings) -> None:
        """Append some rows as one row group."""
        self._writer.write_batch(self._rows(batch, embeddings))

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append a row group by its bytes.

        A file of the same rows with zeros for embeddings has the same layout, since embeddings are not compressed: with
        `content` in the place of its row group it is read back. Rows that do not give `content` again are refused.
        """
        blank = self._alone(batch, np.zeros((len(batch.latlon), self._dim), self._dtype))
        if len(blank.rows) != len(content):
            return False
        try:
            column = pa.parquet.read_table(pa.BufferReader(PARQUET + content + blank.footer), columns=[EMBEDDING])
            values = column[EMBEDDING].combine_chunks().flatten().to_numpy(zero_copy_only=False)
            embeddings = values.astype(self._dtype, copy=False).reshape(-1, self._dim)
        except UNREADABLE:
            return False
        if self._alone(batch, embeddings).rows != content:
            return False
        self.write(batch, embeddings)
        return True

    def _rows(self, batch: PointBatch, embeddings: Embeddings) -> pa.RecordBatch:
        numbers = pa.array(embeddings.astype(self._dtype, copy=False).reshape(-1))
        column = pa.FixedSizeListArray.from_arrays(numbers, self._dim)
        return pa.RecordBatch.from_arrays([*batch.rows.columns, column], schema=self._schema)

    def _open(self, file: Any) -> Any:
        return pa.parquet.ParquetWriter(file, self._schema, **self._options)

    def _alone(self, batch: PointBatch, embeddings: Embeddings) -> "_OneRowGroup":
        """A file of this batch alone: its first bytes, the row group, the footer with its length and the last bytes."""
        with pa.BufferOutputStream() as stream:
            with self._open(stream) as writer:
                writer.write_batch(self._rows(batch, embeddings))
            whole = stream.getvalue().to_pybytes()
        footer = int.from_bytes(whole[-8:-4], "little") + 8
        return _OneRowGroup(whole[len(PARQUET) : -footer], whole[-footer:])

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

    def restore(self, batch: PointBatch, content: bytes) -> bool:
        """Append the same bytes."""
        self._file.write(content)
        return True

    def finish(self) -> None:
        """Nothing follows the last line."""


def short_floats(values: Embeddings) -> list[float]:
    """Values with no more digits than it takes to read the same ones back in their own precision."""
    return [float(str(value)) for value in values]


WRITERS: dict[str, Callable[[IO[bytes], Any, int, Width], Writer]] = {
    "npy": NpyWriter,
    "npz": NpzWriter,
    "parquet": ParquetWriter,
    "jsonl": JsonLinesWriter,
}
