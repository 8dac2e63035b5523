"""The shipped model at work, a small one trained on the spot, and both compared: demo/index.html.

make demo                                        minutes on two cores
python examples/demo.py --quick --out /tmp/demo  far fewer places and steps, to see that it runs
"""

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from demo_page import Page

import tessearth
from tessearth.cli.commands import embed_with_progress, work_progress
from tessearth.embedding.retrieval import land_places, most_alike
from tessearth.errors import OutputError, TessearthError
from tessearth.evaluation import Task, build_probe, build_splits, check_task, evaluate, score
from tessearth.evaluation.report import score_grid
from tessearth.evaluation.results import score_tables
from tessearth.figures.kinds import draw
from tessearth.figures.request import Request
from tessearth.labels import LABELS, load_benchmark, prepare_labels
from tessearth.plotting import build_view, draw_numbers, new_figure
from tessearth.plotting.places import Predicted
from tessearth.plotting.views import add_colour_bar
from tessearth.storage.files import locked_folder, write_bytes
from tessearth.training.loop import pretrain
from tessearth.training.recipe import read_recipe
from tessearth.zoo.shipped import MODELS

PLACES = {
    "Manaus, Amazon": (-3.12, -60.02),
    "central Sahara": (24.0, 10.0),
    "Paris": (48.86, 2.35),
    "Lhasa, Tibet": (29.65, 91.12),
    "Yakutia, Siberia": (63.0, 125.0),
    "Australian outback": (-25.0, 130.0),
}
LATLON = np.array(list(PLACES.values()))
SIMILAR, APART_KM = 5, 1000.0
KEPT = ("recipe.toml", "environment.json", "metrics.jsonl", "trajectories.npz", "weights/best.safetensors")
"""The files of the training run that stay; its features and checkpoint go."""
UNFINISHED = ".training-"


@dataclass(frozen=True, slots=True, kw_only=True)
class Size:
    """The amount of everything."""

    places: int = 10_000
    """With labels, for probes."""
    tasks: tuple[str, ...] = ("koppen", "temperature", "elevation", "population")
    splits: tuple[str, ...] = ("random", "10deg")
    columns: int = 420
    """The width of maps, in pixels."""
    land_step: int = 1
    """Take every n-th place on land."""
    recipe: tuple[str, ...] = ()
    """Changes to the recipe `smoke`."""


QUICK = Size(
    places=800,
    tasks=("elevation",),
    splits=("random",),
    columns=60,
    land_step=16,
    recipe=("features.places.count=200", "training.epochs=3", "training.batch_size=64"),
)


def main() -> int:
    parser = argparse.ArgumentParser(description="The shipped model at work, and a small one trained on the spot.")
    parser.add_argument("--out", type=Path, default=Path("demo"), help="the folder to write to [default: demo]")
    parser.add_argument("--quick", action="store_true", help="far fewer places and steps: only to see that it runs")
    arguments = parser.parse_args()
    out: Path = arguments.out
    try:
        with locked_folder(out, busy=OutputError(f"another demo is writing to {out}; choose another --out")):
            run(Page(out), QUICK if arguments.quick else Size())
    except KeyboardInterrupt:
        print(f"\ninterrupted; {out} holds only whole files, and `make demo` starts over", file=sys.stderr)
        return 130
    except TessearthError as error:
        print(f"demo: {error}", file=sys.stderr)
        return 2
    print(f"\nopen {out / 'index.html'}")
    return 0


def run(page: Page, size: Size) -> None:
    """Every part in turn, then the page."""
    page.say(
        "A location encoder turns a latitude and a longitude into a list of numbers, an embedding, such that places "
        "that look similar from above get similar lists. Anything known about some places can then be learned from "
        "those numbers and predicted for all others. Every figure and number below was computed just now, on this "
        "machine, from data that comes with the package."
    )
    if size is QUICK:
        page.say("This is the quick version: few places, few steps. Its numbers only show that everything runs.")
    embed = show_model(page, size)
    show_similar(page, size, embed)
    tasks = load_tasks(page, size)
    show_probe(page, next(task for task in tasks if task.name == "elevation"), embed)
    show_training(page, size)
    show_evaluation(page, size, tasks)
    with page.part("From here"):
        page.code(
            [
                "tessearth encode 48.857 2.352 --json                        one place",
                "tessearth encode --input points.csv --out out.parquet       a table of places",
                "tessearth similar Paris --apart 1000km                      similar places",
                f"tessearth evaluate --models earth,mine:{page.folder}/smoke/weights/best.safetensors --out report",
                "tessearth plot embeddings --region europe --out europe.png",
            ]
        )
    page.write("tessearth: what it does, part by part")


def show_model(page: Page, size: Size) -> tessearth.Embedder:
    """The embeddings of six places, and maps of the whole model."""
    with page.part("The model `earth`, and its embedding of a place"):
        embed = tessearth.Embedder("earth")
        sites = embed.encoder.config.num_sites
        page.say(
            f"{MODELS['earth'].summary} Its {sites:,} sites are points on the globe that each hold a vector; a place "
            "is a mixture of the sites around it, weighted by nearness, and a network turns the mixture into the "
            "embedding. Each embedding has length 1, so that the product of two says how similar they are."
        )
        support = embed.support(LATLON)
        page.table(
            ("place", "first numbers of the embedding", "nearest site"),
            [
                (name, " ".join(f"{number:+.3f}" for number in vector[:4]) + " ...", f"{111.2 * distance:,.0f} km")
                for name, vector, distance in zip(PLACES, embed(LATLON), support.distance, strict=True)
            ],
        )
        request = Request(model="earth", columns=size.columns)
        page.figure(
            "embeddings",
            lambda: draw("embeddings", request),
            "Every place in the colour of its embedding: similar colours, similar places. Training used no labels: "
            "no climate, no country, no names.",
        )
        page.figure("sites", lambda: draw("sites", request), f"The {sites:,} sites after training.")
    return embed


def show_similar(page: Page, size: Size, embed: tessearth.Embedder) -> None:
    """The most similar places on land to each of the six, and how many share its climate."""
    with page.part("Places alike"):
        land = land_places()[:: size.land_step]
        start = time.perf_counter()
        keys, vectors = embed_with_progress(embed, land, "embedding"), embed(LATLON)
        seconds = time.perf_counter() - start
        found = [
            most_alike(vector, place, keys, land, SIMILAR, APART_KM)
            for vector, place in zip(vectors, LATLON, strict=True)
        ]
        climate, country = class_names("koppen", LATLON), class_names("country", land)
        land_climate = class_names("koppen", land)
        page.say(
            f"{len(land):,} places spread evenly over land, embedded in {seconds:.1f} s. Below are the {SIMILAR} most "
            f"similar to each of six places, all at least {APART_KM:,.0f} km from it and from each other, with country "
            "and Koppen climate class. The model was never shown either."
        )
        page.table(
            ("place", "most similar"),
            [
                (f"{name} ({climate[i]})", "; ".join(f"{country[row]} ({land_climate[row]})" for row in found[i].row))
                for i, name in enumerate(PLACES)
            ],
        )
        same = [land_climate[row] == climate[i] for i in range(len(PLACES)) for row in found[i].row]
        chance = np.mean([[name == one for name in land_climate] for one in climate])
        page.say(
            f"{sum(same)} of {len(same)} share the exact climate class of the place they are similar to; of places on "
            f"land at random {chance:.0%} would."
        )
        cosine = keys @ vectors.T  # both have length 1
        page.figure(
            "similar",
            lambda: draw_similar(land, cosine, found),
            "The similarity of every place on land to the one at the star; circles are the places of the table.",
        )


def draw_similar(land: Any, cosine: Any, found: Sequence[Any]) -> Any:
    figure, axes = new_figure(17.5, 15.2, 3, 2)
    view = build_view()
    limits = (float(np.percentile(cosine, 50)), 1.0)
    for i, (axis, name) in enumerate(zip(np.ravel(axes), PLACES, strict=True)):
        drawn = draw_numbers(axis, land, cosine[:, i], view, limits=limits)
        axis.scatter(*view.project(land[found[i].row]).T, s=14, facecolors="none", edgecolors="#D55E00", zorder=6)
        axis.scatter(*view.project(LATLON[i : i + 1]).T, s=45, marker="*", color="#D55E00", zorder=7)
        axis.set_title(name)
    add_colour_bar(list(np.ravel(axes)), drawn, "cosine of the embeddings", extend="min", shrink=0.4)
    return figure


def class_names(label: Any, latlon: Any) -> list[str]:
    """The name of each place's class of a label."""
    names = LABELS[label].class_names()
    return [names[code] if code >= 0 else "none" for code in prepare_labels(latlon, [label])[label]]


def load_tasks(page: Page, size: Size) -> list[Task]:
    """The packaged labels, at fewer places than the benchmark has."""
    with page.part("Known facts about places"):
        tables = load_benchmark(size.places)
        page.say(
            f"To learn something from embeddings one needs places where it is known: {size.places:,} places, drawn "
            "evenly over land, with labels from maps that come as Python packages (the first run prepares them)."
        )
        page.table(("task", "source"), [(name, ", ".join(LABELS[name].sources)) for name in size.tasks])  # type: ignore[index]
    tasks = []
    for name in size.tasks:
        table = tables[name]
        latlon, target = np.array(table.latlon[table.known]), np.array(table.values[table.known])
        task = Task(name=name, kind=table.kind, latlon=latlon, target=target, classes=table.classes, about=table.about)
        tasks.append(check_task(task))
    return tasks


def show_probe(page: Page, task: Task, embed: tessearth.Embedder) -> None:
    """Elevation, learned at some places and predicted at others."""
    with page.part("A probe: elevation predicted from embeddings"):
        rows = build_splits("random", task.latlon)[0]
        predicted, scores = {}, {}
        for name, model in (("earth", embed), ("untrained", tessearth.Embedder("untrained"))):
            vectors = embed_with_progress(model, task.latlon, "embedding")
            probe = build_probe("ridge", task.kind)
            probe.fit(vectors[rows.train], task.target[rows.train])
            predicted[name] = probe.predict(vectors[rows.test])
            scores[name] = score(task.kind, task.target[rows.test], predicted[name])
        page.say(
            "A probe is the simplest model that can be learned from embeddings: a weighted sum of their numbers (ridge "
            f"regression). It learns the elevation of {len(rows.train):,} places and predicts that of "
            f"{len(rows.test):,} others. With `earth` it explains {scores['earth']:.1%} of the variance "
            f"(R2 {scores['earth']:.3f}), with the same architecture untrained {scores['untrained']:.1%}: the "
            "difference is what training added."
        )
        told = Predicted(
            latlon=task.latlon[rows.test],
            truth=task.target[rows.test],
            said={f"{name} (R2 {scores[name]:.3f})": values for name, values in predicted.items()},
            unit="elevation (m)",
        )
        page.figure(
            "elevation",
            lambda: draw("predictions", Request(model="earth", predicted=told)),
            "Elevation of places that the probe did not learn from: the truth, and its predictions.",
        )


def show_training(page: Page, size: Size) -> None:
    """A small model trained from nothing; its run goes to the folder `smoke`."""
    with page.part("Training a model of one's own: the recipe `smoke`"):
        recipe = read_recipe("smoke", list(size.recipe))
        places = recipe.features.places.count if recipe.features else 0
        page.say(
            f"Now a small encoder is trained from nothing: each of {places:,} places is seen from above (Blue Marble "
            "and shaded relief, at three scales), each picture becomes a list of features, and the encoder learns to "
            "tell from the coordinates alone which picture belongs to a place. No label is used."
        )
        kept = page.folder / "smoke"
        for left in page.folder.glob(f"{UNFINISHED}*"):  # of demos that were killed; the folder is locked
            shutil.rmtree(left, ignore_errors=True)
        with (
            tempfile.TemporaryDirectory(prefix=UNFINISHED, dir=page.folder) as folder,
            work_progress("features") as on_features,
            work_progress("training", "steps") as on_step,
        ):
            result = pretrain(
                recipe,
                Path(folder) / "run",
                progress=lambda step, steps, loss: on_step(step, steps),
                features_progress=on_features,
            )
            for name in KEPT:
                (kept / name).parent.mkdir(parents=True, exist_ok=True)
                write_bytes(kept / name, (Path(folder) / "run" / name).read_bytes())
        top = result.validation.get("image_to_place_top10") or 0
        page.say(
            f"{result.steps:,} steps. Given the picture of a place held out, the model has that place among its ten "
            f"first guesses in {top:.0%} of cases."
        )
        model = str(kept / "weights" / "best.safetensors")
        request = Request(model=model, run=str(kept), columns=size.columns, share=1.0)
        for kind, caption in (
            ("training", "Left, the losses; right, how often a held-out picture finds its place."),
            ("embeddings", "The small model's embeddings: broader and blurrier than those of `earth`."),
            ("migration", "The paths of its sites in training."),
        ):
            page.figure(f"smoke-{kind}", lambda kind=kind: draw(kind, request), caption)  # type: ignore[misc]


def show_evaluation(page: Page, size: Size, tasks: Sequence[Task]) -> None:
    """Four models on every task."""
    with page.part("All of them compared"):
        models = {name: name for name in ("earth", "earth-small", "untrained")}
        models["smoke"] = str(page.folder / "smoke/weights/best.safetensors")
        with work_progress("evaluating", "scores") as advance:
            results = evaluate(
                models,
                tasks,
                size.splits,
                out=page.folder / "evaluation",
                cache=False,
                maps=["earth"],
                progress=advance,
            )
        page.say(
            "The same probe on every task for four models: the shipped one, its 2 MB version, the one just trained, "
            "and random weights; and three references that use coordinates alone. Test places are drawn at random, "
            "so that a known place is often near; and then whole blocks of 10 by 10 degrees are held out, so that the "
            "probe must predict regions it never saw. Percent of classes right, or R2; larger is better."
        )
        for table in score_tables(results):
            grid = score_grid(table)
            page.say({"random": "Test places at random:", "10deg": "Test regions held out:"}[table.split])
            page.table(grid.head, [[entry.text for entry in row] for row in grid.rows])
        page.link("evaluation/report.html", "The full report, with maps of predictions, classes and continents")


if __name__ == "__main__":
    sys.exit(main())
