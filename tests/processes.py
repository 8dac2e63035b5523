"""Several processes started by a test, which never wait for each other longer than the test allows."""

import time
from collections.abc import Callable

import torch.multiprocessing as mp


def run_processes(
    work: Callable[..., None], arguments: tuple[object, ...], *, count: int = 2, seconds: float = 150
) -> None:
    """Run work(rank, *arguments) in so many processes; a deadlock becomes a failure instead of a hanging suite."""
    context = mp.spawn(work, args=arguments, nprocs=count, join=False)
    deadline = time.monotonic() + seconds
    try:
        while not context.join(timeout=1):
            if time.monotonic() > deadline:
                raise TimeoutError(f"{count} processes are still not done after {seconds:.0f} s")
    finally:
        for process in context.processes:
            if process.is_alive():
                process.kill()
