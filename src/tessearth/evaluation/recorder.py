"""Keeps what is found while an evaluation runs: scores, what was skipped, breakdowns, and predictions for maps."""

from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tessearth.errors import TessearthError
from tessearth.evaluation import metrics
from tessearth.evaluation.breakdown import class_table, continent_table, find_continents
from tessearth.evaluation.plan import Draw, Group, Plan
from tessearth.evaluation.probing import Outcome
from tessearth.evaluation.results import Breakdown, Score, Skipped, to_json
from tessearth.evaluation.tasks import Task

Array = npt.NDArray[Any]


class Progress(Protocol):
    """Called with how many scores there are, of how many, and what is being worked on."""

    def __call__(self, done: int, total: int | None, note: str = "") -> None:
        """Show where the work stands."""


class Prediction(NamedTuple):
    """What a model said of the rows that a detailed draw tests on."""

    task: Task
    split: str
    draw: str
    rows: npt.NDArray[np.int64]
    """The task's rows that were tested on, (M,)."""
    values: Array
    """(M,)."""
    score: float


class Source(NamedTuple):
    """Who made a prediction."""

    model: str
    member: int
    probe: str
    detailed: bool
    """Whether its detailed draws are broken down: the first member of a model, under the first probe."""


class Recorder:
    """Takes outcomes one by one."""

    def __init__(self, plan: Plan, total: int, progress: Progress) -> None:
        self.plan, self.total, self.progress = plan, total, progress
        self.done = 0
        self.scores: list[Score] = []
        self.skipped: list[Skipped] = list(plan.skipped)
        self.breakdowns: list[Breakdown] = []
        self.predictions: dict[tuple[str, str, str], Prediction] = {}
        """By model, task and split."""
        self._no_continents = ""
        self._known_continents: dict[str, npt.NDArray[np.int64]] = {}

    def show(self, note: str) -> None:
        """Say what is being worked on."""
        self.progress(self.done, self.total, note)

    def skip_member(self, label: str, number: int, reason: str, done: int) -> None:
        """Note a model, or a member of one, that cannot be run; nothing that it said before it failed stays."""
        self.skipped.append(Skipped(model=label, reason=reason))
        self.scores = [row for row in self.scores if (row.model, row.member) != (label, number)]
        if number == 0:
            self.breakdowns = [row for row in self.breakdowns if row.model != label]
            self.predictions = {key: value for key, value in self.predictions.items() if key[0] != label}
        self.done = done

    def take(self, source: Source, group: Group, draw: Draw, outcome: Outcome) -> None:
        """Keep one outcome: its score, or why there is none."""
        self.done += 1
        task, rows = outcome.task, draw.rows
        score, reason = np.nan, outcome.reason
        if outcome.prediction is not None:
            score = metrics.score(task.kind, task.target[rows.test], outcome.prediction)
            reason = f"the prediction in {rows.name} has no finite score"
        if outcome.prediction is None or not np.isfinite(score):
            self.skipped.append(Skipped(model=source.model, task=task.name, split=draw.split, reason=reason))
            return
        self.scores.append(
            Score(
                model=source.model,
                member=source.member,
                task=task.name,
                split=draw.split,
                draw=rows.name,
                probe=source.probe,
                score=score,
                train_rows=len(rows.train),
                test_rows=len(rows.test),
                chosen=to_json(outcome.chosen),
            )
        )
        if source.detailed and (task.name, rows.name) in self.plan.detailed:
            self.predictions[source.model, task.name, draw.split] = Prediction(
                task, draw.split, rows.name, rows.test, outcome.prediction, score
            )
            self.breakdowns.append(self._break_down(source, group, draw, task, outcome.prediction))

    def _break_down(self, source: Source, group: Group, draw: Draw, task: Task, prediction: Array) -> Breakdown:
        target = task.target[draw.rows.test]
        continents = self._continents(group)
        return Breakdown(
            model=source.model,
            task=task.name,
            split=draw.split,
            draw=draw.rows.name,
            probe=source.probe,
            classes=class_table(task, target, prediction) if task.kind == "classify" else None,
            continents=None
            if continents is None
            else continent_table(task, continents[draw.rows.test], target, prediction),
        )

    def _continents(self, group: Group) -> npt.NDArray[np.int64] | None:
        """The continent of each of a group's places; None, noted once, where the data for it is not installed."""
        if self._no_continents:
            return None
        try:
            if group.places not in self._known_continents:
                self._known_continents[group.places] = find_continents(group.latlon)
            return self._known_continents[group.places]
        except TessearthError as error:
            self._no_continents = f"there is no breakdown by continent: {error}"
            self.skipped.append(Skipped(reason=self._no_continents))
            return None
