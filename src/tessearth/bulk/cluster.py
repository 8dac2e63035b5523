"""Who encodes the parts of a table: this process, several of them, or a Dask cluster; one contract for all three."""

import contextlib
import functools
import multiprocessing
import os
import signal
import threading
import warnings
from collections.abc import Callable, Iterator
from concurrent.futures import Executor, Future, ProcessPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tessearth.bulk.outputs import Width
from tessearth.bulk.parts import Part, write_part
from tessearth.embedding.onnx import OnnxEmbedder
from tessearth.errors import ConfigError, CoordinateWarning, TessearthError
from tessearth.packages import require
from tessearth.sphere.coordinates import Floats

Runtime = Literal["torch", "onnx"]
LOCAL = "local"
MOST_WORKERS = 4
"""Started unless more are asked for: each holds its own model and libraries, some 400 MB."""
PARTS_PER_WORKER = 2
"""Handed out at once, so that no worker waits for its next part."""
SECONDS_TO_CONNECT = 20
IDLE_CPU_SECONDS = 0.05
"""Processes that wait use less than this between two looks at them."""

Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelChoice:
    """A model by what a process needs to open it; on a cluster, a path must lead to it on every machine."""

    model: str
    device: str | None = None
    precision: str = "float32"
    runtime: Runtime = "torch"

    def open(self) -> Any:
        """An Embedder, or an OnnxEmbedder where torch need not be installed."""
        if self.runtime == "onnx":
            return OnnxEmbedder(self.model, threads=1)
        from tessearth.embedding.embedder import Embedder

        return Embedder(self.model, device=self.device, precision=self.precision)  # type: ignore[arg-type]


class Description(NamedTuple):
    """What the process that hands out the work needs to know of the model."""

    dim: int
    fingerprint: str


class PartTask(NamedTuple):
    """Some consecutive rows to encode."""

    choice: ModelChoice
    number: int
    latlon: Floats
    """Checked degrees, (N, 2)."""
    width: Width
    path: str | None
    """Where the worker writes them; None sends them back."""


class PartResult(NamedTuple):
    """What became of a part."""

    fingerprint: str
    """Of the model that encoded it."""
    embeddings: npt.NDArray[np.floating] | None


class Workers(NamedTuple):
    """Those who do the work."""

    executor: Executor
    at_once: int
    """How many parts are handed out before the first has to come back."""
    share_disk: bool
    """Whether they write where the output goes."""
    end_hung: Callable[[], None] = lambda: None
    """Called whenever nothing has come back for long: ends workers that hang, so that others take their parts. A Dask
    scheduler does so by itself, and this process needs no other to know that it is alive."""


def describe_model(choice: ModelChoice) -> Description:
    """Open the model where the work is done and say what it is."""
    embedder, fingerprint = _opened(choice)
    return Description(embedder.dim, fingerprint)


def run_part(task: PartTask) -> PartResult:
    """Encode one part by one thread, whose sums come out the same on any number of cores."""
    embedder, fingerprint = _opened(task.choice)
    with _one_thread(task.choice.runtime), warnings.catch_warnings():
        warnings.simplefilter("ignore", CoordinateWarning)  # whoever read the table has warned
        embeddings = embedder.embed(task.latlon).astype(task.width, copy=False)
    if task.path is None:
        return PartResult(fingerprint, embeddings)
    write_part(Path(task.path), Part(task.latlon, embeddings))
    return PartResult(fingerprint, None)


@contextlib.contextmanager
def open_workers(choice: ModelChoice, workers: int | None = None, cluster: str | None = None) -> Iterator[Workers]:
    """Start or find whoever encodes; processes that were started here end with the block."""
    if workers is not None and workers < 1:
        raise ConfigError(f"workers is {workers}; it must be at least 1")
    if cluster is not None:
        with _open_cluster(cluster, workers or usual_workers()) as found:
            yield found
        return
    count = workers or (usual_workers() if _runs_on_cpu(choice) else 1)
    if count == 1:
        yield Workers(_ThisProcess(), 1, share_disk=True)
        return
    pool = ProcessPoolExecutor(count, multiprocessing.get_context("spawn"), initializer=_follow_parent)
    try:
        yield Workers(pool, PARTS_PER_WORKER * count, share_disk=True, end_hung=_Watch(pool).end_hung)
    finally:
        pool.shutdown(cancel_futures=True)


class _Watch:
    """Tells processes that think for long from such as hang, stopped or waiting for what never comes: those use no
    processor time between two looks.
    """

    def __init__(self, pool: ProcessPoolExecutor) -> None:
        self._pool, self._before = pool, float("-inf")

    def end_hung(self) -> None:
        """Look; when all were idle since the last look though there is work, end them: the pool then says so."""
        processes = list((getattr(self._pool, "_processes", None) or {}).values())  # no public name for them
        now = sum(_cpu_seconds(process.pid) for process in processes)
        if now - self._before < IDLE_CPU_SECONDS:
            for process in processes:
                process.kill()
        self._before = now


def _cpu_seconds(pid: int) -> float:
    """Processor time a process has used so far, of which it has no more once it has ended."""
    try:
        fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def usual_workers() -> int:
    """One for each core this process may use, up to a few."""
    return min(MOST_WORKERS, len(os.sched_getaffinity(0)))


@contextlib.contextmanager
def _open_cluster(address: str, workers: int) -> Iterator[Workers]:
    """A Dask cluster as an executor: a worker that dies has its parts done by another."""
    distributed = require("distributed", extra="cluster", what="a Dask cluster")
    with contextlib.ExitStack() as stack:
        found: Any = address
        if address == LOCAL:
            settings = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": None, "silence_logs": 50}
            found = stack.enter_context(distributed.LocalCluster(n_workers=workers, processes=True, **settings))
        try:
            client = distributed.Client(found, timeout=SECONDS_TO_CONNECT, set_as_default=False)
            stack.enter_context(client)
        except (OSError, ValueError, TypeError) as error:
            reason = (str(error).splitlines() or [type(error).__name__])[0]
            raise ConfigError(f"no Dask scheduler answers at {address}: {reason}") from None
        threads = sum(client.nthreads().values())
        yield Workers(client.get_executor(), PARTS_PER_WORKER * max(1, threads), share_disk=False)


class _ThisProcess(Executor):
    """Does the work when it is handed out."""

    def submit(
        self, work: Callable[Arguments, Result], /, *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Future[Result]:
        """The future of something that has happened."""
        future: Future[Result] = Future()
        future.set_result(work(*args, **kwargs))
        return future


@functools.lru_cache(maxsize=1)
def _opened(choice: ModelChoice) -> tuple[Any, str]:
    """The model, opened once a process; errors in the one form that every process can send to another."""
    try:
        embedder = choice.open()
        return embedder, embedder.fingerprint()
    except TessearthError as error:
        raise TessearthError(str(error)) from None


@contextlib.contextmanager
def _one_thread(runtime: Runtime) -> Iterator[None]:
    if runtime == "onnx":  # opened with one
        yield
        return
    import torch

    before = torch.get_num_threads()
    torch.set_num_threads(1)
    try:
        yield
    finally:
        torch.set_num_threads(before)


def _runs_on_cpu(choice: ModelChoice) -> bool:
    if choice.runtime == "onnx":
        return True
    from tessearth.devices import find_device

    return find_device(choice.device).type == "cpu"


def _follow_parent() -> None:
    """Leave interrupts to the parent, and end when it ends, however it does: nobody else would ever tell us."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)
