"""Making a feature store: every picture is looked at once, and a run that was killed goes on where it stopped.

Work is divided into chunks of places whose size is part of the manifest, so a chunk's bytes do not depend on when or
how often the run was interrupted. A chunk counts as done when its bytes are on disk and, after that, its checksum is in
the journal; whatever else a kill leaves behind is written again.
"""

import contextlib
import json
import os
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.files import locked_folder
from tessearth.imagery.components import write_components
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.reading import PlaceReader, build_places, build_source, load_or_fit_encoder
from tessearth.imagery.recipe import FeatureRecipe, SourceRecipe, made_with
from tessearth.imagery.source import Source
from tessearth.imagery.store import (
    CHUNK_PLACES,
    FEATURES,
    FORMAT,
    FORMAT_VERSION,
    JOURNAL,
    FeatureStore,
    Places,
    chunk_sha256,
    feature_shape,
    is_store,
    places_sha256,
    read_manifest,
    write_manifest,
    write_places,
)

COMMIT_SECONDS = 2.0
"""How much work, at most, a kill can cost besides the chunk at hand."""

Progress = Callable[[int, int], None]
"""Called with the number of places done and of all places."""


class Worker(NamedTuple):
    """One source with the encoder that reads it."""

    recipe: SourceRecipe
    source: Source
    encoder: ImageEncoder


def build_store(
    recipe: FeatureRecipe,
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    readers: int = 2,
    progress: Progress | None = None,
    chunk_places: int = CHUNK_PLACES,
) -> FeatureStore:
    """Make the store a recipe describes, or go on with one that was interrupted; a finished one is only opened.

    `readers` threads read tiles while the encoder works. The result does not depend on them, nor on interruptions.
    """
    path = Path(path)
    if is_store(path) and read_manifest(path)["complete"]:
        return _open_finished(recipe, path)
    busy = DataError(f"another process is making {path}; wait for it, or choose another --out")
    with locked_folder(path, busy=busy):
        first = recipe.sources[0]
        sources = [build_source(each) for each in recipe.sources]
        places = build_places(recipe.places, sources[0], first.kind)
        encoders = [
            load_or_fit_encoder(recipe, number, source, places, path, device) for number, source in enumerate(sources)
        ]
        workers = [Worker(*parts) for parts in zip(recipe.sources, sources, encoders, strict=True)]
        manifest = _prepare(recipe, path, workers, places, chunk_places)
        checksums = _fill(recipe, path, manifest, workers, places, readers, progress)
        _finish(recipe, path, manifest, checksums, places)
        (path / ".lock").unlink(missing_ok=True)
    return FeatureStore(path, verify=False)  # its checksums were taken from these very bytes a moment ago


def _open_finished(recipe: FeatureRecipe, path: Path) -> FeatureStore:
    store = FeatureStore(path)
    if store.manifest["recipe_sha256"] != recipe.sha256():
        raise DataError(_other_recipe(path))
    return store


def _other_recipe(path: Path) -> str:
    return f"{path} is a store of another recipe; choose another --out, or remove it first"


def _prepare(
    recipe: FeatureRecipe, path: Path, workers: list[Worker], places: Places, chunk_places: int
) -> dict[str, Any]:
    """Write everything but the features, or check that what is there is of the same making."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "complete": False,
        "recipe": recipe.to_dict(),
        "recipe_sha256": recipe.sha256(),
        "places": len(places.latlon),
        "places_sha256": places_sha256(places),
        "views": recipe.views,
        "width": sum(worker.encoder.width for worker in workers),
        "dtype": recipe.dtype,
        "chunk_places": chunk_places,
        "sources": [{"source": w.source.describe(), "encoder": w.encoder.describe()} for w in workers],
        "made_with": made_with(),
    }
    manifest = json.loads(json.dumps(manifest))
    if is_store(path):
        _check_same_making(read_manifest(path), manifest, path)
        return manifest
    if (path / FEATURES).exists() and not (path / JOURNAL).exists():
        raise OutputError(f"{path} holds a {FEATURES} but no manifest; choose an empty folder")
    write_places(path, places)
    _allocate(path / FEATURES, feature_shape(manifest), recipe.dtype)
    write_manifest(path, manifest)
    return manifest


def _check_same_making(old: dict[str, Any], new: dict[str, Any], path: Path) -> None:
    """An interrupted store goes on only with the very same recipe, files and versions."""
    if old["recipe_sha256"] != new["recipe_sha256"]:
        raise DataError(_other_recipe(path))
    for key in ("places_sha256", "sources", "made_with", "chunk_places", "width"):
        if old[key] != new[key]:
            raise DataError(f"{path} was begun with other {key.replace('_', ' ')}; remove it and begin again")


def _allocate(path: Path, shape: tuple[int, int, int], dtype: str) -> None:
    """An empty array on disk whose room is reserved now, so that a full disk is found before the work is done."""
    header = {"descr": np.dtype(dtype).str, "fortran_order": False, "shape": shape}
    try:
        with open(path, "wb") as file:
            np.lib.format.write_array_header_1_0(file, header)
            file.flush()
            size = int(np.prod(shape)) * np.dtype(dtype).itemsize
            os.posix_fallocate(file.fileno(), file.tell(), size)
            os.fsync(file.fileno())
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputError(f"cannot reserve room for {path}: {(error.strerror or str(error)).lower()}") from error


def _fill(
    recipe: FeatureRecipe,
    path: Path,
    manifest: dict[str, Any],
    workers: list[Worker],
    places: Places,
    readers: int,
    progress: Progress | None,
) -> list[str]:
    """Compute every chunk that the journal does not have yet; the checksums of all."""
    size, total = manifest["chunk_places"], manifest["places"]
    done = _read_journal(path, -(-total // size))
    waiting = [number for number in range(-(-total // size)) if number not in done]
    reader = PlaceReader([worker.source for worker in workers], places.latlon, recipe)
    report = progress or (lambda finished, of: None)
    finished = sum(min(size, total - number * size) for number in done)
    report(finished, total)
    with _ChunkFile(path, manifest) as file, _Writer(file) as writer:
        for number, tiles in _read_ahead(reader, waiting, size, readers):
            features = _encode(workers, tiles, recipe, number * size)
            for written, checksum in writer.put(number, features):
                done[written] = checksum
            finished += len(features)
            report(finished, total)
        done.update(writer.drain())
    return [done[number] for number in sorted(done)]


def _read_ahead(
    reader: PlaceReader, waiting: list[int], size: int, readers: int
) -> Iterator[tuple[int, list[list[npt.NDArray[np.float32]]]]]:
    """Chunks in order, read by threads while the ones before them are encoded."""
    with ThreadPoolExecutor(max_workers=max(1, readers)) as pool:
        pending: deque[tuple[int, Future[list[list[npt.NDArray[np.float32]]]]]] = deque()
        try:
            for number in waiting:
                pending.append((number, pool.submit(reader.read, number * size, size)))
                if len(pending) > max(1, readers):
                    ready, future = pending.popleft()
                    yield ready, future.result()
            while pending:
                ready, future = pending.popleft()
                yield ready, future.result()
        finally:
            for _, future in pending:
                future.cancel()


def _encode(
    workers: list[Worker], tiles: list[list[npt.NDArray[np.float32]]], recipe: FeatureRecipe, first: int
) -> npt.NDArray[Any]:
    """Tiles by source and view to features (places, views, width) in the stored type, all of them finite."""
    by_source = [
        torch.stack([worker.encoder.encode(torch.from_numpy(view)) for view in views], dim=1)
        for worker, views in zip(workers, tiles, strict=True)
    ]
    features = torch.cat(by_source, dim=-1)
    stored = features.to(getattr(torch, recipe.dtype))
    if not bool(stored.isfinite().all()):  # looked at where they are: half precision is slow on a processor
        _refuse_features(features.cpu(), stored.cpu(), first)
    return stored.cpu().numpy()


def _refuse_features(features: torch.Tensor, stored: torch.Tensor, first: int) -> None:
    row = first + int((~stored.isfinite()).flatten(1).any(dim=1).nonzero()[0, 0])
    if bool(features.isfinite().all()):
        largest = float(features.abs().max())
        raise ConfigError(f"a feature of place {row} is {largest:.3g}, too large for float16; set dtype = 'float32'")
    raise DataError(f"the features of place {row} are not finite: its tile holds pixels without data")


class _ChunkFile:
    """The features on disk, and the journal of what of them is safely there."""

    def __init__(self, path: Path, manifest: dict[str, Any]) -> None:
        self.path, self.manifest = path, manifest
        self._uncommitted: list[tuple[int, str]] = []
        self._bookkeeping = threading.Lock()
        self._committed_at = time.monotonic()

    def __enter__(self) -> "_ChunkFile":
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
        with _named_errors(self.path):
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
            with _named_errors(self.path), open(self.path / JOURNAL, "ab") as journal:
                os.fsync(self._file.fileno())
                for number, checksum in self._uncommitted:
                    journal.write(json.dumps({"chunk": number, "sha256": checksum}).encode() + b"\n")
                journal.flush()
                os.fsync(journal.fileno())
            self._uncommitted.clear()
        self._committed_at = time.monotonic()


class _Writer:
    """Writes chunks in threads of their own, so that a GPU need not wait for checksums and the disk."""

    AHEAD = 8
    THREADS = 3

    def __init__(self, file: _ChunkFile) -> None:
        self._file = file
        self._pending: deque[tuple[int, Future[str]]] = deque()

    def __enter__(self) -> "_Writer":
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


def _read_journal(path: Path, chunks: int) -> dict[int, str]:
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


def _finish(recipe: FeatureRecipe, path: Path, manifest: dict[str, Any], checksums: list[str], places: Places) -> None:
    manifest = {**manifest, "chunks": checksums}
    if recipe.pca:
        manifest["components"] = write_components(path, manifest, recipe.pca, np.flatnonzero(~places.validation))
    write_manifest(path, {**manifest, "complete": True})
    (path / JOURNAL).unlink(missing_ok=True)


@contextlib.contextmanager
def _named_errors(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise OutputError(
            f"cannot write to {path}: {reason}; what was finished is kept, run it again to go on"
        ) from error
