"""What every imagery source promises: places in degrees in, square tiles out; and the checks and records they share."""

import hashlib
import math
from abc import ABC, abstractmethod
from pathlib import Path
from typing import Any, ClassVar, Protocol, runtime_checkable

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.packages import package_version
from tessearth.sphere import Floats, as_places

Tiles = npt.NDArray[np.float32]
"""(N, C, H, W), or one tile (C, H, W)."""

WHOLE_FILE_BYTES = 256 * 2**20
"""Files up to this size are hashed whole for the record; of larger ones only both ends are."""
END_BYTES = 2**20


@runtime_checkable
class Source(Protocol):
    """Places in degrees to tiles: centred on the place, north up, on the local tangent plane."""

    @property
    def bands(self) -> tuple[str, ...]:
        """The names of the C bands, in order."""

    def tiles(self, latlon: Floats) -> Tiles:
        """Read places (N, 2) as tiles (N, C, H, W): 8-bit imagery in [0, 1], reflectance as reflectance."""

    def describe(self) -> dict[str, Any]:
        """Where the tiles come from, ready for JSON: kind, files with their hashes, sizes, package versions."""


class MapSource(ABC):
    """A source that cuts tiles of `size` pixels a side, each `km_per_pixel` wide on the ground, out of a map."""

    kind: ClassVar[str]
    packages: ClassVar[tuple[str, ...]]
    """Packages whose version can change the pixels."""
    bands: tuple[str, ...]

    def __init__(self, size: int, km_per_pixel: float) -> None:
        if size < 1:
            raise ConfigError(f"a tile of {size} pixels a side cannot be read; size must be at least 1")
        if not (math.isfinite(km_per_pixel) and 0 < km_per_pixel <= 2000):
            raise ConfigError(f"km_per_pixel is {km_per_pixel}; it must be above 0 and at most 2000 kilometres")
        self.size, self.km_per_pixel = size, km_per_pixel

    def tiles(self, latlon: Floats) -> Tiles:
        """Read places (N, 2) as tiles (N, C, size, size)."""
        places = as_places(latlon)
        result = np.empty((len(places), len(self.bands), self.size, self.size), dtype=np.float32)
        self._read(places, result)
        return result

    def describe(self) -> dict[str, Any]:
        """The map's record."""
        return {
            "kind": self.kind,
            "bands": list(self.bands),
            "size": self.size,
            "km_per_pixel": self.km_per_pixel,
            "packages": {name: package_version(name) for name in self.packages},
            **self._record(),
        }

    @abstractmethod
    def _read(self, places: Floats, result: Tiles) -> None:
        """Fill the tiles of checked places."""

    @abstractmethod
    def _record(self) -> dict[str, Any]:
        """What the record says of this kind of map."""


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
