"""What a newcomer sees first: the shipped model at work, a small one trained on the spot, and both compared.

make demo                                  minutes on two cores; says how long each part took; then open demo/index.html
python examples/demo.py --quick --out /tmp/demo     the same with far fewer places and steps, to see that it runs
"""

import argparse
import json
import shutil
import sys
import tempfile
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo_page import Page, progress

import tessearth
from tessearth.errors import OutputError, TessearthError
from tessearth.evaluation import Task, build_probe, build_splits, check_task, evaluate, score
from tessearth.evaluation.report_blocks import spoken_score
from tessearth.evaluation.summary import ScoreTable, score_tables
from tessearth.files import locked_folder, write_bytes
from tessearth.inference.databases import land_places, most_alike
from tessearth.labels import LABELS, benchmark_path, load_benchmark, prepare_labels
from tessearth.models import MODELS, SHIPPED
from tessearth.plotting import Predicted, Request, build_view, draw, draw_numbers, new_figure, read_trajectory
from tessearth.plotting.paper import add_colour_bar
from tessearth.pretraining.loop import pretrain
from tessearth.pretraining.recipe_files import read_recipe

PLACES = {
    "Manaus, Amazon": (-3.12, -60.02),
    "central Sahara": (24.0, 10.0),
    "Paris": (48.86, 2.35),
    "Lhasa, Tibet": (29.65, 91.12),
    "Yakutia, Siberia": (63.0, 125.0),
    "Australian outback": (-25.0, 130.0),
}
PARIS = list(PLACES).index("Paris")
APART_KM, ALIKE = 1000.0, 5
TASKS = {
    "koppen": "climate class, 30 kinds",
    "temperature": "yearly mean temperature",
    "elevation": "height above the sea",
    "population": "people within reach, log",
}
MODELS_COMPARED = ("earth", "earth-small", "smoke", "untrained")
KEPT = ("recipe.toml", "environment.json", "metrics.jsonl", "trajectories.npz", "weights/best.safetensors")
"""What stays of the training run; its features and checkpoint go."""
UNFINISHED = ".training-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """How much of everything."""

    places: int = 10_000
    """With labels, for probes and the evaluation."""
    columns: int = 420
    """How many pixels the maps are wide."""
    lattice_step: int = 1
    """Every so many of the places on land are compared with."""
    tasks: tuple[str, ...] = tuple(TASKS)
    recipe: tuple[str, ...] = ()
    """Changes of the smoke recipe."""
    splits: tuple[str, ...] = ("random", "10deg")
    references: bool = True
    """Whether what coordinates alone give stands beside the models."""


SIZES = {
    "full": Size(),
    "quick": Size(
        places=800,
        columns=60,
        lattice_step=16,
        tasks=("koppen", "elevation"),
        recipe=("features.places.count=200", "training.epochs=3", "training.batch_size=64"),
        splits=("random",),
        references=False,
    ),
}


def main() -> int:
    parser = argparse.ArgumentParser(description="The shipped model at work, and a small one trained beside it.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="the folder to write to [default: demo]")
    parser.add_argument("--quick", action="store_true", help="far fewer places and steps: only to see that it runs")
    arguments = parser.parse_args()
    try:
        run(arguments.out, SIZES["quick" if arguments.quick else "full"])
    except KeyboardInterrupt:
        print(f"\ninterrupted; {arguments.out} holds only whole files, and `make demo` starts over", file=sys.stderr)
        return 130
    except TessearthError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    return 0


def run(out: Path, size: Size) -> None:
    """Every part in turn, then the page."""
    begun = time.perf_counter()
    with locked_folder(out, busy=OutputError(f"another demo is writing to {out}; choose another --out")):
        page = Page(out)
        page.begin()
        page.say(
            "A location encoder turns a latitude and a longitude into a list of numbers, an embedding, made so that "
            "places that look alike from above get similar lists. Anything known about some places can then be learned "
            "from those numbers and said of all others. Every figure and number below was computed just now, on this "
            "machine, from data that comes with the package."
        )
        if size != SIZES["full"]:
            page.say("This is the quick version: few places, few steps. Its numbers only show that everything runs.")
        embedder = show_model(page, size)
        show_alike(page, size, embedder)
        tasks = load_tasks(page, size)
        show_probe(page, tasks, embedder)
        with training_folder(out) as folder:
            show_training(page, size, folder)
        show_evaluation(page, tasks, out, size)
        show_end(page, time.perf_counter() - begun)
        path = page.write("tessearth: what it does, part by part")
    print(f"\nopen {path}")


def show_model(page: Page, size: Size) -> tessearth.Embedder:
    with page.part("The model `earth`, and what it makes of a place"):
        embedder = tessearth.Embedder("earth")
        config, weights = embedder.encoder.config, sum(p.numel() for p in embedder.encoder.parameters())
        file = (SHIPPED / "earth" / "model.safetensors").stat().st_size
        page.say(
            f"{MODELS['earth'].summary} It has {weights:,} weights in a file of {file / 1e6:.0f} MB. Its "
            f"{config.num_sites:,} sites are points on the globe that each know something; a place is a blend of the "
            "sites around it, weighed by nearness, and a network turns that blend into the embedding."
        )
        latlon = np.array(list(PLACES.values()))
        vectors, support = embedder(latlon), embedder.support(latlon)
        page.table(
            ("place", "first numbers of the embedding", "nearest site", "sites that matter"),
            [
                (
                    name,
                    " ".join(f"{number:+.3f}" for number in vector[:4]) + " ...",
                    f"{111.2 * far:,.0f} km",
                    f"{np.exp(entropy):.0f}",
                )
                for name, vector, far, entropy in zip(PLACES, vectors, support.distance, support.entropy, strict=True)
            ],
        )
        page.say(
            "Each embedding has length 1, so that the product of two says how alike they are. The nearest site and the "
            "number of sites that matter (the exponential of the entropy of their weights) say how well a place is "
            "covered."
        )
        moved = read_trajectory(SHIPPED / "earth").positions[[0, -1]]
        moved = moved / np.linalg.norm(moved, axis=-1, keepdims=True)
        degrees = np.rad2deg(np.arccos(np.clip((moved[0] * moved[1]).sum(-1), -1, 1)))
        columns = size.columns
        page.figures(
            (
                "embeddings",
                lambda: draw("embeddings", Request(model="earth", columns=columns)),
                "Every place in the colour of its embedding: alike in colour, alike to the model. Training used no "
                "labels: no climate, no country, no names.",
            ),
            (
                "sites",
                lambda: draw("sites", Request(model="earth")),
                f"Where the {config.num_sites:,} sites lie after training, which moved each of them: by "
                f"{np.median(degrees):.1f} degrees of arc on the median.",
            ),
        )
    return embedder


def show_alike(page: Page, size: Size, embedder: tessearth.Embedder) -> None:
    with page.part("Places alike"):
        land = land_places()[:: size.lattice_step]
        begun = time.perf_counter()
        keys = embed_with_progress(embedder, land)
        took = time.perf_counter() - begun
        queries = np.array(list(PLACES.values()))
        vectors = embedder(queries)
        found = [
            most_alike(vector, place, keys, land, ALIKE, APART_KM)
            for vector, place in zip(vectors, queries, strict=True)
        ]
        climate, country = climate_and_country(np.concatenate([queries, *(land[one.row] for one in found)]))
        rows, same = [], []
        for i, name in enumerate(PLACES):
            at = len(queries) + ALIKE * i
            like = climate[at : at + ALIKE]
            same += [kind == climate[i] for kind in like]
            rows.append(
                (
                    f"{name} ({climate[i]})",
                    "; ".join(f"{c} ({k})" for c, k in zip(country[at : at + ALIKE], like, strict=True)),
                )
            )
        page.say(
            f"{len(land):,} places spread evenly over land, embedded in {took:.1f} s and compared by cosine with "
            "those of six "
            f"known places. Below are the {ALIKE} most alike of each, all at least {APART_KM:,.0f} km from it and "
            "from each "
            "other, with country and Koppen climate class. The model was never shown either."
        )
        page.table(("place", "most alike"), rows, words=True)
        everywhere = climate_and_country(land)[0]
        chance = np.mean([np.mean([kind == climate[i] for kind in everywhere]) for i in range(len(queries))])
        page.say(
            f"{sum(same)} of {len(same)} share the exact climate class of the place asked about; of places taken from "
            f"land at random {chance:.0%} would."
        )
        people = prepare_labels(np.concatenate([land, land[found[PARIS].row]]), ["population"])["population"]
        emptier = float(np.mean(people[: len(land)] < np.median(people[len(land) :])))
        page.say(
            "The model also saw lights at night, so that a big city is like other cities, in other climates too: the "
            f"middle one of the five found for Paris has more people around it than {emptier:.0%} of all land."
        )
        similarity = (keys / np.linalg.norm(keys, axis=1, keepdims=True)) @ (
            vectors / np.linalg.norm(vectors, axis=1, keepdims=True)
        ).T
        page.figures(
            (
                "alike",
                lambda: draw_alike(land, similarity, queries, found),
                "How alike every place on land is to the one at the star; circles are the places of the table.",
            )
        )


def draw_alike(land: Any, similarity: Any, queries: Any, found: Sequence[Any]) -> Any:
    figure, axes = new_figure(17.5, 15.2, 3, 2)
    view = build_view()
    low = float(np.percentile(similarity, 50))
    for i, axis in enumerate(np.ravel(axes)):
        drawn = draw_numbers(axis, land, similarity[:, i], view, limits=(low, 1.0))
        star = view.project(queries[i : i + 1])
        circles = view.project(land[found[i].row])
        axis.scatter(*circles.T, s=14, facecolors="none", edgecolors="#D55E00", linewidths=1.0, zorder=6)
        axis.scatter(*star.T, s=45, marker="*", color="#D55E00", edgecolors="white", linewidths=0.4, zorder=7)
        axis.set_title(list(PLACES)[i])
    add_colour_bar(list(np.ravel(axes)), drawn, "cosine of the embeddings", extend="min", shrink=0.4)
    return figure


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


def show_end(page: Page, seconds: float) -> None:
    with page.part("From here"):
        page.table(
            ("part", "seconds", "processor seconds"),
            [(took.title, f"{took.seconds:.0f}", f"{took.processor:.0f}") for took in page.took]
            + [("all", f"{seconds:.0f}", f"{sum(took.processor for took in page.took):.0f}")],
        )
        page.code(
            [
                "tessearth encode 48.857 2.352 --json                        one place",
                "tessearth encode --input points.csv --output out.parquet    a table of places",
                "tessearth retrieve similar 48.857 2.352 --apart 1000        places alike",
                "tessearth evaluate --models earth,mine:demo/smoke/weights/best.safetensors",
                "tessearth plot embeddings --region europe --out europe.png",
            ]
        )


def embed_with_progress(embedder: tessearth.Embedder, latlon: Any, at_once: int = 2048) -> Any:
    vectors = np.empty((len(latlon), embedder.dim), dtype=np.float32)
    with progress("embedding", "places") as advance:
        for start in range(0, len(latlon), at_once):
            vectors[start : start + at_once] = embedder(latlon[start : start + at_once])
            advance(min(start + at_once, len(latlon)), len(latlon))
    return vectors


def climate_and_country(latlon: Any) -> tuple[list[str], list[str]]:
    """The names of each place's Koppen class and country."""
    labels = prepare_labels(latlon, ["koppen", "country"])
    names = {name: LABELS[name].class_names() for name in labels}  # type: ignore[misc]
    spoken = [[names[name][code] if code >= 0 else "none" for code in labels[name]] for name in ("koppen", "country")]
    return spoken[0], spoken[1]


@contextmanager
def training_folder(out: Path) -> Iterator[Path]:
    """A folder for the run that is gone afterwards; those of demos that were killed go first (the lock is ours)."""
    for left in out.glob(f"{UNFINISHED}*"):
        shutil.rmtree(left, ignore_errors=True)
    with tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=out) as folder:
        yield Path(folder)


if __name__ == "__main__":
    sys.exit(main())
