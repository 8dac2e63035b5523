"""Small tasks with something to learn in them, and results whose answers are known."""

from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from tessearth.evaluation.results import SCHEMA, Member, Model, Results, Score, TaskCard
from tessearth.evaluation.tasks import Task
from tessearth.sphere.sampling import sample_sphere

ROWS = 240
PLACES = sample_sphere(ROWS, 5)


def number_task(name: str = "height", seed: int = 0, latlon: np.ndarray | None = None) -> Task:
    """A smooth function of the place, with a little noise."""
    places = PLACES if latlon is None else latlon
    noise = np.random.default_rng(seed).normal(0, 0.1, len(places))
    value = np.sin(np.deg2rad(places[:, 0] * (1 + seed % 3))) + noise
    return Task(name=name, kind="regress", latlon=places, target=value, about={"unit": "metres"})


def class_task(name: str = "zone", latlon: np.ndarray | None = None) -> Task:
    """Four quarters of the globe."""
    places = PLACES if latlon is None else latlon
    code = (places[:, 0] > 0).astype(np.int64) + 2 * (places[:, 1] > 0)
    return Task(name=name, kind="classify", latlon=places, target=code, classes=("sw", "nw", "se", "ne"))


def write_table(folder: Path, **columns: Sequence[object]) -> Path:
    """A csv of the places with columns of one's own."""
    path = folder / "mine.csv"
    lines = [",".join(["lat", "lon", *columns])]
    lines += [
        ",".join([f"{lat}", f"{lon}", *(str(column[row]) for column in columns.values())])
        for row, (lat, lon) in enumerate(PLACES)
    ]
    path.write_text("\n".join(lines) + "\n")
    return path


def results_of(
    scores: Mapping[tuple[str, str, str], Sequence[Sequence[float]]],
    *,
    references: Sequence[str] = (),
    kinds: Mapping[str, str] | None = None,
    rows: int = 1000,
    first_draw: int = 42,
) -> Results:
    """Results from (model, task, split) to one list of draws for every member; tasks are numbers unless said."""
    labels = dict.fromkeys(model for model, _, _ in scores)
    members = {label: max(len(runs) for key, runs in scores.items() if key[0] == label) for label in labels}
    tasks = dict.fromkeys(task for _, task, _ in scores)
    return Results(
        schema=SCHEMA,
        created="2026-01-01T00:00:00+00:00",
        arguments={"probes": ["ridge"]},
        versions={"tessearth": "0", "python": "3", "numpy": "2", "torch": "2"},
        device="cpu",
        seconds=1.0,
        models=tuple(
            Model(label=label, members=(_member(label),) * members[label], reference=label in references)
            for label in labels
        ),
        tasks=tuple(_card(task, (kinds or {}).get(task, "regress"), rows) for task in tasks),
        scores=tuple(
            Score(
                model=model,
                member=number,
                task=task,
                split=split,
                draw=f"{split}-{first_draw + draw}",
                probe="own" if model in references else "ridge",
                score=value,
                train_rows=800,
                test_rows=200,
                chosen={"alpha": 1.0},
            )
            for (model, task, split), runs in scores.items()
            for number, draws in enumerate(runs)
            for draw, value in enumerate(draws)
        ),
    )


def _member(name: str) -> Member:
    return Member(name=name, fingerprint="0" * 64, dim=8, embedding_seconds=0.0, embeddings="made", probing_seconds=0.0)


def _card(name: str, kind: str, rows: int) -> TaskCard:
    metric = {"classify": "accuracy", "regress": "R2"}[kind]
    return TaskCard(name=name, kind=kind, metric=metric, rows=rows, classes=0)  # type: ignore[arg-type]
