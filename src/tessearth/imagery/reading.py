"""From a recipe's words to things that read: sources, places, encoders, and tiles of places by view."""

import inspect
from pathlib import Path
from typing import cast

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError
from tessearth.imagery.image_encoders import IMAGE_ENCODERS, RandomConvolution, build_image_encoder
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.imagery.source import Source
from tessearth.imagery.sources import SOURCES
from tessearth.imagery.store import ENCODERS, Places
from tessearth.imagery.views import augment, centre_crop
from tessearth.settings import did_you_mean
from tessearth.sphere.sampling import sample_elsewhere, sample_land, sample_sphere, split_places

Tiles = npt.NDArray[np.float32]


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
    """The places a recipe asks for and which of them are held out."""
    if recipe.where == "source":
        latlon = _own_places(source, kind, recipe)
    elif recipe.where == "sphere":
        latlon = sample_sphere(recipe.count, recipe.seed)
    else:
        rest = round(recipe.elsewhere * recipe.count)
        latlon = np.concatenate((sample_land(recipe.count - rest, recipe.seed), sample_elsewhere(rest, recipe.seed)))
    split = split_places(
        latlon, validation=recipe.validation, seed=recipe.seed, block_degrees=recipe.validation_block_degrees
    )
    held_out = np.zeros(len(latlon), dtype=np.bool_)
    held_out[split.validation] = True
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
    card = IMAGE_ENCODERS.get(wanted.encoder)
    if card is None or not card.draws_from_tiles:
        return build_image_encoder(wanted.encoder, device=device, **wanted.encoder_options)
    kept = store / ENCODERS / f"{number}.safetensors"
    if kept.is_file():
        return build_image_encoder(kept, device=device)
    sample = np.flatnonzero(~places.validation)[: recipe.fit_places]
    tiles = centre_crop_of(source.tiles(places.latlon[sample]), wanted.crop)
    options = {"seed": recipe.seed + number, **wanted.encoder_options}
    encoder = cast("RandomConvolution", card.build(tiles=torch.from_numpy(tiles), **options))
    kept.parent.mkdir(parents=True, exist_ok=True)
    encoder.save(kept)
    return build_image_encoder(kept, device=device)


def centre_crop_of(tiles: Tiles, crop: int | None) -> Tiles:
    """Tiles (N, C, H, W) cut to their middle; None leaves them whole."""
    return tiles if crop is None else np.ascontiguousarray(centre_crop(torch.from_numpy(tiles), crop).numpy())


class PlaceReader:
    """Reads the tiles of consecutive places, by source and view."""

    def __init__(self, sources: list[Source], latlon: npt.NDArray[np.float64], recipe: FeatureRecipe) -> None:
        self.sources, self.latlon, self.recipe = sources, latlon, recipe

    def read(self, start: int, count: int) -> list[list[Tiles]]:
        """Tiles of places start to start + count: for each source, for each view, (n, C, h, w).

        A view is drawn from the seed, the place's row and the view's number, never from the batch it is read in.
        """
        rows = range(start, min(start + count, len(self.latlon)))
        return [
            self._views(source.tiles(self.latlon[rows.start : rows.stop]), recipe, rows)
            for source, recipe in zip(self.sources, self.recipe.sources, strict=True)
        ]

    def _views(self, tiles: Tiles, recipe: SourceRecipe, rows: range) -> list[Tiles]:
        first = centre_crop_of(tiles, recipe.crop)
        others = [
            augment(
                torch.from_numpy(tiles),
                indices=rows,
                view=view,
                seed=self.recipe.seed,
                size=recipe.crop,
                settings=self.recipe.augmentation,
            ).numpy()
            for view in range(1, self.recipe.views)
        ]
        return [first, *others]
