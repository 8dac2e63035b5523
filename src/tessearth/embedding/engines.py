"""What turns a batch of places into embeddings: Voronoi sites, a baseline, or either completed by retrieval.

Each holds a copy of its model, prepared for one device and precision, and can say everything that decides its output.
"""

import copy
import dataclasses
import json
import typing
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessearth.embedding.fast import triton_kernels as kernels
from tessearth.embedding.fast.cpu import FEW_PLACES, FastVoronoi
from tessearth.embedding.fast.gpu import DeviceVoronoi, build_on_device
from tessearth.embedding.fast.head import Precision, network_dtype
from tessearth.embedding.retrieval import Retriever
from tessearth.embedding.transfer import PlaceBatch, Places
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import fibonacci_lattice
from tessearth.zoo.baselines import LocationEncoder

__all__ = ["AnyEncoder", "BaselinePlaces", "PlaceEncoder", "Precision", "RetrievedPlaces", "VoronoiPlaces"]

AnyEncoder = SphericalVoronoiEncoder | LocationEncoder

NUMBERS_AT_ONCE = {"cpu": 2**23, "cuda": 2**27}
"""Of the widest array held at once: 32 MB of float32 keeps a CPU's caches busy, a GPU wants more work per launch."""
PROBED_PLACES = 256
GPU_PLACES_WORTH_PREPARING = 2**25
"""The kernels of `fast_device` take about ten seconds to prepare, in which the plain path embeds 50 million places; and
reading and writing tables is slower than either. Which way is taken must not depend on what was asked before."""
GPU_PLACES_TO_GROUP = 2**20
PLACES_TO_GROUP = 2**16
"""On the fast path: the more places at once, the more of them share a cell and its table."""
SITES_PER_GROUP, MOST_GROUPS = 16_384, 4
"""Many sites have many cells: on a CPU that many sites take as many more places at once, up to so many times."""


class PlaceEncoder(Protocol):
    """Places in, embeddings out."""

    @property
    def encoder(self) -> AnyEncoder:
        """The prepared model."""

    dim: int
    """How wide an embedding is."""
    batch_size: int
    """How many places it takes at once without wasting memory."""

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim), float32 or float64."""

    def identity(self) -> Iterator[bytes]:
        """Everything that decides the embeddings but the precision, as bytes that always come in the same order."""


class VoronoiPlaces:
    """Embeds directions by sites; half precision applies to everything after the site mixture.

    The mixture stays in float32 at least, because sharp sites need its digits. On a CPU, and on a GPU for very many,
    places go the fast way, equal to the plain one up to rounding; `exact`, float64 and `top_k` are computed the plain
    way, as explanations are.
    """

    def __init__(
        self,
        encoder: SphericalVoronoiEncoder,
        device: torch.device,
        precision: Precision,
        top_k: int | None = None,
        exact: bool = False,
        places_expected: int = 0,
    ) -> None:
        self.is_fast = (
            _has_fast_path(device, places_expected) and top_k is None and not exact and precision != "float64"
        )
        self.encoder = _prepare_voronoi(encoder, device, precision)
        self.device, self.precision, self.top_k = device, precision, top_k
        self.dim = encoder.config.output_dim
        self.dense_batch_size = _batch_size(device, encoder.config.num_sites)
        groups = min(max(encoder.config.num_sites // SITES_PER_GROUP, 1), MOST_GROUPS)
        grouped = groups * PLACES_TO_GROUP if device.type == "cpu" else GPU_PLACES_TO_GROUP
        self.batch_size = grouped if self.is_fast else self.dense_batch_size
        self._original = encoder if network_dtype(precision).itemsize < 4 else None
        self._fast: FastVoronoi | DeviceVoronoi | None = None

    def directions(self, places: PlaceBatch) -> Tensor:
        """Unit vectors on the device, in the sites' own precision, (N, 3)."""
        return places.xyz().to(self.device, self.encoder.voronois()[0].directions.dtype)

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        if not self.is_fast:
            return self.encoder.embed_xyz(self.directions(places), self.top_k)
        return self._fast_path().embed(self.directions(places))

    def embed_few(self, places: Places) -> npt.NDArray[np.float32] | None:
        """The same for a few places, (N, dim), without a batch's fixed costs; None where there is no such way."""
        if not (self.is_fast and self.device.type == "cpu" and 0 < len(places.values) <= FEW_PLACES):
            return None
        fast = self._fast_path()
        return fast.embed_few(places.directions()) if isinstance(fast, FastVoronoi) else None

    def _fast_path(self) -> FastVoronoi | DeviceVoronoi:
        if self._fast is None:
            self._fast = self._build_fast()
        return self._fast

    def _build_fast(self) -> FastVoronoi | DeviceVoronoi:
        """The fast path; its head is rounded from the weights as they were given."""
        source = self.encoder
        if self._original is not None:
            source = copy.deepcopy(self._original).eval().requires_grad_(False).to(self.device, torch.float32)
            self._original = None
        if self.device.type != "cpu":
            return build_on_device(source, self.device, network_dtype(self.precision))
        return FastVoronoi(source, self.precision)

    def identity(self) -> Iterator[bytes]:
        """The configuration, top_k and every tensor."""
        yield _plain("voronoi", {"config": self.encoder.config.to_dict(), "top_k": self.top_k})
        yield from _tensors(self.encoder.state_dict())


class BaselinePlaces:
    """Embeds degrees by a baseline, its output as it is; the precision is that of its network.

    Positional features are computed in float64 whatever the precision: their phases need the digits.
    """

    def __init__(self, encoder: LocationEncoder, device: torch.device, precision: Precision) -> None:
        dtype = network_dtype(precision)
        if encoder.network is None and dtype.itemsize < 4:
            raise ConfigError(
                f"precision {precision} is that of a network, and {_name(encoder)} has none: use float32 or float64"
            )
        self.encoder = copy.deepcopy(encoder).eval().requires_grad_(False).to(device)
        if self.encoder.network is not None:
            self.encoder.network.to(dtype)
        self.device, self.dtype = device, torch.float64 if dtype == torch.float64 else torch.float32
        self.dim = encoder.output_dim
        linear = [layer.out_features for layer in encoder.modules() if isinstance(layer, nn.Linear)]
        # Features are float64, and a few arrays as wide as they are stand beside each other while they are made.
        self.batch_size = _batch_size(device, 4 * max(encoder.position.output_dim, *linear, 1))

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        embedding: Tensor = self.encoder(places.latlon().to(self.device))
        return embedding.to(self.dtype)

    def identity(self) -> Iterator[bytes]:
        """The baseline's name, settings and every tensor; one that nobody registered is known by what it answers."""
        yield _plain("baseline", {"name": self.encoder.name, "settings": _as_dict(self.encoder.settings)})
        yield from _tensors(self.encoder.state_dict())
        if not self.encoder.name:
            probe = self.embed(PlaceBatch(fibonacci_lattice(PROBED_PLACES), are_directions=True))
            yield from _tensors({"answers": probe})


class RetrievedPlaces:
    """Another encoder's embeddings completed by a database: [h ; q]."""

    def __init__(self, inner: PlaceEncoder, retriever: Retriever) -> None:
        if inner.dim != retriever.keys.shape[1]:
            raise ConfigError(
                f"embeddings are {inner.dim} wide and the database's keys {retriever.keys.shape[1]}: "
                f"it was built for another model"
            )
        self.inner, self.retriever, self.encoder = inner, retriever, inner.encoder
        self.dim = retriever.values.shape[1] + inner.dim
        self.batch_size = inner.batch_size

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        return self.retriever.complete(self.inner.embed(places), places.xyz())

    def identity(self) -> Iterator[bytes]:
        """What decides the inner encoder's embeddings, and the database with the settings it is read with."""
        yield from self.inner.identity()
        yield _plain("retrieval", self.retriever.settings())
        yield from _tensors(
            {"keys": self.retriever.keys, "values": self.retriever.values, "places": self.retriever.places}
        )


def build_place_encoder(
    encoder: AnyEncoder,
    device: torch.device,
    precision: Precision,
    top_k: int | None,
    exact: bool = False,
    places_expected: int = 0,
) -> PlaceEncoder:
    """Prepare a model for a device and a precision."""
    if precision not in typing.get_args(Precision):
        raise ConfigError(f"precision is {precision!r}; it must be one of {', '.join(typing.get_args(Precision))}")
    if isinstance(encoder, SphericalVoronoiEncoder):
        return VoronoiPlaces(encoder, device, precision, top_k, exact, places_expected)
    if top_k is not None:
        raise ConfigError(f"top_k keeps the nearest sites of a Voronoi encoder, and {_name(encoder)} has none")
    return BaselinePlaces(encoder, device, precision)


def _prepare_voronoi(
    encoder: SphericalVoronoiEncoder, device: torch.device, precision: Precision
) -> SphericalVoronoiEncoder:
    """A copy in evaluation mode on the device; sites keep at least float32 whatever the rest is rounded to."""
    prepared = copy.deepcopy(encoder).eval().requires_grad_(False).to(device)
    dtype = network_dtype(precision)
    prepared.to(dtype)
    if dtype.itemsize < 4:
        for module, original in zip(prepared.voronois(), encoder.voronois(), strict=True):
            module.load_state_dict(original.state_dict(), assign=True)
            module.to(device, torch.float32)
    return prepared


def _has_fast_path(device: torch.device, places_expected: int) -> bool:
    is_worth_it = places_expected >= GPU_PLACES_WORTH_PREPARING
    return device.type == "cpu" or (is_worth_it and kernels.is_available(device))


def _batch_size(device: torch.device, widest: int) -> int:
    return max(1, NUMBERS_AT_ONCE.get(device.type, NUMBERS_AT_ONCE["cuda"]) // widest)


def _name(encoder: LocationEncoder) -> str:
    return encoder.name or "this location encoder"


def _as_dict(settings: object) -> object:
    return dataclasses.asdict(settings) if dataclasses.is_dataclass(settings) else None  # type: ignore[arg-type]


def _plain(kind: str, values: object) -> bytes:
    return f"{kind} {json.dumps(values, sort_keys=True)}\n".encode()


def _tensors(state: dict[str, Tensor]) -> Iterator[bytes]:
    """Names, types, shapes and bytes in the order of the names."""
    for name, tensor in sorted(state.items()):
        yield f"{name} {tensor.dtype} {tuple(tensor.shape)}\n".encode()
        yield tensor.detach().cpu().contiguous().reshape(-1).view(torch.uint8).numpy().tobytes()
