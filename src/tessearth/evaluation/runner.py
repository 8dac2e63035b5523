"""`evaluate`: every model on every task and split, next to references that know the coordinates alone.

Each distinct set of places is embedded once per model and kept in the cache; regressions at the same places are solved
together. A task that cannot be evaluated (one class, a constant target) is one line of the results, and everything else
runs; an unknown name is an error before any work.
"""

import contextlib
import platform
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import UTC, datetime
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.embedding import Embedder, EmbeddingCache
from tessearth.errors import ConfigError, DataError, TessearthError, UnknownNameError
from tessearth.evaluation.plan import (
    SPLITS,
    Draw,
    Plan,
    as_names,
    build_plan,
    embed_places,
    find_embeddings,
    name_tasks,
    task_card,
)
from tessearth.evaluation.probes import (
    PROBES,
    REFERENCES,
    Outcome,
    RandomFeatures,
    RandomNetwork,
    Sides,
    run_alone,
    run_probe,
    score,
)
from tessearth.evaluation.results import (
    FILE_NAME,
    OWN_PROBE,
    SCHEMA,
    Breakdown,
    ClassTable,
    ContinentTable,
    Member,
    Model,
    Results,
    Score,
    Skipped,
    to_json,
    write_results,
)
from tessearth.evaluation.tasks import Task, read_tasks
from tessearth.labels import country_continents, prepare_labels
from tessearth.settings import Kind, did_you_mean, find_device, from_plain
from tessearth.sphere import is_frame
from tessearth.storage import AS_USUAL, Reading, locked_folder, side_by_side
from tessearth.version import __version__


class ModelGroup(NamedTuple):
    """One row of the tables and the models behind it."""

    label: str
    members: tuple[Any, ...]
    """Names as `Embedder` takes them, or encoders."""


def read_models(models: Any, reserved: Iterable[str] = ()) -> list[ModelGroup]:
    """Groups from a name, an encoder, several of either, or a mapping of labels to those."""
    if isinstance(models, Mapping):
        groups = [ModelGroup(str(label), _as_members(value)) for label, value in models.items()]
    else:
        groups = [_read_one(model) for model in (models if isinstance(models, list | tuple) else [models])]
    if not groups:
        raise ConfigError("no model was named; there must be at least one")
    labels = [group.label for group in groups]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"two models are called {label!r}; give them labels, such as first:{label}")
        if label in reserved:
            raise ConfigError(f"{label!r} is the name of a reference; give the model a label, such as mine:{label}")
    return groups


def split_names(text: str) -> list[str]:
    """Names with commas between them, blanks around each left out."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"{text!r} has an empty name between commas")
    return names


def _read_one(model: Any) -> ModelGroup:
    if not isinstance(model, str):
        return ModelGroup(_name_of(model), (model,))
    label, colon, rest = model.partition(":")
    # A path or "geoclip=PATH" may hold a colon of its own; a label holds none of their signs.
    if not colon or set(label) & set("/=|") or Path(model).exists():
        label, rest = model, model
    members = tuple(part.strip() for part in rest.split("|"))
    if not label.strip() or not all(members):
        raise ConfigError(f"{model!r} has an empty name in it; write label:member|member")
    return ModelGroup(label.strip(), members)


def _as_members(value: Any) -> tuple[Any, ...]:
    members = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not members:
        raise ConfigError("a label stands for no model; give it at least one")
    return members


Array = npt.NDArray[Any]


Progress = Callable[[int, int, str], None]
"""Called with the number of scores found, that of all, and what is being worked on."""


class Prediction(NamedTuple):
    """What a model predicts for the rows that a detailed draw tests on."""

    task: Task
    draw: str
    rows: npt.NDArray[np.int64]
    """The task's rows that were tested on, (M,)."""
    values: Array
    """(M,)."""
    score: float


Predictions = dict[tuple[str, str, str], Prediction]
"""By model, task and split."""


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
NAMES = (*CONTINENTS.values(), "sea")


def find_continents(task: Task) -> npt.NDArray[np.int64]:
    """The continent of each of a task's places, an index of `NAMES`, by the country whose outline holds it, (N,)."""
    countries = prepare_labels(task.latlon, ["country"])["country"] if task.countries is None else task.countries
    order = list(CONTINENTS)
    # The sea comes last, where code -1 looks it up.
    by_country = np.array([*(order.index(code) for code in country_continents()), len(order)])
    return by_country[np.asarray(countries, dtype=np.int64)]


def class_table(task: Task, target: Array, prediction: Array) -> ClassTable:
    """Rows, recall and precision of every class that was tested on or predicted."""
    code, both = np.unique(np.concatenate((target, prediction)), return_inverse=True)
    true, said = np.split(both, 2)
    count, predicted, right = (np.bincount(rows, minlength=len(code)) for rows in (true, said, true[true == said]))
    with np.errstate(invalid="ignore"):
        recall, precision = right / count, right / predicted
    return ClassTable(
        names=tuple(task.classes[number] if task.classes else str(number) for number in code),
        rows=tuple(count.tolist()),
        recall=tuple(to_json(recall.tolist())),
        precision=tuple(to_json(precision.tolist())),
    )


def continent_table(task: Task, continents: Array, target: Array, prediction: Array) -> ContinentTable:
    """The score of every continent by itself; None where a number does not vary, so that R2 has no meaning."""
    found = np.unique(continents)
    sides = [(target[continents == number], prediction[continents == number]) for number in found]
    varied = [task.kind == "classify" or len(np.unique(true)) > 1 for true, _ in sides]
    scores = [score(task.kind, *side) if varies else None for side, varies in zip(sides, varied, strict=True)]
    return ContinentTable(
        names=tuple(NAMES[number] for number in found),
        rows=tuple(len(true) for true, _ in sides),
        scores=tuple(to_json(scores)),
    )


DEFAULT_SPLITS = ("random", "10deg")
DEFAULT_PROBES = ("ridge",)
SIDE_BY_SIDE = frozenset(("ridge", "knn"))
"""Probes without random numbers: PyTorch has one generator of them for all threads."""


def evaluate(
    models: Any,
    tasks: Any = None,
    splits: str | Sequence[str] = DEFAULT_SPLITS,
    probes: str | Sequence[str] = DEFAULT_PROBES,
    *,
    target: str | Sequence[str] | None = None,
    kind: Kind | None = None,
    skip_unknown: bool = False,
    out: str | PathLike[str] | None = None,
    references: bool = True,
    data_dir: Path | str | None = None,
    benchmark: Path | str | None = None,
    device: str | torch.device | None = None,
    cache: bool = True,
    maps: str | Sequence[str] | None = None,
    progress: Progress | None = None,
    **reading: Any,
) -> Results:
    """Score models on tasks; with `out`, a folder gets results.json, report.md, report.html and the maps.

        evaluate("earth", frame, target="yield")
        evaluate(["earth", "sphereM+"], ["koppen", "mine.csv:zone:classify"], "10deg")

    `models` are names or encoders, "label:member|member" for several of one recipe, or a mapping of labels to those.
    `tasks` are names (default: the nine embedded ones; "range" stands for all published files found), `Task`s, or a
    table, a frame or a file, whose columns `target` are learned; `reading` is how its places are read (lat, lon,
    on_bad and other fields of `storage.Reading`). `benchmark` is a file of the embedded labels made elsewhere,
    `data_dir` the folder of the published csv files. `maps` are the labels of the models to draw (default: the best
    one; an empty list draws none). What is unknown or cannot be loaded is an error, or left out with `skip_unknown`.
    """
    compared = tuple(REFERENCES) if references else ()
    groups, how = read_models(models, compared), from_plain(Reading, reading) if reading else AS_USUAL
    names = name_tasks(_own_tasks(tasks, target, kind, how), data_dir)
    splits, unknown = _known(as_names(splits), SPLITS, skip_unknown)
    probes, others = _known(as_names(probes), PROBES, skip_unknown)
    maps = maps if maps is None else as_names(maps)
    labels = [*(group.label for group in groups), *compared]
    for label in maps or ():
        if label not in labels:
            raise UnknownNameError(f"no model to draw is called {label!r}{did_you_mean(label, labels)}")
    chosen = find_device(device)
    arguments = {
        "models": {group.label: list(map(_name_of, group.members)) for group in groups},
        "tasks": [task.name if isinstance(task, Task) else task for task in names],
        "splits": list(splits),
        "probes": list(probes),
        "references": references,
        "data_dir": data_dir,
        "benchmark": benchmark,
    }
    plan = build_plan(names, splits, data_dir=data_dir, benchmark=benchmark, reading=how, skip_unknown=skip_unknown)
    plan = plan._replace(skipped=(*unknown, *others, *plan.skipped))
    if not skip_unknown:
        groups = [_open_models(group, chosen) for group in groups]
    busy = ConfigError(f"another evaluation is writing to {out}; choose another folder")
    with contextlib.nullcontext() if out is None else locked_folder(Path(out), busy=busy):
        runner = Runner(plan, probes, chosen, EmbeddingCache() if cache else None)
        results, predictions = runner.run(groups, compared, to_json(arguments), progress or (lambda *_: None))
        if out is not None:
            from tessearth.evaluation.report import write_report

            write_results(results, Path(out) / FILE_NAME)
            write_report(results, Path(out), predictions, maps)
    return results


def _own_tasks(tasks: Any, target: str | Sequence[str] | None, kind: Kind | None, reading: Reading) -> Any:
    """The tasks, or those of the table that stands in their place."""
    if target is not None:
        if tasks is None or isinstance(tasks, list | tuple | Task):
            raise ConfigError("target names columns of a table: give the file or the frame as tasks")
        return read_tasks(tasks, target, kind, reading)
    if is_frame(tasks):
        columns = ", ".join(map(str, getattr(tasks, "columns", tasks)))
        raise ConfigError(f"which column of the table is learned? Give target=, one of {columns}")
    return tasks


def _known(names: Sequence[str], registry: Mapping[str, Any], skip: bool) -> tuple[list[str], list[Skipped]]:
    """The names that are known, and the others as skipped; without `skip` an unknown one is an error."""
    known, skipped = [], []
    for name in names:
        try:
            registry[name]
            known.append(name)
        except UnknownNameError as error:
            if not skip:
                raise
            skipped.append(Skipped(reason=str(error)))
    if not known:
        raise ConfigError(skipped[0].reason if skipped else "no split or no probe was named; give at least one")
    return known, skipped


def _open_models(group: ModelGroup, device: torch.device) -> ModelGroup:
    """The group with its named models loaded, so that one that cannot be read is an error before any work."""
    opened = (Embedder(one, device=device) if isinstance(one, str | PathLike) else one for one in group.members)
    return group._replace(members=tuple(opened))


class Runner:
    """Runs models and references over a plan, and takes what their probes predict one by one."""

    def __init__(
        self, plan: Plan, probes: Sequence[str], device: torch.device, cache: EmbeddingCache | None = None
    ) -> None:
        self.plan, self.probes, self.device, self.cache = plan, probes, device, cache
        self.done = 0
        self.scores: list[Score] = []
        self.skipped: list[Skipped] = list(plan.skipped)
        self.breakdowns: list[Breakdown] = []
        self.predictions: Predictions = {}
        self._known_continents: dict[str, npt.NDArray[np.int64] | None] = {}

    def run(
        self, groups: Sequence[ModelGroup], references: Sequence[str], arguments: dict[str, Any], progress: Progress
    ) -> tuple[Results, Predictions]:
        """Every model, then the references, and what maps are drawn from; one error when there is nothing to show."""
        if not self.plan.draws:
            raise DataError(f"no task can be evaluated: {_first_reason(self.plan.skipped)}")
        start, created = time.perf_counter(), datetime.now(UTC)
        members = sum(len(group.members) for group in groups)
        total = self.plan.units() * (len(self.probes) * members + len(references))
        self._show: Callable[[str], None] = lambda note: progress(self.done, total, note)
        models = [model for group in groups if (model := self._run_model(group)).members]
        if not self.scores:
            raise DataError(f"no model can be evaluated: {_first_reason(self.skipped[len(self.plan.skipped) :])}")
        models += [self._run_reference(name) for name in references]
        self._show("done")
        results = Results(
            schema=SCHEMA,
            created=created.isoformat(timespec="seconds"),
            arguments=arguments,
            versions=_versions(),
            device=str(self.device),
            seconds=round(time.perf_counter() - start, 3),
            models=tuple(models),
            tasks=tuple(map(task_card, self.plan.tasks)),
            scores=tuple(self.scores),
            skipped=tuple(dict.fromkeys(self.skipped)),
            breakdowns=tuple(self.breakdowns),
        )
        return results, self.predictions

    def _run_model(self, group: ModelGroup) -> Model:
        members: list[Member] = []
        for member in group.members:
            self._show(f"{group.label}: loading")
            done = self.done + self.plan.units() * len(self.probes)
            try:
                embedder = member if isinstance(member, Embedder) else Embedder(member, device=self.device)
                ran = self._run_member(group.label, len(members), embedder)
            except TessearthError as error:
                failed = group.label, len(members)  # what it scored before it failed is dropped
                self.scores = [row for row in self.scores if (row.model, row.member) != failed]
                if not members:
                    self.breakdowns = [row for row in self.breakdowns if row.model != group.label]
                    self.predictions = {key: one for key, one in self.predictions.items() if key[0] != group.label}
                self.skipped.append(Skipped(model=group.label, reason=str(error)))
                self.done = done
                continue
            members.append(ran)
        return Model(label=group.label, members=tuple(members))

    def _run_member(self, label: str, number: int, embedder: Embedder) -> Member:
        embeddings = find_embeddings(embedder, self.plan, self.cache)
        start = time.perf_counter()

        def work(draw: Draw) -> list[tuple[str, Outcome]]:
            features = embeddings.at[draw.places]
            return [(name, one) for name in self.probes for one in self._probe(name, draw, features)]

        self._run_draws(label, number, work)
        return Member(
            name=embedder.name,
            fingerprint=embeddings.fingerprint,
            dim=embedder.dim,
            embedding_seconds=round(embeddings.seconds, 3),
            embeddings=embeddings.how,
            probing_seconds=round(time.perf_counter() - start, 3),
        )

    def _run_reference(self, name: str) -> Model:
        """A reference on every draw; the untrained network's features are made once for all tasks at their places."""
        start = time.perf_counter()
        network = RandomFeatures() if REFERENCES[name] is RandomNetwork else None
        features = embed_places(self.plan, lambda key: network.embed(self.plan.places[key].latlon)) if network else {}
        made = time.perf_counter() - start

        def work(draw: Draw) -> list[tuple[str, Outcome]]:
            if features:
                return [(OWN_PROBE, one) for one in self._probe("ridge", draw, features[draw.places])]
            rows, sides = draw.rows, Sides(draw.latlon[draw.rows.train], draw.latlon[draw.rows.test])
            return [(OWN_PROBE, run_alone(REFERENCES[name](task.kind), task, sides, rows)) for task in draw.tasks]

        self._run_draws(name, 0, work)
        member = Member(
            name=name,
            fingerprint="",
            dim=next(iter(features.values())).shape[1] if features else 0,
            embedding_seconds=round(made, 3),
            embeddings="",
            probing_seconds=round(time.perf_counter() - start - made, 3),
        )
        return Model(label=name, members=(member,), reference=True)

    def _probe(self, name: str, draw: Draw, features: Array) -> list[Outcome]:
        sides = Sides(features[draw.rows.train], features[draw.rows.test])
        return run_probe(name, draw.tasks, sides, draw.rows, few=draw.few, device=self.device)

    def _run_draws(self, label: str, number: int, work: Callable[[Draw], list[tuple[str, Outcome]]]) -> None:
        """Every draw: several at once on a CPU, one by one on a GPU and for probes that draw random numbers."""
        alone = self.device.type != "cpu" or not SIDE_BY_SIDE.issuperset(self.probes)
        workers = 1 if alone else torch.get_num_threads()
        found = map(work, self.plan.draws) if workers == 1 else side_by_side(work, self.plan.draws, workers)
        for draw, outcomes in zip(self.plan.draws, found, strict=True):
            for probe, outcome in outcomes:
                self._take(label, number, probe, draw, outcome)
            self._show(f"{label}: {draw.rows.name}")

    def _take(self, model: str, member: int, probe: str, draw: Draw, outcome: Outcome) -> None:
        """Keep one outcome: its score, or why there is none; a detailed draw is broken down for one probe a model."""
        self.done += 1
        task, rows, target = outcome.task, draw.rows, outcome.task.target[draw.rows.test]
        found, reason = np.nan, outcome.reason
        if outcome.prediction is not None:
            found = score(task.kind, target, outcome.prediction)
            reason = f"the prediction in {rows.name} has no finite score"
        if outcome.prediction is None or not np.isfinite(found):
            self.skipped.append(Skipped(model=model, task=task.name, split=draw.split, reason=reason))
            return
        where: dict[str, Any] = {"model": model, "task": task.name, "split": draw.split, "draw": rows.name}
        where["probe"] = probe
        lengths: dict[str, Any] = {"train_rows": len(rows.train), "test_rows": len(rows.test)}
        chosen = to_json(outcome.chosen)
        self.scores.append(Score(**where, **lengths, member=member, score=found, chosen=chosen))
        first = member == 0 and probe in (self.probes[0], OWN_PROBE)
        if not first or (task.name, rows.name) not in self.plan.detailed:
            return
        self.predictions[model, task.name, draw.split] = Prediction(
            task, rows.name, rows.test, outcome.prediction, found
        )
        classes = class_table(task, target, outcome.prediction) if task.kind == "classify" else None
        known = self._continents(draw.places, task)
        continents = None if known is None else continent_table(task, known[rows.test], target, outcome.prediction)
        self.breakdowns.append(Breakdown(**where, classes=classes, continents=continents))

    def _continents(self, places: str, task: Task) -> npt.NDArray[np.int64] | None:
        """The continent of each of a task's places; None, noted, where the data for it is not installed."""
        if places not in self._known_continents:
            try:
                self._known_continents[places] = find_continents(task)
            except TessearthError as error:
                self._known_continents[places] = None
                self.skipped.append(Skipped(reason=f"there is no breakdown by continent: {error}"))
        return self._known_continents[places]


def _first_reason(skipped: Sequence[Any]) -> str:
    others = f" (and {len(skipped) - 1} more)" if len(skipped) > 1 else ""
    return f"{skipped[0].reason}{others}" if skipped else "there is none"


def _versions() -> dict[str, str]:
    return {
        "tessearth": __version__,
        "python": platform.python_version(),
        "numpy": np.__version__,
        "torch": torch.__version__,
        "platform": platform.platform(),
        "threads": str(torch.get_num_threads()),
    }


def _name_of(model: Any) -> str:
    return str(model) if isinstance(model, str | PathLike) else type(model).__name__
