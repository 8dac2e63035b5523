"""Sources, places and encoders built from a recipe, and the tiles of places by view."""

import inspect
from collections.abc import Callable, Generator, Iterable
from functools import partial
from pathlib import Path

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError
from tessearth.imagery.image_encoders import IMAGE_ENCODERS, build_image_encoder
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.imagery.source import Source, Tiles
from tessearth.imagery.sources import SOURCES
from tessearth.imagery.store import ENCODERS, Places
from tessearth.imagery.views import augment, centre_crop
from tessearth.settings import did_you_mean
from tessearth.sphere import sample_elsewhere, sample_land, sample_sphere, split_places
from tessearth.storage import one_torch_thread, open_pool

Chunk = list[list[Tiles]]
"""Tiles of consecutive places by source and view, (n, C, h, w) each."""


def build_source(recipe: SourceRecipe) -> Source:
    """The source a recipe names, its options checked against what that kind of source takes."""
    make = SOURCES[recipe.kind]
    known = [name for name in inspect.signature(make).parameters if name != "self"]
    for name in recipe.options:
        if name not in known:
            raise ConfigError(f"the source {recipe.kind!r} has no option {name!r}{did_you_mean(name, known)}")
    try:
        source: Source = make(**recipe.options)
    except TypeError as error:
        raise ConfigError(f"the source {recipe.kind!r} cannot be opened: {error}") from None
    return source


def build_places(recipe: PlacesRecipe, source: Source, kind: str) -> Places:
    """The places of a recipe, and which of them are held out."""
    if recipe.where == "source":
        latlon = _own_places(source, kind, recipe)
    elif recipe.where == "sphere":
        latlon = sample_sphere(recipe.count, recipe.seed)
    else:
        rest = round(recipe.elsewhere * recipe.count)
        latlon = np.concatenate((sample_land(recipe.count - rest, recipe.seed), sample_elsewhere(rest, recipe.seed)))
    held_out = split_places(
        latlon, validation=recipe.validation, seed=recipe.seed, block_degrees=recipe.validation_block_degrees
    )
    if held_out.all():
        raise ConfigError(f"all {len(latlon)} places would be held out for validation; draw more, or hold out fewer")
    return Places(latlon, held_out)


def _own_places(source: Source, kind: str, recipe: PlacesRecipe) -> npt.NDArray[np.float64]:
    """A source's own places, in its order; of more than are wanted, a seeded choice."""
    own: npt.NDArray[np.float64] | None = getattr(source, "places", None)
    if own is None:
        raise ConfigError(f"the source {kind!r} has no places of its own; set places.where to 'land' or 'sphere'")
    if len(own) <= recipe.count:
        return own
    chosen = np.random.default_rng(recipe.seed).permutation(len(own))[: recipe.count]
    return own[np.sort(chosen)]


def load_or_fit_encoder(
    recipe: FeatureRecipe, number: int, source: Source, places: Places, store: Path, device: str | torch.device
) -> ImageEncoder:
    """The frozen encoder of one source: from the store when it was fitted before, else made and kept there."""
    wanted = recipe.sources[number]
    build = IMAGE_ENCODERS.get(wanted.encoder)
    if build is None or "tiles" not in inspect.signature(build).parameters:
        return build_image_encoder(wanted.encoder, device=device, **wanted.encoder_options)
    kept = store / ENCODERS / f"{number}.safetensors"
    if kept.is_file():
        return build_image_encoder(kept, device=device)
    sample = np.flatnonzero(~places.validation)[: recipe.fit_places]
    tiles = centre_crop_of(source.tiles(places.latlon[sample]), wanted.crop)
    options = {"seed": recipe.seed + number, **wanted.encoder_options}
    kept.parent.mkdir(parents=True, exist_ok=True)
    build(tiles=torch.from_numpy(tiles), **options).save(kept)
    return build_image_encoder(kept, device=device)


def centre_crop_of(tiles: Tiles, crop: int | None) -> Tiles:
    """Tiles (N, C, H, W) cut to their middle; None leaves them whole."""
    return tiles if crop is None else np.ascontiguousarray(centre_crop(torch.from_numpy(tiles), crop).numpy())


def read_tiles(sources: list[Source], latlon: npt.NDArray[np.float64], recipe: FeatureRecipe, rows: range) -> Chunk:
    """The tiles of some rows of the places, by source and view.

    A view is drawn from the seed, the place's row and the view's number, never from the batch it is read in.
    """
    chunk = []
    for source, crop in zip(sources, [each.crop for each in recipe.sources], strict=True):
        tiles = source.tiles(latlon[rows.start : rows.stop])
        pixels, seed, settings = torch.from_numpy(tiles), recipe.seed, recipe.augmentation
        others = [
            augment(pixels, indices=rows, view=view, seed=seed, size=crop, settings=settings).numpy()
            for view in range(1, recipe.views)
        ]
        chunk.append([centre_crop_of(tiles, crop), *others])
    return chunk


def read_ahead(
    read: Callable[[range], Chunk], chunks: Iterable[tuple[int, range]], *, threads: int = 2, processes: int = 0
) -> Generator[tuple[int, Chunk], None, None]:
    """Numbered chunks of rows in order, read while the ones before are worked on; processes go before threads.

    Threads share one interpreter, which lets few of them work at once; processes share nothing, but take seconds to
    start.
    """
    workers = max(1, processes or threads)
    kind, setup = ("processes", partial(_begin_reading, read)) if processes else ("threads", None)
    with open_pool(kind, workers, setup=setup, advice="run it again with fewer --processes") as pool:  # type: ignore[arg-type]
        yield from pool.run(_read if processes else read, chunks, at_once=workers + 1)


_readers: list[Callable[[range], Chunk]] = []
"""In a process that reads: what it reads by, which keeps decoded imagery from chunk to chunk."""


def _begin_reading(read: Callable[[range], Chunk]) -> None:
    one_torch_thread()
    _readers[:] = [read]


def _read(rows: range) -> Chunk:
    return _readers[0](rows)
