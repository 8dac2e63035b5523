"""Places to look at: evenly drawn, repeatable, and never on both sides of a split."""

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessearth.errors import ConfigError, CoordinateError
from tessearth.sphere.land import is_inhabited_land
from tessearth.sphere.sampling import place_keys, sample_elsewhere, sample_land, sample_sphere, split_places


def test_the_sphere_is_covered_evenly() -> None:
    places = sample_sphere(200_000, seed=1)
    z = np.sin(np.deg2rad(places[:, 0]))
    counts, *_ = np.histogram2d(z, places[:, 1], bins=(10, 10), range=((-1, 1), (-180, 180)))
    assert np.abs(counts / 2000 - 1).max() < 0.12  # five standard deviations of a count of 2000


@given(small=st.integers(0, 50), more=st.integers(0, 50), seed=st.integers(0, 2**32))
def test_a_larger_draw_from_the_sphere_starts_with_the_smaller(small: int, more: int, seed: int) -> None:
    np.testing.assert_array_equal(sample_sphere(small + more, seed)[:small], sample_sphere(small, seed))


def test_a_larger_draw_from_land_starts_with_the_smaller() -> None:
    large = sample_land(40_000, 3)  # more than one round of draws
    assert large.shape == (40_000, 2)
    for count in (0, 1, 999, 20_000):
        np.testing.assert_array_equal(sample_land(count, 3), large[:count])
    assert (sample_land(999, 4) != large[:999]).any()


def test_land_places_are_land_north_of_60_south_in_their_true_share() -> None:
    from tessearth.sphere.land import is_inhabited_land

    places = sample_land(20_000, 0)
    assert is_inhabited_land(places).all()
    assert places[:, 0].min() > -60
    africa = (np.abs(places[:, 1] - 18) < 34) & (np.abs(places[:, 0]) < 35)
    north = places[:, 0] > 0
    assert 0.70 < north.mean() < 0.80  # three quarters of the land without Antarctica lie north of the equator
    assert 0.2 < africa.mean() < 0.3


def test_about_the_share_asked_for_is_held_out() -> None:
    places = sample_sphere(20_000, seed=0)
    held_out = split_places(places, validation=0.05, seed=1)
    assert held_out.shape == (20_000,)
    assert abs(held_out.mean() - 0.05) < 0.008


def test_the_side_of_a_place_does_not_depend_on_its_row_or_company() -> None:
    places = sample_sphere(2000, seed=0)
    held_out = split_places(places, validation=0.3)
    order = np.random.default_rng(0).permutation(2000)[:700]
    np.testing.assert_array_equal(split_places(places[order], validation=0.3), held_out[order])


def test_views_of_one_place_never_straddle() -> None:
    places = np.repeat(sample_sphere(500, seed=0), 4, axis=0)
    places[1::4, 1] += 360 * (places[1::4, 1] < 0)  # another way to write the same longitude
    places[2::4] += 1e-9
    held_out = split_places(places, validation=0.5)
    assert (held_out.reshape(500, 4).all(axis=1) | ~held_out.reshape(500, 4).any(axis=1)).all()


def test_another_seed_holds_out_other_places() -> None:
    places = sample_sphere(2000, seed=0)
    a, b = (split_places(places, validation=0.2, seed=seed) for seed in (0, 1))
    assert 0.1 < (a & b).sum() / a.sum() < 0.3


def test_blocks_are_held_out_whole() -> None:
    places = sample_sphere(5000, seed=0)
    held_out = split_places(places, validation=0.3, seed=2, block_degrees=10)
    blocks = np.floor((places + np.array([90, 180])) / 10).astype(int) @ [100, 1]
    for block in np.unique(blocks):
        assert len(set(held_out[blocks == block].tolist())) == 1
    assert 0.2 < held_out.mean() < 0.4


def test_all_or_nothing_can_be_held_out() -> None:
    places = sample_sphere(100, seed=0)
    assert not split_places(places, validation=0.0).any()
    assert split_places(places, validation=1.0).all()


def test_one_meridian_and_one_pole_have_one_key() -> None:
    keys = place_keys([[10, 180], [10, -180], [90, 5], [90, -77], [-90, 5], [10, 179.999]])
    assert keys[0] == keys[1]
    assert keys[2] == keys[3]
    assert len(set(keys.tolist())) == 4


@pytest.mark.parametrize(
    "settings", [{"validation": 1.5}, {"validation": -0.1}, {"block_degrees": 0.0}, {"block_degrees": 200.0}]
)
def test_impossible_splits_are_refused(settings: dict[str, float]) -> None:
    with pytest.raises(ConfigError):
        split_places(sample_sphere(5, seed=0), **settings)  # type: ignore[arg-type]


def test_impossible_draws_and_places_are_refused() -> None:
    with pytest.raises(ConfigError):
        sample_sphere(-1, seed=0)
    with pytest.raises(CoordinateError):
        split_places([[100.0, 0.0]])


@pytest.mark.parametrize("draw", [sample_sphere, sample_land, sample_elsewhere])
def test_a_generator_or_a_fraction_where_a_whole_number_is_wanted_is_one_line(draw: Callable[..., object]) -> None:
    rng = np.random.default_rng(0)
    for count, seed, words in ((600, rng, "seed is Generator"), (600, 0.5, "seed is 0.5"), (600, None, "seed is None")):
        with pytest.raises(ConfigError, match=f"{words}.*; it must be a whole number, 0 or more") as raised:
            draw(count, seed)
        assert "\n" not in str(raised.value)
    for count in (rng, 1e3):
        with pytest.raises(ConfigError, match="places; count must be a whole number, 0 or more"):
            draw(count, 0)
    np.testing.assert_array_equal(draw(np.int64(3), np.int32(1)), draw(3, 1))


def test_elsewhere_is_the_rest_of_the_sphere() -> None:
    places = sample_elsewhere(20_000, seed=0)
    assert not is_inhabited_land(places).any()
    antarctic = (places[:, 0] < -60).mean()
    everywhere = sample_sphere(200_000, seed=5)
    rest = everywhere[~is_inhabited_land(everywhere)]
    assert antarctic == pytest.approx((rest[:, 0] < -60).mean(), abs=0.01)
    np.testing.assert_array_equal(sample_elsewhere(50, seed=0), places[:50])
