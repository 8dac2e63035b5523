"""Writing files so that a reader sees the old content or the new, never a part; locks; the cache folder."""

import contextlib
import glob
import os
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tessearth.errors import OutputError, TessearthError

LOCK = ".lock"
OPEN_FILES_STAY = os.name == "nt"
"""Windows neither removes nor renames a file that is open."""
ATTEMPTS_TO_LOCK = 100
"""More than enough for a folder that other processes keep removing."""


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when the block ends without an error.

    The bytes go to a temporary file in the same folder, reach the disk (fsync) and are renamed into place; on any
    failure the temporary file is removed and the old content stays. The next attempt removes the temporary file of a
    process that was killed. A pipe or device is written directly. Errors of the operating system become an OutputError
    that names the path.
    """
    target = Path(path)
    with errors_of_writing(target):
        if target.is_char_device() or target.is_fifo() or target.is_socket():
            with open(target, "wb") as stream:
                yield stream
            return
        _remove_abandoned(target)
        temporary, file = _open_temporary(target)
        try:
            with file:
                os.chmod(temporary, _usual_mode())
                yield file
                file.flush()
                os.fsync(file.fileno())
                if OPEN_FILES_STAY:
                    file.close()
                os.replace(temporary, target)
        except BaseException:
            with contextlib.suppress(OSError):
                os.unlink(temporary)
            raise


def check_free(path: str | os.PathLike[str], *, overwrite: bool) -> None:
    """Refuse to replace a file that is there already, unless asked to; pipes and devices are written to."""
    if not overwrite and Path(path).is_file():
        raise OutputError(f"{path} exists already: add --overwrite to replace it (Python: overwrite=True)")


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file's content in one step."""
    with atomic_write(path) as file:
        file.write(content)


@contextlib.contextmanager
def locked_folder(path: Path, *, busy: TessearthError, keep_lock: bool = True) -> Iterator[None]:
    """Make a folder and hold it for one process; the lock goes with the process, however it ends.

    When another process holds it, `busy` is raised. Without `keep_lock` the lock file is removed at the end, and the
    folder with it when nothing else is in it.
    """
    with _take_lock(path, busy):
        try:
            yield
        finally:
            if not keep_lock and not OPEN_FILES_STAY:
                _remove_lock(path)
    if not keep_lock and OPEN_FILES_STAY:
        _remove_lock(path)


def _take_lock(path: Path, busy: TessearthError) -> IO[bytes]:
    """Hold the folder's lock; one whose file its last holder removed in the meantime binds no process: try again."""
    for _ in range(ATTEMPTS_TO_LOCK):
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = open(path / LOCK, "ab")  # noqa: SIM115
        except FileNotFoundError:  # the folder went between the two lines
            continue
        except OSError as error:
            raise OutputError(f"cannot make {path}: {(error.strerror or str(error)).lower()}") from error
        if _lock(lock) is False:
            lock.close()
            raise busy
        if _is_at(lock, path / LOCK):
            return lock
        lock.close()
    raise busy


def _lock(file: IO[bytes]) -> bool | None:
    """Lock an open file until it is closed: False when another process holds it, None where the disk has no locks."""
    from filelock import lock_descriptor  # 60 ms, which programs that lock nothing do not spend

    with contextlib.suppress(OSError):
        return lock_descriptor(file.fileno(), blocking=False)
    return None


def _remove_lock(path: Path) -> None:
    with contextlib.suppress(OSError):
        (path / LOCK).unlink()
        path.rmdir()


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one that lies at a path now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def reserve(file: IO[bytes], size: int) -> None:
    """Give an open file its full size, where the system can so that a full disk is found before the work is done."""
    if hasattr(os, "posix_fallocate"):
        os.posix_fallocate(file.fileno(), 0, size)
    else:
        file.truncate(size)


def remove_unfinished(*folders: Path) -> None:
    """Remove what processes killed inside `atomic_write` left in folders that this process holds."""
    for folder in folders:
        for left in folder.glob(".*.part"):
            if left.is_file():
                left.unlink(missing_ok=True)


def cache_path(*parts: str) -> Path:
    """Where prepared data is kept: $TESSEARTH_CACHE, else the user's cache folder."""
    chosen = os.environ.get("TESSEARTH_CACHE")
    root = Path(chosen) if chosen else Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "tessearth"
    return root.joinpath(*parts)


def cache_folder(*parts: str) -> Path:
    """The folder at `cache_path`, created when missing."""
    folder = cache_path(*parts)
    with errors_of_writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


def _open_temporary(target: Path) -> tuple[str, IO[bytes]]:
    """A new file in the target's folder, locked: that is how other processes see that it is still being written."""
    while True:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        file = os.fdopen(descriptor, "wb")
        if _lock(file) is not False and os.fstat(descriptor).st_nlink:  # not removed as abandoned before it was locked
            return temporary, file
        file.close()


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes left of earlier attempts at a file: what no process holds locked."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError):
            with open(left, "rb") as file:
                if not (_lock(file) and _is_at(file, left)):
                    continue
                if not OPEN_FILES_STAY:
                    left.unlink()
            if OPEN_FILES_STAY:
                left.unlink()


@contextlib.contextmanager
def disk_errors_named(what: str, then: str) -> Iterator[None]:
    """Turn errors of the disk into one line: what could not be written, why, and how things stand `then`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {what}: {reason}; {then}") from error


def keeping_what_is_finished(folder: Path) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the disk into one line for long work in a folder, which the same command resumes."""
    return disk_errors_named(f"to {folder}", "finished work is kept; run the same command again to resume")


def errors_of_writing(path: Path) -> contextlib.AbstractContextManager[None]:
    """Turn errors of the disk into one line for a single file."""
    return disk_errors_named(str(path), "no partial file was left")


def _usual_mode() -> int:
    """The permissions an ordinary open() would give; mkstemp's own are for the owner alone."""
    mask = os.umask(0)
    os.umask(mask)
    return 0o666 & ~mask
