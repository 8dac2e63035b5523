"""The country of a place, from the outlines that ship with the package (`sphere.land`)."""

import functools
from collections.abc import Mapping
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessearth.labels.sources import Arrays, load_prepared
from tessearth.packages import require
from tessearth.sphere import (
    ROWS,
    Floats,
    Stretches,
    find_stretches,
    is_land,
    latlon_to_xyz,
    load_outlines,
    outline_continents,
    outline_edges,
)

NEAREST_STEP_DEGREES = 0.02
"""Spacing of the points along outlines among which the nearest is found: some 2 km."""


def country(latlon: Floats) -> npt.NDArray[np.int64]:
    """The country each place (N, 2) lies in, a code of `country_names`; -1 at sea.

    Land outside every outline (the coasts of two maps never agree) belongs to the nearest one.
    """
    codes = country_inside(latlon)
    stray = np.flatnonzero((codes < 0) & is_land(latlon))
    if len(stray):
        codes[stray] = nearest_country(latlon[stray])
    return codes


def country_names() -> tuple[str, ...]:
    """The countries and territories as Natural Earth names them, in the order of their codes."""
    return tuple(outline.name for outline in load_outlines())


def country_continents() -> tuple[str, ...]:
    """The continent of each country code as GeoNames assigns it: AF, AN, AS, EU, NA, OC or SA."""
    return outline_continents()


def to_xyz(latlon: Floats) -> Floats:
    """Places (N, 2) as unit vectors (N, 3)."""
    return np.asarray(latlon_to_xyz(torch.tensor(latlon, dtype=torch.float64)).numpy())


def country_inside(latlon: Floats) -> npt.NDArray[np.int64]:
    """The country whose outline holds each place, -1 where none does."""
    return _stretches().owner(latlon)


def nearest_country(latlon: Floats) -> npt.NDArray[np.int64]:
    """The country whose outline passes nearest to each place."""
    tree, owners = _outline_tree()
    _, found = tree.query(to_xyz(latlon))
    return np.asarray(owners[found])


@functools.cache
def _stretches() -> Stretches:
    def build() -> tuple[Arrays, Mapping[str, Any]]:
        return find_stretches(load_outlines())._asdict(), {"rows": ROWS}

    return Stretches(**load_prepared("countries", ["outlines"], build).arrays)


@functools.cache
def _outline_tree() -> tuple[Any, npt.NDArray[np.int64]]:
    """A k-d tree of points along all outlines as unit vectors, and the country of each."""
    spatial = require("scipy.spatial", extra="data", what="the nearest country")
    edges, owners = outline_edges(load_outlines())
    length = np.hypot(edges[:, 1, 0] - edges[:, 0, 0], edges[:, 1, 1] - edges[:, 0, 1])
    pieces = np.maximum(np.ceil(length / NEAREST_STEP_DEGREES), 1).astype(np.int64)
    edge = np.repeat(np.arange(len(edges)), pieces)
    share = (np.arange(len(edge)) - np.repeat(np.cumsum(pieces) - pieces, pieces)) / pieces[edge]
    points = edges[edge, 0] + share[:, None] * (edges[edge, 1] - edges[edge, 0])
    return spatial.cKDTree(to_xyz(points), balanced_tree=False), owners[edge]
