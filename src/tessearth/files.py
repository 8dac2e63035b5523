"""Writing files so that a reader sees the old content or the new, never a part; and where prepared data is cached."""

import contextlib
import fcntl
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tessearth.errors import OutputError, TessearthError


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when the block ends well.

    The bytes go to a temporary file in the same folder, reach the disk (fsync) and are renamed into place; on any
    failure the temporary file is removed and what stood there before stays. A pipe or device, which cannot be
    replaced, is written directly. Operating system errors become an OutputError that names the path.
    """
    target = Path(path)
    with _named_errors(target):
        if _is_stream(target):
            with open(target, "wb") as stream:
                yield stream
            return
        with _temporary_beside(target) as (temporary, file):
            yield file
            file.flush()
            os.fsync(file.fileno())
            file.close()
            os.replace(temporary, target)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file's content in one step."""
    with atomic_write(path) as file:
        file.write(content)


@contextlib.contextmanager
def locked_folder(path: Path, *, busy: TessearthError) -> Iterator[None]:
    """Make a folder and hold it for one process; the lock goes with the process, however it ends.

    When another process holds it, `busy` is raised.
    """
    try:
        path.mkdir(parents=True, exist_ok=True)
        lock = open(path / ".lock", "a")  # noqa: SIM115
    except OSError as error:
        raise OutputError(f"cannot make {path}: {(error.strerror or str(error)).lower()}") from error
    with lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            raise busy from None
        yield


def remove_unfinished(*folders: Path) -> None:
    """Remove what processes that were killed in the middle of `atomic_write` left in folders that are ours alone."""
    for folder in folders:
        for left in folder.glob(".*.part"):
            if left.is_file():
                left.unlink(missing_ok=True)


def cache_folder(*parts: str) -> Path:
    """The folder prepared data is kept in: $TESSEARTH_CACHE, else the user's cache folder; created when missing."""
    chosen = os.environ.get("TESSEARTH_CACHE")
    root = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessearth"
    folder = root.joinpath(*parts)
    with _named_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[tuple[str, IO[bytes]]]:
    descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
    try:
        with os.fdopen(descriptor, "wb") as file:
            os.chmod(temporary, _usual_mode())
            yield temporary, file
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {path}: {reason}; nothing was left half-written") from error


def _is_stream(path: Path) -> bool:
    try:
        mode = path.stat().st_mode
    except OSError:
        return False
    return stat.S_ISCHR(mode) or stat.S_ISFIFO(mode) or stat.S_ISSOCK(mode)


def _usual_mode() -> int:
    """The permissions an ordinary open() would give; mkstemp's own are for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
