"""Which places are learned from and which are tested on: at random, whole regions held out, or few labels."""

import math
from collections.abc import Callable, Sequence
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.settings import Registry
from tessearth.sphere import as_places

Rows = npt.NDArray[np.int64]

RANGE_SEEDS = (42, 43, 44, 45, 46)
"""The seeds of the published protocol: the first alone, or the mean over all."""
TEST_SHARE = 0.2


class Split(NamedTuple):
    """Row numbers to learn from and to test on."""

    name: str
    """What was drawn and with which seed, such as "random-42"."""
    train: Rows
    test: Rows


def random_split(count: int, seed: int = 42) -> Split:
    """Rows 0 ... count - 1 divided as scikit-learn's train_test_split(test_size=0.2, random_state=seed) does.

    A permutation of all rows by numpy's older generator: its first ceil(0.2 count) are tested on.
    """
    tested = math.ceil(count * TEST_SHARE)
    if tested in (0, count):
        raise DataError(f"{count} rows cannot be divided {1 - TEST_SHARE:.0%} to {TEST_SHARE:.0%}")
    order = np.random.RandomState(seed).permutation(count).astype(np.int64)
    return Split(f"random-{seed}", train=order[tested:], test=order[:tested])


def block_ids(latlon: npt.ArrayLike, block_degrees: float) -> Rows:
    """The number of the block each place (N, 2) lies in, (N,).

    Blocks are `block_degrees` high and about as wide on the ground: each row of latitudes is cut into as many equal
    columns as fit at its middle, fewer towards the poles, whose caps are one block each, so no sliver of a block is
    left. Longitudes are taken around the circle: -180 and 180 are one meridian. When the side does not divide 180, the
    nearest that does is used.
    """
    if not 0 < block_degrees <= 180:
        raise ConfigError(f"block_degrees is {block_degrees}; it must be above 0 and at most 180")
    lat, lon = as_places(latlon).T
    rows = max(1, round(180 / block_degrees))
    middles = np.deg2rad((np.arange(rows) + 0.5) * (180 / rows) - 90)
    columns = np.maximum(1, np.floor(360 / block_degrees * np.cos(middles))).astype(np.int64)
    columns[[0, -1]] = 1
    row = np.minimum(np.floor((lat + 90) * (rows / 180)).astype(np.int64), rows - 1)
    column = np.floor(np.mod(lon + 180, 360) * (columns[row] / 360)).astype(np.int64) % columns[row]
    ids: Rows = np.concatenate(([0], columns.cumsum()))[row] + column
    return ids


def regional_split(latlon: npt.ArrayLike, block_degrees: float, seed: int = 42) -> Split:
    """Whole blocks held out: drawn in random order, each taken that brings the tested rows nearer to the share.

    When every block is too large for that the smallest is held out, so both sides always have rows.
    """
    blocks, member, sizes = np.unique(block_ids(latlon, block_degrees), return_inverse=True, return_counts=True)
    if len(blocks) < 2:
        raise DataError(f"all {len(member)} places lie in one block of {block_degrees:g} degrees: none can be held out")
    wanted, taken = TEST_SHARE * len(member), 0
    held_out = np.zeros(len(blocks), dtype=bool)
    for block in np.random.default_rng(seed).permutation(len(blocks)):
        if abs(taken + sizes[block] - wanted) < abs(taken - wanted):
            held_out[block] = True
            taken += sizes[block]
    if taken == 0:
        held_out[sizes.argmin()] = True
    tested = held_out[member]
    return Split(f"{block_degrees:g}deg-{seed}", train=np.flatnonzero(~tested), test=np.flatnonzero(tested))


def few_shot_split(count: int, labels: int, seed: int = 42) -> Split:
    """The random split with only `labels` of its training rows, drawn without regard to their class."""
    whole = random_split(count, seed)
    if not 0 < labels <= len(whole.train):
        raise DataError(f"{labels} labels are wanted; there are {len(whole.train)} rows to learn from")
    return Split(f"few-{labels}-{seed}", train=whole.train[:labels], test=whole.test)


def _few_shot(latlon: npt.ArrayLike, labels: int) -> list[Split]:
    return [few_shot_split(len(as_places(latlon)), labels, seed) for seed in RANGE_SEEDS]


def _random(latlon: npt.ArrayLike, seeds: Sequence[int]) -> list[Split]:
    return [random_split(len(as_places(latlon)), seed) for seed in seeds]


def _regional(latlon: npt.ArrayLike, block_degrees: float) -> list[Split]:
    return [regional_split(latlon, block_degrees, seed) for seed in RANGE_SEEDS]


SPLITS: Registry[Callable[[npt.ArrayLike], list[Split]]] = Registry(
    "split",
    {
        "random": partial(_random, seeds=RANGE_SEEDS[:1]),
        "random5": partial(_random, seeds=RANGE_SEEDS),
        **{f"{side}deg": partial(_regional, block_degrees=side) for side in (2, 10, 20)},
        **{f"few{labels}": partial(_few_shot, labels=labels) for labels in (10, 100, 1000)},
    },
)
"""Names to functions from places (N, 2) to one split for every draw."""


def build_splits(name: str, latlon: npt.ArrayLike) -> list[Split]:
    """Every draw of a kind of split over places (N, 2): "random", "random5", "10deg", "few100", ..."""
    return SPLITS[name](latlon)
