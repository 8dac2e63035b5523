"""The plan of an evaluation: tasks grouped by their places, and every draw of every split checked before any work.

A split says which places are learned from and which are tested on: at random, whole regions held out, or few labels.
"""

import math
import time
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.embedding import Embedder, EmbeddingCache, places_key
from tessearth.errors import ConfigError, DataError, TableError, TessearthError, UnknownNameError
from tessearth.evaluation.probes import METRICS
from tessearth.evaluation.results import Skipped, TaskCard
from tessearth.evaluation.tasks import Rows, Split, Task, available_files, check_task, load_task
from tessearth.labels import LABELS
from tessearth.settings import Registry
from tessearth.sphere import as_places
from tessearth.storage import AS_USUAL, Reading

RANGE_SEEDS = (42, 43, 44, 45, 46)
"""The seeds of the published protocol: the first alone, or the mean over all."""
TEST_SHARE = 0.2
FIXED = "fixed"
"""The name of the split of a task that brings its own."""
WRONG_NAMES = (ConfigError, TableError, UnknownNameError)
"""Errors about the name of a task; others are about its data."""
FEW = "few"
"""How the names of splits begin that leave too few labels for the protocol's folds."""


def random_split(count: int, seed: int = 42) -> Split:
    """Rows 0 ... count - 1 divided as scikit-learn's train_test_split(test_size=0.2, random_state=seed) does.

    A permutation of all rows by numpy's older generator: its first ceil(0.2 count) are tested on.
    """
    tested = math.ceil(count * TEST_SHARE)
    if tested in (0, count):
        raise DataError(f"{count} rows cannot be divided {1 - TEST_SHARE:.0%} to {TEST_SHARE:.0%}")
    order = np.random.RandomState(seed).permutation(count).astype(np.int64)
    return Split(f"random-{seed}", train=order[tested:], test=order[:tested])


def block_ids(latlon: npt.ArrayLike, block_degrees: float) -> Rows:
    """The number of the block each place (N, 2) lies in, (N,).

    Blocks are `block_degrees` high and about as wide on the ground: each row of latitudes is cut into as many equal
    columns as fit at its middle, fewer towards the poles, whose caps are one block each, so no sliver of a block is
    left. Longitudes are taken around the circle: -180 and 180 are one meridian. When the side does not divide 180, the
    nearest that does is used.
    """
    if not 0 < block_degrees <= 180:
        raise ConfigError(f"block_degrees is {block_degrees}; it must be above 0 and at most 180")
    lat, lon = as_places(latlon).T
    rows = max(1, round(180 / block_degrees))
    middles = np.deg2rad((np.arange(rows) + 0.5) * (180 / rows) - 90)
    columns = np.maximum(1, np.floor(360 / block_degrees * np.cos(middles))).astype(np.int64)
    columns[[0, -1]] = 1
    row = np.minimum(np.floor((lat + 90) * (rows / 180)).astype(np.int64), rows - 1)
    column = np.floor(np.mod(lon + 180, 360) * (columns[row] / 360)).astype(np.int64) % columns[row]
    ids: Rows = np.concatenate(([0], columns.cumsum()))[row] + column
    return ids


def regional_split(latlon: npt.ArrayLike, block_degrees: float, seed: int = 42) -> Split:
    """Whole blocks held out: drawn in random order, each taken that brings the tested rows nearer to the share.

    When every block is too large for that the smallest is held out, so both sides always have rows.
    """
    blocks, member, sizes = np.unique(block_ids(latlon, block_degrees), return_inverse=True, return_counts=True)
    if len(blocks) < 2:
        raise DataError(f"all {len(member)} places lie in one block of {block_degrees:g} degrees: none can be held out")
    wanted, taken = TEST_SHARE * len(member), 0
    held_out = np.zeros(len(blocks), dtype=bool)
    for block in np.random.default_rng(seed).permutation(len(blocks)):
        if abs(taken + sizes[block] - wanted) < abs(taken - wanted):
            held_out[block] = True
            taken += sizes[block]
    if taken == 0:
        held_out[sizes.argmin()] = True
    tested = held_out[member]
    return Split(f"{block_degrees:g}deg-{seed}", train=np.flatnonzero(~tested), test=np.flatnonzero(tested))


def few_shot_split(count: int, labels: int, seed: int = 42) -> Split:
    """The random split with only `labels` of its training rows, drawn without regard to their class."""
    whole = random_split(count, seed)
    if not 0 < labels <= len(whole.train):
        raise DataError(f"{labels} labels are wanted; there are {len(whole.train)} rows to learn from")
    return Split(f"few-{labels}-{seed}", train=whole.train[:labels], test=whole.test)


def _few_shot(latlon: npt.ArrayLike, labels: int) -> list[Split]:
    return [few_shot_split(len(as_places(latlon)), labels, seed) for seed in RANGE_SEEDS]


def _random(latlon: npt.ArrayLike, seeds: Sequence[int]) -> list[Split]:
    return [random_split(len(as_places(latlon)), seed) for seed in seeds]


def _regional(latlon: npt.ArrayLike, block_degrees: float) -> list[Split]:
    return [regional_split(latlon, block_degrees, seed) for seed in RANGE_SEEDS]


SPLITS: Registry[Callable[[npt.ArrayLike], list[Split]]] = Registry(
    "split",
    {
        "random": partial(_random, seeds=RANGE_SEEDS[:1]),
        "random5": partial(_random, seeds=RANGE_SEEDS),
        **{f"{side}deg": partial(_regional, block_degrees=side) for side in (2, 10, 20)},
        **{f"few{labels}": partial(_few_shot, labels=labels) for labels in (10, 100, 1000)},
    },
)
"""Names to functions from places (N, 2) to one split for every draw."""


def build_splits(name: str, latlon: npt.ArrayLike) -> list[Split]:
    """Every draw of a kind of split over places (N, 2): "random", "random5", "10deg", "few100", ..."""
    return SPLITS[name](latlon)


class Draw(NamedTuple):
    """One division of the rows at some places, and the tasks that it can be used for together."""

    places: str
    """`places_key` of the places."""
    split: str
    """The kind of split, such as "10deg"."""
    rows: Split
    tasks: tuple[Task, ...]

    @property
    def latlon(self) -> npt.NDArray[np.float64]:
        """The places, (N, 2) degrees."""
        return self.tasks[0].latlon

    @property
    def few(self) -> bool:
        """Whether probes may take fewer folds than the protocol's."""
        return self.split.startswith(FEW)


class PlaceSet(NamedTuple):
    """Places to embed, or a part of a larger set."""

    latlon: npt.NDArray[np.float64]
    within: tuple[str, Rows] | None
    """The key of a larger set that has all of them, and their rows in it."""


class Plan(NamedTuple):
    """All tasks, draws and places of an evaluation."""

    tasks: tuple[Task, ...]
    draws: tuple[Draw, ...]
    places: dict[str, PlaceSet]
    """By their key, larger sets before their parts."""
    skipped: tuple[Skipped, ...]
    detailed: frozenset[tuple[str, str]]
    """The task and draw of every breakdown: the first draw of each split."""

    def units(self) -> int:
        """The number of scores of one encoder and one probe."""
        return sum(len(draw.tasks) for draw in self.draws)


def build_plan(
    tasks: Iterable[str | Task],
    splits: Sequence[str],
    *,
    data_dir: Path | str | None = None,
    benchmark: Path | str | None = None,
    reading: Reading = AS_USUAL,
    skip_unknown: bool = True,
) -> Plan:
    """Load tasks and draw their splits; a task that cannot be evaluated is noted and left out.

    An unknown task, or a table that cannot be read, is an error unless `skip_unknown`.
    """
    for split in splits:
        SPLITS[split]
    load = partial(load_task, data_dir=data_dir, benchmark=benchmark, reading=reading)
    loaded, skipped = _load_tasks(tasks, load, skip_unknown)
    draws: list[Draw] = []
    for together in _gather(loaded):
        drawn, failed = _draw(together, splits)
        skipped += failed
        draws += drawn
    run = {task.name for draw in draws for task in draw.tasks}
    first: dict[tuple[str, str], str] = {}
    for draw in draws:
        for task in draw.tasks:
            first.setdefault((task.name, draw.split), draw.rows.name)
    return Plan(
        tasks=tuple(task for task in loaded if task.name in run),
        draws=tuple(draws),
        places=_place_sets(draws),
        skipped=tuple(skipped),
        detailed=frozenset((task, name) for (task, _), name in first.items()),
    )


def name_tasks(tasks: Iterable[str | Task] | None, data_dir: Path | str | None = None) -> list[str | Task]:
    """Tasks, each name once; None are the embedded ones, and "embedded" and "range" (those found) stand for several."""
    listed = as_names(["embedded"] if tasks is None else tasks)
    if not listed:
        raise ConfigError("no task was named; there must be at least one")
    if "range" in [task for task in listed if isinstance(task, str)] and data_dir is None:
        raise ConfigError("the tasks named range are the published csv files; say where they are with data_dir")
    named: list[str | Task] = []
    for task in listed:
        names = list(LABELS) if task == "embedded" else available_files(str(data_dir)) if task == "range" else [task]
        named += [name for name in names if isinstance(name, Task) or name not in named]
    return named


def as_names(names: Any) -> list[Any]:
    """Several names, or one that stands alone."""
    return [names] if isinstance(names, str | Task) else list(names)


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
    tasks: Iterable[str | Task], load: Callable[[str], Task], skip_unknown: bool
) -> tuple[list[Task], list[Skipped]]:
    loaded: dict[str, Task] = {}
    skipped = []
    for task in tasks:
        name = task.name if isinstance(task, Task) else task
        try:
            if name in loaded:
                raise ConfigError(f"two tasks are called {name!r}")
            loaded[name] = check_task(task) if isinstance(task, Task) else load(name)
        except TessearthError as error:
            if isinstance(error, WRONG_NAMES) and not skip_unknown:
                raise
            skipped.append(Skipped(task=name, reason=str(error)))
    return list(loaded.values()), skipped


def _gather(tasks: Sequence[Task]) -> list[list[Task]]:
    """Tasks with the same places and the same split of their own, if any."""
    together: dict[Any, list[Task]] = {}
    for task in tasks:
        own = None if task.split is None else (task.split.train.tobytes(), task.split.test.tobytes())
        together.setdefault((places_key(task.latlon), own), []).append(task)
    return list(together.values())


def _draw(tasks: Sequence[Task], splits: Sequence[str]) -> tuple[list[Draw], list[Skipped]]:
    """Every draw over the tasks' common places, each with the tasks that it leaves something to learn and to test."""
    first, places = tasks[0], places_key(tasks[0].latlon)
    draws: list[Draw] = []
    skipped: list[Skipped] = []
    for split in splits if first.split is None else (FIXED,):
        try:
            divisions = build_splits(split, first.latlon) if first.split is None else [first.split]
        except DataError as error:
            skipped += [Skipped(task=task.name, split=split, reason=str(error)) for task in tasks]
            continue
        for rows in divisions:
            reasons = [(task, check_draw(task, rows)) for task in tasks]
            skipped += [Skipped(task=task.name, split=split, reason=reason) for task, reason in reasons if reason]
            if able := tuple(task for task, reason in reasons if not reason):
                draws.append(Draw(places, split, rows, able))
    return draws, skipped


def _place_sets(draws: Sequence[Draw]) -> dict[str, PlaceSet]:
    """Distinct sets of places, the largest first; a set that lies within a larger one is embedded with it."""
    distinct = {draw.places: draw.latlon for draw in draws}
    sets: dict[str, PlaceSet] = {}
    for key, latlon in sorted(distinct.items(), key=lambda item: -len(item[1])):
        larger = ((other, rows_within(latlon, whole.latlon)) for other, whole in sets.items() if not whole.within)
        sets[key] = PlaceSet(latlon, next(((other, rows) for other, rows in larger if rows is not None), None))
    return sets


def rows_within(part: npt.NDArray[np.float64], whole: npt.NDArray[np.float64]) -> Rows | None:
    """The row of `whole` (M, 2) at which each place of `part` (N, 2) stands, or None when one of them does not."""
    # A place as one complex number: numpy orders those by their first part, then their second.
    wanted, known = (np.ascontiguousarray(places).view(np.complex128)[:, 0] for places in (part, whole))
    order = np.argsort(known, kind="stable")
    place = order[np.minimum(np.searchsorted(known[order], wanted), len(known) - 1)]
    return place if bool((known[place] == wanted).all()) else None


def task_card(task: Task) -> TaskCard:
    """A task as the results describe it."""
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
    ways: set[str] = set()

    def find(key: str) -> Array:
        latlon = plan.places[key].latlon
        kept = cache.read(fingerprint, key, (len(latlon), embedder.dim)) if cache else None
        ways.add("made" if kept is None else "from the cache")
        if kept is None:
            kept = np.asarray(embedder.embed(latlon), dtype=np.float32)
            if cache:
                cache.write(fingerprint, key, kept)
        return kept

    found = embed_places(plan, find)
    how = ways.pop() if len(ways) == 1 else "some of both"
    return Embeddings(fingerprint, found, how, time.perf_counter() - start)


def embed_places(plan: Plan, embed: Callable[[str], Array]) -> dict[str, Array]:
    """Every set of places by its key, each place embedded once: a set within a larger one takes its rows from it."""
    found: dict[str, Array] = {}
    for key, places in plan.places.items():  # larger sets come before those within them
        found[key] = embed(key) if places.within is None else found[places.within[0]][places.within[1]]
    return found
