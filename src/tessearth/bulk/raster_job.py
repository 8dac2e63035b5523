"""A raster on its way to disk: a folder beside the output, a plan, and a journal of the windows that are safely there.

A window counts as done when its numbers were handed to the system and, after that, its checksum to the journal. When a
run goes on, every window in the journal is read back and compared, so it does not matter what of them a kill, a crash
or a disk kept: whatever is not as it was written is computed again.
"""

import hashlib
import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np

from tessearth.bulk.raster_values import Array, StoredWindow
from tessearth.errors import DataError, OutputError
from tessearth.storage.files import keeping_what_is_finished, write_bytes

PLAN, JOURNAL = "plan.json", "journal.jsonl"

Progress = Callable[[int, int], None]
"""Called with the number of windows done and of all windows."""


class Target(Protocol):
    """One format on its way: windows in any order, finished in one step."""

    one_scale: bool
    """Whether the format knows a single scale and offset for all dimensions."""

    @staticmethod
    def check_installed() -> None:
        """Raise when a library the format needs is missing, before anything is begun."""

    @staticmethod
    def bytes_per_value(dtype: str) -> float:
        """How much room a value of a type takes at most on disk while the output is made."""

    def prepare(self) -> None:
        """Make room in the folder; what is there already stays."""

    def put(self, number: int, numbers: Array) -> None:
        """Write a window, (n, dims), so that it survives the end of the process."""

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk; None when it does not."""

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Make the output appear under its name, with the facts as its metadata.

        `intact` reads a window back and vouches for it.
        """


class Entry(NamedTuple):
    """One line of the journal."""

    sha256: str
    largest_error: float
    clipped: int


class Journal:
    """The windows that are done, on disk and at hand."""

    def __init__(self, folder: Path) -> None:
        self.path = folder / JOURNAL
        self.entries = self._read()

    def add(self, number: int, window: StoredWindow) -> None:
        """Note a window whose numbers are on disk."""
        entry = Entry(window_sha256(window.numbers), window.largest_error, window.clipped)
        with open(self.path, "ab") as file:
            # The first newline ends a line that a kill may have cut short.
            file.write(b"\n" + json.dumps({"window": number, **entry._asdict()}).encode() + b"\n")
        self.entries[number] = entry

    def keep_intact(self, target: Target) -> None:
        """Forget every window that is not on disk as it was written."""
        for number, entry in list(self.entries.items()):
            numbers = target.get(number)
            if numbers is None or window_sha256(numbers) != entry.sha256:
                del self.entries[number]

    def read_intact(self, target: Target, number: int) -> Array:
        """A window as it was written; whatever else lies there is no part of any output."""
        numbers = target.get(number)
        if numbers is None or window_sha256(numbers) != self.entries[number].sha256:
            raise DataError(f"window {number} in {self.path.parent} is damaged; run it again, and it is computed anew")
        return numbers

    def facts(self) -> dict[str, Any]:
        """What the finished output says of its values."""
        digests = "".join(self.entries[number].sha256 for number in sorted(self.entries))
        return {
            "largest_error": max((entry.largest_error for entry in self.entries.values()), default=0.0),
            "clipped_values": sum(entry.clipped for entry in self.entries.values()),
            "windows_sha256": hashlib.sha256(digests.encode()).hexdigest(),
        }

    def _read(self) -> dict[int, Entry]:
        if not self.path.exists():
            return {}
        entries = {}
        for line in self.path.read_bytes().split(b"\n"):
            try:
                read = json.loads(line)
                entries[int(read["window"])] = Entry(read["sha256"], read["largest_error"], read["clipped"])
            except (ValueError, KeyError, TypeError):
                continue
        return entries


def window_sha256(numbers: Array) -> str:
    """The checksum a window is known by."""
    return hashlib.sha256(np.ascontiguousarray(numbers).tobytes()).hexdigest()


def part_folder(out: Path) -> Path:
    """Where an unfinished output lies: beside the finished one, and called what it is."""
    return out.with_name(f"{out.name}.part")


def begin(folder: Path, plan: dict[str, Any], fit: Callable[[], dict[str, Any]]) -> dict[str, Any]:
    """What `fit` chose for a plan: asked for once, and read back when an interrupted run goes on.

    A folder that was begun with another plan is refused: its windows belong to another raster.
    """
    path = folder / PLAN
    plan = json.loads(json.dumps(plan))
    if not path.exists():
        fitted: dict[str, Any] = json.loads(json.dumps(fit()))
        seal = _plan_sha256(plan, fitted)
        write_bytes(path, json.dumps({"plan": plan, "fitted": fitted, "sha256": seal}, indent=1).encode())
        return fitted
    try:
        old = json.loads(path.read_bytes())
        known, fitted = dict(old["plan"]), dict(old["fitted"])
        intact = old["sha256"] == _plan_sha256(known, fitted)
    except (OSError, ValueError, KeyError, TypeError):
        intact = False
    if not intact:
        raise DataError(f"{path} cannot be read or is damaged; remove {folder} to begin again")
    different = [key for key in plan if known.get(key) != plan[key]]
    if different:
        now = f"{different[0]} was {known.get(different[0])} and is {plan[different[0]]}"
        raise DataError(f"{folder} is an unfinished raster of other settings ({now}); remove it, or name another --out")
    return fitted


def _plan_sha256(plan: dict[str, Any], fitted: dict[str, Any]) -> str:
    """A scale that lost a bit would be believed: windows hold only whole numbers, which it turns into embeddings."""
    return hashlib.sha256(json.dumps([plan, fitted], sort_keys=True).encode()).hexdigest()


def fill(
    target: Target,
    journal: Journal,
    num_windows: int,
    compute: Callable[[list[int]], Iterator[tuple[int, StoredWindow]]],
    progress: Progress,
) -> None:
    """Write every window that is not yet on disk; `compute` yields those it is given, in any order."""
    journal.keep_intact(target)
    waiting = [number for number in range(num_windows) if number not in journal.entries]
    progress(num_windows - len(waiting), num_windows)
    for number, window in compute(waiting):
        with keeping_what_is_finished(journal.path.parent):
            target.put(number, window.numbers)
            journal.add(number, window)
        progress(len(journal.entries), num_windows)


def check_room(folder: Path, size: int, what: str) -> None:
    """Refuse work whose result does not fit on the disk, before it is begun."""
    free = shutil.disk_usage(folder).free
    if size > free:
        raise OutputError(
            f"{what} take {size / 1e9:,.1f} GB on the way and {free / 1e9:,.1f} GB are free in {folder}; choose a "
            f"coarser resolution, fewer --dims, a smaller --bbox or --dtype int8"
        )
