"""The shipped outlines as bare rings, for maps that only draw lines."""

import functools

import numpy as np
import numpy.typing as npt

from tessearth.labels.outlines import load_outlines

Floats = npt.NDArray[np.float64]

SMALLEST_ISLAND = 1.0
"""Degrees: rings of less extent are left out of a world map, where they would be a dot."""
WORLD_STEP_DEGREES = 0.15
"""Vertices nearer than this to the last one drawn are left out of a world map."""


@functools.cache
def outline_rings() -> tuple[Floats, ...]:
    """Every ring of every country, (M, 2) degrees, latitude first."""
    return tuple(ring for outline in load_outlines() for ring in outline.rings)


@functools.cache
def world_rings() -> tuple[Floats, ...]:
    """The larger rings, with as many vertices as a world map can show."""
    large = [ring for ring in outline_rings() if np.ptp(ring, axis=0).max() >= SMALLEST_ISLAND]
    return tuple(_thinned(ring) for ring in large)


def _thinned(ring: Floats) -> Floats:
    """A ring with one vertex for every stretch of `WORLD_STEP_DEGREES` along it."""
    length = np.concatenate(([0.0], np.cumsum(np.hypot(*np.diff(ring, axis=0).T))))
    kept = np.concatenate(([True], np.diff(np.floor(length / WORLD_STEP_DEGREES)) > 0))
    kept[-1] = True
    return np.asarray(ring[kept])
