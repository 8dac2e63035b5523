"""Reading the tiles of chunks of places ahead of the encoder, in threads or in processes.

Threads share one interpreter, which lets few of them work at once; processes share nothing, but take seconds to start.
"""

import multiprocessing
import queue
import signal
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from contextlib import ExitStack, contextmanager
from multiprocessing.connection import Connection

import torch

from tessearth.errors import DataError
from tessearth.imagery.reading import PlaceReader, Tiles

Chunk = list[list[Tiles]]
"""Tiles by source and view."""
Read = Callable[[int, int], Chunk]
"""The tiles of so many places from one place on."""


def read_ahead(
    reader: PlaceReader, chunks: list[int], size: int, *, threads: int = 2, processes: int = 0
) -> Iterator[tuple[int, Chunk]]:
    """Chunks of `size` places in order, read while the ones before them are worked on; processes go before threads."""
    workers = max(1, processes or threads)
    with ExitStack() as stack:
        read = stack.enter_context(reading_processes(reader, processes)) if processes else reader.read
        pool = ThreadPoolExecutor(max_workers=workers)
        stack.callback(pool.shutdown, cancel_futures=True)
        pending: deque[tuple[int, Future[Chunk]]] = deque()
        for number in chunks:
            pending.append((number, pool.submit(read, number * size, size)))
            if len(pending) > workers:
                yield _finished(pending)
        while pending:
            yield _finished(pending)


def _finished(pending: deque[tuple[int, Future[Chunk]]]) -> tuple[int, Chunk]:
    number, future = pending.popleft()
    return number, future.result()


@contextmanager
def reading_processes(reader: PlaceReader, count: int) -> Iterator[Read]:
    """Start processes that read; what is given may be called from as many threads, each waiting for one of them.

    Every process has a connection of its own, whose other end nobody else holds: when one of the two dies, even in the
    middle of a word, the other is told.
    """
    context = multiprocessing.get_context("spawn")  # a fork of a process that uses a GPU or threads may hang
    free: queue.SimpleQueue[Connection] = queue.SimpleQueue()
    ours, processes = [], []
    try:
        for _ in range(count):
            connection, theirs = context.Pipe()
            process = context.Process(target=_serve, args=(reader, theirs), daemon=True)
            process.start()
            theirs.close()
            ours.append(connection)
            processes.append(process)
            free.put(connection)

        def read(start: int, number: int) -> Chunk:
            connection = free.get()
            try:
                return _ask(connection, start, number)
            finally:
                free.put(connection)

        yield read
    finally:
        for connection in ours:
            connection.close()
        for process in processes:
            process.join()


def _ask(connection: Connection, start: int, number: int) -> Chunk:
    try:
        connection.send((start, number))
        answer: Chunk | Exception = connection.recv()
    except (EOFError, OSError):
        raise DataError(
            "a process that read tiles was killed, perhaps for want of memory; the same command goes on, fewer "
            "--processes take less"
        ) from None
    if isinstance(answer, Exception):
        raise answer
    return answer


def _serve(reader: PlaceReader, connection: Connection) -> None:
    """Answer until the other end is closed; Ctrl-C is for the process that asks."""
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    torch.set_num_threads(1)
    answer: Chunk | Exception
    try:
        while True:
            start, number = connection.recv()
            try:
                answer = reader.read(start, number)
            except Exception as error:
                answer = error
            connection.send(answer)
    except (EOFError, OSError):
        return
