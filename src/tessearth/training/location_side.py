"""What training needs of an encoder, and how each kind of encoder gives it.

A side is two halves: what must be exact whatever the precision of training (where a place lies among the sites, the
phases of sharp features), and what follows, which may run in half precision.
"""

from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import torch
from torch import Tensor

from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.tokens import SemanticTokens
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.encoder.weights import save
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.zoo.baselines import LocationEncoder, save_baseline

TrainableEncoder = SphericalVoronoiEncoder | LocationEncoder


class Sites(NamedTuple):
    """Where an encoder's sites are."""

    positions: Tensor
    """(K, 3)."""
    sharpness: Tensor
    """(K,)."""


class LocationSide(Protocol):
    """An encoder as training sees it."""

    @property
    def output_dim(self) -> int:
        """How wide the embedding is (D)."""

    @property
    def tokens(self) -> SemanticTokens | None:
        """The semantic tokens that images attend to as well; None leaves out the terms about them."""

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """What is computed outside half precision, from degrees (N, 2)."""

    def encode(self, exact: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """The raw embedding (N, D) and the token attention (N, T) from that."""

    def constrain_(self) -> None:
        """Bring parameters back within their constraints after a step."""

    def sites(self) -> Sites | None:
        """Where the sites are, for encoders that have any."""


class VoronoiSide:
    """Site weights exactly, then blend and head."""

    def __init__(self, encoder: SphericalVoronoiEncoder) -> None:
        self.encoder = encoder

    @property
    def output_dim(self) -> int:
        """How wide the embedding is (D)."""
        return self.encoder.config.output_dim

    @property
    def tokens(self) -> SemanticTokens | None:
        """The encoder's tokens."""
        return self.encoder.tokens

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """Directions (N, 3), then each tessellation's site weights (N, K)."""
        xyz = latlon_to_xyz(latlon)
        return xyz, *(site_weights(voronoi, xyz) for voronoi in self.encoder.voronois())

    def encode(self, exact: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """The head's output and the places' attention over the tokens."""
        xyz, *weights = exact
        blend, attention = self.encoder.blend(xyz, weights)
        return self.encoder.head(blend), attention

    def constrain_(self) -> None:
        """Sites back to the sphere, sharpness into its range."""
        self.encoder.constrain_()

    def sites(self) -> Sites:
        """Positions and sharpness, tessellations one after another."""
        return Sites(self.encoder.site_positions(), self.encoder.site_sharpness())


class BaselineSide:
    """Positional features exactly, then the network; there are no sites and no tokens."""

    tokens = None

    def __init__(self, encoder: LocationEncoder) -> None:
        if encoder.network is None:
            raise ConfigError(f"{encoder.name or 'this baseline'} has no network, so there is nothing to train")
        self.encoder, self.network = encoder, encoder.network

    @property
    def output_dim(self) -> int:
        """How wide the embedding is (D)."""
        return self.encoder.output_dim

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """Positional features (N, F), in float64 as they are when the encoder is used.

        A GPU's matrix units would round phases of thousands of radians to ten bits; float64 never goes through them.
        """
        with torch.no_grad():
            features: Tensor = self.encoder.position(latlon.double())
        return (features.to(next(self.network.parameters()).dtype),)

    def encode(self, exact: tuple[Tensor, ...]) -> tuple[Tensor, Tensor | None]:
        """The network's output."""
        return self.network(*exact), None

    def constrain_(self) -> None:
        """Nothing is constrained."""

    def sites(self) -> None:
        """There are none."""


def side_of(encoder: TrainableEncoder) -> LocationSide:
    """An encoder as training sees it."""
    return BaselineSide(encoder) if isinstance(encoder, LocationEncoder) else VoronoiSide(encoder)


def save_encoder(encoder: TrainableEncoder, path: Path, provenance: Mapping[str, Any]) -> None:
    """Write an encoder to a file whose path is a name wherever a model is asked for."""
    if isinstance(encoder, LocationEncoder):
        save_baseline(encoder, path, provenance=provenance)
    else:
        save(encoder, path, provenance=provenance)


def site_weights(voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
    """Each point's share in every site, (N, 3) -> (N, K), never through a GPU's matrix units.

    Those would round positions to ten bits, which is three kilometres; three products and two sums per site are exact
    to float32 and, compiled, cost no more than the softmax they are fused with.
    """
    return torch.softmax(written_out_logits(voronoi, xyz), dim=-1) if xyz.is_cuda else voronoi.weights(xyz)


def written_out_logits(voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
    """`SoftVoronoi.logits` without a matrix product, (N, 3) -> (N, K)."""
    sharpness = voronoi.sharpness()
    slope = voronoi.positions() * sharpness[:, None]
    x, y, z = (axis[:, None] for axis in xyz.unbind(-1))
    logits = x * slope[:, 0] + y * slope[:, 1] + z * slope[:, 2]
    return logits + (voronoi.territory - sharpness) if voronoi.config.logits == "decoupled" else logits
