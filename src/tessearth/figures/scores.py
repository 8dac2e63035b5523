"""The numbers behind `tessearth plot` that have to be worked out first: predictions of probes, scores by kept sites."""

from collections.abc import Sequence

import numpy as np

from tessearth.devices import find_device
from tessearth.embedding.embedder import Embedder
from tessearth.errors import ConfigError, DataError
from tessearth.evaluation.metrics import METRICS, score
from tessearth.evaluation.probes import Outcome, Sides, run_probe
from tessearth.evaluation.runner import read_models
from tessearth.evaluation.splits import Split, build_splits
from tessearth.evaluation.tasks import Task, load_task
from tessearth.plotting import Predicted, Score

TOP_K_TASKS = ("koppen", "country", "temperature", "elevation")
"""Two of each kind: their means are what the curves show."""


def predict(models: Sequence[str], task_name: str, *, split: str = "random", device: str | None = None) -> Predicted:
    """What a ridge probe on each model's embeddings says of the places held out from it."""
    task = load_task(task_name)
    rows = task.split or build_splits(split, task.latlon)[0]
    said, scores = {}, {}
    for group in read_models(list(models)):
        outcome = _probe(Embedder(group.members[0], device=device), [task], rows)[0]
        if outcome.prediction is None:
            raise DataError(f"{group.label} on {task.name}: {outcome.reason}")
        value = score(task.kind, task.target[rows.test], outcome.prediction)
        said[group.label] = outcome.prediction
        scores[group.label] = f"{METRICS[task.kind][0]} {value:.3f}"
    return Predicted(
        latlon=task.latlon[rows.test],
        truth=task.target[rows.test],
        said=said,
        scores=scores,
        unit=f"{task.name} ({task.about['unit']})" if task.about.get("unit") else task.name,
        classes=task.classes,
        numbers=task.kind == "regress",
    )


def score_top_k(model: str, kept: Sequence[int], *, split: str = "random", device: str | None = None) -> list[Score]:
    """Mean accuracy and mean R2 of ridge probes when only the `k` largest site weights of a place are kept."""
    tasks = [load_task(name) for name in TOP_K_TASKS]
    if any(not np.array_equal(task.latlon, tasks[0].latlon) for task in tasks):
        tasks = _at_common_places(tasks)
    rows = build_splits(split, tasks[0].latlon)[0]
    scores = []
    for k in kept:
        embedder = Embedder(model, device=device, top_k=k)
        if not embedder.has_sites:
            raise ConfigError(f"{model} has no sites to keep: top-k is for Voronoi encoders")
        told = _probe(embedder, tasks, rows)
        by_kind = {
            kind: [
                score(kind, one.task.target[rows.test], one.prediction)
                for one in told
                if one.task.kind == kind and one.prediction is not None
            ]
            for kind in METRICS
        }
        scores.append(Score(float(k), split, float(np.mean(by_kind["classify"])), float(np.mean(by_kind["regress"]))))
    return scores


def powers_up_to(sites: int) -> list[int]:
    """1, 4, 16 ... and the number of sites itself."""
    powers = [4**i for i in range(16) if 4**i < sites]
    return [*powers, sites]


def _probe(embedder: Embedder, tasks: Sequence[Task], rows: Split) -> list[Outcome]:
    embedded = np.asarray(embedder.embed(tasks[0].latlon), dtype=np.float32)
    sides = Sides(train=embedded[rows.train], test=embedded[rows.test])
    return run_probe("ridge", tasks, sides, rows, few=False, device=find_device(str(embedder.device)))


def _at_common_places(tasks: Sequence[Task]) -> list[Task]:
    """The tasks at the places all of them know."""
    from dataclasses import replace

    keys = [{place: row for row, place in enumerate(map(tuple, task.latlon.tolist()))} for task in tasks]
    common = [place for place in keys[0] if all(place in known for known in keys)]
    if not common:
        raise DataError("the tasks of a top-k curve share no places")
    chosen = [[known[place] for place in common] for known in keys]
    return [
        replace(task, latlon=task.latlon[rows], target=task.target[rows])
        for task, rows in zip(tasks, chosen, strict=True)
    ]
