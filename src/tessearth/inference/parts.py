"""The embeddings of a table that is being encoded, kept part by part beside the output until all are there.

OUTPUT.parts/job.json        what is being encoded, by which model: parts of one job are never used for another
OUTPUT.parts/000000.npy ...  the embeddings of consecutive rows, each file complete or absent

A part that is there is done, so whatever ends a run, the next one goes on behind it. The folder goes when the output is
in its place.
"""

import contextlib
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, OutputError
from tessearth.files import atomic_write, locked_folder, remove_unfinished, write_bytes

Embeddings = npt.NDArray[np.floating]


class Parts:
    """The parts of one output."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder

    def begin(self, job: Mapping[str, object]) -> None:
        """Say what is encoded here; parts that belong to something else are refused, not overwritten."""
        remove_unfinished(self.folder)
        journal = self.folder / "job.json"
        described = json.loads(json.dumps(dict(job)))
        if not journal.is_file():
            write_bytes(journal, json.dumps(described, indent=2).encode())
            return
        try:
            before = dict(json.loads(journal.read_text("utf-8")))
        except (ValueError, TypeError):
            raise ConfigError(f"{journal} cannot be read: delete {self.folder} to begin anew") from None
        other = [key for key, value in described.items() if before.get(key) != value]
        if other:
            raise ConfigError(
                f"{self.folder} holds an unfinished run of another job (other {', '.join(other)}): finish that one, "
                f"delete the folder, or choose another --output"
            )

    def path(self, index: int) -> Path:
        """Where a part lies."""
        return self.folder / f"{index:06d}.npy"

    def has(self, index: int, rows: int) -> bool:
        """Whether a part is there, whole and of so many rows."""
        try:
            return len(np.load(self.path(index), mmap_mode="r")) == rows
        except (OSError, ValueError, EOFError):
            return False

    def read(self, index: int) -> Embeddings:
        """The embeddings of a part, (rows, D)."""
        embeddings: Embeddings = np.load(self.path(index))
        return embeddings

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_part(path: Path, embeddings: Embeddings) -> None:
    """Write a part, which is there as a whole or not at all."""
    with atomic_write(path) as file:
        np.save(file, embeddings)


@contextlib.contextmanager
def open_parts(output: str) -> Iterator[Parts]:
    """The parts of an output, held by this process; a folder in which no part came to be is not left behind."""
    target = Path(output)
    if not target.absolute().parent.is_dir():
        raise OutputError(f"cannot write {output}: no such file or directory; nothing was left half-written")
    parts = Parts(target.with_name(f"{target.name}.parts"))
    with locked_folder(parts.folder, busy=OutputError(f"another process is encoding into {output}: wait for it")):
        try:
            yield parts
        finally:
            if parts.folder.is_dir() and not any(parts.folder.glob("*.npy")):
                parts.remove()
