"""`Embedder`: one object that turns places into embeddings, a batch at a time, in bounded memory."""

import copy
import os
import typing
from collections.abc import Callable, Iterator
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessearth.coordinates import Floats, as_latlon, as_xyz
from tessearth.devices import find_device
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.geometry import angular_distance, latlon_to_xyz
from tessearth.models import DEFAULT_MODEL, load

Array = npt.NDArray[Any]
Precision = Literal["float32", "float64", "bfloat16", "float16"]

# Site weights held at once: 32 MB of float32 keeps a CPU's caches busy, a GPU wants more work per launch.
WEIGHTS_AT_ONCE = {"cpu": 2**23, "cuda": 2**27}


class Explanation(NamedTuple):
    """What an embedding is made of, as arrays whose leading shape is that of the places."""

    embedding: Array
    """(..., D)."""
    token_attention: Array | None
    """How much the place draws on each semantic token, (..., T); None for an encoder without tokens."""
    site_weights: Array
    """The place's share in every site, (..., K), tessellations one after another."""


class Support(NamedTuple):
    """How well the sites cover a place: far from every site, an embedding is a guess."""

    entropy: Array
    """Of the site weights, in nats: 0 when one site speaks alone, ln K when all speak alike (mean over
    tessellations)."""
    distance: Array
    """To the nearest site, in degrees of arc."""


class NearestSites(NamedTuple):
    """The sites nearest to a place, nearest first."""

    site: Array
    """(..., k), tessellations one after another."""
    distance: Array
    """In degrees of arc, (..., k)."""


class Embedder:
    """Turns places into embeddings.

        embed = Embedder("earth")
        embed([(48.86, 2.35)])                     # (1, 512)
        embed(lat=table["lat"], lon=table["lon"])  # anything that holds numbers
        embed(geoseries)                           # points in any projection
        embed(xyz=directions)                      # directions on any other sphere

    Results are numpy arrays with the leading shape of what was given; a single place gives a single vector.
    """

    def __init__(
        self,
        model: str | os.PathLike[str] | SphericalVoronoiEncoder = DEFAULT_MODEL,
        *,
        device: str | torch.device | None = None,
        precision: Precision = "float32",
        batch_size: int | None = None,
        top_k: int | None = None,
    ) -> None:
        """Load a model by name, path or hub id, or take an encoder as it is (a copy is used; yours stays untouched).

        `device` is a GPU when there is one. Half `precision` applies to everything after the site mixture, which stays
        in float32 because sharp sites need its digits. `top_k` keeps that many sites per place.
        """
        if precision not in typing.get_args(Precision):
            raise ConfigError(f"precision is {precision!r}; it must be one of {', '.join(typing.get_args(Precision))}")
        for name, value in (("batch_size", batch_size), ("top_k", top_k)):
            if value is not None and value < 1:
                raise ConfigError(f"{name} is {value}; it must be at least 1")
        encoder = model if isinstance(model, SphericalVoronoiEncoder) else load(model)
        self.device = find_device(device)
        self.precision = precision
        self.top_k = top_k
        self.encoder = _prepare(encoder, self.device, precision)
        at_once = WEIGHTS_AT_ONCE.get(self.device.type, WEIGHTS_AT_ONCE["cuda"])
        self.batch_size = batch_size or max(1, at_once // encoder.config.num_sites)

    @property
    def dim(self) -> int:
        """How wide an embedding is."""
        return self.encoder.config.output_dim

    def __call__(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Array:
        """The same as `embed`."""
        return self.embed(points, lat=lat, lon=lon, xyz=xyz)

    def embed(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Array:
        """Embeddings of places, (..., D): float32, or float64 when that is the precision."""
        places = _read_places(points, lat, lon, xyz)
        (embedding,) = self._over_batches(places, lambda xyz: (self.encoder.embed_xyz(xyz, self.top_k),))
        return embedding

    def explain(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Explanation:
        """Embeddings with the token attention and site weights behind them; the weights take K numbers a place."""
        places = _read_places(points, lat, lon, xyz)

        def parts(xyz: Tensor) -> tuple[Tensor, ...]:
            encoding = self.encoder.encode_xyz(xyz, self.top_k)
            attention = encoding.token_attention
            return encoding.embedding, encoding.site_weights, *([] if attention is None else [attention])

        embedding, weights, *attention = self._over_batches(places, parts)
        return Explanation(embedding, attention[0] if attention else None, weights)

    def support(self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None) -> Support:
        """How well the sites cover each place."""
        places = _read_places(points, lat, lon, xyz)

        def parts(xyz: Tensor) -> tuple[Tensor, ...]:
            voronois = self.encoder.voronois()
            entropy = torch.stack([torch.special.entr(v.weights(xyz)).sum(-1) for v in voronois]).mean(0)
            return entropy, self._nearest(xyz, 1)[1][..., 0]

        return Support(*self._over_batches(places, parts))

    def nearest_sites(
        self, points: Any = None, *, lat: Any = None, lon: Any = None, xyz: Any = None, count: int = 5
    ) -> NearestSites:
        """The sites nearest to each place, whatever their weight."""
        if not 1 <= count <= self.encoder.config.num_sites:
            raise ConfigError(f"count is {count}; it must lie between 1 and {self.encoder.config.num_sites}")
        places = _read_places(points, lat, lon, xyz)
        return NearestSites(*self._over_batches(places, lambda xyz: self._nearest(xyz, count)))

    def _nearest(self, xyz: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Indices and distances in degrees, each (N, count), of the sites nearest to each direction."""
        sites = nn.functional.normalize(self.encoder.site_positions(), dim=-1)
        index = (xyz @ sites.T).topk(count, dim=-1).indices
        distance, order = angular_distance(xyz[:, None, :], sites[index]).sort(dim=-1)
        return index.gather(-1, order), distance.rad2deg()

    @torch.inference_mode()
    def _over_batches(self, places: "_Places", parts: Callable[[Tensor], tuple[Tensor, ...]]) -> list[Array]:
        """Run a function of directions over all places, batch by batch, into arrays allocated once."""
        results: list[Array] = []
        for start, xyz in places.batches(self.batch_size, self.device, self._coordinate_dtype()):
            for i, part in enumerate(parts(xyz)):
                array = part.to(torch.float32 if part.dtype.itemsize < 4 else part.dtype).cpu().numpy()
                if start == 0:
                    results.append(np.empty((places.total, *array.shape[1:]), dtype=array.dtype))
                results[i][start : start + len(array)] = array
        return [result.reshape((*places.shape, *result.shape[1:])) for result in results]

    def _coordinate_dtype(self) -> torch.dtype:
        return self.encoder.voronois()[0].directions.dtype


class _Places(NamedTuple):
    """Checked places, flattened, with the shape they came in."""

    values: Floats
    shape: tuple[int, ...]
    are_directions: bool

    @property
    def total(self) -> int:
        return len(self.values)

    def batches(self, size: int, device: torch.device, dtype: torch.dtype) -> Iterator[tuple[int, Tensor]]:
        """Directions in the encoder's precision; the trigonometry is done in float64, so longitude wraps exactly.

        No places still make one empty batch, from which the results take their widths.
        """
        for start in range(0, max(1, self.total), size):
            values = torch.from_numpy(self.values[start : start + size])
            yield start, (values if self.are_directions else latlon_to_xyz(values)).to(device, dtype)


def _read_places(points: Any, lat: Any, lon: Any, xyz: Any) -> _Places:
    if xyz is None:
        latlon = as_latlon(points, lat=lat, lon=lon)
        return _Places(np.ascontiguousarray(latlon.reshape(-1, 2)), latlon.shape[:-1], are_directions=False)
    if not (points is None and lat is None and lon is None):
        raise ConfigError("places were given twice: pass either xyz= or degrees")
    directions = as_xyz(xyz)
    return _Places(np.ascontiguousarray(directions.reshape(-1, 3)), directions.shape[:-1], are_directions=True)


def _prepare(encoder: SphericalVoronoiEncoder, device: torch.device, precision: Precision) -> SphericalVoronoiEncoder:
    """A copy in evaluation mode on the device; sites keep at least float32 whatever the rest is rounded to."""
    prepared = copy.deepcopy(encoder).eval().requires_grad_(False).to(device)
    dtype: torch.dtype = getattr(torch, precision)
    prepared.to(dtype)
    if dtype.itemsize < 4:
        for module, original in zip(prepared.voronois(), encoder.voronois(), strict=True):
            module.load_state_dict(original.state_dict(), assign=True)
            module.to(device, torch.float32)
    return prepared
