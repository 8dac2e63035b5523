"""Parts of the demo that learn: a probe on labels, a small model trained, both compared with others."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from demo_page import Page, progress
from demo_sizes import PLACES, TASKS, Size

import tessearth
from tessearth.evaluation import Task, build_probe, build_splits, check_task, evaluate, score
from tessearth.evaluation.report import spoken_score
from tessearth.evaluation.results import ScoreTable, score_tables
from tessearth.figures.kinds import draw
from tessearth.figures.request import Request
from tessearth.figures.scores import Predicted
from tessearth.labels import LABELS, benchmark_path, load_benchmark, prepare_labels
from tessearth.plotting import new_figure
from tessearth.storage.files import write_bytes
from tessearth.training.loop import pretrain
from tessearth.training.recipe import read_recipe

MODELS_COMPARED = ("earth", "earth-small", "smoke", "untrained")
KEPT = ("recipe.toml", "environment.json", "metrics.jsonl", "trajectories.npz", "weights/best.safetensors")
"""What stays of the training run; its features and checkpoint go."""


def load_tasks(page: Page, size: Size) -> list[Task]:
    """The packaged labels at fewer places than the benchmark has."""
    with page.part("What is known about places"):
        known_before = benchmark_path(size.places).is_file()
        tables = load_benchmark(size.places)
        tasks = [_task(name, tables[name]) for name in size.tasks]
        page.say(
            f"To learn something from embeddings one needs places where it is known. Here are {size.places:,} places, "
            "drawn evenly over land, with labels from maps that come as Python packages"
            + (" (prepared by an earlier run and kept in the cache)." if known_before else " (now kept in the cache).")
        )
        page.table(
            ("task", "what is to be said of a place", "places", "source"),
            [
                (task.name, TASKS[task.name], f"{len(task.target):,}", ", ".join(LABELS[task.name].sources))
                for task in tasks
            ],
            words=True,
        )
    return tasks


def _task(name: str, table: Any) -> Task:
    known = table.known
    task = Task(
        name=name,
        kind=table.kind,
        latlon=np.array(table.latlon[known]),
        target=np.array(table.values[known]),
        classes=table.classes,
        about=table.about,
    )
    return check_task(task)


def show_probe(page: Page, tasks: Sequence[Task], embedder: tessearth.Embedder) -> None:
    with page.part("A probe: elevation read off the embeddings"):
        task = next(task for task in tasks if task.name == "elevation")
        rows = build_splits("random", task.latlon)[0]
        said, scores, probes = {}, {}, {}
        for name in ("earth", "untrained"):
            model = embedder if name == "earth" else tessearth.Embedder(name)
            vectors = model(task.latlon)
            probes[name] = build_probe("ridge", task.kind)
            probes[name].fit(vectors[rows.train], task.target[rows.train])
            said[name] = probes[name].predict(vectors[rows.test])
            scores[name] = score(task.kind, task.target[rows.test], said[name])
        page.say(
            f"A probe is the simplest thing that can be learned from embeddings: a weighted sum of their numbers "
            f"(ridge regression). It saw the elevation of {len(rows.train):,} places and is asked about "
            f"{len(rows.test):,} "
            f"others. With `earth` it explains {scores['earth']:.1%} of the variance (R2 {scores['earth']:.3f}), with "
            f"the same architecture untrained {scores['untrained']:.1%}: the difference is what training put in."
        )
        latlon = np.array(list(PLACES.values()))
        guessed = probes["earth"].predict(embedder(latlon))
        truth = prepare_labels(latlon, ["elevation"])["elevation"]
        page.table(
            ("place", "predicted (m)", "known (m)"),
            [(name, f"{a:,.0f}", f"{b:,.0f}") for name, a, b in zip(PLACES, guessed, truth, strict=True)],
        )
        told = Predicted(
            latlon=task.latlon[rows.test],
            truth=task.target[rows.test],
            said=said,
            scores={name: f"R2 {value:.3f}" for name, value in scores.items()},
            unit="elevation (m)",
        )
        page.figures(
            (
                "elevation",
                lambda: draw("predictions", Request(model="earth", predicted=told)),
                "Elevation of the places the probe had not seen: the truth, and what it said.",
            )
        )


def show_training(page: Page, size: Size, folder: Path) -> None:
    with page.part("Training a model of one's own: the recipe `smoke`"):
        recipe = read_recipe("smoke", list(size.recipe))
        looked = recipe.features.places.count if recipe.features else 0
        page.say(
            f"Now a small encoder is trained from nothing: {looked:,} places are looked at from above (Blue Marble and "
            "shaded relief, three scales), each picture becomes a list of features, and the encoder learns to tell "
            "from the coordinates alone which picture belongs to a place. No label is used."
        )
        run_folder = folder / "smoke"
        with progress("looking", "places") as looking, progress("training", "steps") as training:

            def advance(step: int, steps: int, loss: float) -> None:
                training(step, steps, "" if loss != loss else f"loss {loss:.2f}")  # noqa: PLR0124

            result = pretrain(recipe, run_folder, progress=advance, looking=looking)
        top = result.validation.get("image_to_place_top10")
        trained = json.loads((run_folder / "environment.json").read_text())["training_places"]
        held_out = min(looked - trained, recipe.training.evaluate_places)
        page.say(
            f"{result.steps:,} steps. Shown a picture of a place it never saw, the model has the right place among its "
            f"ten first guesses in {top or 0:.0%} of cases, out of {held_out:,} places held out."
        )
        kept = page.folder / "smoke"
        for name in KEPT:
            target = kept / name
            target.parent.mkdir(parents=True, exist_ok=True)
            write_bytes(target, (run_folder / name).read_bytes())
        model = str(kept / "weights" / "best.safetensors")
        page.figures(
            (
                "training",
                lambda: draw("training", Request(model=model, run=str(kept))),
                "Left, what training makes smaller; right, how often a held-out picture finds its place.",
            )
        )
        page.figures(
            (
                "smoke-embeddings",
                lambda: draw("embeddings", Request(model=model, columns=size.columns)),
                "The small model's embeddings: broader and blurrier than those of `earth` above.",
            ),
            (
                "smoke-migration",
                lambda: draw("migration", Request(model=model, run=str(kept), share=1.0)),
                "How its sites moved while it was trained.",
            ),
        )


def show_evaluation(page: Page, tasks: Sequence[Task], out: Path, size: Size) -> None:
    with page.part("All of them compared"):
        models = {
            name: str(out / "smoke/weights/best.safetensors") if name == "smoke" else name for name in MODELS_COMPARED
        }
        with progress("evaluating", "probes") as advance:
            results = evaluate(
                models,
                tasks,
                size.splits,
                out=out / "evaluation",
                cache=False,
                references=size.references,
                maps=["earth"],
                progress=advance,
            )
        page.say(
            "The same probe on every task, for four models: the shipped one, its 2 MB version, the one just trained, "
            "and random weights. Twice: with test places drawn at random, so that a known place is often near; and "
            "with "
            "whole blocks of 10 by 10 degrees held out (the mean of five draws), so that the probe must carry what it "
            "learned to regions it never saw. Percent of classes right, or R2; larger is better, and 1 or 100 % is "
            "perfect."
        )
        tables = score_tables(results)
        for table in tables:
            page.say({"random": "Test places at random:", "10deg": "Test regions held out:"}[table.split])
            show_scores(page, table)
        page.say(reading(tables))
        page.figures(
            (
                "scores",
                lambda: draw_scores(tables),
                "The same scores as bars (none below 0); thin lines are the spread of five draws.",
            )
        )
        page.link("evaluation/report.html", "The full report, with maps of predictions, classes and continents")


def show_scores(page: Page, table: ScoreTable) -> None:
    head = ("", *(f"{column.title} ({'%' if column.metric == 'accuracy' else 'R2'})" for column in table.columns))
    rows = [
        (
            f"{row.label} (reference)" if row.reference else row.label,
            *(
                spoken_score(column.metric, cell and cell.mean, cell.spread if cell else None)
                for column, cell in zip(table.columns, row.cells, strict=True)
            ),
        )
        for row in table.rows
    ]
    page.table(head, rows)


def reading(tables: Sequence[ScoreTable]) -> str:
    """What the tables say, counted rather than claimed."""
    said = []
    for table, where in zip(tables, ("at random", "in regions held out"), strict=False):
        cells = {row.label: [cell.mean if cell else -np.inf for cell in row.cells] for row in table.rows}
        count = len(table.columns)
        ahead = sum(a > b for a, b in zip(cells["smoke"], cells["untrained"], strict=True))
        behind = sum(a > b for a, b in zip(cells["earth"], cells["smoke"], strict=True))
        first = sum(max(cells, key=lambda label: cells[label][i]) == "earth" for i in range(count))
        said.append(
            f"{where}, `smoke` is ahead of the untrained model in {ahead} of {count} columns, `earth` ahead of `smoke` "
            f"in {behind}, and ahead of every other row in {first}"
        )
    return (
        f"Counted: {'; '.join(said)}. References know nothing but coordinates, or less: `inverse-distance` averages "
        "the nearest known places, which is hard to beat where a known place is always near. Fewer places than in the "
        "full benchmark were used here, so numbers differ a little from the model card's."
    )


def draw_scores(tables: Sequence[ScoreTable]) -> Any:
    figure, axes = new_figure(17.5, 6.0, 1, len(tables))
    colours = dict(zip(MODELS_COMPARED, ("#0072B2", "#56B4E9", "#E69F00", "#b8b8b8"), strict=True))
    for axis, table in zip(np.ravel(axes), tables, strict=True):
        for i, row in enumerate(row for row in table.rows if not row.reference):
            heights = [max(cell.mean, 0.0) if cell else 0.0 for cell in row.cells]
            spread = [cell.spread or 0.0 if cell else 0.0 for cell in row.cells]
            left = np.arange(len(heights)) + 0.2 * (i - 1.5)
            axis.bar(left, heights, 0.18, color=colours[row.label], label=row.label)
            if any(spread):
                axis.errorbar(
                    left,
                    [cell.mean if cell else 0.0 for cell in row.cells],
                    spread,
                    fmt="none",
                    ecolor="#333333",
                    elinewidth=0.6,
                )
        axis.set_xticks(range(len(table.columns)), [column.title for column in table.columns])
        axis.set(ylim=(0, 1), ylabel="share right, or R2")
        axis.set_title({"random": "test places at random", "10deg": "10 degree regions held out"}[table.split])
    handles, labels = np.ravel(axes)[0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=len(labels), frameon=False)
    return figure
