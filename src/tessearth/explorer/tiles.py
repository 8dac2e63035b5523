"""Map layers and their tiles: read off the world grid at low zooms, computed for the tile at high zooms."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.explorer.pictures import (
    HEAT,
    SCALE,
    Tile,
    class_colours,
    encode_png,
    grid_of,
    on_ramp,
    ramp,
    sample_world,
    stretch,
    to_rgb,
)
from tessearth.explorer.probes import FittedProbe
from tessearth.explorer.schemas import Legend
from tessearth.explorer.session import (
    DEEPEST_FIELD_ZOOM,
    LATTICE_STEPS,
    WORLD_ZOOM,
    FieldName,
    Recent,
    Served,
    land_mask,
    site_fields,
)
from tessearth.plotting.colours import Components
from tessearth.sphere.coordinates import Floats

Array = npt.NDArray[Any]


class Layer(NamedTuple):
    """One map: values (..., C) from a field's rows, colours from the values."""

    key: tuple[object, ...]
    """What tells it from other maps of the same model."""
    field: FieldName
    values: Callable[[Array], Array]
    """Rows of the field (N, F) to what is interpolated between places, (N, C)."""
    paint: Callable[[Array], npt.NDArray[np.uint8]]
    """Interpolated values (H, W, C) to colours (H, W, 3)."""
    legend: Legend


def embedding_layer(components: Components) -> Layer:
    """Three independent components of the embedding as one colour."""
    unmixing, shift = components.unmixing.astype(np.float32), (components.mean @ components.unmixing).astype(np.float32)
    painted = components._replace(mean=np.zeros(3), unmixing=np.eye(3))
    legend = Legend(
        kind="colours",
        title="Embedding",
        colours=[],
        note="Places of one colour have embeddings alike: three independent components as lightness and hue.",
    )
    return Layer(
        key=("embedding",),
        field="embedding",
        values=lambda rows: rows.astype(np.float32) @ unmixing - shift,
        paint=lambda values: (painted.colours(values) * 255).round().astype(np.uint8),
        legend=legend,
    )


def sharpness_layer(low: float, high: float) -> Layer:
    """How sharp the sites around a place are."""
    legend = Legend(
        kind="scale",
        title="Sharpness",
        unit="\N{GREEK SMALL LETTER TAU}",
        low=low,
        high=high,
        logarithmic=True,
        colours=list(SCALE),
        note="Sharper sites tell neighbours apart; blunter ones smooth over a region.",
    )
    return Layer(("sharpness",), "sharpness", _as_is, _scale(low, high, SCALE, logarithmic=True), legend)


def token_layer(token: int, high: float) -> Layer:
    """How much of a place's attention one token gets."""
    legend = Legend(
        kind="scale",
        title=f"Token {token}",
        unit="% of attention",
        low=0.0,
        high=100 * high,
        colours=list(HEAT),
        note="How much of what the model says of a place comes from this token.",
    )
    return Layer(
        ("token", token), "attention", lambda rows: rows[:, token : token + 1], _scale(0.0, high, HEAT), legend
    )


def similarity_layer(query: Array, low: float, key: tuple[object, ...]) -> Layer:
    """How alike every place is to one: the cosine of their embeddings."""
    unit = (query / max(float(np.linalg.norm(query)), 1e-12)).astype(np.float32)

    def values(rows: Array) -> Array:
        wide = rows.astype(np.float32)
        length = np.sqrt(np.einsum("nd,nd->n", wide, wide))
        return np.asarray((wide @ unit) / np.maximum(length, 1e-12))[:, None]

    legend = Legend(
        kind="scale",
        title="Likeness",
        unit="cosine",
        low=low,
        high=1.0,
        colours=list(HEAT),
        note="How alike each place is to the one chosen.",
    )
    return Layer(("similarity", *key), "embedding", values, _scale(low, 1.0, HEAT), legend)


def prediction_layer(probe: FittedProbe) -> Layer:
    """What a probe predicts everywhere."""
    if probe.target.kind == "regress":
        legend = Legend(kind="scale", title=probe.name, low=probe.low, high=probe.high, colours=list(SCALE))
        paint = _scale(probe.low, probe.high, SCALE)
    else:
        colours = class_colours(len(probe.target.classes))
        legend = Legend(kind="classes", title=probe.name, colours=colours)
        paint = _best_class(probe, to_rgb(colours))
    return Layer(("prediction", probe.key), "embedding", probe.decide, paint, legend)


def _best_class(probe: FittedProbe, table: npt.NDArray[np.uint8]) -> Callable[[Array], npt.NDArray[np.uint8]]:
    codes = probe.fit.classes
    assert codes is not None
    return lambda values: table[codes[values.argmax(-1)]]


def _scale(
    low: float, high: float, stops: tuple[str, ...], *, logarithmic: bool = False
) -> Callable[[Array], npt.NDArray[np.uint8]]:
    table = ramp(stops)
    return lambda values: on_ramp(values[..., 0], low, high, table, logarithmic=logarithmic)


def _as_is(rows: Array) -> Array:
    return rows


KEPT_PICTURES, KEPT_GRIDS, KEPT_LATTICES, KEPT_MASKS, KEPT_QUERIES = 1024, 16, 96, 256, 64
ROWS_AT_ONCE = 1024
"""Of the world: as many as stay in the processor's cache while they are worked on."""
LOWEST_SHOWN = 10.0
"""Percentile of the likeness on land that a heat map begins at."""
BRIGHTEST = 99.5
"""Percentile of a token's attention that its map ends at."""


class Tiles:
    """Draws layers of a served model, and remembers what it drew."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._pictures: Recent[bytes] = Recent(KEPT_PICTURES)
        self._grids: Recent[Array] = Recent(KEPT_GRIDS)
        self._lattices: Recent[Array] = Recent(KEPT_LATTICES)
        self._masks: Recent[npt.NDArray[np.bool_]] = Recent(KEPT_MASKS)
        self._layers: Recent[Layer] = Recent(KEPT_QUERIES)

    async def draw(self, layer: Layer, tile: Tile, *, sea: bool) -> bytes:
        """A layer's tile as PNG; without `sea`, only land is painted."""
        if tile.z > DEEPEST_FIELD_ZOOM:
            raise UnknownNameError(f"there is no tile {tile.z}/{tile.x}/{tile.y}: z ends at {DEEPEST_FIELD_ZOOM}")
        kept = self._pictures.get((layer.key, tile, sea))
        if kept is not None:
            return kept
        rows = None if tile.z <= WORLD_ZOOM else await self._lattice(layer.field, tile)
        content = await self.served.work(self._draw, layer, tile, rows, sea)
        return self._pictures.put((layer.key, tile, sea), content)

    async def layer(
        self, name: str, *, token: int | None = None, place: Floats | None = None, probe: str | None = None
    ) -> Layer:
        """A layer by name and what it is about."""
        if name == "embedding":
            return self._embedding()
        if name == "sharpness":
            return self._layers.find("sharpness", self._sharpness)
        if name == "token":
            return self._token(token)
        if name == "similarity":
            return await self._similarity(place)
        return self._prediction(probe)

    def _embedding(self) -> Layer:
        self.served.field("embedding")
        if self.served.components is None:
            raise UnknownNameError(f"embeddings of {self.served.embedder.name} have too few directions for colours")
        return embedding_layer(self.served.components)

    def _sharpness(self) -> Layer:
        low, high = np.percentile(self._on_land("sharpness"), (1, 99))
        return sharpness_layer(float(low), float(max(high, low * 1.01)))

    def _token(self, token: int | None) -> Layer:
        self.served.check_field("attention")
        count = self.served.num_tokens
        if token is None or not 0 <= token < count:
            given = "no token was named" if token is None else f"there is no token {token}"
            raise UnknownNameError(f"{given}: add token=0 to token={count - 1}")
        attention = self._on_land("attention")

        def make() -> Layer:
            return token_layer(token, max(1e-4, float(np.percentile(attention[:, token], BRIGHTEST))))

        return self._layers.find(("token", token), make)

    def _on_land(self, name: FieldName) -> Array:
        """A field's rows on land (n, C): seas, where nothing was learned, must not set the scale."""
        field = self.served.field(name)
        return self._grids.find(("land", name), lambda: field[land_mask(self.served.world.places)])

    async def _similarity(self, place: Floats | None) -> Layer:
        if place is None:
            raise ConfigError("no place was named: add lat= and lon= in degrees")
        key = tuple(np.round(place, 4).tolist())
        kept = self._layers.get(("similarity", key))
        if kept is not None:
            return kept
        _, keys, _ = self.served.land
        (query,) = await self.served.batcher.embed(place[None])
        cosine = keys @ (query / max(float(np.linalg.norm(query)), 1e-12))
        low = min(float(np.percentile(cosine, LOWEST_SHOWN)), 0.999)
        return self._layers.put(("similarity", key), similarity_layer(query, low, key))

    def _prediction(self, probe: str | None) -> Layer:
        found = None if probe is None else self.served.probes.get(probe)
        if found is None:
            raise UnknownNameError(
                f"there is no probe {probe!r}: POST labels to /predict first (old ones are forgotten)"
            )
        return prediction_layer(found)

    async def _lattice(self, field: FieldName, tile: Tile) -> Array:
        """A field's rows on the lattice from edge to edge of a tile."""
        self.served.check_field(field)
        kept = self._lattices.get((field, tile))
        if kept is not None:
            return kept
        places = grid_of(*tile.axes(np.arange(LATTICE_STEPS + 1) / LATTICE_STEPS)).reshape(-1, 2)
        if field == "embedding":
            rows = (await self.served.batcher.embed(places)).astype(np.float16)
            return self._lattices.put((field, tile), rows)
        attention, sharpness = await self.served.work(site_fields, self.served.embedder.encoder, places)
        if attention is not None:
            self._lattices.put(("attention", tile), attention)
        self._lattices.put(("sharpness", tile), sharpness)
        return sharpness if field == "sharpness" or attention is None else attention

    def _draw(self, layer: Layer, tile: Tile, rows: Array | None, sea: bool) -> bytes:
        lat, lon = tile.pixel_axes()
        if rows is None:
            values = sample_world(self._grids.find(layer.key, lambda: self._world_values(layer)), lat, lon)
        else:
            side = LATTICE_STEPS + 1
            values = stretch(layer.values(rows).reshape(side, side, -1))
        shown = None if sea else self._masks.find(tile, lambda: land_mask(grid_of(lat, lon)))
        return encode_png(layer.paint(values), shown)

    def _world_values(self, layer: Layer) -> Array:
        field = self.served.field(layer.field)
        rows = field.reshape(-1, field.shape[-1])
        parts = [layer.values(rows[start : start + ROWS_AT_ONCE]) for start in range(0, len(rows), ROWS_AT_ONCE)]
        return np.concatenate(parts).reshape(*field.shape[:2], -1)
