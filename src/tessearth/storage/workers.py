"""One pool of workers for every kind of work: this process, threads, processes or a Dask cluster.

    with open_pool("processes", 4, setup=partial(open_model, name)) as pool:
        for number, result in pool.run(work, ((number, task) for number, task in enumerate(tasks))):
            ...

The pool knows functions and no models. It hands out a bounded number of tasks, so that memory stays bounded however
many there are, and gives results back in order (or as they come). Workers that are killed or hang are replaced and
their tasks given to others; workers end with the process that started them, however it ends.
"""

import contextlib
import multiprocessing
import os
import signal
import threading
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import FIRST_COMPLETED, BrokenExecutor, Executor, Future, ProcessPoolExecutor, wait
from concurrent.futures import ThreadPoolExecutor as Threads
from functools import partial
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, TypeVar

from tessearth.errors import ConfigError, OutputError, first_line, is_out_of_memory
from tessearth.packages import require

Kind = Literal["here", "threads", "processes", "dask"]
LOCAL = "local"
"""The address of a Dask cluster that is started on this machine for the time of the work."""
TASKS_PER_WORKER = 2
"""Tasks given to each worker at once, so that none waits for its next one."""
ATTEMPTS = 4
"""How often in a row lost workers are replaced, without a result in between, before the work is given up."""
LOOK_SECONDS = 1.0
"""How often workers that have not answered are looked at; one that has ended is given this time to be noticed."""
SILENT_SECONDS = 60.0
"""After this time without a result, workers are checked: those that hang are ended and replaced."""
IDLE_CPU_SECONDS = 0.05
"""Processes that hang use less than this between two looks."""
SECONDS_TO_CONNECT = 20
PROC = Path("/proc")
"""Where Linux says how much processor time a process has used."""
LOST = {"KilledWorker", "FutureCancelledError", "CancelledError", "CommClosedError", "BrokenProcessPool"}
"""Errors of Dask that mean the end of a worker and not a mistake in the work."""
MOST_SIDE_BY_SIDE = 8
"""Each worker of an evaluation holds a draw's rows in float64, some hundred megabytes."""

Key = TypeVar("Key")
Task = TypeVar("Task")
Result = TypeVar("Result")


def usual_workers(most: int) -> int:
    """One worker for each core this process may use, up to a number."""
    allowed = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(most, allowed)


def one_torch_thread() -> None:
    """Setup of workers whose arithmetic PyTorch does: the matrices are too small to keep several cores busy."""
    import torch

    torch.set_num_threads(1)


class _Sent(NamedTuple, Generic[Key, Task]):
    """A task given to a worker."""

    key: Key
    task: Task
    future: Future[Any]


class Pool:
    """Workers of one kind."""

    def __init__(self, open_executor: Callable[[], Executor] | None, workers: int, advice: str) -> None:
        self.workers = workers
        self._open, self._advice = open_executor, advice
        self._executor = open_executor() if open_executor else None
        self._cpu_seconds = float("-inf")
        self._killed = ""

    def call(self, function: Callable[[Task], Result], task: Task) -> Result:
        """The result of one task."""
        ((_, result),) = self.run(function, [(0, task)])
        return result

    def run(
        self,
        function: Callable[[Task], Result],
        tasks: Iterable[tuple[Key, Task]],
        *,
        at_once: int | None = None,
        ordered: bool = True,
    ) -> Iterator[tuple[Key, Result]]:
        """Yield every key with the function's result for its task, keys staying in this process.

        `tasks` is read as results are taken, at most `at_once` tasks ahead; with `ordered=False` results come as they
        are finished. An error of the function ends the run.
        """
        if self._executor is None:
            yield from ((key, function(task)) for key, task in tasks)
            return
        limit = at_once or TASKS_PER_WORKER * self.workers
        sent: list[_Sent[Key, Task]] = []
        for key, task in tasks:
            if len(sent) >= limit:
                yield self._take(function, sent, ordered)
            sent.append(_Sent(key, task, self._submit(function, task)))
        while sent:
            yield self._take(function, sent, ordered)

    def close(self) -> None:
        """End the workers; tasks that no worker has begun are dropped."""
        if isinstance(self._executor, Threads | ProcessPoolExecutor):
            self._executor.shutdown(wait=True, cancel_futures=True)
        elif self._executor is not None:
            self._executor.shutdown(wait=False)  # Dask's word for the same

    def _submit(self, function: Callable[[Task], Any], task: Task) -> Future[Any]:
        assert self._executor is not None
        try:
            return self._executor.submit(function, task)
        except BrokenExecutor as error:  # found when its result is taken
            future: Future[Any] = Future()
            future.set_exception(error)
            return future

    def _take(self, function: Callable[[Task], Any], sent: list[_Sent[Key, Task]], ordered: bool) -> tuple[Key, Any]:
        """Wait for a result and take it out of what was sent; hand everything out again when workers are lost."""
        for _ in range(ATTEMPTS):
            done = self._wait([one.future for one in (sent[:1] if ordered else sent)])
            number = next(i for i, one in enumerate(sent) if one.future in done)
            try:
                result = sent[number].future.result()
            except Exception as error:
                if is_out_of_memory(error):
                    raise OutputError(f"a worker ran out of memory: {self._advice}") from error
                if not isinstance(error, BrokenExecutor) and type(error).__name__ not in LOST:
                    raise
            else:
                return sent.pop(number).key, result
            self._replace_workers()
            for i, (_, task, future) in enumerate(sent):
                if not future.done() or future.cancelled() or future.exception() is not None:
                    sent[i] = sent[i]._replace(future=self._submit(function, task))
        raise OutputError(
            f"workers ended or hung {ATTEMPTS} times without finishing{self._killed}, perhaps for want of memory: "
            f"{self._advice}"
        )

    def _wait(self, futures: list[Future[Any]]) -> set[Future[Any]]:
        """The futures that are done, at least one; in the meantime, hung workers are ended."""
        silent, lost = 0.0, False
        while True:
            done, _ = wait(futures, timeout=LOOK_SECONDS, return_when=FIRST_COMPLETED)
            if done:
                return done
            silent += LOOK_SECONDS
            if lost:
                _break_off(self._executor)
            lost = not all(process.is_alive() for process in _processes_of(self._executor))
            if silent >= SILENT_SECONDS:
                silent = 0.0
                self._cpu_seconds = _end_hung(_processes_of(self._executor), self._cpu_seconds)

    def _replace_workers(self) -> None:
        """Start a new executor of processes; Dask replaces its workers itself."""
        if not isinstance(self._executor, ProcessPoolExecutor) or self._open is None:
            return
        processes = _processes_of(self._executor)
        self._executor.shutdown(wait=True, cancel_futures=True)
        # The executor itself terminates (15) those that are left.
        killed = [f"{one.pid} by signal {-one.exitcode}" for one in processes if (one.exitcode or 0) not in (0, -15)]
        self._killed = f" (last process {', '.join(killed)})" if killed else ""
        self._executor, self._cpu_seconds = self._open(), float("-inf")


@contextlib.contextmanager
def open_pool(
    kind: Kind,
    workers: int = 1,
    *,
    cluster: str = LOCAL,
    setup: Callable[[], object] | None = None,
    start_method: str = "spawn",
    advice: str = "run it again with fewer workers",
) -> Iterator[Pool]:
    """Start a number of workers, or find those of the Dask cluster at an address; they end with the block.

    `setup` is called once in every thread or process before its first task ("here": once, in this process). Processes
    are spawned, because a fork of a process that uses a GPU or threads may hang. `advice` ends the message about
    workers that were lost.
    """
    if workers < 1:
        raise ConfigError(f"workers is {workers}; it must be at least 1")
    with contextlib.ExitStack() as stack:
        if kind in ("here", "threads") and setup is not None:
            import torch

            # The number of threads is partly a setting of the process: setup in one thread changes it for all.
            stack.callback(torch.set_num_threads, torch.get_num_threads())
        if kind == "here":
            if setup is not None:
                setup()
            pool = Pool(None, 1, advice)
        elif kind == "threads":
            pool = Pool(lambda: Threads(workers, initializer=setup), workers, advice)
        elif kind == "processes":
            context, begin = multiprocessing.get_context(start_method), partial(_begin_worker, setup)
            pool = Pool(lambda: ProcessPoolExecutor(workers, context, begin), workers, advice)
        else:
            client = _connect(cluster, workers, stack)
            threads = max(1, sum(client.nthreads().values()))
            pool = Pool(client.get_executor, threads, advice)
        stack.callback(pool.close)
        yield pool


def _connect(address: str, workers: int, stack: contextlib.ExitStack) -> Any:
    """A client of the Dask cluster at an address, which ends with the stack."""
    distributed = require("distributed", extra="cluster", what="a Dask cluster")
    found: Any = address
    if address == LOCAL:
        settings = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": None, "silence_logs": 50}
        found = stack.enter_context(distributed.LocalCluster(n_workers=workers, processes=True, **settings))
    try:
        return stack.enter_context(distributed.Client(found, timeout=SECONDS_TO_CONNECT, set_as_default=False))
    except (OSError, ValueError, TypeError) as error:
        reason = first_line(error)
        raise ConfigError(
            f"no Dask scheduler answers at {address!r} ({reason}); give its address such as tcp://host:8786, or {LOCAL}"
        ) from error


def _begin_worker(setup: Callable[[], object] | None) -> None:
    """Leave interrupts to the parent, and end when the parent ends, however it does."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent,), daemon=True).start()
    if setup is not None:
        setup()


def _end_with(parent: Any) -> None:
    parent.join()
    os._exit(1)


def _processes_of(executor: Executor | None) -> list[Any]:
    return list((getattr(executor, "_processes", None) or {}).values())  # the executor has no public name for them


def _break_off(executor: Executor | None) -> None:
    """End what is left of an executor that does not notice the end of a worker.

    A worker that is killed in the middle of an answer leaves the executor waiting for the rest of it. When every end of
    the pipe that could be written to is closed, the rest cannot come, and all futures fail.
    """
    for process in _processes_of(executor):
        process.kill()
    with contextlib.suppress(AttributeError, OSError):
        executor._result_queue._writer.close()  # type: ignore[union-attr]


def _end_hung(processes: list[Any], before: float) -> float:
    """The processor time that processes have used; they are ended when that is what they had used `before`.

    Processes that compute for long use processor time, those that hang, stopped or waiting, use none. Where the system
    cannot tell, none is ended.
    """
    if not PROC.exists():
        return before
    now = sum(_cpu_seconds(process.pid) for process in processes)
    if now - before < IDLE_CPU_SECONDS:
        for process in processes:
            process.kill()
    return now


def _cpu_seconds(pid: int) -> float:
    """Processor time a process has used so far; 0 when it has ended."""
    try:
        fields = (PROC / str(pid) / "stat").read_text().rpartition(")")[2].split()
    except OSError:
        return 0.0
    return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")


def side_by_side(work: Callable[[Task], Result], items: Iterable[Task], workers: int) -> Iterator[Result]:
    """What the work makes of each item, in their order, by threads of one core each."""
    with open_pool("threads", min(workers, MOST_SIDE_BY_SIDE), setup=one_torch_thread) as pool:
        yield from (made for _, made in pool.run(work, ((None, item) for item in items)))
