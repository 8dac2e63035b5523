"""The progress bar: speed and time left on a terminal, nothing in a pipe."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

    from tessearth.embedding import Embedder

CHUNK = 8192
"""Places embedded between two updates of the bar."""


class Advance(Protocol):
    """Receives the amount done, the total (None while it is unknown) and a short note."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Update the bar."""


@contextmanager
def work_progress(label: str, unit: str = "places") -> Iterator[Advance]:
    """A bar that appears with its first update and stops when all is done.

    Speed counts from the first update, so that work done before an interruption does not inflate it.
    """
    if not sys.stderr.isatty():
        yield lambda done, total, note="": None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[note]}"),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    bar = Progress(*columns, console=Console(stderr=True))
    task = bar.add_task(label, total=None, note="", speed="")
    start: list[tuple[float, int]] = []

    def advance(done: int, total: int | None, note: str = "") -> None:
        if not start:
            start.append((time.monotonic(), done))
            bar.start()
        since, before = start[0]
        speed = (done - before) / max(time.monotonic() - since, 1e-3)
        shown = f"{speed:,.{0 if speed >= 10 else 1}f} {unit}/s" if done > before else ""
        bar.update(task, completed=done, total=total, note=note, speed=shown)
        if done == total:
            bar.stop()

    try:
        yield advance
    finally:
        bar.stop()


def embed_with_progress(embedder: "Embedder", latlon: "npt.NDArray[Any]", label: str) -> "npt.NDArray[np.float32]":
    """Embeddings (N, D) of places (N, 2), with a bar."""
    import numpy as np

    embeddings = np.empty((len(latlon), embedder.dim), dtype=np.float32)
    with work_progress(label) as advance:
        for start in range(0, len(latlon), CHUNK):
            stop = min(start + CHUNK, len(latlon))
            embeddings[start:stop] = embedder.embed(latlon[start:stop])
            advance(stop, len(latlon))
    return embeddings
