"""A table of any size into embeddings: by several processes or a cluster, in bounded memory, resumable.

The table is read twice and held never. First its places go to the workers batch by batch and come back as parts (see
`parts`); what was done before is not done again. Then the table is read once more and written with the parts beside its
rows, in their order, and the output appears in one step. While it is written, the disk holds the embeddings twice.

Every worker runs one thread and embeds the same batches, so the bytes do not depend on how many workers there were,
where they ran, or how often the run was interrupted.
"""

import itertools
import os
from collections.abc import Callable, Collection, Sequence
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Future, wait
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessearth.bulk.cluster import (
    Description,
    ModelChoice,
    PartResult,
    PartTask,
    Workers,
    describe_model,
    open_workers,
    run_part,
)
from tessearth.bulk.outputs import OutputFormat, Width, check_schema, open_writer
from tessearth.bulk.parts import Part, Parts, open_parts, write_part
from tessearth.errors import OutputError, TableError, TessearthError, is_out_of_memory
from tessearth.storage.tables import ROWS_AT_ONCE, STANDARD_STREAM, open_points

ATTEMPTS = 4
"""How often lost workers are replaced before the run gives up; every attempt goes on where the last one ended."""
GO_ON = "the same command with fewer --workers goes on where this one ended"
LOST = {"KilledWorker", "FutureCancelledError", "CancelledError", "CommClosedError", "BrokenProcessPool"}
"""What a cluster calls the end of a worker that was not its own doing."""
SILENT_SECONDS = 60.0
"""When no part has come back for so long, workers are looked at: those that hang are ended and replaced."""
LARGE_ROWS = 2**17
LARGE_CSV_BYTES = 2**22

Progress = Callable[[int, int | None], None]
"""Called with the rows done and how many there will be, None while nobody knows."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TableJob:
    """What is encoded into what."""

    source: str
    """csv, Parquet or GeoParquet of places: a file, since it is read twice."""
    output: str
    format: OutputFormat
    choice: ModelChoice
    lat: str | None = None
    lon: str | None = None
    keep: Sequence[str] | None = None
    """Columns that travel along; None is all of them."""
    width: Width = "float32"


def is_large(job: TableJob) -> bool:
    """Whether an interrupted run would be worth going on with, and can: a long table, from a file into a file."""
    if STANDARD_STREAM in (job.source, job.output) or not Path(job.source).is_file():
        return False
    if Path(job.output).exists() and not Path(job.output).is_file():
        return False
    with open_points(job.source, lat=job.lat, lon=job.lon, keep=()) as points:
        if points.total_rows is not None:
            return points.total_rows > LARGE_ROWS
    return Path(job.source).stat().st_size > LARGE_CSV_BYTES


def encode_in_one_go(job: TableJob, load: Callable[[], Any], *, progress: Progress | None = None) -> int:
    """Encode a table of any size in this process, also through pipes, in bounded memory but without a second chance."""
    show = progress or (lambda done, total: None)
    rows = 0
    with open_points(job.source, lat=job.lat, lon=job.lon, keep=job.keep) as points:
        first = next(points.batches)  # most mistakes show here, before the model is loaded
        embedder = load()
        show(0, points.total_rows)
        with open_writer(job.output, job.format, points.schema, embedder.dim, job.width) as writer:
            for batch in itertools.chain([first], points.batches):
                writer.write(batch, embedder.embed(batch.latlon).astype(job.width, copy=False))
                rows += len(batch.latlon)
                show(rows, points.expected_rows(rows))
    return rows


def encode_table(
    job: TableJob, *, workers: int | None = None, cluster: str | None = None, progress: Progress | None = None
) -> int:
    """Encode a table and return how many rows it has.

    `workers` is how many processes; None is one for each of up to four cores, or one where there is a GPU. `cluster` is
    a Dask scheduler's address, or "local" for a Dask cluster on this machine. Run again after any interruption, the
    same call goes on where it was.
    """
    _check(job)
    show = progress or (lambda done, total: None)
    with open_parts(job.output) as parts:
        try:
            described = _encode_with_patience(job, parts, workers, cluster, show)
            rows = _join(job, parts, described)
        except TableError:
            parts.remove()  # another table will be another job
            raise
        parts.remove()
    return rows


def _check(job: TableJob) -> None:
    """Find in the first rows what would else be found after hours."""
    if STANDARD_STREAM in (job.source, job.output):
        raise TableError("a table is encoded by workers from a file into a file, not through a pipe")
    with open_points(job.source, lat=job.lat, lon=job.lon, keep=job.keep) as points:
        check_schema(job.format, points.schema)
        next(points.batches)


def _encode_with_patience(
    job: TableJob, parts: Parts, workers: int | None, cluster: str | None, progress: Progress
) -> Description:
    for _ in range(ATTEMPTS):
        try:
            with open_workers(job.choice, workers, cluster) as pool:
                opened = pool.executor.submit(describe_model, job.choice)
                while not _finished([opened], pool):
                    pass
                described: Description = opened.result()
                parts.begin(_identity(job, described))
                _encode_missing(job, parts, pool, described, progress)
            return described
        except TessearthError:
            raise
        except Exception as error:
            if is_out_of_memory(error):
                raise OutputError(f"a worker ran out of memory: {GO_ON}") from error
            if not (isinstance(error, BrokenExecutor) or type(error).__name__ in LOST):
                raise
    raise OutputError(f"workers ended or hung {ATTEMPTS} times without finishing, perhaps for want of memory: {GO_ON}")


def _finished(futures: Collection[Future[Any]], pool: Workers) -> set[Future[Any]]:
    """Those that are done, after waiting for one for a while; when none is, hanging workers are ended."""
    finished, _ = wait(futures, timeout=SILENT_SECONDS, return_when=FIRST_COMPLETED)
    if not finished:
        pool.end_hung()
    return finished


def _identity(job: TableJob, described: Description) -> dict[str, object]:
    """What decides the parts beside their places: where those are read, the model, how embeddings are stored."""
    return {
        "input": str(Path(job.source).absolute()),
        "columns": [job.lat, job.lon],
        "rows per part": ROWS_AT_ONCE,
        "model": described.fingerprint,
        "stored as": job.width,
    }


def _encode_missing(job: TableJob, parts: Parts, pool: Workers, described: Description, progress: Progress) -> None:
    """Hand out every part that is not there, no more at once than keeps all workers busy."""
    waiting: dict[Future[PartResult], PartTask] = {}
    read = done = 0
    total: int | None = None

    def collect() -> int:
        return sum(_receive(waiting.pop(one), one, parts, described) for one in _finished(waiting, pool))

    with open_points(job.source, lat=job.lat, lon=job.lon, keep=()) as points:
        for index, batch in enumerate(points.batches):
            rows = len(batch.latlon)
            read += rows
            total = points.expected_rows(read)
            if parts.has(index, batch.latlon):
                done += rows
            else:
                while len(waiting) >= pool.at_once:
                    done += collect()
                path = str(parts.path(index)) if pool.share_disk else None
                task = PartTask(job.choice, index, batch.latlon, job.width, path)
                waiting[pool.executor.submit(run_part, task)] = task
            progress(done, total)
        while waiting:
            done += collect()
            progress(done, read)


def _receive(task: PartTask, future: Future[PartResult], parts: Parts, described: Description) -> int:
    """Take a finished part in: the rows it brought."""
    fingerprint, embeddings = future.result()
    if fingerprint != described.fingerprint:
        raise OutputError(
            f"two workers have different models under the name {task.choice.model}: give all of them the same file"
        )
    if embeddings is not None:
        write_part(parts.path(task.number), Part(task.latlon, embeddings))
    return len(task.latlon)


def _join(job: TableJob, parts: Parts, described: Description) -> int:
    """Write the rows and their embeddings, first inside the folder, so that a killed run leaves nothing elsewhere."""
    joined = parts.folder / "joined"
    rows = 0
    with (
        open_points(job.source, lat=job.lat, lon=job.lon, keep=job.keep) as points,
        open_writer(str(joined), job.format, points.schema, described.dim, job.width) as writer,
    ):
        for index, batch in enumerate(points.batches):
            writer.write(batch, parts.read(index, batch.latlon))
            rows += len(batch.latlon)
    try:
        os.replace(joined, job.output)
    except OSError as error:
        raise OutputError(f"cannot write {job.output}: {(error.strerror or str(error)).lower()}") from error
    return rows
