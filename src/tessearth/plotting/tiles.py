"""Pictures of places, from the imagery a model was trained on or from the package's own Earth."""

from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessearth.imagery.contact_sheet import to_picture
from tessearth.imagery.reading import build_source
from tessearth.imagery.recipe import SourceRecipe
from tessearth.imagery.store import FeatureStore

BRIGHTENED = 0.7
"""The power of brightness that lets forests be told apart on paper beside ice and sand."""
OWN_EARTH = SourceRecipe(kind="blue-marble", options={"size": 48, "km_per_pixel": 7.4})


def read_tiles(latlon: npt.NDArray[np.float64], store: str | Path | None = None) -> npt.NDArray[np.uint8]:
    """Pictures (N, h, w, 3) of places (N, 2): from the first source of a feature store, else Blue Marble.

    All are stretched together, so that bright and dark places keep their order.
    """
    recipe = OWN_EARTH if store is None else FeatureStore(store, verify=False).recipe.sources[0]
    source = build_source(recipe)
    pictures = to_picture(source.tiles(latlon), source.bands).transpose(0, 2, 3, 1)
    return np.asarray(255 * (pictures / 255) ** BRIGHTENED).round().astype(np.uint8)


def tile_km(store: str | Path | None = None) -> float | None:
    """How many kilometres a tile is wide, where its source says so."""
    recipe = OWN_EARTH if store is None else FeatureStore(store, verify=False).recipe.sources[0]
    size, scale = recipe.options.get("size"), recipe.options.get("km_per_pixel")
    return float(size) * float(scale) if size and scale else None
