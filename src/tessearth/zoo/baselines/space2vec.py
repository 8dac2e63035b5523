"""Space2Vec (Mai et al., 2020): sines and cosines of the flat map at many scales, like grid cells in the brain."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.settings import check_at_least
from tessearth.zoo.baselines.base import PositionalEncoding, flat_degrees
from tessearth.zoo.baselines.networks import FeedForwardSettings, ResidualSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Scales:
    """Scales in geometric steps: r_s = r_min (r_max / r_min)^(s / (S - 1))."""

    num_scales: int
    """How many scales (S)."""
    min_radius: float
    """The finest scale (r_min); one wave is 2 pi times as long."""
    max_radius: float
    """The coarsest scale (r_max)."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_scales")
        if not 0 < self.min_radius <= self.max_radius:
            low, high = f"min_radius {self.min_radius}", f"max_radius {self.max_radius}"
            raise ConfigError(f"{low} and {high} must be positive and in this order")

    def radii(self, like: Tensor) -> Tensor:
        """r_s, (S,), from fine to coarse, in the type and place of `like`."""
        step = math.log(self.max_radius / self.min_radius) / max(self.num_scales - 1, 1)
        return self.min_radius * (step * torch.arange(self.num_scales, dtype=like.dtype, device=like.device)).exp()


@dataclass(frozen=True, slots=True, kw_only=True)
class Space2VecSettings(Scales):
    """The scales of an encoding of the plane, in degrees."""

    num_scales: int = 16
    min_radius: float = 1.0
    max_radius: float = 360.0
    network: ResidualSettings | None = None
    """The network behind the features; none by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFeedForwardSettings(Scales):
    """The grid encoding and fully connected layers, of the sizes CSP reports; its published files say their own."""

    num_scales: int = 32
    min_radius: float = 0.1
    max_radius: float = 360.0
    network: FeedForwardSettings = field(
        default_factory=lambda: FeedForwardSettings(
            activation="gelu", layer_norm=True, skip=True, activate_output=True, dropout=0.5
        )
    )


class Grid(PositionalEncoding):
    """sin and cos of lon / r_s and lat / r_s, r_s of `Scales`.

    Columns run over (lon, lat), then scales, then (sin, cos): F = 4 S.
    """

    def __init__(self, scales: Scales) -> None:
        super().__init__(4 * scales.num_scales)
        self.scales = scales

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 4 S)."""
        lat, lon = flat_degrees(latlon)
        angles = torch.stack((lon, lat), dim=-1)[..., None] / self.scales.radii(latlon)  # (N, 2, S)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Theory(PositionalEncoding):
    """cos and sin of <x, a_j> / r_s for three directions a_j of the plane, 120 degrees apart.

    x = (lon, lat) in degrees, a = (1, 0), (-1/2, sqrt(3)/2), (-1/2, -sqrt(3)/2), r_s as in Grid. Columns run over
    scales, then directions, then (cos, sin): F = 6 S.
    """

    def __init__(self, scales: Scales) -> None:
        super().__init__(6 * scales.num_scales)
        self.scales = scales

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 6 S)."""
        lat, lon = flat_degrees(latlon)
        lean, rise = -lon / 2, lat * (math.sqrt(3) / 2)
        along = torch.stack((lon, lean + rise, lean - rise), dim=-1)  # (N, 3)
        angles = along[:, None, :] / self.scales.radii(latlon)[:, None]  # (N, S, 3)
        return torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1)
