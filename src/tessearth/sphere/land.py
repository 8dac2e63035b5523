"""Which points of the Earth are land, at 30 arc seconds (lakes count as land).

The mask of 933 million cells changes between land and sea only 772,881 times along its rows. Those changes are all that
land.npz holds, as the bytes of the steps from each to the next; `tools/make_land` makes it from the package
global-land-mask. A lookup is one binary search.
"""

import functools
from pathlib import Path

import numpy as np
import numpy.typing as npt

ROWS, COLUMNS = 21_600, 43_200
CELLS_PER_DEGREE = 120
ANTARCTIC_LATITUDE = -60.0
"""Land south of this does not count as inhabited."""


def is_land(latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each place (..., 2), degrees, lies on land."""
    lat, lon = np.moveaxis(np.asarray(latlon, dtype=np.float64), -1, 0)
    row = np.clip(np.floor((90.0 - lat) * CELLS_PER_DEGREE), 0, ROWS - 1).astype(np.int64)
    column = np.floor(np.mod(lon + 180.0, 360.0) * CELLS_PER_DEGREE).astype(np.int64) % COLUMNS
    # The first cell is sea; every change passed on the way to a cell flips it.
    passed = np.searchsorted(_land_changes(), row * COLUMNS + column, side="right")
    return np.asarray(passed % 2 == 1)


def is_inhabited_land(latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each place lies on land north of 60 S: where sites start and where training places are drawn."""
    places = np.asarray(latlon, dtype=np.float64)
    return is_land(places) & (places[..., 0] > ANTARCTIC_LATITUDE)


@functools.cache
def _land_changes() -> npt.NDArray[np.int64]:
    """Flat cell numbers, in row order, at which sea turns to land or back, (772881,)."""
    with np.load(Path(__file__).with_name("land.npz"), allow_pickle=False) as file:
        steps = np.ascontiguousarray(file["steps"].T).view("<u4")
    return np.cumsum(steps, dtype=np.int64)
