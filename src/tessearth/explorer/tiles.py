"""Layers drawn as map tiles: read off the world grid when seen from afar, computed for the tile itself when near."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.explorer.colours import encode_png
from tessearth.explorer.fields import (
    DEEPEST_FIELD_ZOOM,
    LATTICE_STEPS,
    WORLD_ZOOM,
    FieldName,
    Recent,
    site_fields,
)
from tessearth.explorer.known import land_mask
from tessearth.explorer.layers import (
    Layer,
    embedding_layer,
    prediction_layer,
    sharpness_layer,
    similarity_layer,
    token_layer,
)
from tessearth.explorer.mercator import Tile, grid_of, sample_world, stretch
from tessearth.explorer.served import Served
from tessearth.sphere.coordinates import Floats

Array = npt.NDArray[Any]

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
