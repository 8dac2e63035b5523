"""Map layers and their tiles: read off the world maps at low zooms, computed for the tile at high zooms."""

import asyncio
import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.explorer import pictures
from tessearth.explorer.answers import site_fields
from tessearth.explorer.limits import Recent
from tessearth.explorer.schemas import Legend
from tessearth.explorer.session import FieldName, Served
from tessearth.sphere import Floats, is_land

Array = npt.NDArray[Any]

WORLD_ZOOM = 3
"""Tiles up to this zoom are read off the world maps; deeper ones have places of their own."""
LATTICE_STEPS = 32
"""Across a tile of a deeper zoom: 0.7 degrees at zoom 4."""
DEEPEST_FIELD_ZOOM = 8
KEPT_PICTURES, KEPT_GRIDS, KEPT_LATTICES, KEPT_MASKS, KEPT_LAYERS = 1024, 16, 96, 256, 64
ROWS_AT_ONCE = 1024
"""Rows of a world map that stay in the processor's cache while they are worked on."""
LOWEST_SHOWN = 10.0
"""Percentile of the similarities on land that a heat map begins at."""
BRIGHTEST = 99.5
"""Percentile of a token's attention that its map ends at."""


class Layer(NamedTuple):
    """One map: values (..., C) from a field's rows, colours from the values."""

    key: tuple[object, ...]
    """Distinguishes it from other maps of the same model."""
    field: FieldName
    values: Callable[[Array], Array]
    """Rows of the field (N, F) to the values interpolated between places, (N, C)."""
    paint: Callable[[Array], npt.NDArray[np.uint8]]
    """Interpolated values (H, W, C) to colours (H, W, 3)."""
    legend: Legend


def scale_layer(
    key: tuple[object, ...], field: FieldName, values: Callable[[Array], Array], legend: Legend, high: float
) -> Layer:
    """One number for each place on the legend's scale of colours, which ends at `high` of the number's unit."""
    table, low = pictures.ramp(tuple(legend.colours)), legend.low or 0.0

    def paint(numbers: Array) -> npt.NDArray[np.uint8]:
        return pictures.on_ramp(numbers[..., 0], low, high, table, logarithmic=legend.logarithmic)

    return Layer(key, field, values, paint, legend)


class Tiles:
    """Draws layers of a served model, and keeps the recent ones."""

    def __init__(self, served: Served) -> None:
        self.served = served
        self._pictures: Recent[bytes] = Recent(KEPT_PICTURES)
        self._grids: Recent[Array] = Recent(KEPT_GRIDS)
        self._lattices: Recent[Array] = Recent(KEPT_LATTICES)
        self._similar: Recent[Layer] = Recent(KEPT_LAYERS)

    async def draw(self, layer: Layer, tile: pictures.Tile, *, sea: bool) -> bytes:
        """A layer's tile as PNG; without `sea`, only land is painted."""
        if tile.z > DEEPEST_FIELD_ZOOM:
            raise UnknownNameError(f"there is no tile {tile.z}/{tile.x}/{tile.y}: z ends at {DEEPEST_FIELD_ZOOM}")
        kept = self._pictures.get((layer.key, tile, sea))
        if kept is not None:
            return kept
        rows = None if tile.z <= WORLD_ZOOM else await self._lattice(layer.field, tile)
        content = await asyncio.to_thread(self._draw, layer, tile, rows, sea)
        return self._pictures.put((layer.key, tile, sea), content)

    async def layer(self, name: str, token: int | None, place: Floats | None, probe: str | None) -> Layer:
        """A layer by name and by the token, place or probe it shows."""
        if name == "embedding":
            return self._embedding()
        if name == "sharpness":
            return self._sharpness()
        if name == "token":
            return self._token(token)
        if name == "similarity":
            return await self._similarity(place)
        return self._prediction(probe)

    def _embedding(self) -> Layer:
        """Three independent components of the embedding as one colour."""
        self.served.field("embedding")
        components = self.served.components
        if components is None:
            raise UnknownNameError(f"embeddings of {self.served.embedder.name} have too few directions for colours")
        unmixing = components.unmixing.astype(np.float32)
        shift = (components.mean @ components.unmixing).astype(np.float32)
        painted = components._replace(mean=np.zeros(3), unmixing=np.eye(3))
        note = "Places of one colour have similar embeddings: three independent components as lightness and hue."
        return Layer(
            key=("embedding",),
            field="embedding",
            values=lambda rows: rows.astype(np.float32) @ unmixing - shift,
            paint=lambda values: (painted.colours(values) * 255).round().astype(np.uint8),
            legend=Legend(kind="colours", title="Embedding", colours=[], note=note),
        )

    def _prediction(self, key: str | None) -> Layer:
        """The predictions of a probe everywhere."""
        probe = None if key is None else self.served.probes.get(key)
        if probe is None:
            raise UnknownNameError(f"there is no probe {key!r}: POST labels to /predict first (old ones are forgotten)")
        layer_key = ("prediction", probe.key)
        if probe.target.kind == "regress":
            legend = Legend(
                kind="scale", title=probe.name, low=probe.low, high=probe.high, colours=list(pictures.SCALE)
            )
            return scale_layer(layer_key, "embedding", probe.decide, legend, probe.high)
        colours, codes = pictures.class_colours(len(probe.target.classes)), probe.fit.classes
        assert codes is not None
        table, legend = pictures.to_rgb(colours), Legend(kind="classes", title=probe.name, colours=colours)
        return Layer(layer_key, "embedding", probe.decide, lambda values: table[codes[values.argmax(-1)]], legend)

    def _sharpness(self) -> Layer:
        low, high = np.percentile(self._on_land("sharpness"), (1, 99)).tolist()
        high = max(high, low * 1.01)
        legend = Legend(
            kind="scale",
            title="Sharpness",
            unit="\N{GREEK SMALL LETTER TAU}",
            low=low,
            high=high,
            logarithmic=True,
            colours=list(pictures.SCALE),
            note="Sharper sites tell neighbours apart; blunter ones smooth over a region.",
        )
        return scale_layer(("sharpness",), "sharpness", lambda rows: rows, legend, high)

    def _token(self, token: int | None) -> Layer:
        self.served.check_field("attention")
        count = self.served.num_tokens
        if token is None or not 0 <= token < count:
            given = "no token was named" if token is None else f"there is no token {token}"
            raise UnknownNameError(f"{given}: add token=0 to token={count - 1}")
        high = max(1e-4, float(np.percentile(self._on_land("attention")[:, token], BRIGHTEST)))
        legend = Legend(
            kind="scale",
            title=f"Token {token}",
            unit="% of attention",
            low=0.0,
            high=100 * high,
            colours=list(pictures.HEAT),
            note="The share of the model's attention to tokens that this token gets.",
        )
        return scale_layer(("token", token), "attention", lambda rows: rows[:, token : token + 1], legend, high)

    async def _similarity(self, place: Floats | None) -> Layer:
        if place is None:
            raise ConfigError("no place was named: add lat= and lon= in degrees")
        key = ("similarity", *np.round(place, 4).tolist())
        kept = self._similar.get(key)
        if kept is not None:
            return kept
        keys = self.served.land.keys
        (query,) = await self.served.embed(place[None])
        unit = (query / max(float(np.linalg.norm(query)), 1e-12)).astype(np.float32)

        def cosines(rows: Array) -> Array:
            wide = rows.astype(np.float32)
            length = np.sqrt(np.einsum("nd,nd->n", wide, wide))
            return np.asarray((wide @ unit) / np.maximum(length, 1e-12))[:, None]

        legend = Legend(
            kind="scale",
            title="Likeness",
            unit="cosine",
            low=min(float(np.percentile(keys @ unit, LOWEST_SHOWN)), 0.999),
            high=1.0,
            colours=list(pictures.HEAT),
            note="The similarity of each place to the one chosen.",
        )
        return self._similar.put(key, scale_layer(key, "embedding", cosines, legend, 1.0))

    def _on_land(self, name: FieldName) -> Array:
        """A map's rows on land (n, C): seas, where nothing was learned, must not set the scale."""
        field = self.served.field(name)
        return self._grids.find(("land", name), lambda: field[is_land(self.served.places)])

    async def _lattice(self, field: FieldName, tile: pictures.Tile) -> Array:
        """A field's rows on the lattice from edge to edge of a tile."""
        self.served.check_field(field)
        kept = self._lattices.get((field, tile))
        if kept is not None:
            return kept
        places = pictures.grid_of(*tile.axes(np.arange(LATTICE_STEPS + 1) / LATTICE_STEPS)).reshape(-1, 2)
        if field == "embedding":
            return self._lattices.put((field, tile), (await self.served.embed(places)).astype(np.float16))
        attention, sharpness = await asyncio.to_thread(site_fields, self.served.embedder.few_sites, places)
        self._lattices.put(("attention", tile), attention)
        self._lattices.put(("sharpness", tile), sharpness)
        return sharpness if field == "sharpness" else attention

    def _draw(self, layer: Layer, tile: pictures.Tile, rows: Array | None, sea: bool) -> bytes:
        if rows is None:
            values = pictures.sample_world(
                self._grids.find(layer.key, lambda: self._world_values(layer)), *tile.pixel_axes()
            )
        else:
            side = LATTICE_STEPS + 1
            values = pictures.stretch(layer.values(rows).reshape(side, side, -1))
        return pictures.encode_png(layer.paint(values), None if sea else _land_of(tile))

    def _world_values(self, layer: Layer) -> Array:
        field = self.served.field(layer.field)
        rows = field.reshape(-1, field.shape[-1])
        parts = [layer.values(rows[start : start + ROWS_AT_ONCE]) for start in range(0, len(rows), ROWS_AT_ONCE)]
        return np.concatenate(parts).reshape(*field.shape[:2], -1)


@functools.lru_cache(maxsize=KEPT_MASKS)
def _land_of(tile: pictures.Tile) -> npt.NDArray[np.bool_]:
    """The pixels of a tile that are land, (256, 256)."""
    return is_land(pictures.grid_of(*tile.pixel_axes()))
