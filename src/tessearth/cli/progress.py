"""The one progress bar: speed and time left on a terminal, nothing in a pipe."""

import sys
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager

Advance = Callable[[int, int | None], None]
"""Called with how many places are done and of how many, None while nobody knows."""


@contextmanager
def place_progress(label: str) -> Iterator[Advance]:
    """Show how many places are done; the speed counts from the first call, so that resumed work is not overstated."""
    if not sys.stderr.isatty():
        yield lambda done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

    columns = (
        TextColumn("{task.description}"),
        BarColumn(),
        MofNCompleteColumn(),
        TextColumn("{task.fields[speed]}"),
        TimeRemainingColumn(),
    )
    with Progress(*columns, console=Console(stderr=True)) as bar:
        task = bar.add_task(label, total=None, speed="")
        begun: list[tuple[float, int]] = []

        def advance(done: int, total: int | None) -> None:
            if not begun:
                begun.append((time.monotonic(), done))
            since, before = begun[0]
            speed = (done - before) / max(time.monotonic() - since, 1e-3)
            bar.update(task, completed=done, total=total, speed=f"{speed:,.0f} places/s" if done > before else "")

        yield advance
