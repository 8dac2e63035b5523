"""The routes: each reads its request, asks the served model, and answers."""

import asyncio
import json
import math
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.embedding import first_numbers, take_away
from tessearth.errors import ConfigError, CoordinateError, UnknownNameError
from tessearth.explorer import answers, pictures, schemas
from tessearth.explorer.limits import BINARY, CONTENT_TYPE
from tessearth.explorer.probes import FittedProbe, fit_probe, read_target, with_places
from tessearth.explorer.session import FieldName, Served
from tessearth.explorer.tiles import DEEPEST_FIELD_ZOOM, Tiles
from tessearth.settings import check_dims
from tessearth.sphere import Floats, OnBad, as_latlon, as_places, take_latlon, world_grid
from tessearth.version import __version__
from tessearth.zoo import is_untrained

JSON_NUMBERS = 2**20
"""Numbers in one answer: more take JSON seconds to write and binary none."""
DIGITS = 8
"""Digits after the point in JSON: more than float32 has for numbers below 1."""
MOST_ALIKE = 200
SMALLEST_STEP = 1.0
DAY = 86_400
LAYERS: dict[schemas.LayerName, tuple[FieldName, tuple[str, ...]]] = {
    "embedding": ("embedding", ()),
    "sharpness": ("sharpness", ()),
    "token": ("attention", ("token",)),
    "similarity": ("embedding", ("lat", "lon")),
    "prediction": ("embedding", ("probe",)),
}
"""The field each layer reads, and the parameters its tiles take."""


class Routes:
    """The functions behind the routes: the model is asked through the batcher, other slow work runs in a worker."""

    def __init__(self, served: Served, registry: Any) -> None:
        self.served, self.registry, self.tiles = served, registry, Tiles(served)
        self._fixed: dict[str, bytes] = {}
        """JSON that stays the same while the model is served."""

    async def embed(self, request: schemas.EmbedRequest) -> Any:
        """Turn places into embeddings: one, or many in the order given."""
        places = self._places(request)
        dim = check_dims(request.dims, self.served.embedder.dim) or self.served.embedder.dim
        most = JSON_NUMBERS // dim
        if request.format == "json" and places.size // 2 > most:
            raise ConfigError(
                f'{len(places)} embeddings are too long for JSON: ask for "binary", or for {most} at most'
            )
        found = await self._embed(places, request.dims)
        if request.format == "binary":
            return _binary_reply(found)
        embedding = _rounded(found)
        if request.on_bad == "null" and found.ndim == 2:
            embedding = [None if math.isnan(row[0]) else row for row in embedding]
        return _json_reply(
            schemas.EmbedAnswer(model=self.served.embedder.name, shape=list(found.shape), embedding=embedding)
        )

    async def embed_one(self, lat: float, lon: float, dims: int | None = None) -> Any:
        """The same for one place, by its coordinates in the address."""
        return await self.embed(schemas.EmbedRequest(lat=lat, lon=lon, dims=dims))

    async def embed_bytes(self, body: bytes, dims: int | None = None, on_bad: OnBad = "error") -> Any:
        """Places as little-endian float64 pairs (lat, lon); embeddings as little-endian float32 rows."""
        if len(body) == 0 or len(body) % 16:
            raise CoordinateError(f"the body has {len(body)} bytes; places are pairs of float64, 16 bytes each")
        self._check_count(len(body) // 16)
        check_dims(dims, self.served.embedder.dim)
        places = take_latlon(np.frombuffer(body, dtype="<f8").reshape(-1, 2).astype(np.float64), on_bad=on_bad)
        return _binary_reply(await self._embed(places, dims))

    async def _embed(self, places: Floats, dims: int | None) -> npt.NDArray[np.float32]:
        """Embeddings of checked places, (..., D): NaN for what is none, the first numbers where asked for."""
        rows = places.reshape(-1, 2)
        known: npt.NDArray[np.bool_] = np.asarray(np.isfinite(rows).all(axis=1))
        found = await self.served.embed(np.ascontiguousarray(rows[known]))
        found = found if dims is None else first_numbers(found, dims)
        embeddings = np.full((len(rows), found.shape[1]), np.nan, np.float32)
        embeddings[known] = found
        return embeddings.reshape(*places.shape[:-1], found.shape[1])

    async def place(self, lat: float, lon: float) -> Any:
        """The labels of a place, and the model's support, tokens and sites there."""
        place = as_latlon((lat, lon))
        explained = await self.served.explain(place)
        return _json_reply(await asyncio.to_thread(answers.answer_place, place, explained))

    async def similar(self, request: schemas.SimilarRequest) -> Any:
        """The places on land most similar to one place."""
        place = as_latlon((request.lat, request.lon))
        if not 1 <= request.count <= MOST_ALIKE:
            raise ConfigError(f"count is {request.count}; it must lie between 1 and {MOST_ALIKE}")
        if not 0 <= request.apart_km <= 20_100:
            raise ConfigError(f"apart_km is {request.apart_km:g}; it must lie between 0 and 20,100")
        land = self.served.land
        (query,) = await self.served.embed(place[None])
        if request.unlike is not None:
            (other,) = await self.served.embed(as_places([request.unlike]))
            query = take_away(query, other)
        find = answers.answer_similar
        return _json_reply(await asyncio.to_thread(find, land, place, query, request.count, request.apart_km))

    async def compare(self, lat1: float, lon1: float, lat2: float, lon2: float) -> Any:
        """The similarity of two places, and their distance."""
        places = as_latlon([(lat1, lon1), (lat2, lon2)])
        land = self.served.land
        embeddings = await self.served.embed(places)
        return _json_reply(await asyncio.to_thread(answers.compare_places, land, places, embeddings))

    async def sites(self) -> Any:
        """Every site: its position, its sharpness, and the area nearest to it."""
        served = self.served
        return await self._fixed_reply("sites", lambda: answers.answer_sites(served.voronois, served.areas_km2()))

    async def cells(self, tessellation: int = 0) -> Any:
        """The sites' cells as GeoJSON polygons, split at the antimeridian."""

        def make() -> object:
            cells = self.served.cells(tessellation)
            return answers.answer_cells(self.served.voronois, tessellation, cells)

        return await self._fixed_reply(f"cells {tessellation}", make)

    async def tokens(self) -> Any:
        """Every semantic token: its use, and the places where it is strongest."""
        attention, land = self.served.field("attention"), self.served.land
        return await self._fixed_reply("tokens", lambda: answers.answer_tokens(land, attention))

    async def outlines(self) -> Any:
        """Coasts and borders as GeoJSON lines."""
        return await self._fixed_reply("outlines", answers.answer_outlines)

    async def migration(self, share: float = 0.3, frames: int = 24, seed: int = 0) -> Any:
        """The positions of a seeded share of the sites while the model was trained."""
        record = self.served.migration
        if record is None:
            name = self.served.embedder.name
            raise UnknownNameError(f"no record of sites came with {name}: serve a run's weights or add --trajectories")
        return _json_reply(answers.describe_migration(record, share=share, frames=frames, seed=seed))

    async def predict(self, request: schemas.PredictRequest) -> Any:
        """Fit a probe on labelled places and answer with its scores and its map."""
        if len(request.lat) > self.served.settings.max_labels:
            raise ConfigError(f"{len(request.lat)} labels are too many: send at most {self.served.settings.max_labels}")
        labelled = with_places(request)
        target, places = read_target(labelled), as_latlon(lat=labelled.lat, lon=labelled.lon)
        step = request.step_degrees
        if step is not None and not step >= SMALLEST_STEP:
            raise ConfigError(f"step_degrees is {step:g}; it must be at least {SMALLEST_STEP:g}")
        cells = None if step is None else world_grid(step)
        embeddings = await self.served.embed(places)
        probe = await asyncio.to_thread(fit_probe, request.name[:200], target, places, embeddings)
        self.served.probes.put(probe.key, probe)
        drawn = None
        if step is not None and cells is not None:
            values = await asyncio.to_thread(probe.fit.predict, await self.served.embed(cells.reshape(-1, 2)))
            grid = np.asarray(values, dtype=np.float64).reshape(cells.shape[:2])
            drawn = schemas.WorldMap(step_degrees=step, values=_rounded(grid))
        left_out = len(request.lat) - len(labelled.lat)
        return _json_reply(_describe_probe(probe, drawn, left_out))

    async def layers(self) -> list[schemas.LayerAnswer]:
        """The layers of the map this model has, and the progress of each."""
        return [self._layer(name) for name in LAYERS if self._has(name)]

    async def legend(
        self,
        layer: schemas.LayerName,
        token: int | None = None,
        lat: float | None = None,
        lon: float | None = None,
        probe: str | None = None,
    ) -> Any:
        """The meaning of a layer's colours."""
        return _json_reply((await self.tiles.layer(layer, token, _optional_place(lat, lon), probe)).legend)

    async def tile(
        self,
        layer: schemas.TileName,
        z: int,
        x: int,
        y: int,
        token: int | None = None,
        lat: float | None = None,
        lon: float | None = None,
        probe: str | None = None,
        sea: bool = True,
    ) -> Any:
        """A square of the map as PNG, 256 pixels wide; `earth` is the base. Without `sea` only land is painted."""
        tile = pictures.check_tile(z, x, y)
        if layer == "earth":
            if z > pictures.DEEPEST_BASE_ZOOM:
                raise UnknownNameError(f"there is no tile {z}/{x}/{y}: z ends at {pictures.DEEPEST_BASE_ZOOM}")
            return _reply(await asyncio.to_thread(pictures.base_tile, tile), "image/png", max_age=DAY)
        drawn = await self.tiles.layer(layer, token, _optional_place(lat, lon), probe)
        return _reply(await self.tiles.draw(drawn, tile, sea=sea), "image/png", max_age=3600)

    async def earth(self) -> Any:
        """The whole Earth in one picture: tile 0/0/0 of the base, 1024 pixels wide, as JPEG."""
        return _reply(await asyncio.to_thread(pictures.whole_earth), "image/jpeg", max_age=DAY)

    async def picture(self, lat: float, lon: float) -> Any:
        """A place seen from above, 710 km from edge to edge, as PNG."""
        return _reply(await asyncio.to_thread(pictures.picture_of, as_latlon((lat, lon))), "image/png", max_age=DAY)

    async def health(self) -> schemas.HealthAnswer:
        """Whether the server works, and the model it serves."""
        served, settings = self.served, self.served.settings
        limits = ("max_points", "max_body_bytes", "max_labels", "rate", "timeout_s")
        return schemas.HealthAnswer(
            status="ok" if served.ready else "starting",
            version=__version__,
            model=served.embedder.name,
            fingerprint=served.fingerprint,
            embedding_width=served.embedder.dim,
            sites=served.num_sites,
            tokens=served.num_tokens,
            trained=not is_untrained(served.embedder.name),
            migration=served.migration is not None,
            pictures=pictures.has_pictures(),
            limits={name: float(getattr(settings, name)) for name in limits},
        )

    async def metrics_text(self) -> Any:
        """Counts and times for Prometheus."""
        from prometheus_client import generate_latest

        return _reply(generate_latest(self.registry), CONTENT_TYPE)

    def _places(self, request: schemas.EmbedRequest) -> Floats:
        for given in (request.points, request.lat, request.lon):
            if isinstance(given, list):
                self._check_count(len(given))
        return take_latlon(request.points, lat=request.lat, lon=request.lon, on_bad=request.on_bad)

    def _check_count(self, count: int) -> None:
        if count > self.served.settings.max_points:
            raise ConfigError(f"{count} places are too many: send at most {self.served.settings.max_points} at a time")

    def _has(self, name: schemas.LayerName) -> bool:
        field = LAYERS[name][0]
        if name == "embedding" and "embedding" in self.served.fields and self.served.components is None:
            return False
        return field == "embedding" or (self.served.num_tokens if field == "attention" else self.served.num_sites) > 0

    def _layer(self, name: schemas.LayerName) -> schemas.LayerAnswer:
        field, needs = LAYERS[name]
        query = "&".join(f"{need}={{{need}}}" for need in needs)
        return schemas.LayerAnswer(
            name=name,
            ready=field in self.served.fields,
            progress=self.served.progress.get(field, 0.0),
            needs=list(needs),
            max_zoom=DEEPEST_FIELD_ZOOM,
            tiles=f"/tiles/{name}/{{z}}/{{x}}/{{y}}.png" + (f"?{query}" if query else ""),
        )

    async def _fixed_reply(self, key: str, make: Callable[[], object]) -> Any:
        """An answer that stays the same, written once."""
        if key not in self._fixed:
            self._fixed[key] = await asyncio.to_thread(lambda: _to_json(make()))
        return _reply(self._fixed[key], "application/json")


def _optional_place(lat: float | None, lon: float | None) -> Floats | None:
    return None if lat is None or lon is None else as_latlon((lat, lon))


def _describe_probe(probe: FittedProbe, drawn: schemas.WorldMap | None, left_out: int) -> schemas.PredictAnswer:
    is_class = probe.target.kind == "classify"
    return schemas.PredictAnswer(
        probe=probe.key,
        name=probe.name,
        kind=probe.target.kind,
        rows=len(probe.target.values),
        left_out=left_out,
        random=probe.random,
        regional=probe.regional,
        penalty=float(probe.fit.alpha[0]),
        low=None if is_class else probe.low,
        high=None if is_class else probe.high,
        classes=list(probe.target.classes) if is_class else None,
        colours=pictures.class_colours(len(probe.target.classes)) if is_class else None,
        tiles=f"/tiles/prediction/{{z}}/{{x}}/{{y}}.png?probe={probe.key}",
        map=drawn,
    )


def _json_reply(content: object) -> Any:
    return _reply(_to_json(content), "application/json")


def _to_json(content: object) -> bytes:
    """Plain values, and the dataclasses of answers, as JSON."""
    return json.dumps(content, default=vars, allow_nan=False, separators=(",", ":")).encode()


def _rounded(numbers: npt.NDArray[np.floating[Any]]) -> list[Any]:
    rounded: list[Any] = numbers.astype(np.float64).round(DIGITS).tolist()
    return rounded


def _binary_reply(numbers: npt.NDArray[np.floating[Any]]) -> Any:
    """Numbers as float32, little-endian, row after row; their shape is in X-Shape."""
    shape = ",".join(map(str, numbers.shape))
    return _reply(numbers.astype("<f4", copy=False).tobytes(), BINARY, {"X-Shape": shape})


def _reply(content: bytes, media_type: str, headers: dict[str, str] | None = None, *, max_age: int = 0) -> Any:
    """An answer that browsers may keep for some seconds."""
    from fastapi import Response

    cache = f"private, max-age={max_age}" if max_age else "no-store"
    return Response(content, media_type=media_type, headers={"Cache-Control": cache, **(headers or {})})
