"""Arrays prepared once and kept in the cache with their provenance and a checksum.

A prepared file is a safetensors file. Its name carries the version of this format and a hash of everything it was made
from, so a new package makes a new file; what is damaged is made again. Several programs may prepare the same file at
once: each writes its own and the last rename wins, with the same content. Where the cache cannot be written, things are
made each time and kept in memory.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from tessearth.errors import DataError, OutputError
from tessearth.labels.sources import check_source, describe_source, source_hashes
from tessearth.storage.files import cache_folder, cache_path, write_bytes

VERSION = 1
"""Raised whenever any builder makes something else from the same files."""

NOTES = "tessearth"
"""The one entry of the file's metadata: what is known about the arrays, and the checksum."""

Arrays = Mapping[str, npt.NDArray[Any]]


class Prepared(NamedTuple):
    """What a prepared file holds."""

    arrays: dict[str, npt.NDArray[Any]]
    """Read-only arrays by name."""
    about: dict[str, Any]
    """What the builder noted, and under "sources" where it all came from."""


def prepared_path(name: str, sources: Sequence[str], settings: Mapping[str, Any] | None = None) -> Path:
    """The file a table is kept in: its name, and a hash of version, settings and source files."""
    key = {
        "version": VERSION,
        "settings": dict(settings or {}),
        "files": {source: source_hashes(source) for source in sources},
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    with contextlib.suppress(OutputError):  # one that cannot be made is said where something has to be written
        cache_folder("labels")
    return cache_path("labels") / f"{name}-v{VERSION}-{digest[:16]}.safetensors"


def load_prepared(
    name: str,
    sources: Sequence[str],
    build: Callable[[], tuple[Arrays, Mapping[str, Any]]],
    settings: Mapping[str, Any] | None = None,
) -> Prepared:
    """The prepared arrays of a name: read when they are whole, else built from their sources and kept."""
    path = prepared_path(name, sources, settings)
    try:
        return read_prepared(path)
    except DataError:
        pass  # missing or damaged: it is a cache, so it is made again
    for source in sources:
        check_source(source)
    arrays, about = build()
    described = {**about, "sources": [describe_source(source) for source in sources]}
    try:
        write_prepared(path, arrays, described)
    except OutputError:
        return _in_memory(arrays, described)
    return read_prepared(path)


def _in_memory(arrays: Arrays, about: Mapping[str, Any]) -> Prepared:
    """What would be read back, had it been written."""
    kept = {name: np.array(array) for name, array in arrays.items()}
    for array in kept.values():
        array.setflags(write=False)
    return Prepared(kept, json.loads(json.dumps(about)))


def write_prepared(path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write arrays, what is known about them, and the checksum of both."""
    contiguous = {name: np.ascontiguousarray(array) for name, array in arrays.items()}
    text = json.dumps(about, sort_keys=True)
    # One entry only: safetensors writes several in no fixed order, and the same content should be the same bytes.
    notes = json.dumps({"about": text, "sha256": _checksum(contiguous, text)})
    write_bytes(path, save(contiguous, metadata={NOTES: notes}))


def read_prepared(path: Path) -> Prepared:
    """Read a prepared file and check that every byte is what was written."""
    try:
        with safe_open(path, framework="np") as file:
            notes = json.loads((file.metadata() or {}).get(NOTES, "{}"))
            arrays = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 (not a mapping)
    except FileNotFoundError as error:
        raise DataError(f"there is no prepared table at {path}") from error
    except (SafetensorError, OSError, ValueError) as error:
        raise DataError(f"{path.name} is damaged ({error}); delete it, and it is made again") from error
    if notes.get("sha256") != _checksum(arrays, notes.get("about", "")):
        raise DataError(f"{path.name} is damaged (its checksum does not match); delete it, and it is made again")
    for array in arrays.values():
        array.setflags(write=False)
    return Prepared(arrays, json.loads(notes["about"]))


def _checksum(arrays: Arrays, about: str) -> str:
    digest = hashlib.sha256(about.encode())
    for name in sorted(arrays):
        array = arrays[name]
        digest.update(f"{name} {array.dtype} {array.shape}".encode())
        digest.update(np.ascontiguousarray(array).data)
    return digest.hexdigest()
