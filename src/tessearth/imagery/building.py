"""Making a feature store: every picture is looked at once, and a run that was killed goes on where it stopped.

The store's folder is a resumable job. Its chunks of places lie in features.npy; their size is part of the manifest, so
a chunk's bytes do not depend on when or how often the run was interrupted.
"""

import contextlib
import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.imagery.components import write_components
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.reading import (
    Chunk,
    PlaceReader,
    build_places,
    build_source,
    load_or_fit_encoder,
    read_ahead,
)
from tessearth.imagery.recipe import FeatureRecipe, made_with
from tessearth.imagery.source import Source
from tessearth.imagery.store import (
    CHUNK_PLACES,
    ENCODERS,
    FEATURES,
    FORMAT,
    FORMAT_VERSION,
    FeatureStore,
    Places,
    feature_shape,
    is_store,
    open_array,
    places_sha256,
    read_manifest,
    write_manifest,
    write_places,
)
from tessearth.storage import JOURNAL, ArrayFile, Job, Place, locked_folder, open_pool, remove_unfinished, reserve

Progress = Callable[[int, int], None]
"""Called with the number of places done and of all places."""
WRITERS, CHUNKS_TO_WRITE = 3, 8
"""Threads that write, and how many chunks they hold: a GPU does not wait for checksums and the disk."""


class Worker(NamedTuple):
    """One source with the encoder that reads it."""

    source: Source
    encoder: ImageEncoder


def build_store(
    recipe: FeatureRecipe,
    path: str | Path,
    *,
    device: str | torch.device = "cpu",
    readers: int = 2,
    processes: int = 0,
    progress: Progress | None = None,
    chunk_places: int = CHUNK_PLACES,
) -> FeatureStore:
    """Make the store a recipe describes, or go on with one that was interrupted; a finished one is only opened.

    `readers` threads read tiles while the encoder works; `processes` above 0 read them instead. Processes pay on many
    cores and many places, and a script that asks for them needs `if __name__ == "__main__":`. The result depends
    neither on them nor on interruptions.
    """
    path = Path(path)
    if _is_finished(path):
        return _open_finished(recipe, path)
    busy = DataError(f"another process is making {path}; wait for it, or choose another --out")
    with locked_folder(path, busy=busy, keep_lock=False):
        if _is_finished(path):  # by another process, a moment ago
            return _open_finished(recipe, path)
        remove_unfinished(path, path / ENCODERS)
        sources = [build_source(each) for each in recipe.sources]
        places = build_places(recipe.places, sources[0], recipe.sources[0].kind)
        workers = [
            Worker(source, load_or_fit_encoder(recipe, number, source, places, path, device))
            for number, source in enumerate(sources)
        ]
        manifest = _prepare(recipe, path, workers, places, chunk_places)
        job = _open_job(path, manifest)
        rows = {
            number: range(start, min(start + chunk_places, len(places.latlon)))
            for number, start in enumerate(range(0, len(places.latlon), chunk_places))
        }
        missing = job.missing(len(rows))
        finished = len(places.latlon) - sum(len(rows[number]) for number in missing)
        report = progress or (lambda done, total: None)
        report(finished, len(places.latlon))
        reader = PlaceReader(sources, places.latlon, recipe)
        waiting = ((number, rows[number]) for number in missing)
        with (
            contextlib.closing(read_ahead(reader, waiting, threads=readers, processes=processes)) as chunks,
            open_pool("threads", WRITERS, advice="run it again") as writers,
        ):
            encoded = (
                (number, (number, _encode(workers, tiles, recipe, rows[number].start))) for number, tiles in chunks
            )
            for number, _ in writers.run(lambda chunk: job.put(*chunk), encoded, at_once=CHUNKS_TO_WRITE):
                finished += len(rows[number])
                report(finished, len(places.latlon))
        manifest["chunks"] = [job.entries[number].sha256 for number in rows]
        _finish(recipe, path, manifest, np.flatnonzero(~places.validation), device)
    return FeatureStore(path, verify=False)  # its checksums were taken from these very bytes a moment ago


def _is_finished(path: Path) -> bool:
    return is_store(path) and bool(read_manifest(path)["complete"])


def _open_finished(recipe: FeatureRecipe, path: Path) -> FeatureStore:
    store = FeatureStore(path)
    _check_recipe(store.manifest, recipe, path)
    return store


def _check_recipe(manifest: dict[str, Any], recipe: FeatureRecipe, path: Path) -> None:
    if manifest["recipe_sha256"] != recipe.sha256():
        raise DataError(f"{path} is a store of another recipe; choose another --out, or remove it first")


def _prepare(
    recipe: FeatureRecipe, path: Path, workers: list[Worker], places: Places, chunk_places: int
) -> dict[str, Any]:
    """Write everything but the features, or check that an interrupted store has the same recipe, files and versions."""
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
        "widths": [worker.encoder.width for worker in workers],
        "dtype": recipe.dtype,
        "chunk_places": chunk_places,
        "sources": [{"source": w.source.describe(), "encoder": w.encoder.describe()} for w in workers],
        "made_with": made_with(),
    }
    manifest = json.loads(json.dumps(manifest))
    begun = is_store(path)
    if begun:
        old = read_manifest(path)
        _check_recipe(old, recipe, path)
        for key in ("places_sha256", "sources", "made_with", "chunk_places", "widths"):
            if old.get(key) != manifest[key]:
                raise DataError(f"{path} was begun with other {key.replace('_', ' ')}; remove it and begin again")
    elif (path / FEATURES).exists() and not (path / JOURNAL).exists():
        raise OutputError(f"{path} holds a {FEATURES} but no manifest; choose an empty folder")
    write_places(path, places)
    if not begun:
        write_manifest(path, manifest)  # before the array: one without a manifest is refused
    _allocate(path / FEATURES, feature_shape(manifest), recipe.dtype, keep=begun)
    return manifest


def _allocate(path: Path, shape: tuple[int, ...], dtype: str, *, keep: bool) -> None:
    """An empty array on disk, its room reserved now; `keep` leaves one that is there and can be read."""
    try:
        if keep:
            open_array(path, shape, dtype)
            return
    except DataError:
        pass
    try:
        np.lib.format.open_memmap(path, "w+", np.dtype(dtype), shape)
        with open(path, "r+b") as file:
            reserve(file, path.stat().st_size)
    except OSError as error:
        path.unlink(missing_ok=True)
        raise OutputError(f"cannot reserve room for {path}: {(error.strerror or str(error)).lower()}") from error


def _open_job(path: Path, manifest: dict[str, Any]) -> Job:
    """The store as a job whose chunks lie in features.npy."""
    places, views, width = feature_shape(manifest)
    features, size = open_array(path / FEATURES, (places, views, width), manifest["dtype"]), manifest["chunk_places"]

    def place(number: int) -> Place:
        first = number * size
        return Place(features.offset + first * features.strides[0], (min(size, places - first), views, width))  # type: ignore[attr-defined]

    job = Job(path)
    job.chunks = ArrayFile(path / FEATURES, manifest["dtype"], place)
    return job


def _encode(workers: list[Worker], tiles: Chunk, recipe: FeatureRecipe, first: int) -> npt.NDArray[Any]:
    """Tiles by source and view to features (places, views, width) in the stored type, all of them finite."""
    by_source = [
        torch.stack([worker.encoder.encode(torch.from_numpy(view)) for view in views], dim=1)
        for worker, views in zip(workers, tiles, strict=True)
    ]
    features = torch.cat(by_source, dim=-1)
    stored = features.to(getattr(torch, recipe.dtype))
    finite = stored.isfinite()  # where they are: half precision is slow on a processor
    if not bool(finite.all()):
        row = first + int((~finite).flatten(1).any(dim=1).nonzero()[0, 0])
        if bool(features.isfinite().all()):
            largest = float(features.abs().max())
            raise ConfigError(
                f"a feature of place {row} is {largest:.3g}, too large for float16; set dtype = 'float32'"
            )
        raise DataError(f"the features of place {row} are not finite: its tile holds pixels without data")
    return stored.cpu().numpy()


def _finish(
    recipe: FeatureRecipe,
    path: Path,
    manifest: dict[str, Any],
    training: npt.NDArray[np.int64],
    device: str | torch.device,
) -> None:
    """Add the components, and say that the store is complete once its features have reached the disk."""
    with open(path / FEATURES, "r+b") as file:
        os.fsync(file.fileno())
    if recipe.pca:
        manifest["components"] = write_components(
            path, manifest, recipe.pca, training, balanced=recipe.balanced, flattening=recipe.flattening, device=device
        )
    write_manifest(path, {**manifest, "complete": True})
    (path / JOURNAL).unlink(missing_ok=True)
