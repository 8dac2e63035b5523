"""California housing: the median house value of each census block group of 1990, at its own places."""

from typing import NamedTuple

import numpy as np

from tessearth.errors import DataError
from tessearth.labels.places import Values
from tessearth.labels.sources import source_file
from tessearth.sphere.coordinates import as_places

HOUSE_FILE = "datasets/data/california_housing.csv"
COLUMNS = ("Latitude", "Longitude", "MedHouseVal")


class Houses(NamedTuple):
    """Places and what houses cost there."""

    latlon: Values
    values: Values
    """Median value in units of 100,000 US dollars, cut off by the census at 5.00001."""


def load_housing() -> Houses:
    """All 20,640 block groups in the order of the file."""
    path = source_file("houses", HOUSE_FILE)
    try:
        with path.open(encoding="utf-8") as file:
            header = file.readline().strip().split(",")
            table = np.loadtxt(file, delimiter=",", usecols=[header.index(name) for name in COLUMNS], ndmin=2)
    except ValueError as error:
        raise DataError(f"{path.name} of the package shapiq is not the housing table expected: {error}") from error
    return Houses(as_places(table[:, :2]), table[:, 2].copy())
