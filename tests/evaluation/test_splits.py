"""Splits: the published ones to the row, and regions that never leak."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.model_selection import train_test_split

from tessearth.errors import ConfigError, DataError, UnknownNameError
from tessearth.evaluation.plan import (
    RANGE_SEEDS,
    SPLITS,
    block_ids,
    build_splits,
    few_shot_split,
    random_split,
    regional_split,
)
from tessearth.sphere.sampling import place_keys, sample_sphere

PLACES = sample_sphere(6000, 0)


@pytest.mark.parametrize("count", [5, 10, 11, 20_640, 40_000])
@pytest.mark.parametrize("seed", RANGE_SEEDS)
def test_random_splits_are_scikit_learns(count: int, seed: int) -> None:
    train, test = train_test_split(np.arange(count), test_size=0.2, random_state=seed)
    split = random_split(count, seed)
    np.testing.assert_array_equal(split.train, train)
    np.testing.assert_array_equal(split.test, test)


@pytest.mark.parametrize("side", [2, 10, 20])
def test_blocks_are_about_as_wide_as_high_everywhere(side: float) -> None:
    """Measured on a dense grid: no block is below a third of the area of one at the equator, polar caps included."""
    dense = sample_sphere(400_000, 1)
    _, counts = np.unique(block_ids(dense, side), return_counts=True)
    at_equator = len(dense) * np.deg2rad(side) ** 2 / (4 * np.pi)
    assert counts.min() > 0.5 * at_equator - 5 * np.sqrt(at_equator)
    assert counts.max() < 4 * at_equator + 5 * np.sqrt(at_equator)


@pytest.mark.parametrize("side", [2, 10, 20, 7, 180])
def test_the_antimeridian_is_one_meridian_and_a_pole_one_place(side: float) -> None:
    lat = np.linspace(-90, 90, 721)
    for turns in ((-180, 180), (0, 360), (-10, 350)):
        west, east = (block_ids(np.stack((lat, np.full_like(lat, lon)), -1), side) for lon in turns)
        np.testing.assert_array_equal(west, east)
    lon = np.linspace(-180, 180, 361)
    for pole in (-90, 90, -89.99, 89.99):
        assert len(np.unique(block_ids(np.stack((np.full_like(lon, pole), lon), -1), side))) == 1


@given(st.floats(-90, 90), st.floats(-180, 180), st.sampled_from([2, 10, 20]))
def test_blocks_hold_neighbours(lat: float, lon: float, side: float) -> None:
    """The block of a place spans `side` degrees of latitude and meets it again after a whole turn."""
    block = block_ids([(lat, lon)], side)[0]
    assert block_ids([(lat, lon - 360 if lon > 0 else lon + 360)], side)[0] == block or abs(lon) < 1e-9
    far = [(max(lat - 1.01 * side, -90), lon), (min(lat + 1.01 * side, 90), lon)]
    assert all(block_ids([place], side)[0] != block for place in far if abs(place[0] - lat) > side)


@pytest.mark.parametrize("side", [2, 10, 20])
@pytest.mark.parametrize("seed", [42, 43, 44])
def test_regions_share_no_block(side: float, seed: int) -> None:
    edges = [(90, 10), (90, -170), (-90, 0), (-90, 77), (5, 180), (5, -180), (5, 179.999), (5, -179.999)]
    latlon = np.concatenate((PLACES, edges))
    split = regional_split(latlon, side, seed)
    for keys in (place_keys(latlon), block_ids(latlon, side)):
        assert not np.intersect1d(keys[split.train], keys[split.test]).size
    assert sorted([*split.train, *split.test]) == list(range(len(latlon)))
    assert len(split.test) / len(latlon) == pytest.approx(0.2, abs=0.01)
    inside = set(split.test)
    for one, other in ((-8, -7), (-6, -5), (-4, -3)):  # the two poles and the antimeridian, each a single place
        assert (len(latlon) + one in inside) == (len(latlon) + other in inside)


@pytest.mark.parametrize("side", [2, 7, 10, 20, 45])
def test_a_row_has_as_many_equal_columns_as_fit_at_its_middle(side: float) -> None:
    """One column more would be narrower than the block is high; the rows at the poles are one block each."""
    rows = round(180 / side)
    lon = (np.arange(7200) + 0.5) / 20 - 180
    seen: list[int] = []
    for row in range(rows):
        middle = (row + 0.5) * 180 / rows - 90
        ids = block_ids(np.stack((np.full_like(lon, middle), lon), -1), side)
        columns, widths = np.unique(ids, return_counts=True)
        around = 360 * np.cos(np.deg2rad(middle))
        if row in (0, rows - 1):
            assert len(columns) == 1
        else:
            assert around / len(columns) >= side > around / (len(columns) + 1)
        assert np.ptp(widths) <= 1
        assert ids[0] == columns[0]
        assert (np.diff(ids) >= 0).all()
        seen += columns.tolist()
        for edge in (middle - 89.99 / rows, middle + 89.99 / rows):
            np.testing.assert_array_equal(block_ids(np.stack((np.full_like(lon, edge), lon), -1), side), ids)
    assert seen == list(range(len(seen)))


def test_a_fifth_of_the_rows_is_held_out() -> None:
    assert len(regional_split(PLACES, 10).test) / len(PLACES) == pytest.approx(0.2, abs=0.01)
    assert len(random_split(1000).test) == 200
    assert len(random_split(1001).test) == 201


def test_another_seed_holds_out_other_regions() -> None:
    tests = {tuple(split.test) for split in build_splits("10deg", PLACES)}
    assert len(tests) == len(RANGE_SEEDS)


def test_few_labels_are_a_part_of_the_random_split() -> None:
    whole, few = random_split(6000, 43), few_shot_split(6000, 100, 43)
    assert len(few.train) == 100
    assert set(few.train) <= set(whole.train)
    np.testing.assert_array_equal(few.test, whole.test)


def test_every_kind_of_split_is_drawn_by_name() -> None:
    draws = {name: len(build_splits(name, PLACES)) for name in SPLITS}
    assert draws == {
        "random": 1,
        **dict.fromkeys(["random5", "2deg", "10deg", "20deg", "few10", "few100", "few1000"], 5),
    }
    assert [split.name for split in build_splits("random5", PLACES)] == [f"random-{seed}" for seed in range(42, 47)]
    assert [split.name for split in build_splits("20deg", PLACES)] == [f"20deg-{seed}" for seed in range(42, 47)]
    assert [split.name for split in build_splits("few10", PLACES)] == [f"few-10-{seed}" for seed in range(42, 47)]
    assert {len(split.train) for split in build_splits("few100", PLACES)} == {100}


def test_two_uneven_blocks_leave_both_sides_rows() -> None:
    latlon = np.concatenate((np.full((95, 2), 5.0), np.full((5, 2), 55.0)))
    split = regional_split(latlon, 10)
    assert len(split.test) == 5
    even = regional_split(np.repeat([[5.0, 5.0], [55.0, 5.0]], 50, axis=0), 10)
    assert len(even.test) == len(even.train) == 50


def test_impossible_splits_are_refused() -> None:
    with pytest.raises(DataError, match="all 30 places lie in one block of 10 degrees"):
        regional_split(np.full((30, 2), 44.0), 10)
    with pytest.raises(DataError, match="1000 labels are wanted; there are 80 rows"):
        few_shot_split(100, 1000)
    with pytest.raises(DataError, match="1 rows cannot be divided 80% to 20%"):
        random_split(1)
    for side in (0, -1, 180.1):
        with pytest.raises(ConfigError, match=f"block_degrees is {side}; it must be above 0 and at most 180"):
            block_ids(PLACES, side)
    with pytest.raises(DataError, match="0 labels are wanted"):
        few_shot_split(100, 0)
    assert len(few_shot_split(100, 80).train) == 80
    assert len(few_shot_split(100, 1).train) == 1
    with pytest.raises(UnknownNameError, match="did you mean '10deg'"):
        build_splits("10degree", PLACES)
