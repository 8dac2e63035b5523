"""The embeddings of a table that is being encoded, kept part by part beside the output until all are there.

OUTPUT.parts/job.json        what is being encoded, by which model: parts of one job are never used for another
OUTPUT.parts/000000.npy ...  the embeddings of consecutive rows, each file complete or absent

Behind each array stands the checksum of it and of the places it was made from. A part that is there, whole and of the
places at hand, is done, so whatever ends a run, the next one goes on behind it; no clock and no file's date has a say
in it. The folder goes when the output is in its place.
"""

import contextlib
import io
import json
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.sphere.coordinates import Floats
from tessearth.storage.files import locked_folder, remove_unfinished, write_bytes
from tessearth.storage.sealed import read_sealed, write_sealed

Embeddings = npt.NDArray[np.floating]


class Part(NamedTuple):
    """The embeddings of consecutive rows."""

    latlon: Floats
    """Checked degrees, (N, 2)."""
    embeddings: Embeddings
    """(N, D)."""


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
                f"delete the folder, or choose another --out"
            )

    def path(self, index: int) -> Path:
        """Where a part lies."""
        return self.folder / f"{index:06d}.npy"

    def has(self, index: int, latlon: Floats) -> bool:
        """Whether a part is there, whole and of these places."""
        try:
            read_sealed(self.path(index), about=_about(latlon))
        except DataError:
            return False
        return True

    def read(self, index: int, latlon: Floats) -> Embeddings:
        """The embeddings of these places, (N, D)."""
        try:
            content = read_sealed(self.path(index), about=_about(latlon))
        except DataError as error:
            raise OutputError(f"{error}, or the table changed meanwhile; run it again, and it is made anew") from None
        embeddings: Embeddings = np.load(io.BytesIO(content), allow_pickle=False)
        return embeddings

    def remove(self) -> None:
        """Leave nothing behind."""
        shutil.rmtree(self.folder, ignore_errors=True)


def write_part(path: Path, part: Part) -> None:
    """Write a part, which is there as a whole or not at all."""
    content = io.BytesIO()
    np.save(content, part.embeddings)
    write_sealed(path, content.getvalue(), about=_about(part.latlon))


def _about(latlon: Floats) -> bytes:
    return np.ascontiguousarray(latlon, dtype="<f8").tobytes()


@contextlib.contextmanager
def open_parts(output: str) -> Iterator[Parts]:
    """The parts of an output, held by this process; a folder in which no part came to be is not left behind."""
    target = Path(output)
    if not target.absolute().parent.is_dir():
        raise OutputError(f"cannot write {output}: no such file or directory; no partial file was left")
    parts = Parts(target.with_name(f"{target.name}.parts"))
    with locked_folder(parts.folder, busy=OutputError(f"another process is encoding into {output}: wait for it")):
        try:
            yield parts
        finally:
            if parts.folder.is_dir() and not any(parts.folder.glob("*.npy")):
                parts.remove()
