"""Pictures of the whole Earth laid over each other, such as one for every season, as the bands of one tile."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.imagery.sources.raster import GlobalRaster


class RasterLayers:
    """Several equirectangular pictures read as one: an encoder sees how a place changes from one to the next.

    Unlike sources that are encoded apart and joined, a filter here spans all layers at once.
    """

    def __init__(self, paths: Sequence[str | Path], *, size: int, km_per_pixel: float, west: float = -180.0) -> None:
        """Open the pictures, in this order; each may have its own resolution and is read as `GlobalRaster` would."""
        if isinstance(paths, str | Path) or not paths:
            raise ConfigError("the source 'raster-layers' needs a list of at least one path: paths = [...]")
        self.layers = tuple(GlobalRaster(path, size=size, km_per_pixel=km_per_pixel, west=west) for path in paths)
        self.size, self.km_per_pixel = size, km_per_pixel

    @property
    def bands(self) -> tuple[str, ...]:
        """The names of the bands: the layer's number, counted from 1, and the band's name in it."""
        return tuple(f"{number}/{band}" for number, layer in enumerate(self.layers, 1) for band in layer.bands)

    def tiles(self, latlon: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """Read places (N, 2) as tiles (N, bands of all layers, size, size)."""
        return np.concatenate([layer.tiles(latlon) for layer in self.layers], axis=1)

    def describe(self) -> dict[str, Any]:
        """The records of all layers."""
        return {"kind": "raster-layers", "layers": [layer.describe() for layer in self.layers]}
