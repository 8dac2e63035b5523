"""The one progress bar: speed and time left on a terminal, nothing in a pipe."""

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol


class Advance(Protocol):
    """Called with how much is done and of how much, None while nobody knows, and a word on the side."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show where the work stands."""


@contextmanager
def work_progress(label: str, unit: str = "places") -> Iterator[Advance]:
    """Show how far work is; the speed counts from the first call, so that resumed work is not overstated.

    The bar appears with the first call and rests when all is done, so that several can be opened for work in parts.
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
    begun: list[tuple[float, int]] = []

    def advance(done: int, total: int | None, note: str = "") -> None:
        if not begun:
            begun.append((time.monotonic(), done))
            bar.start()
        since, before = begun[0]
        speed = (done - before) / max(time.monotonic() - since, 1e-3)
        shown = f"{speed:,.{0 if speed >= 10 else 1}f} {unit}/s" if done > before else ""
        bar.update(task, completed=done, total=total, note=note, speed=shown)
        if done == total:
            bar.stop()

    try:
        yield advance
    finally:
        bar.stop()
