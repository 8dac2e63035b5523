"""The benchmark's places, and places as points of the sphere."""

import numpy as np
import numpy.typing as npt
import torch

from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.sphere.sampling import sample_land, sample_sphere

Values = npt.NDArray[np.float64]

PURPOSE = "benchmark"
"""Keeps the places tested on apart from those trained on, whatever the seeds."""


def sphere_places(count: int, seed: int) -> Values:
    """Places (count, 2) drawn uniformly over the whole sphere; a smaller count gives the first of the same places."""
    return sample_sphere(count, seed, purpose=PURPOSE)


def land_places(count: int, seed: int) -> Values:
    """Places (count, 2) drawn uniformly over land without Antarctica; a smaller count gives the first of the same."""
    return sample_land(count, seed, purpose=PURPOSE)


def to_xyz(latlon: Values) -> Values:
    """Places (N, 2) as unit vectors (N, 3)."""
    return np.asarray(latlon_to_xyz(torch.tensor(latlon, dtype=torch.float64)).numpy())
