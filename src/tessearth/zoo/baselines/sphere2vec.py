"""Sphere2Vec (Mai et al., 2023): products of sines and cosines of latitude and longitude at many scales.

With phi the latitude and lambda the longitude in radians, and phi_s = phi / r_s, lambda_s = lambda / r_s:

    sphereC   sin phi_s, cos phi_s cos lambda_s, cos phi_s sin lambda_s
    sphereM   sin phi_s, cos phi_s cos lambda, cos phi cos lambda_s, cos phi_s sin lambda, cos phi sin lambda_s
    a plus    also the grid encoding's sin phi_s, cos phi_s, sin lambda_s, cos lambda_s, each feature once

At r_s = 1 all of them hold the point on the sphere; finer scales tear it at the antimeridian and the poles.
"""

from dataclasses import dataclass
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.zoo.baselines.base import PositionalEncoding, flat_degrees
from tessearth.zoo.baselines.networks import ResidualSettings
from tessearth.zoo.baselines.space2vec import check_scales, geometric_scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Sphere2VecSettings:
    """The scales of an encoding of the sphere, in radians."""

    num_scales: int = 32
    """How many scales (S), in geometric steps."""
    min_radius: float = 0.001
    """The finest scale (r_min); one wave is 2 pi times as long."""
    max_radius: float = 1.0
    """The coarsest scale (r_max); 1 is the sphere itself."""
    network: ResidualSettings | None = None
    """The network behind the features; none by default."""

    def __post_init__(self) -> None:
        check_scales(self.num_scales, self.min_radius, self.max_radius)


class Waves(NamedTuple):
    """Sines and cosines of latitude and longitude: scaled, (N, S), and as they are, (N, 1)."""

    sin_lat_s: Tensor
    cos_lat_s: Tensor
    sin_lon_s: Tensor
    cos_lon_s: Tensor
    cos_lat: Tensor
    sin_lon: Tensor
    cos_lon: Tensor


class Sphere2Vec(PositionalEncoding):
    """One of the family, by the features it lists; columns run over features, then scales."""

    features_per_scale: int

    def __init__(self, settings: Sphere2VecSettings) -> None:
        super().__init__(self.features_per_scale * settings.num_scales)
        self.scales = (settings.num_scales, settings.min_radius, settings.max_radius)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, F S)."""
        lat, lon = (angle.deg2rad()[:, None] for angle in flat_degrees(latlon))
        scales = geometric_scales(*self.scales, like=latlon)
        lat_s, lon_s = lat / scales, lon / scales
        waves = Waves(lat_s.sin(), lat_s.cos(), lon_s.sin(), lon_s.cos(), lat.cos(), lon.sin(), lon.cos())
        return torch.cat(self.features(waves), dim=-1)

    def features(self, w: Waves) -> list[Tensor]:
        """The features of one encoding, each (N, S)."""
        raise NotImplementedError


class SphereC(Sphere2Vec):
    """Both angles scaled together: F = 3 S."""

    features_per_scale = 3

    def features(self, w: Waves) -> list[Tensor]:
        """Three features, each (N, S)."""
        return [w.sin_lat_s, w.cos_lat_s * w.cos_lon_s, w.cos_lat_s * w.sin_lon_s]


class SphereM(Sphere2Vec):
    """One angle scaled at a time: F = 5 S."""

    features_per_scale = 5

    def features(self, w: Waves) -> list[Tensor]:
        """Five features, each (N, S)."""
        by_lat = [w.cos_lat_s * w.cos_lon, w.cos_lat_s * w.sin_lon]
        by_lon = [w.cos_lat * w.cos_lon_s, w.cos_lat * w.sin_lon_s]
        return [w.sin_lat_s, by_lat[0], by_lon[0], by_lat[1], by_lon[1]]


class SphereCPlus(SphereC):
    """sphereC and the grid encoding: F = 6 S."""

    features_per_scale = 6

    def features(self, w: Waves) -> list[Tensor]:
        """Six features, each (N, S)."""
        return [*super().features(w), w.cos_lat_s, w.sin_lon_s, w.cos_lon_s]


class SphereMPlus(SphereM):
    """sphereM and the grid encoding: F = 8 S."""

    features_per_scale = 8

    def features(self, w: Waves) -> list[Tensor]:
        """Eight features, each (N, S)."""
        return [*super().features(w), w.cos_lat_s, w.sin_lon_s, w.cos_lon_s]
