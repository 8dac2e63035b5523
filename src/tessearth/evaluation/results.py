"""The results of an evaluation with their provenance: results.json, written and read back."""

import dataclasses
import json
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

from tessearth.errors import ConfigError, DataError
from tessearth.packages import require
from tessearth.settings import Kind, from_plain
from tessearth.storage import write_bytes

SCHEMA = 1
"""Raised whenever a reader of the last version would misread a file of this one."""
FILE_NAME = "results.json"
OWN_PROBE = "own"
"""The probe of a reference: it predicts without one, and is in the tables of every probe."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """One encoder."""

    name: str
    """How it was named, or the class of an object."""
    fingerprint: str
    """SHA-256 over everything that decides its embeddings."""
    dim: int
    embedding_seconds: float
    embeddings: str
    """"made", "from the cache", or "some of both"; empty for a reference, which may have none."""
    probing_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Model:
    """One row of the tables: an encoder, or several of one recipe."""

    label: str
    members: tuple[Member, ...]
    reference: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class TaskCard:
    """What was predicted."""

    name: str
    kind: Kind
    metric: str
    rows: int
    classes: int
    """The number of named classes; 0 for numbers."""
    notes: tuple[str, ...] = ()
    about: dict[str, Any] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Score:
    """One probe of one encoder on one draw of one task."""

    model: str
    member: int
    """Which of the model's members."""
    task: str
    split: str
    """The kind of split, such as "10deg"; "fixed" for a task that brings its own."""
    draw: str
    """The draw of it, such as "10deg-42"."""
    probe: str
    score: float
    train_rows: int
    test_rows: int
    chosen: dict[str, Any]
    """What fitting chose (the penalty) and the probe's settings."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Skipped:
    """A model or task that was skipped, and why."""

    reason: str
    model: str | None = None
    task: str | None = None
    split: str | None = None

    def line(self) -> str:
        """Where and why, such as "model x, task y: there is no such task"."""
        parts = (("model", self.model), ("task", self.task), ("split", self.split))
        where = ", ".join(f"{what} {name}" for what, name in parts if name is not None)
        return f"{where}: {self.reason}" if where else self.reason


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassTable:
    """Columns of a table with one row per class that was tested on or predicted."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    recall: tuple[float | None, ...]
    precision: tuple[float | None, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ContinentTable:
    """Columns of a table with one row per continent that was tested on."""

    names: tuple[str, ...]
    rows: tuple[int, ...]
    scores: tuple[float | None, ...]
    """In the task's metric, R2 against the continent's own mean; None where the rows cannot tell."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Breakdown:
    """One draw of one task in detail: the first of its split, by the first member and the first probe."""

    model: str
    task: str
    split: str
    draw: str
    probe: str
    classes: ClassTable | None = None
    continents: ContinentTable | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Results:
    """Everything an evaluation found."""

    schema: int
    created: str
    """UTC, ISO 8601."""
    arguments: dict[str, Any]
    versions: dict[str, Any]
    device: str
    seconds: float
    models: tuple[Model, ...]
    tasks: tuple[TaskCard, ...]
    scores: tuple[Score, ...]
    skipped: tuple[Skipped, ...] = ()
    breakdowns: tuple[Breakdown, ...] = ()

    def task(self, name: str) -> TaskCard:
        """The card of a task."""
        return next(card for card in self.tasks if card.name == name)


def write_results(results: Results, path: str | PathLike[str]) -> None:
    """Write results in one step: a reader sees the old file or the new."""
    text = json.dumps(to_json(dataclasses.asdict(results)), indent=1, allow_nan=False)
    write_bytes(path, (text + "\n").encode())


def read_results(path: str | PathLike[str]) -> Results:
    """Read results.json, or the one in a folder; anything missing, surplus or of another kind is one DataError."""
    file = Path(path) / FILE_NAME if Path(path).is_dir() else Path(path)
    try:
        plain = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise DataError(f"there is no results file at {file}; tessearth evaluate --out writes one") from None
    except OSError as error:
        raise DataError(f"{file} cannot be read: {(error.strerror or str(error)).lower()}") from None
    except ValueError:
        raise DataError(f"{file} is no results file of tessearth evaluate: it is not JSON") from None
    schema = plain.get("schema") if isinstance(plain, Mapping) else None
    if schema != SCHEMA:
        raise DataError(f"{file} is no results file of schema {SCHEMA}: its schema is {schema!r}; evaluate again")
    try:
        return _check_references(from_plain(Results, plain))
    except ConfigError as error:
        raise DataError(f"{file} is no results file of tessearth evaluate: {error}") from None


def to_json(value: Any) -> Any:
    """Plain values that JSON can hold: numbers that are not finite become null, arrays' scalars numbers."""
    if isinstance(value, Mapping):
        return {str(key): to_json(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [to_json(item) for item in value]
    if hasattr(value, "item"):
        return to_json(value.item())
    if isinstance(value, float) and not math.isfinite(value):
        return None
    return value if isinstance(value, str | int | float | bool | None) else str(value)


def _check_references(results: Results) -> Results:
    """Scores and breakdowns must name models and tasks of the results."""
    members = {model.label: len(model.members) for model in results.models}
    tasks = {task.name for task in results.tasks}
    rows: list[Score | Breakdown] = [*results.scores, *results.breakdowns]
    for number, row in enumerate(rows):
        member = row.member if isinstance(row, Score) else 0
        if not 0 <= member < members.get(row.model, 0) or row.task not in tasks:
            raise ConfigError(f"row {number} is of model {row.model!r}, member {member}, task {row.task!r}: not listed")
    return results


Runs = Mapping[tuple[int, str], float]
"""Scores of one model on one task by member and draw."""
Index = Mapping[tuple[str, str, str, str], Runs]
"""Scores by model, task, split and probe."""
Mark = Literal["", "best", "second", "beats"]

CLASS_MEAN = ("koppen", "country")
REGRESSION_MEAN = ("temperature", "elevation", "rain", "population")
"""The tasks whose means summarise a model in the paper's tables."""


class Cell(NamedTuple):
    """A mean over draws and members, and their spread."""

    mean: float
    spread: float | None
    """The standard deviation (n - 1): of the members' means when there are several, else of the draws; None for one."""


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


def index_scores(results: Results) -> Index:
    """The scores of results by model, task, split and probe."""
    found: dict[tuple[str, str, str, str], dict[tuple[int, str], float]] = {}
    for row in results.scores:
        found.setdefault((row.model, row.task, row.split, row.probe), {})[row.member, row.draw] = row.score
    return found


def summarise(runs: Runs) -> Cell | None:
    """The mean of all runs, and their spread."""
    if not runs:
        return None
    values = list(_means(runs, 0).values())
    if len(values) == 1:
        values = list(runs.values())
    spread = statistics.stdev(values) if len(values) > 1 else None
    return Cell(statistics.fmean(values), spread)


def _means(runs: Runs, by: Literal[0, 1]) -> dict[Any, float]:
    """The mean of the runs of each member (0) or draw (1)."""
    kinds = dict.fromkeys(run[by] for run in runs)
    return {kind: statistics.fmean(value for run, value in runs.items() if run[by] == kind) for kind in kinds}


def best_model(results: Results) -> str | None:
    """The encoder with the best mean rank over all tasks, splits and probes it shares with the others.

    The first in the results' order of several.
    """
    ranks: dict[str, list[int]] = {model.label: [] for model in results.models if not model.reference}
    for table in score_tables(results):
        encoders = [row for row in table.rows if not row.reference]
        for number in (number for number, column in enumerate(table.columns) if len(column.tasks) == 1):
            means = [row.cells[number].mean for row in encoders if row.cells[number]]  # type: ignore[union-attr]
            for row in encoders:
                cell = row.cells[number]
                ranks[row.label].append(sum(mean > cell.mean for mean in means) if cell else len(encoders))
    ranked = {label: statistics.fmean(values) for label, values in ranks.items() if values}
    return min(ranked, key=lambda label: ranked[label]) if ranked else None


def mark(rows: Sequence[tuple[bool, Cell | None]]) -> list[Mark]:
    """Best and second of the encoders in a column; references do not compete, and are marked where they beat all.

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


def _table(results: Results, index: Index, split: str, probe: str) -> ScoreTable:
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


def _cell(index: Index, model: Model, column: Column, split: str, probe: str) -> Cell | None:
    """The mean over the column's tasks, run by run, so that the spread is that of the mean."""
    own = OWN_PROBE if model.reference else probe
    parts = [index.get((model.label, task, split, own), {}) for task in column.tasks]
    shared = [run for run in parts[0] if all(run in part for part in parts)]
    return summarise({run: statistics.fmean(part[run] for part in parts) for run in shared})


Verdict = Literal["higher", "lower", "within the spread", "no spread known", "not the same task"]


class Difference(NamedTuple):
    """One model on one task and split, in both results."""

    model: str
    task: str
    split: str
    probe: str
    metric: str
    first: float
    second: float
    difference: float
    """Second minus first."""
    bound: float | None
    """What it must exceed to count."""
    paired: bool
    """Whether it is a mean over draws that both sides have, and only those."""
    verdict: Verdict
    """What the second is, compared with the first."""


def compare(first: Results, second: Results) -> list[Difference]:
    """Every model, task, split and probe that both results have, in the order of the first."""
    one, other = index_scores(first), index_scores(second)
    if not one.keys() & other.keys():
        raise DataError("the two results share no model under the same label, task, split and probe")
    ratios = _test_shares(first.scores) | _test_shares(second.scores)
    found = []
    for key in (key for key in one if key in other):
        cards = first.task(key[1]), second.task(key[1])
        same = all(getattr(cards[0], name) == getattr(cards[1], name) for name in ("kind", "rows", "classes"))
        found.append(_compare_runs((*key, cards[0].metric), one[key], other[key], ratios[key[1], key[2]], same))
    return found


def _compare_runs(
    about: tuple[str, str, str, str, str], first: Runs, second: Runs, ratio: float, same: bool
) -> Difference:
    """One row; `ratio` is tested rows to learned ones."""
    common = {draw for _, draw in first} & {draw for _, draw in second}
    if paired := bool(common):
        first, second = ({run: value for run, value in runs.items() if run[1] in common} for runs in (first, second))
    means = [statistics.fmean(_means(runs, 0).values()) for runs in (first, second)]
    difference, bound = means[1] - means[0], _bound(first, second, paired, ratio)
    verdict: Verdict = "higher" if difference > 0 else "lower"
    if not same:
        verdict = "not the same task"
    elif bound is None:
        verdict = "no spread known"
    elif abs(difference) <= bound:
        verdict = "within the spread"
    return Difference(*about, means[0], means[1], difference, bound, paired, verdict)


def _bound(first: Runs, second: Runs, paired: bool, ratio: float) -> float | None:
    """How large a difference must be to count; None without any spread to tell it by."""
    one, other = (_means(runs, 1) for runs in (first, second))
    samples = [[other[draw] - one[draw] for draw in one]] if paired else [list(one.values()), list(other.values())]
    seeds = [list(_means(runs, 0).values()) for runs in (first, second)]
    parts = [(values, 1 / len(values) + ratio) for values in samples if min(map(len, samples)) > 1]
    parts += [(values, 1 / len(values)) for values in seeds if len(values) > 1]
    if not parts:
        return None
    error = math.sqrt(sum(statistics.variance(values) * factor for values, factor in parts))
    stats = require("scipy.stats", extra="eval", what="a comparison")
    return float(stats.t.ppf(0.975, min(len(values) for values, _ in parts) - 1)) * error


def _test_shares(scores: Sequence[Score]) -> dict[tuple[str, str], float]:
    """Tested rows to learned ones by task and split; 0 where fewer are learned from, whose draws hardly overlap."""
    sums: dict[tuple[str, str], tuple[int, int]] = {}
    for row in scores:
        test, train = sums.get((row.task, row.split), (0, 0))
        sums[row.task, row.split] = test + row.test_rows, train + row.train_rows
    return {key: test / train if test <= train else 0.0 for key, (test, train) in sums.items()}
