"""Embeddings kept on disk by content: the model's fingerprint and the places.

A file is written in one step and carries a checksum; a damaged file is computed again. The folder keeps to a bound: the
files not used for longest go first.
"""

import contextlib
import hashlib
import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import OutputError, WeightsError
from tessearth.storage import cache_folder, cache_path, read_sealed_tensors, seal_tensors, write_bytes

VERSION = 2
LIMIT_BYTES = 2 * 10**9
NAME = "embeddings"

Array = npt.NDArray[Any]


class EmbeddingCache:
    """A folder of embeddings."""

    def __init__(self, folder: Path | None = None, limit_bytes: int = LIMIT_BYTES) -> None:
        self.folder = cache_path(NAME) if folder is None else folder
        if folder is None:
            with contextlib.suppress(OutputError):  # then nothing is kept
                self.folder = cache_folder(NAME)
        self.limit_bytes = limit_bytes

    def path(self, fingerprint: str, places: str) -> Path:
        """The file of a model's fingerprint and the places' key."""
        digest = hashlib.sha256(f"{VERSION} {fingerprint} {places}".encode()).hexdigest()
        return self.folder / f"{digest[:40]}.safetensors"

    def read(self, fingerprint: str, places: str, shape: tuple[int, int]) -> Array | None:
        """Embeddings of the shape (N, D), or None when the file is missing or damaged."""
        path = self.path(fingerprint, places)
        try:
            header, tensors = read_sealed_tensors(path)
        except WeightsError:
            return None
        found = tensors.get(NAME)
        if found is None or header.get("places") != places or found.shape != shape:
            return None
        with contextlib.suppress(OSError):
            os.utime(path)  # used just now: among the last to go
        return found.numpy()

    def write(self, fingerprint: str, places: str, embeddings: Array) -> None:
        """Keep embeddings (N, D) if the disk lets us: a cache that cannot be written is no reason to stop."""
        if embeddings.nbytes > self.limit_bytes:
            return
        with contextlib.suppress(OutputError):
            tensors = {NAME: torch.from_numpy(np.ascontiguousarray(embeddings))}
            content = seal_tensors(tensors, {"fingerprint": fingerprint, "places": places})
            write_bytes(self.path(fingerprint, places), content)
        self.trim()

    def trim(self) -> None:
        """Remove the files not used for longest until the rest keep to the bound; others may be trimming too."""
        files = []
        for path in self.folder.glob("*.safetensors"):
            with contextlib.suppress(OSError):
                state = path.stat()
                files.append((state.st_mtime_ns, state.st_size, path))
        kept = 0
        for _, size, path in sorted(files, reverse=True):
            kept += size
            if kept > self.limit_bytes:
                with contextlib.suppress(OSError):
                    path.unlink()


def places_key(latlon: npt.NDArray[np.float64]) -> str:
    """The SHA-256 of places (N, 2) as they are in memory: the same rows in the same order, nothing else."""
    return hashlib.sha256(np.ascontiguousarray(latlon, dtype="<f8").data).hexdigest()
