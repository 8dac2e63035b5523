"""The plan of an evaluation: tasks grouped by their places, and every draw of every split checked before any work."""

import itertools
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.embedding import Embedder, EmbeddingCache, places_key
from tessearth.errors import ConfigError, DataError, TessearthError
from tessearth.evaluation.probes import METRICS
from tessearth.evaluation.results import Skipped, TaskCard
from tessearth.evaluation.splits import SPLITS, Rows, Split, build_splits
from tessearth.evaluation.tasks import Task, available_files, check_task, load_task
from tessearth.labels import LABELS

FIXED = "fixed"
"""The name of the split of a task that brings its own."""
FEW = "few"
"""How the names of splits begin that leave too few labels for the protocol's folds."""


class Draw(NamedTuple):
    """One division of a group's rows, and the tasks it can be used for."""

    split: str
    """The kind of split, such as "10deg"."""
    rows: Split
    tasks: tuple[Task, ...]

    @property
    def few(self) -> bool:
        """Whether probes may take fewer folds than the protocol's."""
        return self.split.startswith(FEW)


class Group(NamedTuple):
    """Tasks at the same places and with the same draws: their embeddings and regressions are computed together."""

    places: str
    """`places_key` of the places."""
    latlon: npt.NDArray[np.float64]
    draws: tuple[Draw, ...]


class PlaceSet(NamedTuple):
    """Places to embed, or a part of a larger set."""

    latlon: npt.NDArray[np.float64]
    within: tuple[str, Rows] | None
    """The key of a larger set that has all of them, and their rows in it."""


class Plan(NamedTuple):
    """All tasks, draws and places of an evaluation."""

    tasks: tuple[Task, ...]
    groups: tuple[Group, ...]
    places: dict[str, PlaceSet]
    """By their key, larger sets before their parts."""
    skipped: tuple[Skipped, ...]
    detailed: frozenset[tuple[str, str]]
    """The task and draw of every breakdown: the first draw of each split."""

    def units(self) -> int:
        """The number of scores of one encoder and one probe."""
        return sum(len(draw.tasks) for group in self.groups for draw in group.draws)

    def cards(self) -> tuple[TaskCard, ...]:
        """The tasks as the results describe them."""
        return tuple(_card(task) for task in self.tasks)


def build_plan(
    tasks: Iterable[str | Task],
    splits: Sequence[str],
    *,
    data_dir: Path | str | None = None,
    benchmark: Path | str | None = None,
) -> Plan:
    """Load tasks and draw their splits; what fails is noted and left out."""
    for split in splits:
        SPLITS[split]  # an unknown split is a slip of the pen, not a property of some task
    loaded, skipped = _load_tasks(tasks, data_dir, benchmark)
    groups = []
    for together in _gather(loaded):
        group, failed = _draw(together, splits)
        skipped += failed
        groups += [group] if group.draws else []
    every = [draw for group in groups for draw in group.draws]
    run = {task.name for draw in every for task in draw.tasks}
    return Plan(
        tasks=tuple(task for task in loaded if task.name in run),
        groups=tuple(groups),
        places=_place_sets(groups),
        skipped=tuple(skipped),
        detailed=_first_draws(every),
    )


def name_tasks(tasks: Iterable[str | Task] | None, data_dir: Path | str | None = None) -> list[str | Task]:
    """Tasks, each name once; None are the embedded ones, and "embedded" and "range" (those found) stand for several."""
    listed = [tasks] if isinstance(tasks, str | Task) else list(["embedded"] if tasks is None else tasks)
    if not listed:
        raise ConfigError("no task was named; there must be at least one")
    if "range" in [task for task in listed if isinstance(task, str)] and data_dir is None:
        raise ConfigError("the tasks named range are the published csv files; say where they are with data_dir")
    named: list[str | Task] = []
    for task in listed:
        names = list(LABELS) if task == "embedded" else available_files(str(data_dir)) if task == "range" else [task]
        named += [name for name in names if isinstance(name, Task) or name not in named]
    return named


def check_draw(task: Task, rows: Split) -> str | None:
    """Why a draw of a task cannot be scored, or None: each side must have rows, and something to tell apart."""
    sides = {"to learn from": task.target[rows.train], "to test on": task.target[rows.test]}
    for side, target in sides.items():
        if len(target) == 0:
            return f"{rows.name} has no rows {side}"
        if (target == target[0]).all() and (task.kind == "regress" or side == "to learn from"):
            value = f"of class {task.classes[target[0]]!r}" if task.classes else f"{target[0]:g}"
            return f"every one of the {len(target)} rows {side} in {rows.name} is {value}"
    return None


def _load_tasks(
    tasks: Iterable[str | Task], data_dir: Path | str | None, benchmark: Path | str | None
) -> tuple[list[Task], list[Skipped]]:
    loaded: dict[str, Task] = {}
    skipped = []
    for task in tasks:
        name = task.name if isinstance(task, Task) else task
        try:
            if name in loaded:
                raise ConfigError("another task has this name")
            found = (
                check_task(task) if isinstance(task, Task) else load_task(name, data_dir=data_dir, benchmark=benchmark)
            )
            loaded[name] = found
        except TessearthError as error:
            skipped.append(Skipped(task=name, reason=str(error)))
    return list(loaded.values()), skipped


def _gather(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks with the same places and the same split of their own, if any."""
    together: dict[Any, list[Task]] = {}
    for task in tasks:
        own = None if task.split is None else (task.split.train.tobytes(), task.split.test.tobytes())
        together.setdefault((places_key(task.latlon), own), []).append(task)
    return list(together.values())


def _draw(tasks: Sequence[Task], splits: Sequence[str]) -> tuple[Group, list[Skipped]]:
    """Every draw over the tasks' common places, each with the tasks that it leaves something to learn and to test."""
    first, draws, skipped = tasks[0], [], []
    for split in splits if first.split is None else (FIXED,):
        try:
            divisions = build_splits(split, first.latlon) if first.split is None else [first.split]
        except DataError as error:
            skipped += [Skipped(task=task.name, split=split, reason=str(error)) for task in tasks]
            continue
        for rows, task in itertools.product(divisions, tasks):
            if reason := check_draw(task, rows):
                skipped.append(Skipped(task=task.name, split=split, reason=reason))
        kept = [(rows, tuple(task for task in tasks if not check_draw(task, rows))) for rows in divisions]
        draws += [Draw(split, rows, able) for rows, able in kept if able]
    return Group(places_key(first.latlon), first.latlon, tuple(draws)), skipped


def _first_draws(draws: Iterable[Draw]) -> frozenset[tuple[str, str]]:
    first: dict[tuple[str, str], str] = {}
    for draw in draws:
        for task in draw.tasks:
            first.setdefault((task.name, draw.split), draw.rows.name)
    return frozenset((task, name) for (task, _), name in first.items())


def _place_sets(groups: Sequence[Group]) -> dict[str, PlaceSet]:
    """Distinct sets of places, the largest first; a set that lies within a larger one is embedded with it."""
    sets: dict[str, PlaceSet] = {}
    for group in sorted(groups, key=lambda group: -len(group.latlon)):
        if group.places in sets:
            continue
        larger = ((key, rows_within(group.latlon, other.latlon)) for key, other in sets.items() if not other.within)
        found = next(((key, rows) for key, rows in larger if rows is not None), None)
        sets[group.places] = PlaceSet(group.latlon, found)
    return sets


def rows_within(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> Rows | None:
    """The row of `whole` (M, 2) at which each place of `part` (N, 2) stands, or None when one of them does not."""
    # A place as one complex number: numpy orders those by their first part, then their second.
    wanted, known = (np.ascontiguousarray(places).view(np.complex128)[:, 0] for places in (part, whole))
    order = np.argsort(known, kind="stable")
    place = order[np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)]
    return place if bool((known[place] == wanted).all()) else None


def _card(task: Task) -> TaskCard:
    return TaskCard(
        name=task.name,
        kind=task.kind,
        metric=METRICS[task.kind][0],
        rows=len(task.target),
        classes=len(task.classes),
        notes=task.notes,
        about=dict(task.about),
    )


Array = npt.NDArray[Any]


class Embeddings(NamedTuple):
    """The embeddings of all places, and their origin."""

    fingerprint: str
    at: dict[str, Array]
    """Embeddings (N, D) by the key of their places."""
    how: str
    """"made", "from the cache" or "some of both"."""
    seconds: float


def find_embeddings(embedder: Embedder, plan: Plan, cache: EmbeddingCache | None) -> Embeddings:
    """Embed every set of places of a plan, or read what was embedded before."""
    start, fingerprint = time.perf_counter(), embedder.fingerprint()
    ways: list[str] = []

    def find(key: str) -> Array:
        latlon = plan.places[key].latlon
        kept = cache.read(fingerprint, key, (len(latlon), embedder.dim)) if cache else None
        ways.append("made" if kept is None else "from the cache")
        if kept is not None:
            return kept
        made = np.asarray(embedder.embed(latlon), dtype=np.float32)
        if cache:
            cache.write(fingerprint, key, made)
        return made

    found = embed_places(plan, find)
    how = ways[0] if len(set(ways)) == 1 else "some of both"
    return Embeddings(fingerprint, found, how, time.perf_counter() - start)


def embed_places(plan: Plan, embed: Callable[[str], Array]) -> dict[str, Array]:
    """Every set of places by its key, each place embedded once: a set within a larger one takes its rows from it."""
    found: dict[str, Array] = {}
    for key, places in plan.places.items():  # larger sets come before those within them
        found[key] = embed(key) if places.within is None else found[places.within[0]][places.within[1]]
    return found
