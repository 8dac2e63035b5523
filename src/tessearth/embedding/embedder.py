"""`Embedder`: one object that turns places into embeddings, a batch at a time, in bounded memory."""

import hashlib
import os
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessearth.devices import find_device
from tessearth.embedding.engines import Engine, Places, RetrievalEngine, VoronoiEngine, build_engine
from tessearth.embedding.fast import Strategy
from tessearth.embedding.fast.head import Precision
from tessearth.embedding.retrieval import Retriever, read_database
from tessearth.embedding.transfer import Gatherer
from tessearth.encoder import LocationEncoder, SphericalVoronoiEncoder
from tessearth.errors import ConfigError, CoordinateError
from tessearth.sphere import LARGEST_DEGREES, angular_distance, as_latlon, as_xyz, check_latlon
from tessearth.zoo import DEFAULT_MODEL, find_database, load_base, parse_name

__all__ = ["Embedder", "Explanation", "NearestSites", "Precision", "Strategy", "Support"]

Array = npt.NDArray[Any]
Parts = Callable[[Places], tuple[Tensor, ...]]
"""What is computed for each place of a batch."""


class Explanation(NamedTuple):
    """What an embedding is made of, as arrays whose leading shape is that of the places."""

    embedding: Array
    """(..., D)."""
    token_attention: Array | None
    """The attention of the place to each semantic token, (..., T); None for an encoder without tokens."""
    site_weights: Array
    """The place's share in every site, (..., K), tessellations one after another."""


class Support(NamedTuple):
    """The coverage of a place by sites: far from every site, an embedding is a guess."""

    entropy: Array
    """Entropy of the site weights in nats, the mean over tessellations: 0 for one site, ln K for equal weights."""
    distance: Array
    """Distance to the nearest site, in degrees of arc."""


class NearestSites(NamedTuple):
    """The sites nearest to a place, nearest first, (..., k) each."""

    site: Array
    """Their numbers, tessellations one after another."""
    distance: Array
    """In degrees of arc."""


class Embedder:
    """Turns places into embeddings by any encoder: ours, a baseline, published weights, with or without retrieval.

        embed = Embedder("earth")
        embed([(48.86, 2.35)])                     # (1, 1024)
        embed(lat=table["lat"], lon=table["lon"])  # anything that holds numbers
        embed(geoseries)                           # points in any projection
        embed(xyz=directions)                      # directions on any other sphere

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
    ) -> None:
        """Load a model by any name of `zoo.names`, or take an encoder as it is (a copy is used).

        `device` is a GPU when there is one. Half `precision` applies to networks: to everything after the site mixture
        or after a baseline's positional features. `top_k` keeps that many sites per place.

        `strategy` "plain" computes the formula as it is written. "fast" leaves out sites that provably weigh next to
        nothing; on a GPU it takes about ten seconds to prepare. "auto" is "fast" on a CPU and "plain" on a GPU (see
        `embedding.fast`).
        """
        for option, value in (("batch_size", batch_size), ("top_k", top_k)):
            if value is not None and value < 1:
                raise ConfigError(f"{option} is {value}; it must be at least 1")
        self.device = find_device(device)
        self.precision: Precision = precision
        self.name, self._engine = self._open(model, top_k, strategy)
        self.batch_size = batch_size or self._engine.batch_size

    @property
    def dim(self) -> int:
        """The width of an embedding."""
        return self._engine.dim

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

    def fingerprint(self) -> str:
        """SHA-256 over all that decides the embeddings (kind, settings, tensors, precision, database) but no names."""
        digest = hashlib.sha256(f"tessearth-embedder-1 {self.precision}\n".encode())
        for part in self._engine.identity():
            digest.update(part)
        return digest.hexdigest()

    def __call__(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Array:
        """The same as `embed`."""
        return self.embed(points, lat=lat, lon=lon, xyz=xyz)

    def embed(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Array:
        """Embeddings of places, (..., D): float32, or float64 when that is the precision."""
        places, shape = _read_places(points, lat, lon, xyz)
        whole = self._embed_at_once(places)
        if whole is None:
            (whole,) = self._over_batches(places, lambda batch: (self._engine.embed(batch),), self.batch_size)
        return whole.reshape((*shape, whole.shape[-1]))

    def embed_tensor(self, latlon: Tensor, *, check: bool = True) -> Tensor:
        """Embeddings of places in degrees, latitude first: (N, 2) on any device to (N, D) on the Embedder's.

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
        places = Places(degrees, are_directions=False)
        whole = self._embed_at_once(places)
        if whole is not None:
            return torch.from_numpy(whole)
        embeddings = torch.empty(len(degrees), self.dim, dtype=self._engine.dtype, device=self.device)
        with torch.inference_mode():
            targets = torch.split(embeddings, self.batch_size)
            for target, batch in zip(targets, places.batches(self.batch_size), strict=True):
                target.copy_(self._engine.embed(batch))
        return embeddings

    def explain(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Explanation:
        """Embeddings with the token attention and site weights behind them; the weights take K numbers a place."""
        voronoi = self._voronoi("explain")

        def parts(batch: Places) -> tuple[Tensor, ...]:
            encoding = voronoi.encoder.encode_xyz(voronoi.to_input(batch), voronoi.top_k)
            attention = encoding.token_attention
            return encoding.embedding, encoding.site_weights, *([] if attention is None else [attention])

        embedding, weights, *attention = self._over_sites(voronoi, parts, points, lat, lon, xyz)
        return Explanation(embedding, attention[0] if attention else None, weights)

    def support(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Support:
        """The coverage of each place by sites."""
        voronoi = self._voronoi("support")

        def parts(batch: Places) -> tuple[Tensor, ...]:
            here = voronoi.to_input(batch)
            entropies = [torch.special.entr(v.weights(here)).sum(-1) for v in voronoi.encoder.voronois()]
            return torch.stack(entropies).mean(0), _nearest(voronoi.encoder, here, 1)[1][..., 0]

        return Support(*self._over_sites(voronoi, parts, points, lat, lon, xyz))

    def nearest_sites(
        self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None, count: int = 5
    ) -> NearestSites:
        """The sites nearest to each place, at any weight."""
        voronoi = self._voronoi("nearest_sites")
        if not 1 <= count <= voronoi.encoder.config.num_sites:
            raise ConfigError(f"count is {count}; it must lie between 1 and {voronoi.encoder.config.num_sites}")

        def parts(batch: Places) -> tuple[Tensor, ...]:
            return _nearest(voronoi.encoder, voronoi.to_input(batch), count)

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
        if few is None and self.device.type == "cpu" and len(places.values) <= self.batch_size:
            return self._engine.embed(places).contiguous().numpy()
        return few

    @torch.inference_mode()
    def _over_batches(self, places: Places, parts: Parts, batch_size: int) -> list[Array]:
        """Run a function of some places over all of them, batch by batch, into arrays allocated once."""
        gatherer = Gatherer(len(places.values), self.device)
        for batch in places.batches(batch_size):
            gatherer.add(parts(batch))
        return gatherer.finish()


def _read_places(points: Any, lat: Any, lon: Any, xyz: Any) -> tuple[Places, tuple[int, ...]]:
    """Places in any container that `sphere.coordinates` reads, and the shape they come in."""
    if xyz is None:
        values = as_latlon(points, lat=lat, lon=lon)
    elif points is None and lat is None and lon is None:
        values = as_xyz(xyz)
    else:
        raise ConfigError("places were given twice: pass either xyz= or degrees")
    flat = np.ascontiguousarray(values.reshape(-1, values.shape[-1]))
    return Places(torch.from_numpy(flat), are_directions=xyz is not None), values.shape[:-1]


def _nearest(encoder: SphericalVoronoiEncoder, xyz: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices and distances in degrees, each (N, count), of the sites nearest to each direction."""
    sites = nn.functional.normalize(encoder.sites().positions, dim=-1)
    index = (xyz @ sites.T).topk(count, dim=-1).indices
    distance, order = angular_distance(xyz[:, None, :], sites[index]).sort(dim=-1)
    return index.gather(-1, order), distance.rad2deg()
