"""What an evaluation found, with everything needed to know where it came from: results.json, written and read back."""

import dataclasses
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from os import PathLike
from pathlib import Path
from typing import Any

from tessearth.errors import ConfigError, DataError
from tessearth.labels.table import Kind
from tessearth.settings import from_plain
from tessearth.storage.files import write_bytes

SCHEMA = 1
"""Raised whenever a reader of the last version would misread what is written."""
FILE_NAME = "results.json"
OWN_PROBE = "own"
"""The probe of a reference: it brings its own way to predict, and stands beside the models of every probe."""


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
    """How many classes there are names for; 0 for numbers."""
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
    """What could not be run, and why."""

    reason: str
    model: str | None = None
    task: str | None = None
    split: str | None = None

    def where(self) -> str:
        """Such as "model x, task y"; empty when it is about none in particular."""
        parts = (("model", self.model), ("task", self.task), ("split", self.split))
        return ", ".join(f"{what} {name}" for what, name in parts if name is not None)

    def line(self) -> str:
        """Where and why, such as "task y: there is no such task"."""
        return f"{self.where()}: {self.reason}" if self.where() else self.reason


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
    """Scores and breakdowns must speak of models and tasks that are there."""
    members = {model.label: len(model.members) for model in results.models}
    tasks = {task.name for task in results.tasks}
    rows: list[Score | Breakdown] = [*results.scores, *results.breakdowns]
    for number, row in enumerate(rows):
        member = row.member if isinstance(row, Score) else 0
        if not 0 <= member < members.get(row.model, 0) or row.task not in tasks:
            raise ConfigError(f"row {number} is of model {row.model!r}, member {member}, task {row.task!r}: not listed")
    return results
