"""What a figure is asked to show, and where its numbers come from: a model, a run, a table, predictions."""

from collections.abc import Sequence
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.embedding.embedder import Embedder
from tessearth.errors import ConfigError
from tessearth.figures.scores import STORE, Predicted, find_run
from tessearth.imagery.contact_sheet import to_picture
from tessearth.imagery.reading import build_source
from tessearth.imagery.recipe import SourceRecipe
from tessearth.imagery.store import FeatureStore
from tessearth.plotting.curves import Score
from tessearth.plotting.sites import SHARE
from tessearth.plotting.views import COLUMN_CM, Floats, Pixels, View, new_figure

Array = npt.NDArray[Any]

EXPLAIN_AT_ONCE = 8192
"""Places whose attention is asked for at once: their site weights are made on the way and dropped."""


@dataclass(kw_only=True)
class Request:
    """What a figure is asked to show."""

    model: str
    view: View = field(default_factory=View)
    device: str | None = None
    run: str | None = None
    """The folder of a training run; None is the one the model's weights lie in."""
    store: str | None = None
    """A feature store whose tiles are shown; None is the run's own, else Blue Marble."""
    token: int | None = None
    tessellation: int = 0
    columns: int | None = None
    """How many pixels a map is wide; None leaves it to the kind of figure."""
    width_cm: float | None = None
    share: float = SHARE
    seed: int = 0
    varied: str = "sites"
    scores: Sequence[Score] = ()
    predicted: Predicted | None = None

    @cached_property
    def embedder(self) -> Embedder:
        """The model, loaded when first asked for."""
        return Embedder(self.model, device=self.device)

    def voronoi(self) -> Any:
        """The tessellation asked for, of an encoder that has sites."""
        if not self.embedder.has_sites:
            raise ConfigError(f"{self.model} has no sites: this figure is for Voronoi encoders")
        every = self.embedder.encoder.voronois()
        if not 0 <= self.tessellation < len(every):
            raise ConfigError(f"tessellation is {self.tessellation}; the model's are numbered 0 to {len(every) - 1}")
        return every[self.tessellation]

    def positions(self) -> Floats:
        """Where the tessellation's sites lie, (K, 3)."""
        return np.asarray(self.voronoi().positions().detach().cpu().double().numpy())

    def attention(self, latlon: Floats) -> Array:
        """How much each place (N, 2) draws on each token, (N, T)."""
        self.voronoi()
        parts = []
        for start in range(0, len(latlon), EXPLAIN_AT_ONCE):
            part = self.embedder.explain(latlon[start : start + EXPLAIN_AT_ONCE]).token_attention
            if part is None:
                raise ConfigError(f"{self.model} has no semantic tokens")
            parts.append(part)
        return np.concatenate(parts)

    def pixels(self, usual: int) -> Pixels:
        """The pixels of the map."""
        return self.view.pixels(self.columns or usual)

    def map_figure(self, below_cm: float = 0.35) -> Any:
        """A figure with one axis of the map's own shape, and room for a bar or legend below."""
        left, right, bottom, top = self.view.limits()
        width = self.width_cm or COLUMN_CM
        return new_figure(width, (width - 0.7) * (top - bottom) / (right - left) + below_cm)

    def tile_store(self) -> str | None:
        """The feature store tiles are read from: the one named, else that of the model's own run, if it is there."""
        if self.store is not None:
            return self.store
        try:
            folder = find_run(self.model, self.run) / STORE
        except ConfigError:
            return None
        return str(folder) if (folder / "manifest.json").is_file() else None


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
