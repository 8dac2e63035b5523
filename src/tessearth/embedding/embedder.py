"""`Embedder`: one object that turns places into embeddings, a batch at a time, in bounded memory."""

import functools
import hashlib
import math
import os
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessearth.embedding.engines import Engine, Places, RetrievalEngine, VoronoiEngine, build_engine
from tessearth.embedding.fast import Strategy
from tessearth.embedding.fast.head import Precision
from tessearth.embedding.fast.levels import FewSites
from tessearth.embedding.onnx import first_numbers
from tessearth.embedding.retrieval import Retriever, read_database
from tessearth.embedding.sites import Explanation, NearestSites, SiteShares, Support, explain_few
from tessearth.embedding.transfer import Gatherer
from tessearth.encoder import LocationEncoder
from tessearth.errors import ConfigError, CoordinateError
from tessearth.seasons import Shares, read_season
from tessearth.settings import check_dims, find_device
from tessearth.sphere import (
    LARGEST_DEGREES,
    OnBad,
    Shape,
    as_latlon,
    as_xyz,
    check_latlon,
    take_dates,
    take_latlon,
    take_places,
)
from tessearth.zoo import DEFAULT_MODEL, find_database, load_base, parse_name

__all__ = ["Embedder", "Explanation", "NearestSites", "Precision", "SiteShares", "Strategy", "Support"]

Array = npt.NDArray[Any]
Parts = Callable[[Places], tuple[Tensor, ...]]
"""What is computed for each place of a batch."""


class Embedder:
    """Turns places into embeddings by any encoder: ours, a baseline, published weights, with or without retrieval.

        embed = Embedder("earth")
        embed(48.86, 2.35)                         # (1024,)
        embed([(48.86, 2.35)])                     # (1, 1024)
        embed(table)                               # pandas, polars, pyarrow, DuckDB, dicts: by their columns
        embed(table, lat="gps_lat", lon="gps_lon") # columns of other names
        embed(geoseries)                           # points or polygons in any projection
        embed(dataset)                             # xarray: all cells, (lat, lon, 1024)
        embed(xyz=directions)                      # directions on any other sphere
        embed(48.86, 2.35, month=7)                # in July, by models that know seasons
        embed(table, date="day")                   # at each row's date; "2024-07-14" is one for all

    Results are numpy arrays with the leading shape of what was given; a single place gives a single vector. `explain`,
    `support` and `nearest_sites` ask for sites, which only Voronoi encoders have.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | LocationEncoder = DEFAULT_MODEL,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        batch_size: int | None = None,
        top_k: int | None = None,
        strategy: Strategy = "auto",
        dims: int | None = None,
    ) -> None:
        """Load a model by any name of `zoo.names`, or take an encoder as it is (a copy is used).

        `device` is a GPU when there is one. Half `precision` applies to networks: to everything after the site mixture
        or after a baseline's positional features. `top_k` keeps that many sites per place.

        `strategy` "plain" computes the formula as it is written. "fast" leaves out sites that provably weigh next to
        nothing; on a GPU it takes about ten seconds to prepare. "auto" is "fast" on a CPU and "plain" on a GPU (see
        `embedding.fast`).

        `dims` keeps that many of the first numbers, brought back to unit length: for trained models of ours the most
        telling ones.
        """
        for option, value in (("batch_size", batch_size), ("top_k", top_k)):
            if value is not None and value < 1:
                raise ConfigError(f"{option} is {value}; it must be at least 1")
        self.device = find_device(device)
        self.precision: Precision = precision
        self.name, self._engine = self._open(model, top_k, strategy)
        self.batch_size = batch_size or self._engine.batch_size
        self.dims = check_dims(dims, self._engine.dim)

    @property
    def dim(self) -> int:
        """The width of an embedding."""
        return self._engine.dim if self.dims is None else self.dims

    @property
    def encoder(self) -> Any:
        """The model itself, prepared for inference: of any kind."""
        return self._engine.encoder

    @property
    def strategy(self) -> Strategy:
        """The strategy of embeddings: "plain", or "fast" where the model and the options have such a form."""
        return self._engine.strategy

    @property
    def has_sites(self) -> bool:
        """Whether `explain`, `support` and `nearest_sites` have an answer."""
        return isinstance(self._engine, VoronoiEngine)

    @property
    def few_sites(self) -> FewSites:
        """The sites of a Voronoi encoder, for questions about the few that matter at a place."""
        return self._voronoi("few_sites").few

    def fingerprint(self) -> str:
        """SHA-256 over all that decides the embeddings (kind, settings, tensors, precision, dims ...) but no names."""
        short = "" if self.dims is None else f" dims {self.dims}"
        digest = hashlib.sha256(f"tessearth-embedder-1 {self.precision}{short}\n".encode())
        for part in self._engine.identity():
            digest.update(part)
        return digest.hexdigest()

    def __call__(self, *points: Any, **given: Any) -> Array:
        """The same as `embed`."""
        return self.embed(*points, **given)

    def embed(
        self,
        *points: Any,
        lat: Any = None,
        lon: Any = None,
        xyz: Any = None,
        on_bad: OnBad = "error",
        geometry: Shape = "point",
        month: Any = None,
        date: Any = None,
    ) -> Array:
        """Embeddings of places, (..., D): float32, or float64 when that is the precision.

        Places come from any container that `sphere.as_latlon` reads: the columns of a table that `lat` and `lon` name,
        else its geometry, else its columns of the usual names. Without a table `lat` and `lon` are the coordinates.
        Rows without a usable place are refused; `on_bad` "skip" leaves them out, and "null" gives them NaN. For lines
        and polygons stands a point inside, the "centroid", or the "mean" of embeddings over them, as `geometry` says.

        Embeddings are of the whole year, or of a `month` (1 to 12) or a `date` (ISO text, numpy, pandas or datetime),
        one for all places or one each, where the model knows seasons. One place may have many. Of a table, `date` may
        name the column.
        """
        asked = month is not None or date is not None
        season = self._read_season(month, take_dates(points, date)) if asked else None
        if geometry != "point":
            _check_one_season(season, f"geometry = {geometry!r}")
            read = take_places(points, lat, lon, on_bad, geometry)
            rows = read._replace(latlon=read.latlon.reshape(-1, 2)).apply(partial(self.embed, month=month, date=date))
            return rows.reshape((*read.latlon.shape[:-1], rows.shape[-1]))
        if xyz is not None and on_bad != "error":
            raise ConfigError("on_bad is about degrees: directions (xyz=) are always checked")
        if on_bad == "skip":
            _check_one_season(season, "on_bad = 'skip'")
        places, shape = _read_places(points, lat, lon, xyz, on_bad)
        if season is not None:
            places, shape = _add_season(places, shape, season)
        if on_bad != "null":
            whole = self._embed_places(places)
        else:
            known = torch.isfinite(places.values).all(dim=-1)
            some = self._embed_places(places.take(known))
            whole = np.full((len(known), some.shape[-1]), np.nan, dtype=some.dtype)
            whole[known.numpy()] = some
        return whole.reshape((*shape, whole.shape[-1]))

    def embed_tensor(self, latlon: Tensor, *, check: bool = True, season: Tensor | None = None) -> Tensor:
        """Embeddings of places in degrees, latitude first: (N, 2) on any device to (N, D) on the Embedder's.

        They are of the whole year, or of shares of it, `season` (N,), by a model that knows seasons.
        On a GPU nothing passes through the host, except for the result of `check`, which looks for impossible degrees.
        On a CPU these are the numbers of `embed`.
        """
        if latlon.ndim != 2 or latlon.shape[1] != 2 or not latlon.is_floating_point():
            raise CoordinateError(
                f"latlon is {latlon.dtype} of shape {tuple(latlon.shape)}, not floating degrees of shape (N, 2)"
            )
        degrees = latlon.detach().to(self.device, torch.float64).contiguous()
        if check and not bool((degrees.abs() <= degrees.new_tensor(LARGEST_DEGREES)).all()):
            check_latlon(degrees.cpu().numpy())
        if season is not None:
            self._check_seasons()
            season = season.detach().to(self.device, torch.float64).expand(len(degrees))
        places = Places(degrees, are_directions=False, season=season)
        whole = self._embed_at_once(places)
        if whole is not None:
            return torch.from_numpy(whole)
        embeddings = torch.empty(len(degrees), self.dim, dtype=self._engine.dtype, device=self.device)
        with torch.inference_mode():
            targets = torch.split(embeddings, self.batch_size)
            for target, batch in zip(targets, places.batches(self.batch_size), strict=True):
                target.copy_(self._embed_batch(batch))
        return embeddings

    def _read_season(self, month: Any, date: Any) -> Shares | None:
        """Shares of the year; a model that knows no season refuses to be asked for one."""
        season = read_season(month, date)
        if season is not None:
            self._check_seasons()
        return season

    def _check_seasons(self) -> None:
        if not self._engine.knows_seasons:
            raise ConfigError(
                f"{self.name} knows no season: leave out month and date, or choose a model with harmonics"
            )

    def _embed_places(self, places: Places) -> Array:
        """Embeddings (N, D) of checked places, in one batch or in several."""
        whole = self._embed_at_once(places)
        if whole is None:
            (whole,) = self._over_batches(places, lambda batch: (self._embed_batch(batch),), self.batch_size)
        return whole

    def _embed_batch(self, batch: Places) -> Tensor:
        """Embeddings of a batch, (N, dim): the engine's, or their first numbers at unit length."""
        whole = self._engine.embed(batch)
        return whole if self.dims is None else nn.functional.normalize(whole[:, : self.dims], dim=-1)

    def explain(self, *points: Any, lat: Any = None, lon: Any = None, xyz: Any = None) -> Explanation:
        """Embeddings with the token attention and site weights behind them.

        The weights take K numbers a place; of an encoder with levels of sharp sites, only the few that a place uses.
        """
        voronoi = self._voronoi("explain")
        if voronoi.is_sparse:
            return self._explain_few(voronoi, *_read_places(points, lat, lon, xyz))

        def parts(batch: Places) -> tuple[Tensor, ...]:
            encoding = voronoi.encoder.encode_xyz(voronoi.to_input(batch), voronoi.top_k)
            embedding, attention = encoding.embedding, encoding.token_attention
            if self.dims is not None:
                embedding = nn.functional.normalize(embedding[:, : self.dims], dim=-1)
            return embedding, encoding.site_weights, *([] if attention is None else [attention])

        embedding, weights, *attention = self._over_sites(voronoi, parts, points, lat, lon, xyz)
        return Explanation(embedding, attention[0] if attention else None, weights)

    @torch.inference_mode()
    def _explain_few(self, voronoi: VoronoiEngine, places: Places, shape: tuple[int, ...]) -> Explanation:
        batches = map(voronoi.to_input, places.batches(min(self.batch_size, voronoi.few_batch_size)))
        embedding, attention, _, shares = explain_few(voronoi.few, batches, voronoi.top_k)
        assert shares is not None
        return Explanation(
            (embedding if self.dims is None else first_numbers(embedding, self.dims)).reshape(*shape, self.dim),
            None if attention is None else attention.reshape((*shape, attention.shape[-1])),
            None,
            tuple(SiteShares(*(part.reshape((*shape, part.shape[-1])) for part in share)) for share in shares),
        )

    def support(self, *points: Any, lat: Any = None, lon: Any = None, xyz: Any = None) -> Support:
        """The coverage of each place by sites."""
        voronoi = self._voronoi("support")

        def parts(batch: Places) -> tuple[Tensor, ...]:
            here = voronoi.to_input(batch)
            return voronoi.few.site_map.support(here, [part.weights for part in voronoi.few.weigh(here)])

        return Support(*self._over_sites(voronoi, parts, points, lat, lon, xyz))

    def nearest_sites(
        self, *points: Any, lat: Any = None, lon: Any = None, xyz: Any = None, count: int = 5
    ) -> NearestSites:
        """The sites nearest to each place, at any weight."""
        voronoi = self._voronoi("nearest_sites")
        if not 1 <= count <= voronoi.encoder.config.num_sites:
            raise ConfigError(f"count is {count}; it must lie between 1 and {voronoi.encoder.config.num_sites}")

        def parts(batch: Places) -> tuple[Tensor, ...]:
            return voronoi.few.site_map.nearest(voronoi.to_input(batch), count)

        return NearestSites(*self._over_sites(voronoi, parts, points, lat, lon, xyz))

    def _open(
        self, model: str | os.PathLike[str] | LocationEncoder, top_k: int | None, strategy: Strategy
    ) -> tuple[str, Engine]:
        """A model's name, and the model prepared for the device and the precision."""
        if isinstance(model, LocationEncoder):
            return model.label, build_engine(model, self.device, self.precision, top_k, strategy)
        named = parse_name(model)
        engine = build_engine(load_base(named.base), self.device, self.precision, top_k, strategy)
        if named.mode is None:
            return str(model), engine
        retriever = Retriever(read_database(find_database(named)), named.mode, device=self.device, dtype=engine.dtype)
        return str(model), RetrievalEngine(engine, retriever)

    def _voronoi(self, asked: str) -> VoronoiEngine:
        if not isinstance(self._engine, VoronoiEngine):
            raise ConfigError(f"{self.name} has no sites of its own: {asked} is for Voronoi encoders without retrieval")
        return self._engine

    def _over_sites(self, voronoi: VoronoiEngine, parts: Parts, *given: Any) -> list[Array]:
        """A function of places that looks at every site, over places as they are given: fewer of them at once."""
        places, shape = _read_places(*given)
        results = self._over_batches(places, parts, min(self.batch_size, voronoi.dense_batch_size))
        return [result.reshape((*shape, *result.shape[1:])) for result in results]

    @torch.inference_mode()
    def _embed_at_once(self, places: Places) -> Array | None:
        """Embeddings (N, D) of places that a CPU takes in one batch; None for more, which have to be gathered."""
        few = self._engine.embed_few(places)
        if few is not None:
            return few if self.dims is None else first_numbers(few, self.dims)
        if self.device.type == "cpu" and len(places.values) <= self.batch_size:
            return self._embed_batch(places).contiguous().numpy()
        return None

    @torch.inference_mode()
    def _over_batches(self, places: Places, parts: Parts, batch_size: int) -> list[Array]:
        """Run a function of some places over all of them, batch by batch, into arrays allocated once."""
        gatherer = Gatherer(len(places.values), self.device)
        for batch in places.batches(batch_size):
            gatherer.add(parts(batch))
        return gatherer.finish()


def _check_one_season(season: Shares | None, option: str) -> None:
    """Refuse a season for each place where rows do not stay what they were."""
    if season is not None and season.ndim:
        raise ConfigError(f"a month or a date for each place does not go with {option}: give one for all")


def _add_season(places: Places, shape: tuple[int, ...], season: Shares) -> tuple[Places, tuple[int, ...]]:
    """The places with a share of the year each, and their shape: one place may stand for many seasons."""
    if season.ndim and shape == ():
        places, shape = places.take(torch.zeros(season.size, dtype=torch.int64)), season.shape
    if season.ndim and season.shape != shape:
        raise CoordinateError(
            f"there are {season.size:,} months or dates for {math.prod(shape):,} places; give one for all, or one each"
        )
    return places._replace(season=torch.from_numpy(np.broadcast_to(season, shape).reshape(-1).copy())), shape


def _read_places(
    points: tuple[Any, ...], lat: Any, lon: Any, xyz: Any, on_bad: OnBad | None = None
) -> tuple[Places, tuple[int, ...]]:
    """Places in any container that `sphere.coordinates` reads, and the shape they come in."""
    if xyz is None:
        values = (
            as_latlon(*points, lat=lat, lon=lon)
            if on_bad is None
            else take_latlon(*points, lat=lat, lon=lon, on_bad=on_bad)
        )
    elif all(one is None for one in (*points, lat, lon)):
        values = as_xyz(xyz)
    else:
        raise ConfigError("places were given twice: pass either xyz= or degrees")
    flat = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return Places(torch.from_numpy(flat), are_directions=xyz is not None), values.shape[:-1]


def embed(
    *points: Any,
    model: str | os.PathLike[str] = DEFAULT_MODEL,
    lat: Any = None,
    lon: Any = None,
    dims: int | None = None,
    on_bad: OnBad = "error",
    geometry: Shape = "point",
    month: Any = None,
    date: Any = None,
) -> Array:
    """Embeddings of places by a model that is loaded once and kept, as `Embedder.embed` gives them.

    tessearth.embed(48.86, 2.35)
    """
    embedder = keep_embedder(os.fspath(model), dims)
    return embedder.embed(*points, lat=lat, lon=lon, on_bad=on_bad, geometry=geometry, month=month, date=date)


@functools.lru_cache(maxsize=2)
def keep_embedder(model: str, dims: int | None = None) -> Embedder:
    """An Embedder that stays in memory for the next call, as the last two do."""
    return Embedder(model, dims=dims)
