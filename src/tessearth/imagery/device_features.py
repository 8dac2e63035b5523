"""Features made on a device and kept there: nothing is read but imagery, and nothing written but what was fitted.

Where a store is made chunk by chunk on disk, here millions of places are sampled, encoded and projected in one go.
"""

from collections.abc import Callable, Generator, Iterator, Mapping
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.imagery.components import Projection, check_width, fit_projection
from tessearth.imagery.image_encoders.base import ImageEncoder, exact_products
from tessearth.imagery.reading import (
    Rows,
    build_places,
    build_source,
    check_files,
    encode_views,
    join_sources,
    load_or_fit_encoder,
    read_views,
    redraw_places,
)
from tessearth.imagery.recipe import FeatureRecipe
from tessearth.imagery.source import Source
from tessearth.imagery.sources.on_device import DeviceImagery, DeviceSource
from tessearth.imagery.store import DIRECTIONS, PlaceRows, Places
from tessearth.sphere import Floats
from tessearth.storage import write_bytes

PLACES_AT_ONCE = {"cpu": 2048, "cuda": 2**15}
"""Places whose tiles are cut and encoded together, by device type."""
FITTED_PLACES = 2**19
"""Components are fitted to at most this many training places, chosen by the seed; a store fits them to all."""

Progress = Callable[[int, int], None]


class DeviceReader:
    """A recipe's sources, their encoders and its components on one device: places in, features out."""

    def __init__(self, recipe: FeatureRecipe, device: torch.device) -> None:
        """Open every source; `missing` names those without a form on a device."""
        check_files(recipe)
        self.recipe, self.device = recipe, device
        self.hosts: list[Source] = [build_source(each) for each in recipe.sources]
        self.imagery = DeviceImagery(device)
        opened = [self.imagery.open(source) for source in self.hosts]
        self.missing = [each.kind for each, source in zip(recipe.sources, opened, strict=True) if source is None]
        self.sources: list[DeviceSource] = [source for source in opened if source is not None]
        self.encoders: list[ImageEncoder] = []
        self.projection: Projection | None = None

    def prepare(self, folder: Path | None) -> Places:
        """Draw the recipe's places and fit the encoders to them, while the sources' rasters are decoded."""
        with ThreadPoolExecutor(1) as pool:
            loading = pool.submit(self.imagery.load)
            places = build_places(self.recipe.places, self.hosts[0], self.recipe.sources[0].kind)
            self.fit_encoders(places, folder)
            loading.result()
        return places

    def fit_encoders(self, places: Places, folder: Path | None) -> list[ImageEncoder]:
        """Load each source's encoder from the folder, or fit it to training places and keep it there."""

        def fit(number: int) -> ImageEncoder:
            source = self.sources[number]
            encoder = load_or_fit_encoder(self.recipe, number, source, places, folder, self.device)
            views = read_views(source, self.recipe.sources[number].crop, places.latlon, self.recipe, range(1))
            encode_views(encoder, views)  # compiles its kernels, while other sources are read
            return encoder

        with exact_products(), ThreadPoolExecutor(len(self.sources)) as pool:
            self.encoders = list(pool.map(fit, range(len(self.sources))))
        return self.encoders

    def fitted_rows(self, places: Places) -> npt.NDArray[np.int64]:
        """The training places that components are fitted to."""
        training, seed = np.flatnonzero(~places.validation), [self.recipe.seed, *b"components"]
        count = FITTED_PLACES if self.recipe.pca else 0
        return np.sort(np.random.default_rng(seed).permutation(training)[:count])

    def fit_components(self, places: Places, folder: Path | None) -> list[Tensor]:
        """Load the components from the folder, or fit them to the fitted rows and keep them there.

        Returns the features of those rows that were computed on the way, piece by piece.
        """
        kept = folder and folder / DIRECTIONS
        if not self.recipe.pca:
            return []
        if kept and kept.is_file():
            self.projection = Projection.from_bytes(kept.read_bytes(), self.device)
            return []
        computed = [self.features(places.latlon, rows) for rows in self.cut(self.fitted_rows(places))]
        content = fit_projection(computed, [encoder.width for encoder in self.encoders], self.recipe).to_bytes()
        if kept:
            kept.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(kept, content)
        self.projection = Projection.from_bytes(content, self.device)  # rounded as the next time
        return computed

    def cut(self, rows: npt.NDArray[np.int64]) -> Iterator[npt.NDArray[np.int64]]:
        """Rows in pieces that are computed together."""
        step = self.places_at_once
        return (rows[start : start + step] for start in range(0, len(rows), step))

    @property
    def places_at_once(self) -> int:
        """How many places are computed together."""
        return PLACES_AT_ONCE.get(self.device.type, PLACES_AT_ONCE["cuda"])

    def features(self, latlon: Floats, rows: Rows) -> Tensor:
        """Features of some rows of the places, (n, views, F), in the recipe's type."""
        by_source = [
            encode_views(encoder, read_views(source, wanted.crop, latlon, self.recipe, rows))
            for source, encoder, wanted in zip(self.sources, self.encoders, self.recipe.sources, strict=True)
        ]
        return join_sources(by_source, self.recipe, rows)

    def chunks(self, places: Places, waiting: Mapping[int, range]) -> Generator[tuple[int, Tensor]]:
        """Numbered features of numbered chunks of places, as many chunks together as fill the device."""
        numbers = list(waiting)
        at_once = max(1, self.places_at_once // len(waiting[numbers[0]])) if numbers else 1
        for some in (numbers[start : start + at_once] for start in range(0, len(numbers), at_once)):
            features = self.features(places.latlon, np.concatenate([waiting[number] for number in some]))
            yield from zip(some, torch.split(features, [len(waiting[number]) for number in some]), strict=True)

    def project(self, features: Tensor) -> Tensor:
        """Features as their components, when the recipe wants them."""
        return features if self.projection is None else self.projection.apply(features)


@dataclass(frozen=True, eq=False, kw_only=True)
class DeviceFeatures(PlaceRows):
    """Features of many places on a device, with what training asks of a store."""

    recipe: FeatureRecipe
    path: Path
    """The folder of what was fitted."""
    places: Places
    array: Tensor
    """(places, views, width): components when the recipe wants them, else features."""
    reader: DeviceReader | None = None
    """By which they were made, and others can be."""

    @property
    def components(self) -> Tensor | None:
        """Components, when the recipe wants them."""
        return self.array if self.recipe.pca else None

    @property
    def features(self) -> Tensor:
        """All features, which are kept when the recipe wants no components."""
        if self.recipe.pca:
            raise ConfigError(f"only {self.recipe.pca} components are kept on the device; make a store, or set pca = 0")
        return self.array

    def redraw(self, count: int, number: int) -> tuple[Floats, Tensor]:
        """Other training places, (count, 2), and their features, (count, views, width), fixed by the number."""
        reader, recipe = self.reader, self.recipe
        assert reader is not None, "made by compute_features"
        latlon = redraw_places(recipe.places, reader.hosts[0], recipe.sources[0].kind, count, number)
        pieces = [reader.project(reader.features(latlon, rows)) for rows in reader.cut(np.arange(count))]
        return latlon, torch.cat(pieces)

    @property
    def manifest(self) -> dict[str, Any]:
        """What records name of a store."""
        return {"recipe_sha256": self.recipe.sha256()}


def has_device_form(recipe: FeatureRecipe) -> bool:
    """Whether all sources of a recipe can be read on a device."""
    return not DeviceReader(recipe, torch.device("cpu")).missing


def compute_features(
    recipe: FeatureRecipe, *, device: torch.device, folder: Path | None = None, progress: Progress | None = None
) -> DeviceFeatures:
    """Draw a recipe's places and make their features, all on a device.

    Encoders and components are kept in the folder and taken from there the next time, so that features are the same.
    """
    reader = DeviceReader(recipe, device)
    if reader.missing:
        raise ConfigError(f"the source {reader.missing[0]!r} has no form on a device; make a store: tessearth features")
    places = reader.prepare(folder)
    width = sum(encoder.width for encoder in reader.encoders)
    check_width(recipe, width)
    computed, chosen = reader.fit_components(places, folder), reader.fitted_rows(places)
    rest = np.delete(np.arange(len(places.latlon)), chosen)
    dtype, shape = getattr(torch, recipe.dtype), (len(places.latlon), recipe.views, recipe.pca or width)
    array, done = torch.empty(shape, dtype=dtype, device=device), 0
    for number, rows in enumerate((*reader.cut(chosen), *reader.cut(rest))):  # the same pieces, fitted now or before
        features = computed[number] if number < len(computed) else reader.features(places.latlon, rows)
        array[torch.as_tensor(rows).to(device)] = reader.project(features)
        done += len(rows)
        if progress:
            progress(done, len(array))
    return DeviceFeatures(recipe=recipe, path=folder or Path(), places=places, array=array, reader=reader)
