"""Space2Vec (Mai et al., 2020): sines and cosines of the flat map at many scales, like grid cells in the brain."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.zoo.baselines.base import PositionalEncoding, flat_degrees
from tessearth.zoo.baselines.networks import FeedForwardSettings, ResidualSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class Space2VecSettings:
    """The scales of an encoding of the plane, in degrees."""

    num_scales: int = 16
    """How many scales (S), in geometric steps."""
    min_radius: float = 1.0
    """The finest scale in degrees (lambda_min); one wave is 2 pi times as long."""
    max_radius: float = 360.0
    """The coarsest scale in degrees (lambda_max)."""
    network: ResidualSettings | None = None
    """The network behind the features; none by default."""

    def __post_init__(self) -> None:
        check_scales(self.num_scales, self.min_radius, self.max_radius)


@dataclass(frozen=True, slots=True, kw_only=True)
class GridFeedForwardSettings:
    """The grid encoding and fully connected layers, of the sizes CSP reports; its published files say their own."""

    num_scales: int = 32
    min_radius: float = 0.1
    max_radius: float = 360.0
    network: FeedForwardSettings = field(
        default_factory=lambda: FeedForwardSettings(
            activation="gelu", layer_norm=True, skip=True, activate_output=True, dropout=0.5
        )
    )

    def __post_init__(self) -> None:
        check_scales(self.num_scales, self.min_radius, self.max_radius)


class Grid(PositionalEncoding):
    """sin and cos of lon / r_s and lat / r_s, r_s = lambda_min (lambda_max / lambda_min)^(s / (S - 1)).

    Columns run over (lon, lat), then scales, then (sin, cos): F = 4 S.
    """

    def __init__(self, settings: Space2VecSettings | GridFeedForwardSettings) -> None:
        super().__init__(4 * settings.num_scales)
        self.scales = (settings.num_scales, settings.min_radius, settings.max_radius)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 4 S)."""
        lat, lon = flat_degrees(latlon)
        angles = torch.stack((lon, lat), dim=-1)[..., None] / geometric_scales(*self.scales, like=latlon)  # (N, 2, S)
        return torch.stack((angles.sin(), angles.cos()), dim=-1).flatten(1)


class Theory(PositionalEncoding):
    """cos and sin of <x, a_j> / r_s for three directions a_j of the plane, 120 degrees apart.

    x = (lon, lat) in degrees, a = (1, 0), (-1/2, sqrt(3)/2), (-1/2, -sqrt(3)/2), r_s as in Grid. Columns run over
    scales, then directions, then (cos, sin): F = 6 S.
    """

    def __init__(self, settings: Space2VecSettings) -> None:
        super().__init__(6 * settings.num_scales)
        self.scales = (settings.num_scales, settings.min_radius, settings.max_radius)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 6 S)."""
        lat, lon = flat_degrees(latlon)
        lean, rise = -lon / 2, lat * (math.sqrt(3) / 2)
        along = torch.stack((lon, lean + rise, lean - rise), dim=-1)  # (N, 3)
        angles = along[:, None, :] / geometric_scales(*self.scales, like=latlon)[:, None]  # (N, S, 3)
        return torch.stack((angles.cos(), angles.sin()), dim=-1).flatten(1)


def geometric_scales(num_scales: int, min_radius: float, max_radius: float, *, like: Tensor) -> Tensor:
    """r_s = r_min (r_max / r_min)^(s / (S - 1)), (S,), from fine to coarse, in the type and place of `like`."""
    step = math.log(max_radius / min_radius) / max(num_scales - 1, 1)
    return min_radius * (step * torch.arange(num_scales, dtype=like.dtype, device=like.device)).exp()


def check_scales(num_scales: int, min_radius: float, max_radius: float) -> None:
    """Refuse scales that are none or run backwards."""
    if num_scales < 1:
        raise ConfigError(f"num_scales is {num_scales}; it must be at least 1")
    if not 0 < min_radius <= max_radius:
        raise ConfigError(f"min_radius {min_radius} and max_radius {max_radius} must be positive and in this order")
