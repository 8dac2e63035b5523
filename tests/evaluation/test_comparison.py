"""Which differences between two results exceed their spread."""

import math
from dataclasses import replace

import numpy as np
import pytest
from scipy.stats import t

from tessearth.errors import DataError
from tessearth.evaluation.results import compare
from tests.evaluation.fabricate import results_of

DRAWS = [0.50, 0.60, 0.40, 0.55, 0.45]
KEY = ("m", "t", "10deg")


def verdict(first: list[list[float]], second: list[list[float]], **changes: object) -> str:
    (row,) = compare(results_of({KEY: first}), results_of({KEY: second}, **changes))  # type: ignore[arg-type]
    return row.verdict


def test_a_small_but_steady_difference_counts_because_draws_are_paired() -> None:
    steady = [value + 0.01 + 0.001 * (i % 2) for i, value in enumerate(DRAWS)]
    assert verdict([DRAWS], [steady]) == "higher"
    assert verdict([steady], [DRAWS]) == "lower"


def test_a_larger_but_unsteady_difference_does_not() -> None:
    unsteady = [value + change for value, change in zip(DRAWS, (0.1, -0.05, 0.08, -0.04, 0.06), strict=True)]
    assert verdict([DRAWS], [unsteady]) == "within the spread"
    assert verdict([DRAWS], [DRAWS]) == "within the spread"


def test_the_bound_is_the_corrected_paired_one() -> None:
    changes = [0.02, 0.05, 0.01, 0.04, 0.03]
    second = [value + change for value, change in zip(DRAWS, changes, strict=True)]
    (row,) = compare(results_of({KEY: [DRAWS]}), results_of({KEY: [second]}))
    assert row.paired
    assert row.difference == pytest.approx(0.03)
    assert row.bound == pytest.approx(t.ppf(0.975, 4) * np.std(changes, ddof=1) * math.sqrt(1 / 5 + 200 / 800))


@pytest.mark.parametrize(("train", "test", "ratio"), [(10, 200, 0.0), (200, 200, 1.0), (201, 200, 200 / 201)])
def test_draws_that_hardly_overlap_are_independent(train: int, test: int, ratio: float) -> None:
    """Few labels of many rows: then the mean varies like that of independent draws."""
    changes = [0.02, 0.05, 0.01, 0.04, 0.03]
    sides = [results_of({KEY: [draws]}) for draws in (DRAWS, [a + b for a, b in zip(DRAWS, changes, strict=True)])]
    few = [
        replace(side, scores=tuple(replace(row, train_rows=train, test_rows=test) for row in side.scores))
        for side in sides
    ]
    (row,) = compare(*few)
    assert row.bound == pytest.approx(t.ppf(0.975, 4) * np.std(changes, ddof=1) * math.sqrt(1 / 5 + ratio))


def test_the_spread_of_seeds_adds_to_that_of_draws() -> None:
    first, second = [[0.5, 0.6], [0.6, 0.7], [0.4, 0.8]], [[0.7, 0.5], [0.9, 0.6]]
    (row,) = compare(results_of({KEY: first}), results_of({KEY: second}))
    draws = np.mean(second, 0) - np.mean(first, 0)
    variance = np.var(draws, ddof=1) * (1 / 2 + 200 / 800)
    variance += np.var(np.mean(first, 1), ddof=1) / 3 + np.var(np.mean(second, 1), ddof=1) / 2
    assert row.bound == pytest.approx(t.ppf(0.975, 1) * math.sqrt(variance))  # two draws: one degree of freedom
    assert (row.first, row.second) == (pytest.approx(np.mean(first)), pytest.approx(np.mean(second)))
    assert row.metric == "R2"


def test_a_difference_as_large_as_its_bound_does_not_count_yet() -> None:
    (row,) = compare(results_of({KEY: [[0.25, 0.25]]}), results_of({KEY: [[0.25, 0.25]]}))
    assert (row.difference, row.bound, row.verdict) == (0.0, 0.0, "within the spread")
    (row,) = compare(results_of({KEY: [[0.25, 0.25]]}), results_of({KEY: [[0.5, 0.5]]}))
    assert (row.bound, row.verdict) == (0.0, "higher")


def test_different_draws_are_compared_without_pairing() -> None:
    steady = [value + 0.01 for value in DRAWS]
    assert verdict([DRAWS], [steady], first_draw=100) == "within the spread"
    far = [value + 0.5 for value in DRAWS]
    (row,) = compare(results_of({KEY: [DRAWS]}), results_of({KEY: [far]}, first_draw=100))
    assert (row.verdict, row.paired) == ("higher", False)
    assert row.bound == pytest.approx(t.ppf(0.975, 4) * np.std(DRAWS, ddof=1) * math.sqrt(2 * (1 / 5 + 200 / 800)))


def test_only_draws_of_both_sides_count_when_some_are_missing() -> None:
    (row,) = compare(results_of({KEY: [[0.1, *DRAWS[1:]]]}), results_of({KEY: [DRAWS[1:4]]}, first_draw=43))
    assert row.paired
    assert row.difference == pytest.approx(0)


def test_training_seeds_have_a_spread_of_their_own() -> None:
    steady = [value + 0.01 for value in DRAWS]
    seeds = [[value + shift for value in steady] for shift in (-0.1, 0.0, 0.1)]
    assert verdict([DRAWS], [steady]) == "higher"
    assert verdict([DRAWS], seeds) == "within the spread"
    single = [[0.70], [0.71], [0.72]]
    assert verdict([[0.50], [0.51], [0.52]], single) == "higher"
    assert verdict([[0.50], [0.90], [0.70]], single) == "within the spread"


def test_one_run_on_each_side_says_nothing() -> None:
    (row,) = compare(results_of({KEY: [[0.1]]}), results_of({KEY: [[0.9]]}))
    assert (row.verdict, row.bound) == ("no spread known", None)


def test_another_number_of_rows_is_another_task() -> None:
    assert verdict([DRAWS], [DRAWS], rows=999) == "not the same task"


def test_only_what_both_have_is_compared() -> None:
    first = results_of({KEY: [DRAWS], ("only", "t", "10deg"): [DRAWS]})
    second = results_of({("m", "u", "10deg"): [DRAWS], KEY: [DRAWS]})
    assert [(row.model, row.task) for row in compare(first, second)] == [("m", "t")]
    with pytest.raises(DataError, match="share no model under the same label"):
        compare(first, results_of({("other", "t", "10deg"): [DRAWS]}))


def test_no_difference_is_found_too_often_where_there_is_none() -> None:
    """Noise alone must be called a difference in at most one of twenty cases."""
    rng = np.random.default_rng(0)
    found = 0
    for _ in range(400):
        one, other = rng.normal(0.5, 0.05, (2, 5))
        found += verdict([one.tolist()], [other.tolist()]) in ("higher", "lower")
    assert found / 400 < 0.05
