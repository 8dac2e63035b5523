"""Sphere2Vec (Mai et al., 2023): products of sines and cosines of latitude and longitude at many scales.

With phi the latitude and lambda the longitude in radians, and phi_s = phi / r_s, lambda_s = lambda / r_s:

    sphereC   sin phi_s, cos phi_s cos lambda_s, cos phi_s sin lambda_s
    sphereM   sin phi_s, cos phi_s cos lambda, cos phi cos lambda_s, cos phi_s sin lambda, cos phi sin lambda_s
    a plus    also the grid encoding's sin phi_s, cos phi_s, sin lambda_s, cos lambda_s, each feature once

At r_s = 1 all of them hold the point on the sphere; finer scales tear it at the antimeridian and the poles.
"""

from dataclasses import dataclass

import torch
from torch import Tensor

from tessearth.zoo.baselines.base import PositionalEncoding, flat_degrees
from tessearth.zoo.baselines.networks import ResidualSettings
from tessearth.zoo.baselines.space2vec import Scales


@dataclass(frozen=True, slots=True, kw_only=True)
class Sphere2VecSettings(Scales):
    """The scales of an encoding of the sphere, in radians."""

    num_scales: int = 32
    min_radius: float = 0.001
    max_radius: float = 1.0
    """The coarsest scale; 1 is the sphere itself."""
    network: ResidualSettings | None = None
    """The network behind the features; none by default."""


class Sphere2Vec(PositionalEncoding):
    """One of the family; columns run over features, then scales."""

    def __init__(self, settings: Sphere2VecSettings, *, one_at_a_time: bool, with_grid: bool) -> None:
        """`one_at_a_time` scales one angle in each product (M), not both (C); `with_grid` is the plus."""
        super().__init__(((5 if one_at_a_time else 3) + (3 if with_grid else 0)) * settings.num_scales)
        self.scales = settings
        self.one_at_a_time, self.with_grid = one_at_a_time, with_grid

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, F S)."""
        lat, lon = (angle.deg2rad()[:, None] for angle in flat_degrees(latlon))
        scales = self.scales.radii(latlon)
        lat_s, lon_s = lat / scales, lon / scales
        sin_lat_s, cos_lat_s, sin_lon_s, cos_lon_s = lat_s.sin(), lat_s.cos(), lon_s.sin(), lon_s.cos()
        if self.one_at_a_time:
            cos_lat, sin_lon, cos_lon = lat.cos(), lon.sin(), lon.cos()
            features = [cos_lat_s * cos_lon, cos_lat * cos_lon_s, cos_lat_s * sin_lon, cos_lat * sin_lon_s]
        else:
            features = [cos_lat_s * cos_lon_s, cos_lat_s * sin_lon_s]
        of_grid = [cos_lat_s, sin_lon_s, cos_lon_s] if self.with_grid else []
        return torch.cat([sin_lat_s, *features, *of_grid], dim=-1)
