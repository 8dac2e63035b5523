"""Several sources side by side."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.imagery.source import Source


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
