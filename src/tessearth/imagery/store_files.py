"""The features of a store on their way to disk: room reserved first, chunks in place, a journal of what is safe."""

import json
import os
import threading
import time
from collections import deque
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError, OutputError
from tessearth.imagery.store import FEATURES, JOURNAL, chunk_sha256, feature_shape, open_array
from tessearth.storage.files import keeping_what_is_finished, reserve

COMMIT_SECONDS = 2.0
"""How much work, at most, a kill can cost besides the chunk at hand."""


def allocate_array(path: Path, shape: tuple[int, int, int], dtype: str) -> None:
    """An empty array on disk whose room is reserved now, so that a full disk is found before the work is done."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    try:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            reserve(file, file.tell() + size)
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputError(f"cannot reserve room for {path}: {(error.strerror or str(error)).lower()}") from error


def restore_array(path: Path, shape: tuple[int, int, int], dtype: str) -> None:
    """Make an array that was damaged beyond reading, or is gone, anew; one that can be read stays as it is."""
    try:
        open_array(path, shape, dtype)
    except DataError:
        allocate_array(path, shape, dtype)


def keep_intact(path: Path, manifest: dict[str, Any], done: dict[int, str]) -> dict[int, str]:
    """Of the chunks the journal speaks of, those that lie on disk as they were written."""
    features = open_array(path / FEATURES, feature_shape(manifest), manifest["dtype"])
    size = manifest["chunk_places"]
    return {
        number: checksum
        for number, checksum in done.items()
        if chunk_sha256(features[number * size : (number + 1) * size]) == checksum
    }


class ChunkFile:
    """The features on disk, and the journal of what of them is safely there."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        self._uncommitted: list[tuple[int, str]] = []
        self._bookkeeping = threading.Lock()
        self._committed_at = time.monotonic()

    def __enter__(self) -> "ChunkFile":
        self._file = open(self.path / FEATURES, "r+b")
        np.lib.format.read_magic(self._file)
        np.lib.format.read_array_header_1_0(self._file)
        self._start = self._file.tell()
        return self

    def __exit__(self, *_: object) -> None:
        """Whatever ends the run, what was computed is kept if the disk lets it."""
        try:
            self._commit()
        finally:
            self._file.close()

    def write(self, number: int, features: npt.NDArray[Any]) -> str:
        """Put a chunk in its place, from any thread; the checksum it is known by."""
        _, views, width = feature_shape(self.manifest)
        offset = number * self.manifest["chunk_places"] * views * width * features.dtype.itemsize
        content = np.ascontiguousarray(features).data.cast("B")
        checksum = chunk_sha256(features)
        with keeping_what_is_finished(self.path):
            while content:
                written = os.pwrite(self._file.fileno(), content, self._start + offset)
                content, offset = content[written:], offset + written
        with self._bookkeeping:
            self._uncommitted.append((number, checksum))
            if time.monotonic() - self._committed_at > COMMIT_SECONDS:
                self._commit()
        return checksum

    def _commit(self) -> None:
        """First the bytes reach the disk, then the word that they are there."""
        if self._uncommitted:
            with keeping_what_is_finished(self.path), open(self.path / JOURNAL, "ab") as journal:
                os.fsync(self._file.fileno())
                for number, checksum in self._uncommitted:
                    journal.write(json.dumps({"chunk": number, "sha256": checksum}).encode() + b"\n")
                journal.flush()
                os.fsync(journal.fileno())
            self._uncommitted.clear()
        self._committed_at = time.monotonic()


class ChunkWriter:
    """Writes chunks in threads of their own, so that a GPU need not wait for checksums and the disk."""

    AHEAD = 8
    THREADS = 3

    def __init__(self, file: ChunkFile) -> None:
        self._file = file
        self._pending: deque[tuple[int, Future[str]]] = deque()

    def __enter__(self) -> "ChunkWriter":
        self._pool = ThreadPoolExecutor(max_workers=self.THREADS)
        return self

    def __exit__(self, *_: object) -> None:
        """Chunks already handed over are written whatever ends the run."""
        self._pool.shutdown(wait=True)

    def put(self, number: int, features: npt.NDArray[Any]) -> list[tuple[int, str]]:
        """Hand over a chunk; the checksums of earlier ones that are written by now, an error if one could not be."""
        self._pending.append((number, self._pool.submit(self._file.write, number, features)))
        return self._collect(self.AHEAD)

    def drain(self) -> list[tuple[int, str]]:
        """Wait for all that was handed over."""
        return self._collect(0)

    def _collect(self, leave: int) -> list[tuple[int, str]]:
        ready = []
        while len(self._pending) > leave:
            number, future = self._pending.popleft()
            ready.append((number, future.result()))
        return ready


def read_journal(path: Path, chunks: int) -> dict[int, str]:
    """The chunks that are done; a last line cut short by a kill does not count."""
    done: dict[int, str] = {}
    try:
        lines = (path / JOURNAL).read_bytes().split(b"\n")
    except FileNotFoundError:
        return done
    for line in lines:
        try:
            entry = json.loads(line)
            if 0 <= entry["chunk"] < chunks:
                done[entry["chunk"]] = entry["sha256"]
        except (ValueError, KeyError, TypeError):
            continue
    return done
