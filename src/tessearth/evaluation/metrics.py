"""Scores of predictions: the share of classes right, the share of variance explained, and both class by class."""

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.evaluation.results import ClassTable, ContinentTable
from tessearth.evaluation.tasks import Task
from tessearth.labels import country_continents, prepare_labels
from tessearth.settings import Kind

Array = npt.NDArray[Any]


class PerClass(NamedTuple):
    """One row for every class that was tested on or predicted."""

    code: npt.NDArray[np.int64]
    rows: npt.NDArray[np.int64]
    """The number of rows of the class."""
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
"""The name and the function of the score of each kind of task."""


def score(kind: Kind, target: Array, prediction: Array) -> float:
    """The score of a kind of task."""
    return METRICS[kind][1](target, prediction)


def _check_lengths(target: Array, prediction: Array) -> None:
    if target.shape != prediction.shape or target.ndim != 1 or len(target) == 0:
        raise DataError(f"a target of shape {target.shape} cannot be scored against one of {prediction.shape}")


CONTINENTS = {
    "AF": "Africa",
    "AS": "Asia",
    "EU": "Europe",
    "NA": "North America",
    "SA": "South America",
    "OC": "Oceania",
    "AN": "Antarctica",
}
"""GeoNames' codes, in the order of the tables; a country lies on one continent, so all of Russia is Europe."""
SEA = "sea"
NAMES = (*CONTINENTS.values(), SEA)


def find_continents(latlon: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The continent of each place (N, 2), an index of `NAMES`, by the country whose outline holds it, (N,)."""
    codes = np.asarray(prepare_labels(latlon, ["country"])["country"], dtype=np.int64)
    return _by_country()[codes]


@functools.cache
def _by_country() -> npt.NDArray[np.int64]:
    """The index of every country's continent, and last, where code -1 looks it up, that of the sea."""
    order = list(CONTINENTS)
    return np.array([*(order.index(code) for code in country_continents()), NAMES.index(SEA)])


def class_table(task: Task, target: Array, prediction: Array) -> ClassTable:
    """Rows, recall and precision of every class that was tested on or predicted."""
    table = per_class(target, prediction)
    return ClassTable(
        names=tuple(task.classes[code] if task.classes else str(code) for code in table.code),
        rows=tuple(table.rows.tolist()),
        recall=tuple(_known(value) for value in table.recall),
        precision=tuple(_known(value) for value in table.precision),
    )


def continent_table(task: Task, continents: Array, target: Array, prediction: Array) -> ContinentTable:
    """The score of every continent by itself; None where a number does not vary, so that R2 has no meaning."""
    found = np.unique(continents)
    sides = [(target[continents == number], prediction[continents == number]) for number in found]
    return ContinentTable(
        names=tuple(NAMES[number] for number in found),
        rows=tuple(len(true) for true, _ in sides),
        scores=tuple(_score(task, true, said) for true, said in sides),
    )


def _score(task: Task, target: Array, prediction: Array) -> float | None:
    if task.kind == "regress" and len(np.unique(target)) < 2:
        return None
    return _known(score(task.kind, target, prediction))


def _known(value: float) -> float | None:
    return float(value) if np.isfinite(value) else None
