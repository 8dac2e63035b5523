"""Parts of the demo that show the shipped model: what it makes of a place, and places alike."""

import time
from collections.abc import Sequence
from typing import Any

import numpy as np
from demo_page import Page, progress
from demo_sizes import PLACES, Size

import tessearth
from tessearth.embedding.retrieval import land_places, most_alike
from tessearth.figures.kinds import draw
from tessearth.figures.request import Request
from tessearth.figures.scores import read_trajectory
from tessearth.labels import LABELS, prepare_labels
from tessearth.plotting import build_view, draw_numbers, new_figure
from tessearth.plotting.views import add_colour_bar
from tessearth.zoo.shipped import MODELS, SHIPPED

PARIS = list(PLACES).index("Paris")
APART_KM, ALIKE = 1000.0, 5


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
