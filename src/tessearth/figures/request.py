"""What a figure shows, and where its numbers come from: a model, a run, a table, predictions."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.embedding import Embedder
from tessearth.errors import ConfigError, CoordinateError
from tessearth.figures.scores import STORE, find_run
from tessearth.imagery import FeatureStore, SourceRecipe, build_source, to_picture
from tessearth.plotting import COLUMN_CM, SHARE, Floats, Pixels, Predicted, View, build_view, new_figure
from tessearth.settings import from_plain, read_value
from tessearth.sphere import check_latlon

Array = npt.NDArray[Any]

EXPLAIN_AT_ONCE = 8192
"""Places whose attention is computed in one call, which bounds the memory of their site weights."""
BRIGHTENED = 0.7
"""The power of brightness at which forests on paper can be told apart from each other, next to ice and sand."""
OWN_EARTH = SourceRecipe(kind="blue-marble", options={"size": 48, "km_per_pixel": 7.4})


@dataclass(kw_only=True)
class Settings:
    """What `tessearth plot --set name=value` changes; `KINDS` says which kind follows which."""

    store: str | None = None
    """A feature store whose tiles are shown; None is the run's own, else Blue Marble."""
    token: int | None = None
    """None is the token that tells places apart best."""
    tessellation: int = 0
    columns: int | None = None
    """How many pixels a map is wide; None leaves it to the kind of figure."""
    share: float = SHARE
    """The share of the sites shown in migration and sharpness."""
    seed: int = 0
    """Draws that share of the sites."""
    frames: int = 40
    """The pictures of an animation."""
    task: str = "koppen"
    models: str = ""
    """Encoders drawn next to the model in prediction maps, with commas between them."""
    x: str = "sites"
    """What was varied: sites, tokens, places, top_k; K or T of a study."""
    also: str = ""
    """What other runs of a study had, such as "base=4096,long=1024"."""


@dataclass(kw_only=True)
class Request(Settings):
    """What a figure shows."""

    model: str
    view: View = field(default_factory=View)
    device: str | None = None
    run: str | None = None
    """The folder of a training run; None is the one the model's weights lie in."""
    table: str | None = None
    """A file of scores: csv, or a study's jsonl."""
    width_cm: float | None = None
    predicted: Predicted | None = None
    """Predictions already at hand; otherwise they are worked out."""

    @cached_property
    def embedder(self) -> Embedder:
        """The model, loaded on first use."""
        return Embedder(self.model, device=self.device)

    def voronoi(self) -> Any:
        """The chosen tessellation of an encoder that has sites."""
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
        """The attention of each place (N, 2) to each token, (N, T)."""
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
        width = self.width_cm or COLUMN_CM
        return new_figure(width, (width - 0.7) * self.view.aspect() + below_cm)

    def tiles(self, latlon: Floats) -> "Tiles":
        """The pictures of places (N, 2), from the first source of the feature store that `store` describes.

        All are stretched together, so that bright and dark places keep their order.
        """
        store = self._tile_store()
        recipe = OWN_EARTH if store is None else FeatureStore(store, verify=False).recipe.sources[0]
        source = build_source(recipe)
        pictures = to_picture(source.tiles(latlon), source.bands).transpose(0, 2, 3, 1)
        size, scale = recipe.options.get("size"), recipe.options.get("km_per_pixel")
        brightened = np.asarray(255 * (pictures / 255) ** BRIGHTENED).round().astype(np.uint8)
        return Tiles(brightened, float(size) * float(scale) if size and scale else None)

    def _tile_store(self) -> str | None:
        if self.store is not None:
            return self.store
        try:
            folder = find_run(self.model, self.run) / STORE
        except ConfigError:
            return None
        return str(folder) if (folder / "manifest.json").is_file() else None


class Tiles(NamedTuple):
    """Pictures of places."""

    pictures: npt.NDArray[np.uint8]
    """(N, h, w, 3)."""
    km: float | None
    """The width of a tile on the ground, where its source says so."""


def read_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """Settings by name as a `Request` takes them, from texts; an unknown name or another type is a ConfigError."""
    settings = from_plain(Settings, {name: read_value(text) for name, text in texts.items()})
    return {name: getattr(settings, name) for name in texts}


def read_view(projection: str | None, region: str | None, center: str | None) -> View:
    """A view from a projection's name, a region's, and the middle of the map as "LAT,LON"."""
    if center is None:
        return build_view(projection, region)
    try:
        lat, lon = (float(part) for part in center.split(","))
    except ValueError:
        raise CoordinateError(f"center is {center!r}; give LAT,LON in degrees such as 45,10") from None
    check_latlon(np.array([lat, lon]))
    return build_view(projection, region, (lat, lon))
