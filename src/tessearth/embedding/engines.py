"""Engines: a model prepared for one device and precision, which embeds batches of places.

Engine            any encoder, by its contract
VoronoiEngine     ours: by the strategies of `embedding.fast` where they apply, else by the contract
RetrievalEngine   either of these, completed by a database
"""

import copy
import json
import typing
from collections.abc import Iterator
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.embedding.fast.cpu import FEW_PLACES, FastVoronoi
from tessearth.embedding.fast.gpu import DeviceVoronoi, build_on_device
from tessearth.embedding.fast.head import Precision, network_dtype
from tessearth.embedding.retrieval import Retriever
from tessearth.embedding.transfer import PlaceBatch, Places
from tessearth.encoder.contract import LocationEncoder
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import fibonacci_lattice

__all__ = ["Engine", "Precision", "RetrievalEngine", "VoronoiEngine", "build_engine"]

NUMBERS_AT_ONCE = {"cpu": 2**23, "cuda": 2**27}
"""Of the widest array held at once: 32 MB of float32 keeps a CPU's caches busy, a GPU wants more work per launch."""
PROBED_PLACES = 256
PLACES_TO_GROUP = {"cpu": 2**16, "cuda": 2**20}
"""On the fast path: the more places at once, the more of them share a cell and its table."""
SITES_PER_GROUP, MOST_GROUPS = 16_384, 4
"""Many sites have many cells: a CPU takes one group of places per that many sites, up to the most groups."""


class Engine:
    """A copy of any encoder, prepared for one device and precision."""

    def __init__(self, encoder: LocationEncoder, device: torch.device, precision: Precision) -> None:
        dtype = network_dtype(precision)
        self.encoder = copy.deepcopy(encoder).eval().requires_grad_(False).to(device)
        self.encoder.set_precision_(dtype)
        self.device, self.precision = device, precision
        self.dtype = torch.promote_types(dtype, torch.float32)
        self.dim: int = encoder.output_dim
        """How wide an embedding is."""
        self.batch_size = max(1, NUMBERS_AT_ONCE.get(device.type, NUMBERS_AT_ONCE["cuda"]) // encoder.widest)
        """How many places it takes at once without wasting memory."""

    def to_input(self, places: PlaceBatch) -> Tensor:
        """The places on the device, as directions (N, 3) or degrees (N, 2) in the precision the encoder takes."""
        values = places.xyz() if self.encoder.takes_directions else places.latlon()
        return values.to(self.device, self.encoder.input_dtype)

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim), float32 or float64."""
        return self.encoder.embed_input(self.to_input(places)).to(self.dtype)

    def embed_few(self, places: Places) -> npt.NDArray[np.float32] | None:
        """The same for a few places, without a batch's fixed costs; None where there is no such strategy."""
        return None

    def identity(self) -> Iterator[bytes]:
        """Everything that decides the embeddings but the precision, as bytes that always come in the same order.

        That is the encoder's description and every tensor; one without a registered name is known by what it answers.
        """
        described = self.described()
        yield _plain(described.pop("kind"), described)
        yield from _tensors(self.encoder.state_dict())
        if described.get("name") == "":
            probe = self.embed(PlaceBatch(fibonacci_lattice(PROBED_PLACES), are_directions=True))
            yield from _tensors({"answers": probe})

    def described(self) -> dict[str, Any]:
        """The encoder's description, and the options that change its embeddings."""
        return self.encoder.describe()


class VoronoiEngine(Engine):
    """Embeds directions by sites; half precision applies to everything after the site mixture.

    On a CPU places go the fast way, equal to the plain one up to rounding; `exact`, float64 and `top_k` are computed
    the plain way, as explanations are.
    """

    encoder: SphericalVoronoiEncoder

    def __init__(
        self,
        encoder: SphericalVoronoiEncoder,
        device: torch.device,
        precision: Precision,
        top_k: int | None = None,
        exact: bool = False,
    ) -> None:
        super().__init__(encoder, device, precision)
        self.top_k = top_k
        self.is_fast = device.type == "cpu" and top_k is None and not exact and precision != "float64"
        self.dense_batch_size = self.batch_size
        """The same where every place looks at every site."""
        if self.is_fast:
            groups = min(max(encoder.config.num_sites // SITES_PER_GROUP, 1), MOST_GROUPS)
            self.batch_size = groups * PLACES_TO_GROUP["cpu"]
        self._original = encoder if network_dtype(precision).itemsize < 4 else None
        self._fast: FastVoronoi | DeviceVoronoi | None = None

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        xyz = self.to_input(places)
        return self.fast_path().embed(xyz) if self.is_fast else self.encoder.embed_xyz(xyz, self.top_k)

    def embed_few(self, places: Places) -> npt.NDArray[np.float32] | None:
        """The same for a few places, (N, dim), without a batch's fixed costs; None where there is no such way."""
        if not (self.is_fast and 0 < len(places.values) <= FEW_PLACES):
            return None
        fast = self.fast_path()
        return fast.embed_few(places.directions()) if isinstance(fast, FastVoronoi) else None

    def fast_path(self) -> FastVoronoi | DeviceVoronoi:
        """The fast strategy of the device, built once; its head is rounded from the weights as they were given."""
        if self._fast is None:
            source = self.encoder
            if self._original is not None:
                source = copy.deepcopy(self._original).eval().requires_grad_(False).to(self.device, torch.float32)
                self._original = None
            if self.device.type == "cpu":
                self._fast = FastVoronoi(source, self.precision)
            else:
                self._fast = build_on_device(source, self.device, network_dtype(self.precision))
        return self._fast

    def described(self) -> dict[str, Any]:
        """The configuration and top_k."""
        return {**self.encoder.describe(), "top_k": self.top_k}


class RetrievalEngine(Engine):
    """Another engine's embeddings completed by a database: [h ; q]."""

    def __init__(self, inner: Engine, retriever: Retriever) -> None:
        if inner.dim != retriever.keys.shape[1]:
            raise ConfigError(
                f"embeddings are {inner.dim} wide and the database's keys {retriever.keys.shape[1]}: "
                f"it was built for another model"
            )
        self.inner, self.retriever, self.encoder = inner, retriever, inner.encoder
        self.device, self.precision = inner.device, inner.precision
        self.dim = retriever.values.shape[1] + inner.dim
        self.batch_size = inner.batch_size

    def embed(self, places: PlaceBatch) -> Tensor:
        """Embeddings of a batch, (N, dim)."""
        return self.retriever.complete(self.inner.embed(places), places.xyz())

    def identity(self) -> Iterator[bytes]:
        """What decides the inner engine's embeddings, and the database with the settings it is read with."""
        yield from self.inner.identity()
        yield _plain("retrieval", self.retriever.settings())
        yield from _tensors(
            {"keys": self.retriever.keys, "values": self.retriever.values, "places": self.retriever.places}
        )


def build_engine(
    encoder: LocationEncoder, device: torch.device, precision: Precision, top_k: int | None = None, exact: bool = False
) -> Engine:
    """Prepare a model for a device and a precision."""
    if precision not in typing.get_args(Precision):
        raise ConfigError(f"precision is {precision!r}; it must be one of {', '.join(typing.get_args(Precision))}")
    if isinstance(encoder, SphericalVoronoiEncoder):  # the fast strategies and top_k are about its tessellations
        return VoronoiEngine(encoder, device, precision, top_k, exact)
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
