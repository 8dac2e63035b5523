"""Several sources: encoded separately (`Stack`), or read as the bands of one tile (`RasterLayers`)."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.imagery.source import Source
from tessearth.imagery.sources.raster import GlobalRaster


class Stack:
    """Sources that look at the same places, such as day and night, or two scales.

    Each keeps its own size and bands: their tiles are encoded separately and the features joined in this order.
    """

    def __init__(self, sources: Sequence[Source]) -> None:
        if not sources:
            raise ConfigError("a stack of no sources sees nothing; give at least one")
        self.sources = tuple(sources)

    def tiles(self, latlon: npt.NDArray[np.float64]) -> tuple[npt.NDArray[np.float32], ...]:
        """Read places (N, 2) from every source: one (N, C, H, W) each."""
        return tuple(source.tiles(latlon) for source in self.sources)

    def describe(self) -> dict[str, Any]:
        """The records of all sources."""
        return {"kind": "stack", "sources": [source.describe() for source in self.sources]}


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
