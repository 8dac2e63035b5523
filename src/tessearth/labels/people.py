"""People: the density of town dwellers around a place, and house prices in California.

The density is that of the towns GeoNames lists:

    density(x) = sum_i n_i exp(-|x - x_i|^2 / (2 s^2)) / (2 pi s^2)      people per square kilometre

over all towns i of n_i inhabitants, with |x - x_i| the straight line through the Earth and bandwidth s = 25 km: the von
Mises-Fisher kernel, which weighs the same at the equator and at a pole. Towns beyond five bandwidths are left out (they
would add less than 4 parts in a million of their inhabitants). GeoNames lists some quarters besides their city, so the
centres of some large cities come out high by up to a factor of two or three, 0.7 to 1.1 in the logarithm.
"""

import functools
import json
from collections.abc import Mapping
from typing import Any, NamedTuple

import numpy as np

from tessearth.errors import DataError
from tessearth.labels.countries import to_xyz
from tessearth.labels.sources import Arrays, load_prepared, source_file
from tessearth.packages import require
from tessearth.sphere import EARTH_RADIUS_KM, Floats, as_places

BANDWIDTH_KM = 25.0
REACH = 5.0
"""Bandwidths beyond which a town is left out."""
PLACES_AT_ONCE = 4096


def population(latlon: Floats) -> Floats:
    """The logarithm of the density of town dwellers: log(1 + density), people per square kilometre."""
    return np.log1p(population_density(latlon))


def population_density(latlon: Floats) -> Floats:
    """Town dwellers per square kilometre around each place (N, 2)."""
    blocks = [_density(latlon[start : start + PLACES_AT_ONCE]) for start in range(0, len(latlon), PLACES_AT_ONCE)]
    return np.concatenate([np.zeros(0), *blocks]) / (2 * np.pi * BANDWIDTH_KM**2)


def _density(latlon: Floats) -> Floats:
    """The sum over towns before it is divided by the kernel's area."""
    bandwidth = BANDWIDTH_KM / EARTH_RADIUS_KM
    spatial = require("scipy.spatial", extra="data", what="population")
    towns, inhabitants = _town_tree()
    here = spatial.cKDTree(to_xyz(latlon))
    pairs = here.sparse_distance_matrix(towns, REACH * bandwidth, output_type="ndarray")
    weights = inhabitants[pairs["j"]] * np.exp(-0.5 * (pairs["v"] / bandwidth) ** 2)
    return np.bincount(pairs["i"], weights=weights, minlength=len(latlon)).astype(np.float64)


@functools.cache
def _town_tree() -> tuple[Any, Floats]:
    """A k-d tree of all inhabited towns as unit vectors, and their numbers of inhabitants."""
    spatial = require("scipy.spatial", extra="data", what="population")
    towns = load_prepared("towns", ["towns"], _build_towns).arrays
    return spatial.cKDTree(to_xyz(towns["latlon"])), towns["inhabitants"]


def _build_towns() -> tuple[Arrays, Mapping[str, Any]]:
    """Read three numbers for each town off 80 MB of text."""
    with source_file("towns", "data/cities500.json").open(encoding="utf-8") as file:
        rows = [row for row in json.load(file).values() if row["population"] > 0]
    latlon = np.array([(row["latitude"], row["longitude"]) for row in rows], dtype=np.float64)
    return {"latlon": latlon, "inhabitants": np.array([row["population"] for row in rows], dtype=np.float64)}, {}


class Houses(NamedTuple):
    """Places and the price of houses there."""

    latlon: Floats
    values: Floats
    """Median value in units of 100,000 US dollars, cut off by the census at 5.00001."""


def load_housing() -> Houses:
    """The 20,640 census block groups of California in 1990, in the order of the file."""
    path = source_file("houses", "datasets/data/california_housing.csv")
    try:
        with path.open(encoding="utf-8") as file:
            header = file.readline().strip().split(",")
            columns = [header.index(name) for name in ("Latitude", "Longitude", "MedHouseVal")]
            table = np.loadtxt(file, delimiter=",", usecols=columns, ndmin=2)
    except ValueError as error:
        raise DataError(f"{path.name} of the package shapiq is not the housing table expected: {error}") from error
    return Houses(as_places(table[:, :2]), table[:, 2].copy())
