"""Where a score comes from: class by class, and continent by continent."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.evaluation.metrics import per_class, score
from tessearth.evaluation.results import ClassTable, ContinentTable
from tessearth.evaluation.tasks import Task
from tessearth.labels import country_continents, prepare_labels

Array = npt.NDArray[Any]

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
