"""Where a tile's pixels lie on the Earth, in degrees, fast enough for millions of tiles."""

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.sphere.geometry import EARTH_RADIUS_KM

POINTS_AT_ONCE = 32_767
"""One less than the size from which torch spreads an operation over threads.

Arrays of this size stay in the cache, and readers in several threads or processes do not fight with torch's threads.
"""


class PixelPlaces(NamedTuple):
    """Degrees of every pixel, each (N, size, size); longitudes run on from the tile's centre, past 180 if need be."""

    lat: npt.NDArray[np.float64]
    lon: npt.NDArray[np.float64]


def tangent_latlon(latlon: npt.NDArray[np.float64], size: int, km_per_pixel: float) -> PixelPlaces:
    """The places of tile pixels: xyz_to_latlon(tangent_grid(latlon, size, km_per_pixel)) without the vectors.

    With u east and v north of the place in Earth radii, phi its latitude and lambda its longitude, the direction
    up + u east + v north seen in the place's own meridian is (cos phi - v sin phi, u, sin phi + v cos phi), so
        lon = lambda + atan2(u, cos phi - v sin phi)
        lat = atan2(sin phi + v cos phi, hypot(u, cos phi - v sin phi)).
    Two of the three components depend on the row alone and one on the column alone: a third of the arithmetic.
    """
    offset = (np.arange(size) - (size - 1) / 2) * (km_per_pixel / EARTH_RADIUS_KM)
    sine, cosine = np.sin(np.deg2rad(latlon[:, :1])), np.cos(np.deg2rad(latlon[:, :1]))
    outward = torch.from_numpy(cosine + offset * sine)[:, :, None]  # (N, size, 1); row 0 is north, so v = -offset
    upward = torch.from_numpy(sine - offset * cosine)[:, :, None]
    east = torch.from_numpy(offset)
    lon = torch.atan2(east, outward).numpy()
    lat = torch.atan2(upward, torch.hypot(east, outward)).numpy()
    return PixelPlaces(lat=np.rad2deg(lat, out=lat), lon=np.rad2deg(lon, out=lon) + latlon[:, 1, None, None])


def place_chunks(count: int, points_per_place: int) -> Iterator[slice]:
    """Cut a batch into runs of places that together have few enough points to work on at once."""
    step = max(1, POINTS_AT_ONCE // points_per_place)
    return (slice(start, min(start + step, count)) for start in range(0, count, step))


def average_blocks(tiles: npt.NDArray[np.float32], factor: int) -> npt.NDArray[np.float32]:
    """Shrink tiles (..., H, W) by a whole factor, each pixel the mean of a square: how oversampled tiles come home."""
    if factor == 1:
        return tiles
    *front, height, width = tiles.shape
    blocks = tiles.reshape(*front, height // factor, factor, width // factor, factor)
    return np.asarray(blocks.mean(axis=(-3, -1), dtype=np.float32))
