"""The sphere: degrees and unit vectors, distances, lattices.

`latlon` is always degrees, latitude first, shape (..., 2); `xyz` is always unit vectors, shape (..., 3).
"""

import math

import torch
from torch import Tensor

EARTH_RADIUS_KM = 6371.0088
"""The mean radius of the Earth (IUGG)."""
GOLDEN_RATIO = (1 + math.sqrt(5)) / 2


def latlon_to_xyz(latlon: Tensor) -> Tensor:
    """Place geographic coordinates on the unit sphere: degrees, shape (..., 2), to unit vectors, shape (..., 3)."""
    lat, lon = latlon.deg2rad().unbind(-1)
    return torch.stack((lat.cos() * lon.cos(), lat.cos() * lon.sin(), lat.sin()), dim=-1)


def xyz_to_latlon(xyz: Tensor) -> Tensor:
    """Read degrees off directions of any length, shape (..., 3) to (..., 2), longitude in (-180, 180]."""
    x, y, z = xyz.unbind(-1)
    lat = torch.atan2(z, torch.hypot(x, y))
    lon = torch.atan2(y, x)
    return torch.stack((lat, lon), dim=-1).rad2deg()


def wrap_longitude(lon: Tensor) -> Tensor:
    """Bring longitudes of any turn into [-180, 180)."""
    return torch.remainder(lon + 180.0, 360.0) - 180.0


def angular_distance(a: Tensor, b: Tensor) -> Tensor:
    """The angle between unit vectors in radians, broadcasting over leading dimensions.

    atan2(|a x b|, a . b) keeps its precision for neighbours and for antipodes, where acos(a . b) loses half its digits.
    """
    sine = torch.linalg.vector_norm(torch.linalg.cross(a, b, dim=-1), dim=-1)
    return torch.atan2(sine, (a * b).sum(-1))


def fibonacci_lattice(num_points: int) -> Tensor:
    """Spread points evenly over the sphere, (num_points, 3) in float64, from the north pole down.

    theta_i = 2 pi i / golden ratio, z_i = 1 - (2 i + 1) / n.
    """
    index = torch.arange(num_points, dtype=torch.float64)
    theta = 2 * math.pi * torch.remainder(index / GOLDEN_RATIO, 1.0)
    z = 1 - (2 * index + 1) / num_points
    radius = torch.sqrt(1 - z * z)
    return torch.stack((radius * theta.cos(), radius * theta.sin(), z), dim=-1)
