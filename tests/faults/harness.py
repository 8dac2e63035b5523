"""Faults made on purpose: processes that die at a chosen moment, disks that fill up, files that lose a bit."""

import contextlib
import os
import resource
import shutil
import signal
import subprocess
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np

SECONDS = 120.0
"""No child is waited for longer."""
FULL = "no space left on device|file too large"
RAISED = 70
"""The status of a child whose work raised something."""


def in_child(work: Callable[[], object]) -> int:
    """Do some work in a forked process: 0, RAISED, or minus the signal that ended it."""
    child = os.fork()
    if child == 0:
        status = 0
        try:
            work()
        except BaseException:
            traceback.print_exc()
            status = RAISED
        os._exit(status)
    return _end_of(child)


def _end_of(child: int) -> int:
    deadline = time.monotonic() + SECONDS
    while time.monotonic() < deadline:
        found, status = os.waitpid(child, os.WNOHANG)
        if found:
            return os.waitstatus_to_exitcode(status)
        time.sleep(0.005)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    raise TimeoutError(f"a child was still at work after {SECONDS:.0f} s")


Tick = Callable[[], None]
"""Called by some work whenever it has come a step further."""


def kill_at(moment: int, work: Callable[[Tick], object]) -> int:
    """Do some work in a process that is killed (SIGKILL) at its so-many-th moment.

    A moment is a step of the work, or its making a file safe (fsync), or its giving one its name.
    """
    calls = iter(range(moment))

    def tick() -> None:
        if next(calls, None) is None:
            os.kill(os.getpid(), signal.SIGKILL)

    def deadly(real: Callable[..., None]) -> Callable[..., None]:
        def call(*arguments: Any) -> None:
            tick()
            real(*arguments)

        return call

    def dying() -> None:
        os.fsync, os.replace = deadly(os.fsync), deadly(os.replace)  # type: ignore[assignment]
        work(tick)

    return in_child(dying)


def flipped(content: bytes, bits: int, seed: int = 0) -> Iterator[bytes]:
    """Copies of a content with one bit turned: half of them among its first kilobyte, where headers are."""
    rng = np.random.default_rng(seed)
    total = len(content) * 8
    head = rng.integers(0, min(total, 8192), bits // 2)
    for bit in {*head.tolist(), *rng.integers(0, total, bits - bits // 2).tolist()}:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        yield bytes(changed)


def shortened(content: bytes) -> Iterator[bytes]:
    """A content cut short: all of it, almost all, half, and by its last byte."""
    for length in sorted({0, 1, 9, len(content) // 2, len(content) - 1}):
        yield content[:length]


class SmallDisk:
    """A file system of its own with little room; where none can be mounted, a limit on the size of every file."""

    def __init__(self, path: Path, kilobytes: int) -> None:
        self.path, self.kilobytes = path, kilobytes

    def grow(self) -> None:
        """Make room."""
        if self.mounted:
            _mount("-o", "remount,size=256m", str(self.path))
        else:
            resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)

    def __enter__(self) -> "SmallDisk":
        self.path.mkdir()
        self._limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        self.mounted = _mount("-t", "tmpfs", "-o", f"size={self.kilobytes}k", "tmpfs", str(self.path))
        if not self.mounted:
            signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
            resource.setrlimit(resource.RLIMIT_FSIZE, (self.kilobytes * 1024, self._limit[1]))
        return self

    def __exit__(self, *_: object) -> None:
        resource.setrlimit(resource.RLIMIT_FSIZE, self._limit)
        if self.mounted:
            subprocess.run(["umount", "-l", str(self.path)], check=True)


def _mount(*arguments: str) -> bool:
    if shutil.which("mount") is None:
        return False
    return subprocess.run(["mount", *arguments], capture_output=True, check=False).returncode == 0


@contextlib.contextmanager
def jumping_clock() -> Iterator[None]:
    """The wall clock leaps by years between any two looks at it, back and forth."""
    rng, real = np.random.default_rng(0), time.time
    time.time = lambda: real() + float(rng.normal()) * 1e8
    try:
        yield
    finally:
        time.time = real


def contents(path: Path) -> dict[str, bytes]:
    """Every file below a path, by name."""
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


def leftovers(folder: Path) -> list[str]:
    """What unfinished writing has left in a folder."""
    return sorted(str(path.relative_to(folder)) for path in folder.rglob(".*.part"))
