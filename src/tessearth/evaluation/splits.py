"""Which places are learned from and which are tested on: at random, whole regions held out, or few labels."""

import math
from collections.abc import Callable, Iterable
from functools import partial
from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.settings import Registry
from tessearth.sphere import as_places, place_keys

Rows = npt.NDArray[np.int64]

RANGE_SEEDS = (42, 43, 44, 45, 46)
"""The seeds of the published protocol: the first alone, or the mean over all."""
TEST_SHARE = 0.2
REGIONAL_DRAWS = 5


class Split(NamedTuple):
    """Row numbers to learn from and to test on."""

    name: str
    """What was drawn and with which seed, such as "random-42"."""
    train: Rows
    test: Rows


def random_split(count: int, seed: int = 42, test_share: float = TEST_SHARE) -> Split:
    """Rows 0 ... count - 1 divided as scikit-learn's train_test_split(test_size=test_share, random_state=seed) does.

    A permutation of all rows by numpy's older generator: its first ceil(count test_share) are tested on.
    """
    tested = math.ceil(count * _check_share(test_share))
    if tested in (0, count):
        raise DataError(f"{count} rows cannot be divided {1 - test_share:.0%} to {test_share:.0%}")
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


def regional_split(
    latlon: npt.ArrayLike, block_degrees: float, seed: int = 42, test_share: float = TEST_SHARE
) -> Split:
    """Whole blocks held out: drawn in random order, each taken that brings the tested rows nearer to the share.

    When every block is too large for that the smallest is held out, so both sides always have rows.
    """
    blocks, member, sizes = np.unique(block_ids(latlon, block_degrees), return_inverse=True, return_counts=True)
    if len(blocks) < 2:
        raise DataError(f"all {len(member)} places lie in one block of {block_degrees:g} degrees: none can be held out")
    wanted, taken = _check_share(test_share) * len(member), 0
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


def check_no_leak(split: Split, latlon: npt.ArrayLike, block_degrees: float | None = None) -> Split:
    """The split, when its sides share no row and, with `block_degrees`, no place and no block either."""
    places = as_places(latlon)
    checks: list[tuple[str, Rows]] = [("rows", np.arange(len(places)))]
    if block_degrees is not None:
        checks.append(("places", place_keys(places)))
        checks.append((f"blocks of {block_degrees:g} degrees", block_ids(places, block_degrees)))
    for what, keys in checks:
        shared = np.intersect1d(keys[split.train], keys[split.test])
        if len(shared):
            lat, lon = places[split.train[np.isin(keys[split.train], shared)][0]]
            count = f"{len(shared)}, the first at ({lat:g}, {lon:g})"
            raise DataError(f"split {split.name} leaks: {what} on both sides: {count}")
    return split


def _random(latlon: npt.ArrayLike, seeds: Iterable[int]) -> list[Split]:
    return [random_split(len(as_places(latlon)), seed) for seed in seeds]


def _regional(latlon: npt.ArrayLike, seeds: Iterable[int], block_degrees: float) -> list[Split]:
    splits = (regional_split(latlon, block_degrees, seed) for seed in seeds)
    return [check_no_leak(split, latlon, block_degrees) for split in splits]


def _few_shot(latlon: npt.ArrayLike, seeds: Iterable[int], labels: int) -> list[Split]:
    return [few_shot_split(len(as_places(latlon)), labels, seed) for seed in seeds]


SPLITS: Registry[Callable[[npt.ArrayLike], list[Split]]] = Registry(
    "split",
    {
        "random": partial(_random, seeds=RANGE_SEEDS[:1]),
        "random5": partial(_random, seeds=RANGE_SEEDS),
        **{
            f"{side}deg": partial(_regional, seeds=RANGE_SEEDS[:REGIONAL_DRAWS], block_degrees=side)
            for side in (2, 10, 20)
        },
        **{f"few{labels}": partial(_few_shot, seeds=RANGE_SEEDS, labels=labels) for labels in (10, 100, 1000)},
    },
)
"""Names to functions from places (N, 2) to one split for every draw."""


def build_splits(name: str, latlon: npt.ArrayLike) -> list[Split]:
    """Every draw of a kind of split over places (N, 2): "random", "random5", "10deg", "few100", ..."""
    return SPLITS[name](latlon)


def _check_share(share: float) -> float:
    if not 0 < share < 1:
        raise ConfigError(f"test_share is {share}; it must lie between 0 and 1")
    return share
