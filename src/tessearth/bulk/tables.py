"""A table of any size into embeddings: by several processes or a cluster, in bounded memory, resumable.

All places are checked before the model is loaded. Then rows and their embeddings go, a batch at a time and in order,
into one growing file, whose journal notes where each batch ends and its checksum (see `storage.jobs`). A run that
resumes reads the table again, keeps every batch that is in the file as it was written, and computes the rest; at the
end the file gets its name. Short tables are encoded in one go, without a journal.

Every worker runs one thread and embeds the same batches, so the bytes do not depend on how many workers there were,
where they ran, or how often the run was interrupted.
"""

import contextlib
import functools
import itertools
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import IO, Any, Literal, NamedTuple, Self

import numpy as np

from tessearth.bulk.writers import (
    PACKED,
    Embeddings,
    OutputFormat,
    Width,
    as_column,
    check_schema,
    embedding_schema,
    make_writer,
    open_writer,
)
from tessearth.embedding import OnnxEmbedder
from tessearth.errors import ConfigError, CoordinateWarning, OutputError, TableError, is_out_of_memory
from tessearth.sphere import Floats, Places
from tessearth.storage import (
    AS_USUAL,
    ROWS_AT_ONCE,
    STANDARD_STREAM,
    Job,
    PointBatch,
    PointTable,
    Pool,
    Reading,
    check_free,
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
    dims: int | None = None
    """How many of the first numbers are kept; None is all of them."""

    def open(self, threads: int | None = None) -> Any:
        """An Embedder, or an OnnxEmbedder, which needs no torch."""
        if self.runtime == "onnx":
            return OnnxEmbedder(self.model, threads=threads, dims=self.dims)
        from tessearth.embedding import Embedder

        chosen: Any = {"precision": self.precision} | ({} if self.dims is None else {"dims": self.dims})
        return Embedder(self.model, device=self.device, **chosen)

    def embed(self, embedder: Any, latlon: Floats, season: Floats | None = None) -> Embeddings:
        """The opened model's embeddings of checked degrees, (N, 2) to (N, D); from a GPU in one piece."""
        embeddings: Embeddings
        if self.runtime == "onnx":
            embeddings = embedder.embed(latlon)
        else:
            import torch

            when = None if season is None else torch.from_numpy(season)
            embeddings = embedder.embed_tensor(torch.from_numpy(latlon), check=False, season=when).cpu().numpy()
        return embeddings

    def embed_places(self, embedder: Any, places: Places) -> Embeddings:
        """The embeddings of rows, (N, D), as `Places.apply` makes them."""
        return places.apply(functools.partial(self.embed, embedder))


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJob:
    """A table, the output and how it is encoded."""

    source: str
    """A table of places in any format of `storage.formats`; "-" is standard input."""
    output: str
    format: OutputFormat
    choice: ModelChoice
    reading: Reading = AS_USUAL
    keep: Sequence[str] | None = None
    """Columns that are copied into the output; None is all of them."""
    width: Width = "float32"
    overwrite: bool = False
    """Whether a file that is there already is replaced."""


class Encoded(NamedTuple):
    """What was written."""

    rows: int
    dim: int
    without_place: int
    """Rows of the input that have no usable place: left out, or kept without an embedding."""

    @classmethod
    def of(cls, points: PointTable, dim: int) -> Self:
        """The whole of a table."""
        return cls(points.total_rows, dim, points.bad_rows)


def encode_table(
    table: TableJob, *, workers: int | None = None, cluster: str | None = None, progress: Progress | None = None
) -> "Encoded":
    """Encode a table and return what was written.

    A short table, and one that is read from or written to a pipe, is encoded in one go by this process. A long one is
    resumable: run again after any interruption, the same call goes on where it was. `workers` is how many processes
    (default: one for each of up to four cores, or one where there is a GPU); `cluster` is a Dask scheduler's address,
    or "local" for a Dask cluster on this machine.
    """
    show = progress or (lambda done, total: None)
    share = workers is not None or cluster is not None
    if share and STANDARD_STREAM in (table.source, table.output):
        raise TableError("a table is encoded by workers from a file into a file, not through a pipe")
    check_free(table.output, overwrite=table.overwrite)
    if table.reading.date is not None and table.choice.runtime == "onnx":
        raise ConfigError("an ONNX file knows no dates: leave out --date, or export MODEL+month=7 for one month")
    with open_points(table.source, table.reading, keep=table.keep) as points:
        check_schema(table.format, points.schema, embedding_schema(1, table.width))
        if share or _is_large(table, points):
            return _encode_resumably(table, points, workers, cluster, show)
        return _encode_in_one_go(table, points, show)


def _is_large(table: TableJob, points: PointTable) -> bool:
    """Whether a table is encoded resumably: a long one, from a file into a file."""
    if STANDARD_STREAM in (table.source, table.output) or not Path(table.source).is_file():
        return False
    is_file = not Path(table.output).exists() or Path(table.output).is_file()
    return is_file and points.total_rows > LARGE_ROWS


def _encode_in_one_go(table: TableJob, points: PointTable, show: Progress) -> "Encoded":
    embedder = table.choice.open()
    added = embedding_schema(embedder.dim, table.width)
    done = 0
    show(0, points.total_rows)
    with open_writer(table.output, table.format, points, added) as writer:
        for batch in points.batches:
            embeddings = table.choice.embed_places(embedder, batch.places)
            writer.write(batch, as_column(embeddings, batch.latlon, added))
            done += len(batch.latlon)
            show(done, points.total_rows)
    return Encoded.of(points, embedder.dim)


def _encode_resumably(
    table: TableJob, points: PointTable, workers: int | None, cluster: str | None, show: Progress
) -> "Encoded":
    output = Path(table.output)
    if not output.absolute().parent.is_dir():
        raise OutputError(f"cannot write {output}: no such file or directory; nothing was left half-written")
    folder = output.with_name(f"{output.name}.parts")
    if (folder / "job.json").exists():
        raise ConfigError(f"{folder} holds unfinished work of an older version: remove it to begin anew")
    busy = OutputError(f"another process is encoding into {output}: wait for it")
    with open_job(folder, busy=busy) as job, _open_workers(table.choice, workers, cluster) as pool:
        model = pool.call(_describe_model, table.choice)
        job.begin(_plan(table, model))
        try:
            with keeping_what_is_finished(folder):
                made = _fill(table, points, job, pool, model, show)
        except Exception as error:
            if is_out_of_memory(error):
                raise OutputError(f"a worker ran out of memory: {GO_ON}") from error
            raise
        try:
            os.replace(made, output)
        except OSError as error:
            raise OutputError(f"cannot write {output}: {(error.strerror or str(error)).lower()}") from error
        job.remove()
    return Encoded.of(points, model.dim)


def _plan(table: TableJob, model: "ModelFacts") -> dict[str, object]:
    """Everything that decides the output, except the table's content: that is compared batch by batch."""
    return {
        "input": str(Path(table.source).absolute()),
        "reading": {**asdict(table.reading), "bad_file": None},
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


def _fill(table: TableJob, points: PointTable, job: Job, pool: Pool, model: "ModelFacts", show: Progress) -> Path:
    """Write every batch of the table into the growing file, and then the end of the file, which is the output."""
    path, done = job.folder / GROWING, 0
    added = embedding_schema(model.dim, table.width)
    check_schema(table.format, points.schema, added)
    with open(path, "r+b" if path.exists() else "w+b") as file, contextlib.ExitStack() as stack:
        writer = make_writer(table.format, file, points, added)
        stack.callback(writer.abandon)
        job.chunks = growing = GrowingFile(job, file)
        batches: Iterator[tuple[int, PointBatch]] = enumerate(points.batches)
        for number, batch in batches:
            content = job.intact(number, about=_about(batch))
            if content is None or not writer.restore(batch, content):
                batches = itertools.chain([(number, batch)], batches)
                break
            done += len(batch.latlon)
            show(done, points.total_rows)
        tasks = ((numbered, EmbedTask(table.choice, numbered[1].places, table.width)) for numbered in batches)
        for (number, batch), (fingerprint, embeddings) in pool.run(_embed, tasks):
            if fingerprint != model.fingerprint:
                raise OutputError(
                    f"two workers have different models under the name {table.choice.model}: give all of them the same "
                    f"file"
                )
            writer.write(batch, as_column(embeddings, batch.latlon, added))
            growing.end_chunk(number, _about(batch))
            done += len(batch.latlon)
            show(done, points.total_rows)
        writer.finish()
        file.truncate()
        os.fsync(file.fileno())
        if table.format in PACKED:
            path = job.folder / WHOLE
            with open(path, "wb") as whole:
                writer.pack(whole)
                os.fsync(whole.fileno())
    return path


def _about(batch: PointBatch) -> bytes:
    """The places of a batch as bytes."""
    arrays = [array for array in batch.places if array is not None]
    return b"".join(np.ascontiguousarray(array, dtype="<f8").tobytes() for array in arrays)


class ModelFacts(NamedTuple):
    """Facts about the model that the process without it needs."""

    dim: int
    fingerprint: str


class EmbedTask(NamedTuple):
    """Some consecutive rows to embed."""

    choice: ModelChoice
    places: Places
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
        return fingerprint, task.choice.embed_places(embedder, task.places).astype(task.width, copy=False)


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
    from tessearth.settings import find_device

    return find_device(choice.device).type == "cpu"
