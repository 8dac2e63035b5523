"""Scores as tables: means, spreads, and which model comes first."""

import statistics
from collections.abc import Mapping, Sequence
from typing import Literal, NamedTuple

from tessearth.evaluation.results import OWN_PROBE, Model, Results

Runs = Mapping[tuple[int, str], float]
"""Scores of one model on one task by member and draw."""
Mark = Literal["", "best", "second", "beats"]

CLASS_MEAN = ("koppen", "country")
REGRESSION_MEAN = ("temperature", "elevation", "rain", "population")
"""The tasks whose means summarise a model in the paper's tables."""


class Cell(NamedTuple):
    """A mean over draws and members, and how far apart they lie."""

    mean: float
    spread: float | None
    """The standard deviation (n - 1): of the members' means when there are several, else of the draws; None for one."""
    runs: int
    """Over how many members, or draws, the spread is."""


class Column(NamedTuple):
    """One task, or the mean of several."""

    title: str
    tasks: tuple[str, ...]
    metric: str


class Row(NamedTuple):
    """One model."""

    label: str
    reference: bool
    members: int
    cells: tuple[Cell | None, ...]
    marks: tuple[Mark, ...]


class ScoreTable(NamedTuple):
    """The paper's table for one split and one probe."""

    split: str
    probe: str
    columns: tuple[Column, ...]
    rows: tuple[Row, ...]
    """Encoders, then references."""


def score_tables(results: Results) -> list[ScoreTable]:
    """One table for every split and probe."""
    index = index_scores(results)
    splits = dict.fromkeys(row.split for row in results.scores)
    probes = dict.fromkeys(row.probe for row in results.scores if row.probe != OWN_PROBE)
    return [_table(results, index, split, probe) for split in splits for probe in probes]


def index_scores(results: Results) -> dict[tuple[str, str, str, str], dict[tuple[int, str], float]]:
    """Scores by model, task, split and probe, each a mapping of member and draw to the score."""
    found: dict[tuple[str, str, str, str], dict[tuple[int, str], float]] = {}
    for row in results.scores:
        found.setdefault((row.model, row.task, row.split, row.probe), {})[row.member, row.draw] = row.score
    return found


def summarise(runs: Runs) -> Cell | None:
    """The mean of all runs, and their spread."""
    if not runs:
        return None
    values = list(member_means(runs).values())
    if len(values) == 1:
        values = list(runs.values())
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), spread, len(values))


def member_means(runs: Runs) -> dict[int, float]:
    """Each member's mean over its draws."""
    members = dict.fromkeys(member for member, _ in runs)
    return {number: statistics.fmean(v for (member, _), v in runs.items() if member == number) for number in members}


def best_model(results: Results) -> str | None:
    """The encoder with the best mean rank over all tasks, splits and probes it shares with the others.

    The first in the results' order of several.
    """
    ranks: dict[str, list[int]] = {model.label: [] for model in results.models if not model.reference}
    for table in score_tables(results):
        for number, column in enumerate(table.columns):
            cells = [(row.label, row.cells[number]) for row in table.rows if not row.reference]
            if len(column.tasks) > 1:
                continue
            for label, cell in cells:
                better = sum(other.mean > cell.mean for _, other in cells if other and cell) if cell else len(cells)
                ranks[label].append(better)
    ranked = {label: statistics.fmean(values) for label, values in ranks.items() if values}
    return min(ranked, key=lambda label: ranked[label]) if ranked else None


def mark(rows: Sequence[tuple[bool, Cell | None]]) -> list[Mark]:
    """Best and second of the encoders in a column; references compete with nobody, but are marked where they beat all.

    Each row is whether it is a reference, and its cell. Equal means share a mark; one encoder alone gets none.
    """
    means = sorted({cell.mean for reference, cell in rows if cell and not reference}, reverse=True)
    several = sum(1 for reference, cell in rows if cell and not reference) > 1
    marks: list[Mark] = []
    for reference, cell in rows:
        if cell is None or not means:
            marks.append("")
        elif reference:
            marks.append("beats" if cell.mean > means[0] else "")
        else:
            places: dict[float, Mark] = {means[0]: "best"} if several else {}
            places |= {means[1]: "second"} if len(means) > 1 else {}
            marks.append(places.get(cell.mean, ""))
    return marks


def _table(results: Results, index: Mapping[tuple[str, str, str, str], Runs], split: str, probe: str) -> ScoreTable:
    tasks = {key[1] for key in index if key[2] == split and key[3] in (probe, OWN_PROBE)}
    columns = _columns(results, tasks)
    cells = {
        model.label: tuple(_cell(index, model, column, split, probe) for column in columns) for model in results.models
    }
    models = [model for model in results.models if any(cells[model.label])]
    marks = [mark([(model.reference, cells[model.label][i]) for model in models]) for i in range(len(columns))]
    rows = [
        Row(model.label, model.reference, len(model.members), cells[model.label], tuple(of[n] for of in marks))
        for n, model in enumerate(models)
    ]
    return ScoreTable(split, probe, columns, tuple(sorted(rows, key=lambda row: row.reference)))


def _columns(results: Results, tasks: set[str]) -> tuple[Column, ...]:
    """A column for every task, and the means of the tasks that summarise a model where all of them are there."""
    single = [Column(card.name, (card.name,), card.metric) for card in results.tasks if card.name in tasks]
    means = [("class mean", CLASS_MEAN, "accuracy"), ("regression mean", REGRESSION_MEAN, "R2")]
    kinds = {card.name: card.metric for card in results.tasks if card.name in tasks}
    several = [Column(*mean) for mean in means if all(kinds.get(task) == mean[2] for task in mean[1])]
    return (*single, *several)


def _cell(
    index: Mapping[tuple[str, str, str, str], Runs], model: Model, column: Column, split: str, probe: str
) -> Cell | None:
    """The mean over the column's tasks, run by run, so that the spread is that of the mean."""
    own = OWN_PROBE if model.reference else probe
    parts = [index.get((model.label, task, split, own), {}) for task in column.tasks]
    shared = [run for run in parts[0] if all(run in part for part in parts)]
    return summarise({run: statistics.fmean(part[run] for part in parts) for run in shared})
