"""Ridge regression and classification with the penalty chosen by cross-validation, in closed form and all at once.

Gives what scikit-learn's RidgeCV(alphas, cv=3) and RidgeClassifierCV(alphas, cv=10) give on features brought to
[0, 1]: the same folds, the same penalty, the same scores. What depends on the rows is added up once per fold,

    n, sum x, sum x x', sum x y',

and the sums of all rows but one fold are the total minus that fold's, so every row is multiplied out once instead of
once for each fold and penalty. Classes are targets of +1 and -1, whose sums follow from the sum of x over each class:
no matrix of rows by classes is ever made.
"""

import functools
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import DataError

ALPHAS = (0.1, 1.0, 10.0)
CLASSIFIER_FOLDS = 10
REGRESSION_FOLDS = 3
SCORES_AT_ONCE = 2**22
"""Predictions held at once: 32 MB of float64."""


class MinMax(NamedTuple):
    """Features brought to [0, 1] by the range they have where they were fitted."""

    low: Tensor
    scale: Tensor

    @classmethod
    def fit(cls, features: Tensor) -> "MinMax":
        """From rows (N, D), all finite; a column that does not vary becomes 0."""
        low, high = (bound.double() for bound in features.aminmax(dim=0))
        span = high - low
        if not bool(torch.isfinite(span).all()):
            raise DataError(f"features must be finite; column {int((~torch.isfinite(span)).nonzero()[0])} is not")
        constant = span < 10 * torch.finfo(span.dtype).eps
        return cls(low, torch.where(constant, 1.0, 1 / torch.where(constant, 1.0, span)))

    def __call__(self, features: Tensor) -> Tensor:
        """Rows (N, D) on the fitted scale; rows not fitted on may leave [0, 1]."""
        return features.double().sub(self.low).mul_(self.scale)


class RidgeFit(NamedTuple):
    """A fitted ridge model with the results of its cross-validation."""

    scaling: MinMax
    coefficients: Tensor
    """(D, T): on scaled features, one column per target or class."""
    intercept: Tensor
    """(T,)."""
    classes: npt.NDArray[np.int64] | None
    """The codes the columns stand for; None for numbers."""
    alpha: npt.NDArray[np.float64]
    """The penalty chosen: one for every target (T,), or (1,) for all classes together."""
    fold_scores: npt.NDArray[np.float64]
    """The mean score over the folds, (penalties, T) or (penalties, 1)."""

    def decision(self, features: npt.ArrayLike) -> Tensor:
        """Rows (N, D) to the values of every target or class, (N, T)."""
        scaled = self.scaling(_as_rows(features, self.intercept.device))
        return torch.addmm(self.intercept, scaled, self.coefficients)

    def predict(self, features: npt.ArrayLike) -> npt.NDArray[Any]:
        """Rows (N, D) to codes (N,), or to numbers (N, T)."""
        if self.classes is None:
            return np.asarray(self.decision(features).cpu().numpy())
        rows = _as_rows(features, self.intercept.device)
        best = [
            torch.addmm(self.intercept, self.scaling(part), self.coefficients).argmax(1)
            for part in torch.split(rows, max(1, SCORES_AT_ONCE // len(self.classes)))
        ]
        found: npt.NDArray[np.int64] = self.classes[torch.cat(best).cpu().numpy()]
        return found


def fit_ridge_classifier(
    features: npt.ArrayLike,
    codes: npt.ArrayLike,
    *,
    alphas: Sequence[float] = ALPHAS,
    folds: int = CLASSIFIER_FOLDS,
    device: torch.device | str = "cpu",
) -> RidgeFit:
    """Features (N, D) and class codes (N,): one against the rest on +-1, the penalty with the best mean accuracy."""
    rows = _as_rows(features, device)
    classes, code = np.unique(np.asarray(codes), return_inverse=True)
    _check_lengths(rows, code)
    if len(classes) < 2:
        raise DataError("all rows to learn from are of one class; a classifier needs at least two")
    fold = stratified_folds(code, folds)
    order, sizes = np.lexsort((code, fold)), np.bincount(fold, minlength=folds).tolist()
    scaling = MinMax.fit(rows)
    scaled = rows[torch.from_numpy(order).to(rows.device)].double().sub_(scaling.low).mul_(scaling.scale)
    x, y = torch.split(scaled, sizes), torch.split(torch.from_numpy(code[order]).to(rows.device), sizes)
    parts = [_class_sums(*pair, len(classes)) for pair in zip(x, y, strict=True)]
    total, penalties = _added(parts), torch.tensor(alphas, dtype=torch.float64, device=rows.device)
    means = np.full(len(alphas), np.nan)
    if len(alphas) > 1:
        scores = [
            _accuracies(rows_out, true, _solve(total.without(sums), penalties))
            for rows_out, true, sums in zip(x, y, parts, strict=True)
        ]
        means = np.average(np.stack(scores, axis=1), axis=1)
    best = int(means.argmax())
    coefficients, intercept = (part[0] for part in _solve(total, penalties[best : best + 1]))
    return RidgeFit(scaling, coefficients, intercept, classes, np.array([alphas[best]]), means[:, None])


def fit_ridge_regression(
    features: npt.ArrayLike,
    targets: npt.ArrayLike,
    *,
    alphas: Sequence[float] = ALPHAS,
    folds: int = REGRESSION_FOLDS,
    device: torch.device | str = "cpu",
) -> RidgeFit:
    """Features (N, D) and numbers (N,) or (N, T): for every target by itself the penalty with the best mean R2."""
    rows = _as_rows(features, device)
    target = np.asarray(targets, dtype=np.float64)
    _check_lengths(rows, target)
    if len(rows) < 2 * folds:
        raise DataError(f"{len(rows)} rows to learn from are too few for {folds} folds of at least 2")
    target = target.reshape(len(rows), -1)
    middle = torch.from_numpy(target.mean(0)).to(rows.device)
    sizes = [len(rows) // folds + (number < len(rows) % folds) for number in range(folds)]
    scaling = MinMax.fit(rows)
    x, y = torch.split(scaling(rows), sizes), torch.split(torch.from_numpy(target).to(rows.device) - middle, sizes)
    parts = [_number_sums(*pair) for pair in zip(x, y, strict=True)]
    total, penalties = _added(parts), torch.tensor(alphas, dtype=torch.float64, device=rows.device)
    means = np.full((len(alphas), target.shape[1]), np.nan)
    if len(alphas) > 1:
        scores = [
            _explained(rows_out, true, _solve(total.without(sums), penalties))
            for rows_out, true, sums in zip(x, y, parts, strict=True)
        ]
        means = np.average(np.stack(scores), axis=0)
    best = means.argmax(0)
    every, intercepts = _solve(total, penalties)
    chosen, column = torch.from_numpy(best).to(rows.device), torch.arange(len(best), device=rows.device)
    coefficients, intercept = every[chosen, :, column].T, intercepts[chosen, column] + middle
    return RidgeFit(scaling, coefficients, intercept, None, np.asarray(alphas)[best], means)


def stratified_folds(codes: npt.ArrayLike, folds: int) -> npt.NDArray[np.int64]:
    """The fold each row is tested in, (N,), every class spread over the folds as evenly as it goes.

    Classes are taken in the order of their first row. Laid out one after another and dealt to the folds like cards,
    each class gives every fold its count, and fills the folds in order with its rows in order. Rare classes are
    missing from some folds; a class that fills every fold must exist.
    """
    _, first, code, counts = np.unique(np.asarray(codes), return_index=True, return_inverse=True, return_counts=True)
    if counts.max() < folds:
        raise DataError(f"the largest class has {counts.max()} rows to learn from, too few for {folds} folds")
    by_appearance = np.argsort(np.argsort(first))
    dealt = np.sort(by_appearance[code])
    fold = np.empty(len(code), dtype=np.int64)
    share = np.stack([np.bincount(dealt[number::folds], minlength=len(first)) for number in range(folds)])
    for number, place in enumerate(by_appearance):
        fold[code == number] = np.arange(folds).repeat(share[:, place])
    return fold


def ridge_path(
    x: Tensor, y: Tensor, penalties: Sequence[float], counted: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Slopes (D, C) and biases (C,) of y (N, C) on x (N, D) for every penalty, from one eigendecomposition.

    min sum_i c_i |y_i - x_i W - b|^2 + penalty |W|^2, with what each row counts, c (N,), 1 when left out.
    """
    x, y = x.double(), y.double()
    counted = torch.ones(len(x), dtype=x.dtype, device=x.device) if counted is None else counted.double()
    x_mean, y_mean = counted @ x / counted.sum(), counted @ y / counted.sum()
    x, y = x - x_mean, y - y_mean
    weighted = x * counted[:, None]
    values, vectors = torch.linalg.eigh(weighted.T @ x)
    across = vectors.T @ (weighted.T @ y)
    slopes = [vectors @ (across / (values.clamp_min(0) + penalty)[:, None]) for penalty in penalties]
    return [(slope, y_mean - x_mean @ slope) for slope in slopes]


class _Sums(NamedTuple):
    """What the solution needs of a set of rows; sums of disjoint sets add."""

    rows: Tensor
    """n, ()."""
    features: Tensor
    """sum x, (D,)."""
    gram: Tensor
    """sum x x', (D, D)."""
    targets: Tensor
    """sum y, (T,)."""
    cross: Tensor
    """sum x y', (D, T)."""

    def without(self, part: "_Sums") -> "_Sums":
        return _Sums(*map(torch.sub, self, part))


def _added(parts: Sequence[_Sums]) -> _Sums:
    return functools.reduce(lambda one, other: _Sums(*map(torch.add, one, other)), parts)


def _class_sums(x: Tensor, code: Tensor, num_classes: int) -> _Sums:
    """Sums for targets of +1 in the row's class and -1 in all others, from rows in the order of their classes.

    sum x y' = 2 (sum of x over the class) - (sum of x over all).
    """
    features = x.sum(0)
    members = torch.bincount(code, minlength=num_classes)
    of_class = torch.segment_reduce(x, "sum", lengths=members, axis=0, unsafe=True)
    return _Sums(x.new_tensor(len(x)), features, x.T @ x, 2.0 * members - len(x), 2 * of_class.T - features[:, None])


def _number_sums(x: Tensor, y: Tensor) -> _Sums:
    return _Sums(x.new_tensor(len(x)), x.sum(0), x.T @ x, y.sum(0), x.T @ y)


class _Solutions(NamedTuple):
    """One for every penalty."""

    coefficients: Tensor
    """(A, D, T)."""
    intercept: Tensor
    """(A, T)."""


def _solve(sums: _Sums, penalties: Tensor) -> _Solutions:
    """The ridge solution under every penalty: w = (X'X + alpha I)^-1 X'y on centred rows, b = mean(y - x w)."""
    mean = sums.features / sums.rows
    systems = torch.addr(sums.gram, sums.features, mean, alpha=-1).repeat(len(penalties), 1, 1)
    systems.diagonal(dim1=-2, dim2=-1).add_(penalties[:, None])
    cross = torch.addr(sums.cross, mean, sums.targets, alpha=-1)
    coefficients = torch.cholesky_solve(cross.expand(len(penalties), -1, -1), torch.linalg.cholesky(systems))
    return _Solutions(coefficients, sums.targets / sums.rows - mean @ coefficients)


def _accuracies(x: Tensor, code: Tensor, found: _Solutions) -> npt.NDArray[np.float64]:
    """The share of rows right under every penalty, (A,).

    A class without rows to learn from needs no care: its value is -1 everywhere, and the values of the C others, whose
    targets add up to 2 - C in every row, do so too, hence one of them is larger.
    """
    penalties, classes = found.intercept.shape
    wide = found.coefficients.permute(1, 0, 2).flatten(1)
    right = np.zeros(penalties)
    at_once = max(1, SCORES_AT_ONCE // wide.shape[1])
    for part, true in zip(torch.split(x, at_once), torch.split(code, at_once), strict=True):
        value = (part @ wide).view(-1, penalties, classes).add_(found.intercept)
        right += (value.argmax(2) == true[:, None]).sum(0).cpu().numpy()
    return right / len(x)


def _explained(x: Tensor, y: Tensor, found: _Solutions) -> npt.NDArray[np.float64]:
    """R2 of the rows under every penalty, (A, T); for a constant target 1 when it is met exactly, else 0."""
    residual = (y - (x @ found.coefficients + found.intercept[:, None, :])).square().sum(1)
    total = (y - y.mean(0)).square().sum(0)
    constant = (residual == 0).to(y.dtype)
    return np.asarray(torch.where(total == 0, constant, 1 - residual / total.clamp_min(1e-300)).cpu().numpy())


def _as_rows(features: npt.ArrayLike, device: torch.device | str) -> Tensor:
    rows = torch.as_tensor(features, device=device)
    if rows.ndim != 2 or not rows.is_floating_point():
        raise DataError(f"features are {rows.dtype} of shape {tuple(rows.shape)}; they must be real numbers (N, D)")
    return rows


def _check_lengths(rows: Tensor, target: npt.NDArray[Any]) -> None:
    if len(rows) != len(target):
        raise DataError(f"{len(rows)} rows of features and {len(target)} of the target do not match")
