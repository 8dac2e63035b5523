"""Work side by side: one draw on each core is faster than every core on one draw.

The matrices of a ridge problem are too small to keep several cores busy, and a good part of the work between them runs
on one core anyway.
"""

import contextlib
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch

Item = TypeVar("Item")
Made = TypeVar("Made")

MOST = 8
"""Each worker holds a draw's rows in float64, some hundred megabytes."""


def side_by_side(work: Callable[[Item], Made], items: Iterable[Item], workers: int) -> Iterator[Made]:
    """What the work makes of each item, in their order; with one worker nothing is different from a plain loop."""
    if workers < 2:
        yield from map(work, items)
        return
    with (
        _threads_put_back(),
        ThreadPoolExecutor(min(workers, MOST), initializer=torch.set_num_threads, initargs=(1,)) as pool,
    ):
        futures = [pool.submit(work, item) for item in items]
        try:
            while futures:
                yield futures.pop(0).result()
        finally:
            for future in futures:
                future.cancel()


@contextlib.contextmanager
def _threads_put_back() -> Iterator[None]:
    """How many threads PyTorch uses is partly a setting of the whole process: it is put back afterwards."""
    before = torch.get_num_threads()
    try:
        yield
    finally:
        torch.set_num_threads(before)
