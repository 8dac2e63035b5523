"""What every imagery source promises: places in degrees in, square tiles out; and the checks and records they share."""

import hashlib
import math
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError

WHOLE_FILE_BYTES = 256 * 2**20
"""Files up to this size are hashed whole for the record; of larger ones only both ends are."""
END_BYTES = 2**20


@runtime_checkable
class Source(Protocol):
    """Points in degrees to tiles: centred on the place, north up, on the local tangent plane."""

    @property
    def bands(self) -> tuple[str, ...]:
        """The names of the C bands, in order."""

    def tiles(self, latlon: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Read places (N, 2) as tiles (N, C, H, W): 8-bit imagery in [0, 1], reflectance as reflectance."""

    def describe(self) -> dict[str, Any]:
        """Where the tiles come from, ready for JSON: kind, files with their hashes, sizes, package versions."""


def check_tile_size(size: int) -> int:
    """Return a tile's side in pixels, or say why it cannot be one."""
    if size < 1:
        raise ConfigError(f"a tile of {size} pixels a side cannot be read; size must be at least 1")
    return size


def check_km_per_pixel(km_per_pixel: float) -> float:
    """Return the ground size of a pixel, or say why it cannot be one."""
    if not (math.isfinite(km_per_pixel) and 0 < km_per_pixel <= 2000):
        raise ConfigError(f"km_per_pixel is {km_per_pixel}; it must be above 0 and at most 2000 kilometres")
    return km_per_pixel


def fingerprint(path: Path) -> dict[str, Any]:
    """A file's record: name, size and SHA-256; of a huge file the hash covers its first and last megabyte only."""
    size = path.stat().st_size
    with open(path, "rb") as file:
        if size <= WHOLE_FILE_BYTES:
            return {"name": path.name, "bytes": size, "sha256": hashlib.file_digest(file, "sha256").hexdigest()}
        ends = hashlib.sha256(file.read(END_BYTES))
        file.seek(-END_BYTES, 2)
        ends.update(file.read(END_BYTES))
    return {"name": path.name, "bytes": size, "sha256_of_both_ends": ends.hexdigest()}
