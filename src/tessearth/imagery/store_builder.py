"""Making a feature store: every picture is looked at once, and a run that was killed goes on where it stopped.

Work is divided into chunks of places whose size is part of the manifest, so a chunk's bytes do not depend on when or
how often the run was interrupted. A chunk counts as done when its bytes are on disk and, after that, its checksum is in
the journal; a run that goes on reads every such chunk back, and whatever is not as it was written is computed again.
"""

import json
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.imagery.components import write_components
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.reading import PlaceReader, build_places, build_source, load_or_fit_encoder
from tessearth.imagery.reading_ahead import Chunk, read_ahead
from tessearth.imagery.recipe import FeatureRecipe, SourceRecipe, made_with
from tessearth.imagery.source import Source
from tessearth.imagery.store import (
    CHUNK_PLACES,
    ENCODERS,
    FEATURES,
    FORMAT,
    FORMAT_VERSION,
    JOURNAL,
    FeatureStore,
    Places,
    feature_shape,
    is_store,
    places_sha256,
    read_manifest,
    write_manifest,
    write_places,
)
from tessearth.imagery.store_files import (
    ChunkFile,
    ChunkWriter,
    allocate_array,
    keep_intact,
    read_journal,
    restore_array,
)
from tessearth.storage.files import LOCK, locked_folder, remove_unfinished

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
    processes: int = 0,
    progress: Progress | None = None,
    chunk_places: int = CHUNK_PLACES,
) -> FeatureStore:
    """Make the store a recipe describes, or go on with one that was interrupted; a finished one is only opened.

    `readers` threads read tiles while the encoder works, or `processes` when that many are wanted: they pay on many
    cores and many places, and a script that asks for them needs `if __name__ == "__main__":`, as for any processes. The
    result does not depend on either, nor on interruptions.
    """
    path = Path(path)
    if is_store(path) and read_manifest(path)["complete"]:
        return _open_finished(recipe, path)
    busy = DataError(f"another process is making {path}; wait for it, or choose another --out")
    with locked_folder(path, busy=busy):
        if is_store(path) and read_manifest(path)["complete"]:  # another process finished it a moment ago
            (path / LOCK).unlink(missing_ok=True)
            return _open_finished(recipe, path)
        remove_unfinished(path, path / ENCODERS)
        first = recipe.sources[0]
        sources = [build_source(each) for each in recipe.sources]
        places = build_places(recipe.places, sources[0], first.kind)
        encoders = [
            load_or_fit_encoder(recipe, number, source, places, path, device) for number, source in enumerate(sources)
        ]
        workers = [Worker(*parts) for parts in zip(recipe.sources, sources, encoders, strict=True)]
        manifest = _prepare(recipe, path, workers, places, chunk_places)
        reader = PlaceReader(sources, places.latlon, recipe)
        read = partial(read_ahead, reader, size=chunk_places, threads=readers, processes=processes)
        checksums = _fill(recipe, path, manifest, workers, read, progress)
        _finish(recipe, path, manifest, checksums, places, device)
        (path / LOCK).unlink(missing_ok=True)
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
        "widths": [worker.encoder.width for worker in workers],
        "dtype": recipe.dtype,
        "chunk_places": chunk_places,
        "sources": [{"source": w.source.describe(), "encoder": w.encoder.describe()} for w in workers],
        "made_with": made_with(),
    }
    manifest = json.loads(json.dumps(manifest))
    if is_store(path):
        _check_same_making(read_manifest(path), manifest, path)
        write_places(path, places)  # whatever became of the file meanwhile
        restore_array(path / FEATURES, feature_shape(manifest), recipe.dtype)
        return manifest
    if (path / FEATURES).exists() and not (path / JOURNAL).exists():
        raise OutputError(f"{path} holds a {FEATURES} but no manifest; choose an empty folder")
    write_places(path, places)
    write_manifest(path, manifest)  # before the array: one without a manifest would be taken for somebody else's
    allocate_array(path / FEATURES, feature_shape(manifest), recipe.dtype)
    return manifest


def _check_same_making(old: dict[str, Any], new: dict[str, Any], path: Path) -> None:
    """An interrupted store goes on only with the very same recipe, files and versions."""
    if old["recipe_sha256"] != new["recipe_sha256"]:
        raise DataError(_other_recipe(path))
    for key in ("places_sha256", "sources", "made_with", "chunk_places", "widths"):
        if old.get(key) != new[key]:
            raise DataError(f"{path} was begun with other {key.replace('_', ' ')}; remove it and begin again")


def _fill(
    recipe: FeatureRecipe,
    path: Path,
    manifest: dict[str, Any],
    workers: list[Worker],
    read: Callable[[list[int]], Iterator[tuple[int, Chunk]]],
    progress: Progress | None,
) -> list[str]:
    """Compute every chunk that the journal does not have yet; the checksums of all."""
    size, total = manifest["chunk_places"], manifest["places"]
    done = keep_intact(path, manifest, read_journal(path, -(-total // size)))
    waiting = [number for number in range(-(-total // size)) if number not in done]
    report = progress or (lambda finished, of: None)
    finished = sum(min(size, total - number * size) for number in done)
    report(finished, total)
    with ChunkFile(path, manifest) as file, ChunkWriter(file) as writer:
        for number, tiles in read(waiting):
            features = _encode(workers, tiles, recipe, number * size)
            for written, checksum in writer.put(number, features):
                done[written] = checksum
            finished += len(features)
            report(finished, total)
        done.update(writer.drain())
    return [done[number] for number in sorted(done)]


def _encode(workers: list[Worker], tiles: Chunk, recipe: FeatureRecipe, first: int) -> npt.NDArray[Any]:
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


def _finish(
    recipe: FeatureRecipe,
    path: Path,
    manifest: dict[str, Any],
    checksums: list[str],
    places: Places,
    device: str | torch.device,
) -> None:
    manifest = {**manifest, "chunks": checksums}
    if recipe.pca:
        training = np.flatnonzero(~places.validation)
        manifest["components"] = write_components(
            path, manifest, recipe.pca, training, balanced=recipe.balanced, flattening=recipe.flattening, device=device
        )
    write_manifest(path, {**manifest, "complete": True})
    (path / JOURNAL).unlink(missing_ok=True)
