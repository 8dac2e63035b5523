"""Ridge against scikit-learn: the same penalty and the same scores."""

import warnings

import numpy as np
import pytest
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.model_selection import StratifiedKFold
from sklearn.preprocessing import MinMaxScaler

from tessearth.errors import DataError
from tessearth.evaluation.probes import accuracy, r2
from tessearth.ridge import ALPHAS, fit_ridge_classifier, fit_ridge_regression, stratified_folds

Array = np.ndarray


def features(rng: np.random.Generator, rows: int, width: int, trouble: str = "") -> Array:
    x = rng.normal(size=(rows, width)) @ rng.normal(size=(width, width)) / width**0.5
    if trouble == "ill-conditioned":
        x[:, 1:] = x[:, :1] + x[:, 1:] * np.logspace(0, -9, width - 1)
    if trouble == "constant columns":
        x[:, ::3] = 7.25
    if trouble == "repeated columns":
        x[:, ::2] = x[:, :1]
    return x


def numbers(rng: np.random.Generator, x: Array, noise: float) -> Array:
    return x[:, :3].sum(1) + 0.3 * x[:, 0] ** 2 + noise * rng.normal(size=len(x)) + 100


def classes(rng: np.random.Generator, x: Array, count: int, noise: float) -> Array:
    score = (x - x.mean(0)) @ rng.normal(size=(x.shape[1], count)) / x.shape[1] ** 0.5
    return (score + noise * rng.normal(size=score.shape)).argmax(1) * 3 + 5


def check_regression(x: Array, y: Array) -> None:
    train, test = slice(0, len(x) * 3 // 4), slice(len(x) * 3 // 4, None)
    scaler = MinMaxScaler().fit(x[train])
    theirs = RidgeCV(alphas=ALPHAS, cv=3).fit(scaler.transform(x[train]), y[train])
    ours = fit_ridge_regression(x[train], y[train])
    assert ours.alpha[0] == theirs.alpha_
    assert ours.fold_scores.max() == pytest.approx(theirs.best_score_, abs=1e-6)
    score = r2(y[test], ours.predict(x[test])[:, 0])
    assert score == pytest.approx(theirs.score(scaler.transform(x[test]), y[test]), abs=1e-6)


def check_classifier(x: Array, y: Array) -> None:
    train, test = slice(0, len(x) * 3 // 4), slice(len(x) * 3 // 4, None)
    scaler = MinMaxScaler().fit(x[train])
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")
        theirs = RidgeClassifierCV(alphas=ALPHAS, cv=10).fit(scaler.transform(x[train]), y[train])
    ours = fit_ridge_classifier(x[train], y[train])
    assert ours.alpha[0] == theirs.alpha_
    assert ours.fold_scores.max() == pytest.approx(theirs.best_score_, abs=1e-6)
    score = accuracy(y[test], ours.predict(x[test]))
    assert score == pytest.approx(theirs.score(scaler.transform(x[test]), y[test]), abs=1e-6)


@pytest.mark.parametrize("seed", range(10))
def test_regressions_equal_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = features(rng, int(rng.integers(60, 600)), int(rng.integers(3, 80)))
    check_regression(x, numbers(rng, x, noise=float(rng.choice([0.1, 1.0, 5.0]))))


@pytest.mark.parametrize("seed", range(10))
def test_classifiers_equal_scikit_learns(seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = features(rng, int(rng.integers(120, 700)), int(rng.integers(3, 60)))
    check_classifier(
        x, classes(rng, x, count=int(rng.choice([2, 3, 12, 40])), noise=float(rng.choice([0.1, 0.5, 2.0])))
    )


@pytest.mark.parametrize("trouble", ["ill-conditioned", "constant columns", "repeated columns"])
def test_troubled_features_equal_scikit_learns(trouble: str) -> None:
    for seed in range(2):
        rng = np.random.default_rng(seed)
        x = features(rng, 400, 40, trouble)
        check_regression(x, numbers(rng, x, 0.5))
        check_classifier(x, classes(rng, x, 6, 0.3))


def test_more_features_than_rows_equal_scikit_learns() -> None:
    rng = np.random.default_rng(1)
    x = features(rng, 80, 200)
    check_regression(x, numbers(rng, x, 0.5))
    check_classifier(x, classes(rng, x, 3, 0.3))


def test_the_problems_choose_every_penalty() -> None:
    """Noise from little to much moves the choice from the smallest to the largest: the choice is really made."""
    rng = np.random.default_rng(0)
    x = features(rng, 400, 60)
    chosen = {float(fit_ridge_regression(x, numbers(rng, x, noise)).alpha[0]) for noise in (0.01, 0.5, 1, 2, 4, 30)}
    assert chosen == set(ALPHAS)


def test_many_targets_are_as_many_single_ones() -> None:
    rng = np.random.default_rng(0)
    x = features(rng, 300, 20)
    y = np.stack([numbers(rng, x, noise) for noise in (0.1, 5.0, 50.0)], axis=1)
    together = fit_ridge_regression(x, y)
    for i in range(3):
        alone = fit_ridge_regression(x, y[:, i])
        assert alone.alpha[0] == together.alpha[i]
        np.testing.assert_allclose(together.predict(x)[:, i], alone.predict(x)[:, 0], rtol=1e-10)


@pytest.mark.parametrize("folds", [2, 3, 10])
def test_folds_are_scikit_learns(folds: int) -> None:
    rng = np.random.default_rng(folds)
    for _ in range(20):
        codes = rng.choice(9, size=200, p=rng.dirichlet(np.full(9, 0.5)))
        if np.bincount(codes).max() < folds:
            continue
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", "The least populated class")
            for number, (_, test) in enumerate(StratifiedKFold(folds).split(codes, codes)):
                np.testing.assert_array_equal(np.flatnonzero(stratified_folds(codes, folds) == number), test)


def test_single_precision_features_are_solved_in_double() -> None:
    rng = np.random.default_rng(0)
    x = features(rng, 500, 30).astype(np.float32)
    y = numbers(rng, x.astype(np.float64), 0.5)
    theirs = RidgeCV(alphas=ALPHAS, cv=3).fit(MinMaxScaler().fit_transform(x.astype(np.float64)), y)
    assert fit_ridge_regression(x, y).fold_scores.max() == pytest.approx(theirs.best_score_, abs=1e-9)


def test_what_cannot_be_fitted_is_named() -> None:
    x = np.random.default_rng(0).normal(size=(40, 4))
    with pytest.raises(DataError, match="all rows to learn from are of one class"):
        fit_ridge_classifier(x, np.zeros(40, dtype=int))
    with pytest.raises(DataError, match="the largest class has 1 rows to learn from, too few for 10 folds"):
        fit_ridge_classifier(x, np.arange(40))
    with pytest.raises(DataError, match="5 rows to learn from are too few for 3 folds"):
        fit_ridge_regression(x[:5], np.arange(5.0))
    with pytest.raises(DataError, match="40 rows of features and 39 of the target"):
        fit_ridge_regression(x, np.arange(39.0))
    x[3, 2] = np.nan
    with pytest.raises(DataError, match="features must be finite; column 2 is not"):
        fit_ridge_regression(x, np.arange(40.0))
