"""Making a feature store: every picture is looked at once, and a run that was killed goes on where it stopped.

The store's folder is a resumable job. Its chunks of places lie in features.npy; their size is part of the manifest, so
a chunk's bytes do not depend on when or how often the run was interrupted.
"""

import contextlib
import json
import os
import shutil
from collections.abc import Callable, Generator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import DataError, OutputError
from tessearth.imagery.components import Projection, check_width, fit_projection
from tessearth.imagery.device_features import DeviceReader
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.reading import (
    build_places,
    build_source,
    check_files,
    encode_views,
    join_sources,
    load_or_fit_encoder,
    read_ahead,
    read_tiles,
    table_places,
)
from tessearth.imagery.recipe import FeatureRecipe, made_with
from tessearth.imagery.source import Source
from tessearth.imagery.store import (
    CHUNK_PLACES,
    COMPONENTS,
    DIRECTIONS,
    ENCODERS,
    FEATURES,
    FORMAT,
    FORMAT_VERSION,
    MANIFEST,
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
from tessearth.settings import from_plain
from tessearth.storage import (
    JOURNAL,
    ArrayFile,
    Job,
    Place,
    atomic_write,
    checksum,
    locked_folder,
    open_pool,
    remove_unfinished,
    reserve,
    write_bytes,
)

Device = str | torch.device
Progress = Callable[[int, int], None]
"""Called with the number of places done and of all places."""
READING_DEVICES = ("cuda",)
"""Device types on which imagery is kept decoded and tiles are cut."""
WRITERS, CHUNKS_TO_WRITE = 3, 8
"""Threads that write, and how many chunks they hold: a GPU does not wait for checksums and the disk."""


def build_store(
    recipe: FeatureRecipe,
    path: str | Path,
    *,
    device: Device = "cpu",
    readers: int = 2,
    processes: int = 0,
    progress: Progress | None = None,
    chunk_places: int = CHUNK_PLACES,
) -> FeatureStore:
    """Make the store a recipe describes, or go on with one that was interrupted; a finished one is only opened.

    `readers` threads read tiles while the encoder works; `processes` above 0 read them instead. Processes pay on many
    cores and many places, and a script that asks for them needs `if __name__ == "__main__":`. The result depends
    neither on them nor on interruptions. On a GPU tiles are cut there instead, where all sources can be.
    """
    path = Path(path)
    if _is_finished(recipe, path):
        return FeatureStore(path)
    check_files(recipe)
    busy = DataError(f"another process is making {path}; wait for it, or choose another --out")
    with locked_folder(path, busy=busy, keep_lock=False):
        if _is_finished(recipe, path):  # by another process, a moment ago
            return FeatureStore(path)
        remove_unfinished(path, path / ENCODERS)
        _forget_beginning(recipe, path)
        reader = _open_reader(recipe, device) or HostReader(recipe, device, readers, processes)
        places = reader.prepare(path)
        read_by = list(zip(reader.hosts, reader.encoders, strict=True))
        manifest = _prepare(recipe, path, read_by, places, chunk_places)
        job, count = _open_job(path, manifest), len(places.latlon)
        rows = [range(start, min(start + chunk_places, count)) for start in range(0, count, chunk_places)]
        missing = job.missing(len(rows))
        finished = count - sum(len(rows[number]) for number in missing)
        report = progress or (lambda done, total: None)
        report(finished, count)
        computed = reader.chunks(places, {number: rows[number] for number in missing})
        with contextlib.closing(computed), open_pool("threads", WRITERS, advice="run it again") as writers:
            chunks = ((number, (number, features.cpu().numpy())) for number, features in computed)
            for number, _ in writers.run(lambda chunk: job.put(*chunk), chunks, at_once=CHUNKS_TO_WRITE):
                finished += len(rows[number])
                report(finished, count)
        manifest["chunks"] = [job.entries[number].sha256 for number in range(len(rows))]
        _finish(path, manifest, np.flatnonzero(~places.validation), device)
    return FeatureStore(path, verify=False)  # its checksums were taken from these very bytes a moment ago


class HostReader:
    """A recipe's sources read by threads or processes of the host, and their encoders on a device."""

    def __init__(self, recipe: FeatureRecipe, device: Device, threads: int, processes: int) -> None:
        self.recipe, self.device, self.threads, self.processes = recipe, device, threads, processes
        self.hosts = [build_source(each) for each in recipe.sources]
        self.encoders: list[ImageEncoder] = []

    def prepare(self, folder: Path) -> Places:
        """Draw the recipe's places and fit the encoders to them."""
        places = build_places(self.recipe.places, self.hosts[0], self.recipe.sources[0].kind)
        self.encoders = [
            load_or_fit_encoder(self.recipe, number, source, places, folder, self.device)
            for number, source in enumerate(self.hosts)
        ]
        return places

    def chunks(self, places: Places, waiting: Mapping[int, range]) -> Generator[tuple[int, torch.Tensor]]:
        """Numbered features of numbered chunks of places, which are read ahead."""
        read = partial(read_tiles, self.hosts, places.latlon, self.recipe)
        with contextlib.closing(
            read_ahead(read, waiting.items(), threads=self.threads, processes=self.processes)
        ) as chunks:
            for number, tiles in chunks:
                by_source = [
                    encode_views(encoder, [torch.from_numpy(view) for view in views])
                    for encoder, views in zip(self.encoders, tiles, strict=True)
                ]
                yield number, join_sources(by_source, self.recipe, waiting[number])


def _is_finished(recipe: FeatureRecipe, path: Path) -> bool:
    """Whether there is a finished store; one of another recipe or table is refused as soon as it has a chunk."""
    if not is_store(path) or not _has_chunks(path):
        return False
    manifest = read_manifest(path)
    if manifest["recipe_sha256"] != recipe.sha256():
        raise DataError(f"{path} is a store of another recipe; choose another --out, or remove it first")
    table = recipe.places.table
    if table is not None and places_sha256(table_places(recipe.places)) != manifest["places_sha256"]:
        raise DataError(
            f"{path} is a store of other rows than {table} has now; choose another --out, or remove it first"
        )
    return bool(manifest["complete"])


def _has_chunks(path: Path) -> bool:
    """Whether a store holds work that would be lost."""
    return bool(read_manifest(path)["complete"]) or (path / JOURNAL).exists()


def _forget_beginning(recipe: FeatureRecipe, path: Path) -> None:
    """Remove what another recipe left that failed before its first chunk."""
    if is_store(path) and not _has_chunks(path) and read_manifest(path)["recipe_sha256"] != recipe.sha256():
        shutil.rmtree(path / ENCODERS, ignore_errors=True)
        for name in (FEATURES, MANIFEST):
            (path / name).unlink(missing_ok=True)


def _prepare(
    recipe: FeatureRecipe, path: Path, read_by: list[tuple[Source, ImageEncoder]], places: Places, chunk_places: int
) -> dict[str, Any]:
    """Write everything but the features, or check that an interrupted store has the same files and versions."""
    manifest: dict[str, Any] = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "complete": False,
        "recipe": recipe.to_dict(),
        "recipe_sha256": recipe.sha256(),
        "places": len(places.latlon),
        "places_sha256": places_sha256(places),
        "views": recipe.views,
        "width": sum(encoder.width for _, encoder in read_by),
        "widths": [encoder.width for _, encoder in read_by],
        "dtype": recipe.dtype,
        "chunk_places": chunk_places,
        "sources": [{"source": source.describe(), "encoder": encoder.describe()} for source, encoder in read_by],
        "made_with": made_with(),
    }
    manifest = json.loads(json.dumps(manifest))
    begun = is_store(path)
    if begun:
        old = read_manifest(path)
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
    if keep:
        with contextlib.suppress(DataError):
            open_array(path, shape, dtype)
            return
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


def _open_reader(recipe: FeatureRecipe, device: Device) -> DeviceReader | None:
    """What reads imagery on the device, where that pays and all sources have a form there."""
    chosen = torch.device(device)
    reader = DeviceReader(recipe, chosen) if chosen.type in READING_DEVICES else None
    return None if reader is None or reader.missing else reader


def _finish(path: Path, manifest: dict[str, Any], training: npt.NDArray[np.int64], device: Device) -> None:
    """Add the components, and say that the store is complete once its features have reached the disk."""
    with open(path / FEATURES, "r+b") as file:
        os.fsync(file.fileno())
    if manifest["recipe"]["pca"]:
        manifest["components"] = write_components(path, manifest, training, device)
    write_manifest(path, {**manifest, "complete": True})
    (path / JOURNAL).unlink(missing_ok=True)


def write_components(
    path: Path, manifest: dict[str, Any], training: npt.NDArray[np.int64], device: Device = "cpu"
) -> dict[str, Any]:
    """Find the leading directions of the training places' features and project all features onto them.

    Returns the manifest's entry about them.
    """
    features = open_array(path / FEATURES, feature_shape(manifest), manifest["dtype"])
    recipe, step = from_plain(FeatureRecipe, manifest["recipe"]), manifest["chunk_places"]
    device = device if torch.device(device).type == "cuda" else "cpu"  # other accelerators have no float64
    check_width(recipe, features.shape[-1])
    chunks = (_at(features[training[start : start + step]], device) for start in range(0, len(training), step))
    projection = fit_projection(chunks, manifest.get("widths", [features.shape[-1]]), recipe)
    variance, content = projection.variance, projection.to_bytes()
    checksums = _project(path, features, projection, step, device)
    write_bytes(path / DIRECTIONS, content)
    return {
        "width": recipe.pca,
        "share_of_variance": float(variance[: recipe.pca].sum() / variance.sum().clamp_min(1e-300)),
        "chunks": checksums,
        "directions_sha256": checksum(content),
    }


def _project(path: Path, features: npt.NDArray[Any], projection: Projection, step: int, device: Device) -> list[str]:
    """Write features along each direction, a chunk at a time; returns the chunks' checksums."""
    checksums = []
    with atomic_write(path / COMPONENTS) as file:
        shape = (*features.shape[:2], projection.directions.shape[1])
        header = {"descr": features.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(features), step):
            chunk = projection.apply(_at(features[start : start + step], device)).cpu().numpy()
            checksums.append(checksum(chunk))
            file.write(chunk.data)
    return checksums


def _at(features: npt.NDArray[Any], device: Device) -> torch.Tensor:
    """Features on a device, sent as they are stored."""
    return torch.from_numpy(np.array(features)).to(device)
