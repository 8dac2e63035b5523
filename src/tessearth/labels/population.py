"""How many people live in towns around a place: a kernel density of the towns GeoNames lists.

    density(x) = sum_i n_i exp(-|x - x_i|^2 / (2 s^2)) / (2 pi s^2)      people per square kilometre

over all towns i of n_i inhabitants, with |x - x_i| the straight line through the Earth and bandwidth s = 25 km: the von
Mises-Fisher kernel, which weighs the same at the equator and at a pole. Towns beyond five bandwidths are left out (they
would add less than 4 parts in a million of their inhabitants). Quarters that GeoNames lists beside their city count
again, so the centres of some large cities come out high by up to a factor of two or three, 0.7 to 1.1 in the logarithm.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any

import numpy as np

from tessearth.labels.places import Values, to_xyz
from tessearth.labels.prepared import Arrays, load_prepared
from tessearth.labels.sources import source_file
from tessearth.packages import require
from tessearth.sphere.geometry import EARTH_RADIUS_KM

BANDWIDTH_KM = 25.0
REACH = 5.0
"""How many bandwidths a town is felt."""
PLACES_AT_ONCE = 4096


def population(latlon: Values) -> Values:
    """The logarithm of the density of town dwellers: log(1 + density), people per square kilometre."""
    return np.log1p(population_density(latlon))


def population_density(latlon: Values) -> Values:
    """Town dwellers per square kilometre around each place (N, 2)."""
    blocks = [
        _density(latlon[start : start + PLACES_AT_ONCE], BANDWIDTH_KM / EARTH_RADIUS_KM)
        for start in range(0, len(latlon), PLACES_AT_ONCE)
    ]
    return np.concatenate([np.zeros(0), *blocks]) / (2 * np.pi * BANDWIDTH_KM**2)


def _density(latlon: Values, bandwidth: float) -> Values:
    """The sum over towns before it is divided by the kernel's area; distances in Earth radii."""
    spatial = require("scipy.spatial", extra="earth", what="population")
    towns, inhabitants = _town_tree()
    here = spatial.cKDTree(to_xyz(latlon))
    pairs = here.sparse_distance_matrix(towns, REACH * bandwidth, output_type="ndarray")
    weights = inhabitants[pairs["j"]] * np.exp(-0.5 * (pairs["v"] / bandwidth) ** 2)
    return np.bincount(pairs["i"], weights=weights, minlength=len(latlon)).astype(np.float64)


@functools.cache
def _town_tree() -> tuple[Any, Values]:
    """A k-d tree of all towns with inhabitants as unit vectors, and how many each has."""
    spatial = require("scipy.spatial", extra="earth", what="population")
    towns = load_prepared("towns", ["towns"], _build_towns).arrays
    return spatial.cKDTree(to_xyz(towns["latlon"])), towns["inhabitants"]


def _build_towns() -> tuple[Arrays, Mapping[str, Any]]:
    """Read the list of towns once: 80 MB of text, of which three numbers each are wanted."""
    with source_file("towns", "data/cities500.json").open(encoding="utf-8") as file:
        rows = [row for row in json.load(file).values() if row["population"] > 0]
    latlon = np.array([(row["latitude"], row["longitude"]) for row in rows], dtype=np.float64)
    return {"latlon": latlon, "inhabitants": np.array([row["population"] for row in rows], dtype=np.float64)}, {}
