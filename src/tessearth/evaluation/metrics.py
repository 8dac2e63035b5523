"""How good a prediction is: the share of classes right, the share of variance explained, and both class by class."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.labels.table import Kind

Array = npt.NDArray[Any]


class PerClass(NamedTuple):
    """One row for every class that was tested on or predicted."""

    code: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    """How many rows are of the class."""
    recall: npt.NDArray[np.float64]
    """The share of them that was found; NaN for a class that was only predicted."""
    precision: npt.NDArray[np.float64]
    """The share of its predictions that was right; NaN for a class never predicted."""


def accuracy(target: Array, prediction: Array) -> float:
    """The share of rows whose class is right."""
    _check_lengths(target, prediction)
    return float(np.mean(target == prediction))


def r2(target: Array, prediction: Array) -> float:
    """1 - sum (y - p)^2 / sum (y - mean y)^2: 1 is perfect, 0 the mean's own score, below 0 worse than the mean.

    A target that does not vary scores 1 when it is met exactly, else 0.
    """
    _check_lengths(target, prediction)
    residual = float(np.square(target - prediction, dtype=np.float64).sum())
    total = float(np.square(target - target.mean(dtype=np.float64), dtype=np.float64).sum())
    if total == 0:
        return 1.0 if residual == 0 else 0.0
    return 1 - residual / total


def per_class(target: Array, prediction: Array) -> PerClass:
    """Recall and precision of every class that occurs on either side, in the order of their codes."""
    _check_lengths(target, prediction)
    code, both = np.unique(np.concatenate((target, prediction)), return_inverse=True)
    true, found = np.split(both, 2)
    count, predicted, right = (np.bincount(rows, minlength=len(code)) for rows in (true, found, true[true == found]))
    with np.errstate(invalid="ignore"):
        return PerClass(code.astype(np.int64), count.astype(np.int64), right / count, right / predicted)


METRICS: dict[Kind, tuple[str, Callable[[Array, Array], float]]] = {
    "classify": ("accuracy", accuracy),
    "regress": ("R2", r2),
}
"""The name and the function of the score each kind of task is judged by."""


def score(kind: Kind, target: Array, prediction: Array) -> float:
    """The score a kind of task is judged by."""
    return METRICS[kind][1](target, prediction)


def _check_lengths(target: Array, prediction: Array) -> None:
    if target.shape != prediction.shape or target.ndim != 1 or len(target) == 0:
        raise DataError(f"a target of shape {target.shape} cannot be scored against one of {prediction.shape}")
