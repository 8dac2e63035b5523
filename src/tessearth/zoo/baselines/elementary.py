"""Coordinates as they are: the pair itself, the point on the sphere, and sines and cosines of the pair."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor

from tessearth.sphere import latlon_to_xyz
from tessearth.zoo.baselines.base import PositionalEncoding
from tessearth.zoo.baselines.networks import ResidualSettings


@dataclass(frozen=True, slots=True, kw_only=True)
class ElementarySettings:
    """Encodings without settings of their own."""

    network: ResidualSettings | None = None
    """The network behind the features; none by default."""


@dataclass(frozen=True, slots=True, kw_only=True)
class WrapResidualSettings:
    """Wrapped coordinates and the residual network behind them."""

    network: ResidualSettings = field(default_factory=ResidualSettings)


class Direct(PositionalEncoding):
    """The numbers themselves: (lat / 90, lon / 180).

    The one encoding whose longitude does not wrap: it shows what bare numbers give.
    """

    def __init__(self) -> None:
        super().__init__(2)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 2)."""
        lat, lon = latlon.unbind(-1)
        return torch.stack((lat / 90, lon / 180), dim=-1)


class Cartesian3d(PositionalEncoding):
    """The point on the unit sphere: (cos lat cos lon, cos lat sin lon, sin lat)."""

    def __init__(self) -> None:
        super().__init__(3)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 3)."""
        return latlon_to_xyz(latlon)


class Wrap(PositionalEncoding):
    """(sin lon, sin 2 lat, cos lon, cos 2 lat): both coordinates scaled to [-1, 1] and wound once around a circle.

    Latitude spans half a turn but is wound around a whole one, as its authors do, so that the two poles coincide.
    """

    def __init__(self) -> None:
        super().__init__(4)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, 4)."""
        lat, lon = latlon.unbind(-1)
        angles = math.pi * torch.stack((lon / 180, lat / 90), dim=-1)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)
