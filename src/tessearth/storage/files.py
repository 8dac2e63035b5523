"""Writing files so that a reader sees the old content or the new, never a part; and where prepared data is cached."""

import contextlib
import fcntl
import glob
import hashlib
import os
import stat
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import IO

from tessearth.errors import DataError, OutputError, TessearthError

LOCK = ".lock"
ATTEMPTS_TO_LOCK = 100
"""More than enough for a folder that others keep removing; a file system that loses files is not waited for."""
SEAL_BYTES = 32


@contextlib.contextmanager
def atomic_write(path: str | os.PathLike[str]) -> Iterator[IO[bytes]]:
    """Open a file that appears under its name only when the block ends well.

    The bytes go to a temporary file in the same folder, reach the disk (fsync) and are renamed into place; on any
    failure the temporary file is removed and what stood there before stays. What a killed process left of an earlier
    attempt goes with the next one. A pipe or device, which cannot be replaced, is written directly. Operating system
    errors become an OutputError that names the path.
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
            os.replace(temporary, target)


def write_bytes(path: str | os.PathLike[str], content: bytes) -> None:
    """Replace a file's content in one step."""
    with atomic_write(path) as file:
        file.write(content)


def write_sealed(path: str | os.PathLike[str], content: bytes, *, about: bytes = b"") -> None:
    """Replace a file's content in one step, with the SHA-256 of what it is about and of the content behind it."""
    with atomic_write(path) as file:
        file.write(content)
        file.write(_seal(content, about))


def read_sealed(path: str | os.PathLike[str], *, about: bytes = b"") -> bytes:
    """What `write_sealed` wrote, when every bit of it is as it was and it is about the same thing."""
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise DataError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    content, seal = content[:-SEAL_BYTES], content[-SEAL_BYTES:]
    if seal != _seal(content, about):
        raise DataError(f"{path} is damaged, or belongs to something else: it does not match its checksum")
    return content


def _seal(content: bytes, about: bytes) -> bytes:
    return hashlib.sha256(hashlib.sha256(about).digest() + content).digest()


@contextlib.contextmanager
def locked_folder(path: Path, *, busy: TessearthError) -> Iterator[None]:
    """Make a folder and hold it for one process; the lock goes with the process, however it ends.

    When another process holds it, `busy` is raised.
    """
    with _take_lock(path, busy):
        yield


def _take_lock(path: Path, busy: TessearthError) -> IO[bytes]:
    """The folder's lock, held; one that was taken just as its last holder removed it binds nobody and is let go."""
    for _ in range(ATTEMPTS_TO_LOCK):
        try:
            path.mkdir(parents=True, exist_ok=True)
            lock = open(path / LOCK, "ab")  # noqa: SIM115
        except FileNotFoundError:  # the folder went between the two lines
            continue
        except OSError as error:
            raise OutputError(f"cannot make {path}: {(error.strerror or str(error)).lower()}") from error
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            lock.close()
            raise busy from None
        if _is_at(lock, path / LOCK):
            return lock
        lock.close()
    raise busy


def _is_at(file: IO[bytes], path: Path) -> bool:
    """Whether an open file is the one that lies at a path now."""
    try:
        return os.path.samestat(os.fstat(file.fileno()), path.stat())
    except FileNotFoundError:
        return False


def remove_unfinished(*folders: Path) -> None:
    """Remove what processes that were killed in the middle of `atomic_write` left in folders that are ours alone."""
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
    with _named_errors(folder):
        folder.mkdir(parents=True, exist_ok=True)
    return folder


@contextlib.contextmanager
def _temporary_beside(target: Path) -> Iterator[tuple[str, IO[bytes]]]:
    _remove_abandoned(target)
    temporary, file = _open_temporary(target)
    try:
        with file:
            os.chmod(temporary, _usual_mode())
            yield temporary, file
    except BaseException:
        with contextlib.suppress(OSError):
            os.unlink(temporary)
        raise


def _open_temporary(target: Path) -> tuple[str, IO[bytes]]:
    """A new file beside the target, locked: that is how others see that somebody is still writing it."""
    while True:
        descriptor, temporary = tempfile.mkstemp(prefix=f".{target.name}.", suffix=".part", dir=target.parent)
        file = os.fdopen(descriptor, "wb")
        with contextlib.suppress(OSError):  # a file system without locks: then nobody tidies up either
            fcntl.flock(file, fcntl.LOCK_EX)
        if os.fstat(descriptor).st_nlink:  # nobody took it for abandoned in the moment before it was locked
            return temporary, file
        file.close()


def _remove_abandoned(target: Path) -> None:
    """Remove what killed processes left of earlier attempts at a file: what nobody holds locked."""
    for left in target.parent.glob(f".{glob.escape(target.name)}.*.part"):
        with contextlib.suppress(OSError), open(left, "rb") as file:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            if _is_at(file, left):
                left.unlink()


@contextlib.contextmanager
def disk_errors_named(what: str, then: str) -> Iterator[None]:
    """Whatever the disk refuses becomes one line: what could not be written, why, and how things stand `then`."""
    try:
        yield
    except OutputError:
        raise
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(f"cannot write {what}: {reason}; {then}") from error


def keeping_what_is_finished(folder: Path) -> contextlib.AbstractContextManager[None]:
    """The same for long work in a folder, which the same command goes on with."""
    return disk_errors_named(f"to {folder}", "what was finished is kept, run it again to go on")


def _named_errors(path: Path) -> contextlib.AbstractContextManager[None]:
    return disk_errors_named(str(path), "nothing was left half-written")


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
