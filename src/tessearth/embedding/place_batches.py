"""Places on their way to an encoder: checked once, kept as they were given, handed on a batch at a time."""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.sphere.coordinates import Floats, as_latlon, as_xyz
from tessearth.sphere.geometry import latlon_to_xyz, xyz_to_latlon


class PlaceBatch(NamedTuple):
    """Some places in float64, as degrees or as directions; each encoder asks for what it needs.

    The trigonometry between the two is done in float64, so longitude wraps exactly.
    """

    values: Tensor
    """Degrees (N, 2) or directions (N, 3)."""
    are_directions: bool

    def latlon(self) -> Tensor:
        """Degrees, latitude first, (N, 2)."""
        return xyz_to_latlon(self.values) if self.are_directions else self.values

    def xyz(self) -> Tensor:
        """Unit vectors, (N, 3)."""
        return self.values if self.are_directions else latlon_to_xyz(self.values)


class Places(NamedTuple):
    """Checked places, flattened, with the shape they came in."""

    values: Floats
    shape: tuple[int, ...]
    are_directions: bool

    def directions(self) -> npt.NDArray[np.float32]:
        """Unit vectors of a few places, (N, 3); for many, a batch's own are faster."""
        if self.are_directions:
            return self.values.astype(np.float32)
        return np.array([_direction(*row) for row in np.radians(self.values).tolist()], dtype=np.float32)

    def batches(self, size: int) -> Iterator[tuple[int, PlaceBatch]]:
        """The places and where each batch begins.

        No places still make one empty batch, from which results take their widths.
        """
        for start in range(0, max(1, len(self.values)), size):
            part = self.values[start : start + size]
            writable = part if part.flags.writeable else part.copy()  # torch warns of memory it may not write
            yield start, PlaceBatch(torch.from_numpy(writable), self.are_directions)


def _direction(lat: float, lon: float) -> tuple[float, float, float]:
    """A unit vector from radians."""
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


def read_places(points: Any, lat: Any, lon: Any, xyz: Any) -> Places:
    """Places from whatever holds them: points, two named coordinates, or directions."""
    if xyz is None:
        latlon = as_latlon(points, lat=lat, lon=lon)
        return Places(np.ascontiguousarray(latlon.reshape(-1, 2)), latlon.shape[:-1], are_directions=False)
    if not (points is None and lat is None and lon is None):
        raise ConfigError("places were given twice: pass either xyz= or degrees")
    directions = as_xyz(xyz)
    return Places(np.ascontiguousarray(directions.reshape(-1, 3)), directions.shape[:-1], are_directions=True)
