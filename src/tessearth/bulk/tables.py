"""A table of any size into embeddings: by several processes or a cluster, in bounded memory, resumable.

The table is read once. Its rows and their embeddings go, a batch at a time and in their order, into one growing file,
whose journal notes where each batch ends and its checksum (see `storage.jobs`). A run that goes on reads the table
again, keeps every batch that is in the file as it was written, and computes the rest; at the end the file gets its
name. Short tables are encoded in one go, without a journal.

Every worker runs one thread and embeds the same batches, so the bytes do not depend on how many workers there were,
where they ran, or how often the run was interrupted.
"""

import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple

import numpy as np
import pyarrow as pa

from tessearth.bulk.writers import WRITERS, Embeddings, NpzWriter, OutputFormat, Width, check_schema, open_writer
from tessearth.embedding import OnnxEmbedder
from tessearth.errors import (
    ConfigError,
    CoordinateError,
    CoordinateWarning,
    OutputError,
    TableError,
    is_out_of_memory,
)
from tessearth.sphere import Floats
from tessearth.storage import (
    ROWS_AT_ONCE,
    STANDARD_STREAM,
    Job,
    PointBatch,
    PointTable,
    Pool,
    keeping_what_is_finished,
    one_torch_thread,
    open_job,
    open_points,
    open_pool,
    usual_workers,
)

Runtime = Literal["torch", "onnx"]
MOST_WORKERS = 4
"""By default: each worker holds its own model and libraries, some 400 MB."""
LARGE_ROWS = 2**17
LARGE_CSV_BYTES = 2**22
GROWING, WHOLE = "growing", "whole"
"""Files of a job: the rows so far, and an archive that is packed from them at the end."""
GO_ON = "the same command with fewer --workers goes on where this one ended"

Progress = Callable[[int, int | None], None]
"""Called with the rows done and how many there will be; None when that is not known."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model by what a process needs to open it; on a cluster, a path must lead to it on every machine."""

    model: str
    device: str | None = None
    precision: str = "float32"
    runtime: Runtime = "torch"

    def open(self, threads: int | None = None) -> Any:
        """An Embedder, or an OnnxEmbedder, which needs no torch."""
        if self.runtime == "onnx":
            return OnnxEmbedder(self.model, threads=threads)
        from tessearth.embedding import Embedder

        return Embedder(self.model, device=self.device, precision=self.precision)  # type: ignore[arg-type]

    def embed(self, embedder: Any, latlon: Floats) -> Embeddings:
        """The opened model's embeddings of checked degrees, (N, 2) to (N, D); from a GPU in one piece."""
        embeddings: Embeddings
        if self.runtime == "onnx":
            embeddings = embedder.embed(latlon)
        else:
            import torch

            embeddings = embedder.embed_tensor(torch.from_numpy(latlon), check=False).cpu().numpy()
        return embeddings


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJob:
    """A table, the output and how it is encoded."""

    source: str
    """csv, Parquet or GeoParquet of places; "-" is standard input."""
    output: str
    format: OutputFormat
    choice: ModelChoice
    lat: str | None = None
    lon: str | None = None
    keep: Sequence[str] | None = None
    """Columns that are copied into the output; None is all of them."""
    width: Width = "float32"


def encode_table(
    table: TableJob, *, workers: int | None = None, cluster: str | None = None, progress: Progress | None = None
) -> int:
    """Encode a table and return how many rows it has.

    A short table, and one that is read from or written to a pipe, is encoded in one go by this process. A long one is
    resumable: run again after any interruption, the same call goes on where it was. `workers` is how many processes
    (default: one for each of up to four cores, or one where there is a GPU); `cluster` is a Dask scheduler's address,
    or "local" for a Dask cluster on this machine.
    """
    show = progress or (lambda done, total: None)
    share = workers is not None or cluster is not None
    if share and STANDARD_STREAM in (table.source, table.output):
        raise TableError("a table is encoded by workers from a file into a file, not through a pipe")
    with open_points(table.source, lat=table.lat, lon=table.lon, keep=table.keep) as points:
        check_schema(table.format, points.schema)
        first = next(points.batches)  # most mistakes show here, before the model is loaded
        whole = points._replace(batches=itertools.chain([first], points.batches))
        if share or _is_large(table, whole):
            return _encode_resumably(table, whole, workers, cluster, show)
        return _encode_in_one_go(table, whole, show)


def _is_large(table: TableJob, points: PointTable) -> bool:
    """Whether a table is encoded resumably: a long one, from a file into a file."""
    if STANDARD_STREAM in (table.source, table.output) or not Path(table.source).is_file():
        return False
    if Path(table.output).exists() and not Path(table.output).is_file():
        return False
    if points.total_rows is not None:
        return points.total_rows > LARGE_ROWS
    return Path(table.source).stat().st_size > LARGE_CSV_BYTES


class _Rows:
    """The rows of a table that are read and those that are done, as its user is told."""

    def __init__(self, points: PointTable, show: Progress) -> None:
        self._points, self._show = points, show
        self.read = self.done = 0

    def batches(self) -> Iterator[PointBatch]:
        """The batches of the table."""
        for batch in self._points.batches:
            self.read += len(batch.latlon)
            yield batch

    def finish(self, batch: PointBatch) -> None:
        """Count a batch as done."""
        self.done += len(batch.latlon)
        self._show(self.done, self._points.expected_rows(self.read))


def _encode_in_one_go(table: TableJob, points: PointTable, show: Progress) -> int:
    embedder = table.choice.open()
    rows = _Rows(points, show)
    show(0, points.total_rows)
    with open_writer(table.output, table.format, points.schema, embedder.dim, table.width) as writer:
        for batch in rows.batches():
            writer.write(batch, table.choice.embed(embedder, batch.latlon).astype(table.width, copy=False))
            rows.finish(batch)
    return rows.done


def _encode_resumably(
    table: TableJob, points: PointTable, workers: int | None, cluster: str | None, show: Progress
) -> int:
    output = Path(table.output)
    if not output.absolute().parent.is_dir():
        raise OutputError(f"cannot write {output}: no such file or directory; nothing was left half-written")
    folder = output.with_name(f"{output.name}.parts")
    if (folder / "job.json").exists():
        raise ConfigError(f"{folder} holds unfinished work of an older version: remove it to begin anew")
    rows = _Rows(points, show)
    busy = OutputError(f"another process is encoding into {output}: wait for it")
    with open_job(folder, busy=busy) as job, _open_workers(table.choice, workers, cluster) as pool:
        model = pool.call(_describe_model, table.choice)
        job.begin(_plan(table, model))
        try:
            with keeping_what_is_finished(folder):
                made = _fill(table, rows, points.schema, job, pool, model)
        except (CoordinateError, TableError):
            job.remove()  # a mended table is another job
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutputError(f"a worker ran out of memory: {GO_ON}") from error
            raise
        try:
            os.replace(made, output)
        except OSError as error:
            raise OutputError(f"cannot write {output}: {(error.strerror or str(error)).lower()}") from error
        job.remove()
    return rows.done


def _plan(table: TableJob, model: "ModelFacts") -> dict[str, object]:
    """Everything that decides the output, except the table's content: that is compared batch by batch."""
    return {
        "input": str(Path(table.source).absolute()),
        "columns": [table.lat, table.lon],
        "kept columns": table.keep if table.keep is None else list(table.keep),
        "rows at once": ROWS_AT_ONCE,
        "model": model.fingerprint,
        "format": table.format,
        "stored as": table.width,
    }


class GrowingFile:
    """Chunks of a job one after another in a file that grows; the journal notes where each of them ends."""

    def __init__(self, job: Job, file: IO[bytes]) -> None:
        """`file` stands where the first chunk begins."""
        self._job, self._file, self._begin = job, file, file.tell()

    def get(self, number: int) -> bytes | None:
        """A chunk as it lies in the file."""
        before, entry = self._job.entries.get(number - 1), self._job.entries[number]
        if number and before is None:
            return None
        return self._read(before.notes["end"] if before else self._begin, entry.notes["end"])

    def end_chunk(self, number: int, about: bytes) -> None:
        """Note that everything behind the chunk before is this one."""
        start = self._job.entries[number - 1].notes["end"] if number else self._begin
        end = self._file.tell()
        self._job.note(number, self._read(start, end), about=about, end=end)

    def _read(self, start: int, end: int) -> bytes:
        self._file.flush()
        with open(self._file.name, "rb") as file:
            file.seek(start)
            return file.read(end - start)


def _fill(table: TableJob, rows: _Rows, schema: pa.Schema, job: Job, pool: Pool, model: "ModelFacts") -> Path:
    """Write every batch of the table into the growing file, and then the end of the file, which is the output."""
    path = job.folder / GROWING
    with open(path, "r+b" if path.exists() else "w+b") as file:
        writer = WRITERS[table.format](file, schema, model.dim, table.width)
        job.chunks = growing = GrowingFile(job, file)
        batches: Iterator[tuple[int, PointBatch]] = enumerate(rows.batches())
        for number, batch in batches:
            content = job.intact(number, about=_about(batch))
            if content is None or not writer.restore(batch, content):
                batches = itertools.chain([(number, batch)], batches)
                break
            rows.finish(batch)
        tasks = ((numbered, EmbedTask(table.choice, numbered[1].latlon, table.width)) for numbered in batches)
        for (number, batch), (fingerprint, embeddings) in pool.run(_embed, tasks):
            if fingerprint != model.fingerprint:
                raise OutputError(
                    f"two workers have different models under the name {table.choice.model}: give all of them the same "
                    f"file"
                )
            writer.write(batch, embeddings)
            growing.end_chunk(number, _about(batch))
            rows.finish(batch)
        writer.finish()
        file.truncate()
        os.fsync(file.fileno())
        if isinstance(writer, NpzWriter):
            path = job.folder / WHOLE
            with open(path, "wb") as whole:
                writer.pack(whole)
                os.fsync(whole.fileno())
    return path


def _about(batch: PointBatch) -> bytes:
    return np.ascontiguousarray(batch.latlon, dtype="<f8").tobytes()


class ModelFacts(NamedTuple):
    """Facts about the model that the process without it needs."""

    dim: int
    fingerprint: str


class EmbedTask(NamedTuple):
    """Some consecutive rows to embed."""

    choice: ModelChoice
    latlon: Floats
    """Checked degrees, (N, 2)."""
    width: Width


def _describe_model(choice: ModelChoice) -> ModelFacts:
    """Open the model in a worker and describe it."""
    embedder, fingerprint = _opened(choice)
    return ModelFacts(embedder.dim, fingerprint)


def _embed(task: EmbedTask) -> tuple[str, Embeddings]:
    """The model's fingerprint and the embeddings, by one thread: its sums come out the same on any number of cores."""
    embedder, fingerprint = _opened(task.choice)
    if task.choice.runtime == "torch":
        one_torch_thread()  # a worker of a cluster has no setup
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", CoordinateWarning)  # the process that read the table has warned
        return fingerprint, task.choice.embed(embedder, task.latlon).astype(task.width, copy=False)


@functools.lru_cache(maxsize=1)
def _opened(choice: ModelChoice) -> tuple[Any, str]:
    """The model and its fingerprint, opened once a process."""
    embedder = choice.open(threads=1)
    return embedder, embedder.fingerprint()


def _open_workers(choice: ModelChoice, workers: int | None, cluster: str | None) -> AbstractContextManager[Pool]:
    """A Dask cluster, several processes, or this one where there is one core or a GPU."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; it must be at least 1")
    count = workers or usual_workers(MOST_WORKERS)
    if cluster is not None:
        return open_pool("dask", count, cluster=cluster, advice=GO_ON)
    if workers is None and not _runs_on_cpu(choice):
        count = 1
    setup = one_torch_thread if choice.runtime == "torch" else None
    return open_pool("here" if count == 1 else "processes", count, setup=setup, advice=GO_ON)


def _runs_on_cpu(choice: ModelChoice) -> bool:
    if choice.runtime == "onnx":
        return True
    from tessearth.devices import find_device

    return find_device(choice.device).type == "cpu"
