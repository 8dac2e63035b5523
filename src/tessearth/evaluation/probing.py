"""Probes run over several tasks of the same rows, sharing what can be shared.

Regression targets at the same places and with the same rows to learn from are one ridge problem of several columns:
the rows' sums are added up once for all. Classes cannot share them, because their folds follow their labels.
"""

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import TessearthError
from tessearth.evaluation.probes import build_probe
from tessearth.evaluation.splits import Split
from tessearth.evaluation.tasks import Task
from tessearth.ridge import REGRESSION_FOLDS, fit_ridge_regression

Array = npt.NDArray[Any]


class Outcome(NamedTuple):
    """What a probe said of one task, or why it could not."""

    task: Task
    prediction: Array | None
    """Codes or numbers for the rows tested on, (M,)."""
    chosen: dict[str, Any]
    reason: str = ""


class Sides(NamedTuple):
    """Features of the rows learned from and tested on."""

    train: Array
    test: Array


def run_probe(
    name: str, tasks: Sequence[Task], sides: Sides, rows: Split, *, few: bool, device: torch.device
) -> list[Outcome]:
    """One probe on every task of a draw; features are (N, D) on either side."""
    shared = [task for task in tasks if task.kind == "regress" and name == "ridge" and not few]
    alone = [task for task in tasks if not any(task is other for other in shared)]
    return [
        *(_ridge_together(shared, sides, rows, device) if shared else []),
        *(_alone(name, task, sides, rows, few, device) for task in alone),
    ]


def _ridge_together(tasks: Sequence[Task], sides: Sides, rows: Split, device: torch.device) -> list[Outcome]:
    targets = np.stack([task.target[rows.train] for task in tasks], axis=1)
    try:
        fitted = fit_ridge_regression(sides.train, targets, device=device)
    except TessearthError as error:
        return [Outcome(task, None, {}, str(error)) for task in tasks]
    prediction = fitted.predict(sides.test)
    return [
        Outcome(
            task,
            prediction[:, column],
            {
                "probe": "ridge",
                "folds": REGRESSION_FOLDS,
                "alpha": float(fitted.alpha[column]),
                "fold_scores": fitted.fold_scores[:, column].tolist(),
            },
        )
        for column, task in enumerate(tasks)
    ]


def _alone(name: str, task: Task, sides: Sides, rows: Split, few: bool, device: torch.device) -> Outcome:
    probe = build_probe(name, task.kind, device=device, few=few)
    try:
        probe.fit(sides.train, task.target[rows.train])
        return Outcome(task, probe.predict(sides.test), probe.describe())
    except TessearthError as error:
        return Outcome(task, None, {}, str(error))
