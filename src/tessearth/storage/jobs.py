"""Resumable jobs: a locked folder, a plan, and a journal of the chunks of work that are done.

A job's chunks are numbered from 0 and lie wherever its `chunks` puts them: in one file each, at fixed places of an
array (`ArrayFile`), in a format's own container. Making features, for example:

    with open_job(folder, busy=DataError("another process is making it")) as job:
        job.begin(plan)
        job.chunks = ArrayFile(folder / "features.npy", dtype, place_of_chunk)
        for number in job.missing(count):
            job.put(number, compute(number))
        finish(job.get(number) for number in range(count))
        job.remove()

A chunk is finished when its content and then its checksum in the journal are written. A job that resumes reads every
such chunk back and compares, so that a kill, a crash or a disk that loses data does no harm: a chunk that is not as it
was written is computed again. A folder that is itself the result takes `locked_folder` and `Job` without `open_job`,
which removes the folder of a job that ends before its first chunk.
"""

import contextlib
import json
import shutil
import threading
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError, TessearthError
from tessearth.storage.files import keeping_what_is_finished, locked_folder, remove_unfinished, write_bytes
from tessearth.storage.sealed import checksum, checksum_of_plain

PLAN, JOURNAL = "plan.json", "journal.jsonl"

Array = npt.NDArray[Any]
Content = Array | bytes


class Entry(NamedTuple):
    """A line of the journal."""

    sha256: str
    notes: dict[str, Any]
    """Small facts about the chunk that the finished work needs."""


class Job:
    """The plan, the journal and the chunks of a folder that this process holds."""

    chunks: Any
    """`put(number, content)` writes a chunk so that it survives the end of the process, from any thread; `get(number)`
    reads it, None when it cannot. `get` alone will do where chunks are written by other means and only noted here."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.entries = _read_journal(folder / JOURNAL)
        self._journal = threading.Lock()

    def begin(self, plan: Mapping[str, Any], choose: Callable[[], dict[str, Any]] = dict) -> dict[str, Any]:
        """Write the plan, or compare it with that of an interrupted run, which is refused when it differs.

        `choose` makes further settings, such as a scale fitted to a sample: called once, read back when a job resumes.
        """
        path = self.folder / PLAN
        plan = json.loads(json.dumps(dict(plan)))
        if not path.exists():
            chosen: dict[str, Any] = json.loads(json.dumps(choose()))
            whole = {"plan": plan, "fitted": chosen, "sha256": checksum_of_plain([plan, chosen])}
            write_bytes(path, json.dumps(whole, indent=1).encode())
            return chosen
        try:
            old = json.loads(path.read_bytes())
            known, chosen = dict(old["plan"]), dict(old["fitted"])
            intact = old["sha256"] == checksum_of_plain([known, chosen])
        except (OSError, ValueError, KeyError, TypeError):
            intact = False
        if not intact:
            raise DataError(f"{path} cannot be read or is damaged; remove {self.folder} to begin again")
        for key, value in plan.items():
            if known.get(key) != value:
                raise DataError(
                    f"{self.folder} holds unfinished work of other settings ({key} was {known.get(key)} and is "
                    f"{value}); remove it, or choose another output"
                )
        return chosen

    def missing(self, count: int) -> list[int]:
        """The chunks below `count` that are not on disk as they were written."""
        for number in list(self.entries):
            if self.intact(number) is None:
                del self.entries[number]
        return [number for number in range(count) if number not in self.entries]

    def put(self, number: int, content: Content, *, about: bytes | None = None, **notes: Any) -> None:
        """Write a chunk and note its checksum; `about` is what the chunk was made from."""
        with keeping_what_is_finished(self.folder):
            self.chunks.put(number, content)
        self.note(number, content, about=about, **notes)

    def note(self, number: int, content: Content, *, about: bytes | None = None, **notes: Any) -> None:
        """Note the checksum of a chunk that is written already."""
        entry = Entry(checksum(content, about=about), notes)
        noted = {"chunk": number, "sha256": entry.sha256, **notes}
        line = json.dumps([noted, checksum_of_plain(noted)])
        with self._journal, keeping_what_is_finished(self.folder), open(self.folder / JOURNAL, "ab") as file:
            file.write(f"\n{line}\n".encode())  # the first newline ends a line that a kill may have cut short
        self.entries[number] = entry

    def intact(self, number: int, *, about: bytes | None = None) -> Any | None:
        """A chunk that is as it was written and about the same thing, else None."""
        entry = self.entries.get(number)
        content = None if entry is None else self.chunks.get(number)
        if entry is None or content is None or checksum(content, about=about) != entry.sha256:
            return None
        return content

    def get(self, number: int, *, about: bytes | None = None) -> Any:
        """A chunk as it was written; a damaged one is part of no output."""
        content = self.intact(number, about=about)
        if content is None:
            raise DataError(f"chunk {number} in {self.folder} is damaged; run it again, and it is computed anew")
        return content

    def remove(self) -> None:
        """Remove the folder."""
        shutil.rmtree(self.folder, ignore_errors=True)


@contextlib.contextmanager
def open_job(folder: Path, *, busy: TessearthError) -> Iterator[Job]:
    """Hold a folder for one job, whose work is kept when the block fails; without any chunk, the folder is removed."""
    with locked_folder(folder, busy=busy, keep_lock=False):
        remove_unfinished(folder)
        job = Job(folder)
        try:
            yield job
        except KeyboardInterrupt:
            if not job.entries:
                raise
            kept = f"{len(job.entries):,} finished chunks are kept in {folder}"
            raise KeyboardInterrupt(f"{kept}; run the same command again to resume") from None
        finally:
            if not (folder / JOURNAL).exists():
                job.remove()


def _read_journal(path: Path) -> dict[int, Entry]:
    """The lines that are as they were written; the last one of a chunk counts. Version 0.1 sealed no lines."""
    entries = {}
    for line in path.read_bytes().split(b"\n") if path.exists() else []:
        try:
            read = json.loads(line)
            noted, seal = read if isinstance(read, list) else (read, checksum_of_plain(read))
            if seal == checksum_of_plain(noted):
                notes = {key: value for key, value in noted.items() if key not in ("chunk", "sha256")}
                entries[int(noted["chunk"])] = Entry(noted["sha256"], notes)
        except (ValueError, KeyError, TypeError, AttributeError):
            continue
    return entries


class Place(NamedTuple):
    """Where a chunk lies in a file."""

    offset: int
    """In bytes."""
    shape: tuple[int, ...]


class ArrayFile:
    """Chunks at fixed places of one file of numbers, in any order and from any thread."""

    def __init__(self, path: Path, dtype: npt.DTypeLike, place: Callable[[int], Place]) -> None:
        self.path, self.dtype, self.place = path, np.dtype(dtype), place

    def put(self, number: int, content: Array) -> None:
        """Write a chunk into its place."""
        with open(self.path, "r+b") as file:
            file.seek(self.place(number).offset)
            file.write(np.ascontiguousarray(content).data)

    def get(self, number: int) -> Array | None:
        """A chunk as it lies in the file."""
        offset, shape = self.place(number)
        try:
            numbers = np.fromfile(self.path, self.dtype, int(np.prod(shape)), offset=offset)
        except OSError:
            return None
        return numbers.reshape(shape) if numbers.size == np.prod(shape) else None
