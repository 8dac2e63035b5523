"""Engines: a model prepared for one device and precision, which embeds batches of places.

Engine            any encoder, by its contract
VoronoiEngine     ours, by a strategy of `embedding.fast`
RetrievalEngine   either of these, extended by a database
"""

import copy
import json
import math
import typing
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.embedding.fast import Strategy
from tessearth.embedding.fast.cpu import FEW_PLACES, FastVoronoi
from tessearth.embedding.fast.head import Precision, network_dtype
from tessearth.embedding.fast.levels import FewSites
from tessearth.embedding.fast.listed import takes_lists
from tessearth.embedding.retrieval import Retriever
from tessearth.encoder import LocationEncoder, SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.settings import places_at_once
from tessearth.sphere import fibonacci_lattice, latlon_to_xyz, xyz_to_latlon

if typing.TYPE_CHECKING:
    from tessearth.embedding.fast.gpu import GpuVoronoi

__all__ = ["Engine", "Precision", "RetrievalEngine", "VoronoiEngine", "build_engine"]

PROBED_PLACES = 256
PLACES_TO_GROUP = {"cpu": 2**16, "cuda": 2**20}
"""Places at once on the fast path: the more there are, the more of them share a cell and its table."""
SITES_PER_GROUP, MOST_GROUPS = 16_384, 4
"""Many sites have many cells: a CPU takes one group of places for each 16,384 sites, four at most."""


class Places(NamedTuple):
    """Checked places in float64, as degrees or as directions; longitudes wrap exactly in the trigonometry between."""

    values: Tensor
    """Degrees (N, 2), latitude first, or unit vectors (N, 3)."""
    are_directions: bool
    season: Tensor | None = None
    """Shares of the year, (N,) in float64; None is the whole year."""

    def latlon(self) -> Tensor:
        """Degrees, latitude first, (N, 2)."""
        return xyz_to_latlon(self.values) if self.are_directions else self.values

    def xyz(self) -> Tensor:
        """Unit vectors, (N, 3)."""
        return self.values if self.are_directions else latlon_to_xyz(self.values)

    def few_xyz(self) -> npt.NDArray[np.float32]:
        """Unit vectors of a few places on a CPU, (N, 3); for many, `xyz` is faster."""
        if self.are_directions:
            return self.values.numpy().astype(np.float32)
        radians = np.radians(self.values.numpy()).tolist()
        xyz = [(math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)) for lat, lon in radians]
        return np.array(xyz, dtype=np.float32)

    def batches(self, size: int) -> Iterator["Places"]:
        """The places in batches; without places one empty batch, from which results take their widths."""
        parts = torch.split(self.values, size)
        seasons = [None] * len(parts) if self.season is None else torch.split(self.season, size)
        return (Places(part, self.are_directions, when) for part, when in zip(parts, seasons, strict=True))

    def take(self, rows: Tensor) -> "Places":
        """Some of the places."""
        return Places(self.values[rows], self.are_directions, None if self.season is None else self.season[rows])


class Engine:
    """A copy of any encoder, prepared for one device and precision."""

    strategy: Strategy = "plain"
    """What `embed` does: "plain" or "fast"."""
    knows_seasons: bool = False
    """Whether `embed` looks at the season of places."""

    def __init__(self, encoder: LocationEncoder, device: torch.device, precision: Precision) -> None:
        dtype = network_dtype(precision)
        self.encoder = copy.deepcopy(encoder).eval().requires_grad_(False).to(device)
        self.encoder.set_precision_(dtype)
        self.device, self.precision = device, precision
        self.dtype = torch.promote_types(dtype, torch.float32)
        self.dim: int = encoder.output_dim
        """The width of an embedding."""
        self.batch_size = places_at_once(device.type, encoder.widest)
        """The number of places in a batch."""

    def to_input(self, places: Places) -> Tensor:
        """The places on the device, as directions (N, 3) or degrees (N, 2) in the precision the encoder takes."""
        values = places.xyz() if self.encoder.takes_directions else places.latlon()
        return values.to(self.device, self.encoder.input_dtype)

    def embed(self, places: Places) -> Tensor:
        """Embeddings of a batch, (N, dim), float32 or float64."""
        return self.encoder.embed_input(self.to_input(places)).to(self.dtype)

    def embed_few(self, places: Places) -> npt.NDArray[np.float32] | None:
        """The same for a few places, without a batch's fixed costs; None where only batches are embedded."""
        return None

    def identity(self) -> Iterator[bytes]:
        """Everything that decides the embeddings except the precision, as bytes that always come in the same order.

        That is the encoder's description and every tensor; an encoder without a registered name adds sample embeddings.
        """
        described = self.encoder.describe() | self.options()
        yield _plain(described.pop("kind"), described)
        yield from _tensors(self.encoder.state_dict())
        if described.get("name") == "":
            probe = self.embed(Places(fibonacci_lattice(PROBED_PLACES), are_directions=True))
            yield from _tensors({"answers": probe})

    def options(self) -> dict[str, Any]:
        """The options that change embeddings, as plain values."""
        return {}


class VoronoiEngine(Engine):
    """Embeds directions by sites; half precision applies to everything after the site mixture."""

    encoder: SphericalVoronoiEncoder

    def __init__(
        self,
        encoder: SphericalVoronoiEncoder,
        device: torch.device,
        precision: Precision,
        top_k: int | None = None,
        strategy: Strategy = "auto",
    ) -> None:
        super().__init__(encoder, device, precision)
        self.knows_seasons = encoder.config.knows_seasons
        self.top_k, self.dense_batch_size = top_k, self.batch_size
        """How many places are taken at once where each looks at every site."""
        self.is_sparse = any(takes_lists(voronoi) for voronoi in self.encoder.voronois())
        """Whether some tessellation is mixed by lists, wherever the plain formula is not asked for by name."""
        self.few = FewSites(self.encoder)
        """The sites that matter at a place, for embeddings with `top_k` or on a GPU, and for explanations."""
        self.uses_few = self.is_sparse and (device.type != "cpu" or top_k is not None)
        self.few_batch_size = places_at_once(device.type, self.few.widest) if self.is_sparse else self.batch_size
        """How many are taken at once where each looks at few sites."""
        if self.uses_few:
            self.batch_size = self.few_batch_size
        self._fast: FastVoronoi | GpuVoronoi | None = None
        self._source: SphericalVoronoiEncoder | None = None
        """The weights as they were given, which the fast strategy rounds itself."""
        wanted = strategy == "fast" or (strategy == "auto" and device.type == "cpu")
        wanted = wanted and (device.type == "cpu" or not encoder.config.ends_in_units)
        if wanted and device.type in ("cpu", "cuda") and precision != "float64" and top_k is None:
            self._take_fast(self.encoder if precision == "float32" else copy.deepcopy(encoder).float().to(device))

    def _take_fast(self, source: SphericalVoronoiEncoder) -> None:
        """Take the fast strategy: on a CPU prepared at the first use, on a GPU now and only if the encoder has one."""
        if self.device.type == "cuda":
            from tessearth.embedding.fast.gpu import prepare_on_gpu

            groups, self._fast = 1, prepare_on_gpu(source, self.device, network_dtype(self.precision))
            if self._fast is None:
                return
        else:
            groups = min(max(source.config.num_sites // SITES_PER_GROUP, 1), MOST_GROUPS)
            self._source = source.eval().requires_grad_(False)
        self.strategy, self.batch_size = "fast", groups * PLACES_TO_GROUP[self.device.type]

    def embed(self, places: Places) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        xyz, season = self.to_input(places), None
        if places.season is not None:
            season = places.season.to(self.device)
        if self.strategy == "fast":
            fast = self.fast_path()
            if isinstance(fast, FastVoronoi):
                return fast.embed(xyz, season)
            if season is None:
                return fast.embed(xyz)
        return (self.few if self.uses_few else self.encoder).embed_xyz(xyz, self.top_k, season)

    def embed_few(self, places: Places) -> npt.NDArray[np.float32] | None:
        """The same for up to four places on the CPU's fast path."""
        if self.strategy == "plain" or not 0 < len(places.values) <= FEW_PLACES or places.season is not None:
            return None
        fast = self.fast_path()
        return fast.embed_few(places.few_xyz()) if isinstance(fast, FastVoronoi) else None

    def fast_path(self) -> "FastVoronoi | GpuVoronoi":
        """The encoder in the form of the fast strategy."""
        if self._fast is None:
            assert self._source is not None
            self._fast, self._source = FastVoronoi(self._source, self.precision), None
        return self._fast

    def options(self) -> dict[str, Any]:
        """How many sites a place keeps."""
        return {"top_k": self.top_k}


class RetrievalEngine(Engine):
    """Another engine's embeddings extended by a database: [h ; q]."""

    def __init__(self, inner: Engine, retriever: Retriever) -> None:
        if inner.dim != retriever.keys.shape[1]:
            raise ConfigError(
                f"embeddings are {inner.dim} wide and the database's keys {retriever.keys.shape[1]}: "
                f"it was built for another model"
            )
        self.inner, self.retriever, self.encoder = inner, retriever, inner.encoder
        self.device, self.precision, self.dtype = inner.device, inner.precision, inner.dtype
        self.dim = retriever.values.shape[1] + inner.dim
        self.batch_size, self.strategy, self.knows_seasons = inner.batch_size, inner.strategy, inner.knows_seasons

    def embed(self, places: Places) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        return self.retriever.complete(self.inner.embed(places), places.xyz())

    def identity(self) -> Iterator[bytes]:
        """What decides the inner engine's embeddings, and the database with the settings it is read with."""
        yield from self.inner.identity()
        yield _plain("retrieval", self.retriever.settings())
        yield from _tensors({name: getattr(self.retriever, name) for name in ("keys", "values", "places")})


def build_engine(
    encoder: LocationEncoder,
    device: torch.device,
    precision: Precision,
    top_k: int | None = None,
    strategy: Strategy = "auto",
) -> Engine:
    """Prepare a model for a device and a precision."""
    for name, value, choices in (("precision", precision, Precision), ("strategy", strategy, Strategy)):
        if value not in typing.get_args(choices):
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(typing.get_args(choices))}")
    if isinstance(encoder, SphericalVoronoiEncoder):  # the fast strategies and top_k are about its tessellations
        return VoronoiEngine(encoder, device, precision, top_k, strategy)
    if top_k is not None:
        raise ConfigError(f"top_k keeps the nearest sites of a Voronoi encoder, and {encoder.label} has none")
    return Engine(encoder, device, precision)


def _plain(kind: str, values: object) -> bytes:
    return f"{kind} {json.dumps(values, sort_keys=True)}\n".encode()


def _tensors(state: dict[str, Tensor]) -> Iterator[bytes]:
    """Names, types, shapes and bytes in the order of the names."""
    for name, tensor in sorted(state.items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
