"""Probes on labels that somebody sends."""

import numpy as np
import pytest

from tessearth import Embedder
from tessearth.explorer.pictures import class_colours
from tests.explorer.serving import Client
from tests.explorer.test_api import picture

# A server is asked about single places; that some look like radians is a line in its log, not a failure.
pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

PLACES = np.random.default_rng(3).uniform((-60, -180), (70, 180), (300, 2))


def body(values: list[object], **more: object) -> dict[str, object]:
    some = PLACES[: len(values)]
    return {"lat": some[:, 0].tolist(), "lon": some[:, 1].tolist(), "values": values, **more}


def test_a_number_that_follows_from_the_embedding_is_found_again(client: Client, embedder: Embedder) -> None:
    truth = embedder(PLACES) @ np.linspace(-1, 1, embedder.dim)
    answer = client.ask("/predict", body(truth.tolist(), name="height", step_degrees=30)).json()
    assert (answer["kind"], answer["rows"], answer["name"]) == ("regress", 300, "height")
    assert answer["random"]["name"] == "R2"
    assert answer["random"]["value"] > 0.95
    assert answer["regional"]["value"] > 0.9
    grid = np.array(answer["map"]["values"])
    assert grid.shape == (6, 12)
    lat, lon = 75 - 30 * np.arange(6), -165 + 30 * np.arange(12)
    cells = np.stack(np.meshgrid(lat, lon, indexing="ij"), -1).astype(float)
    want = embedder(cells) @ np.linspace(-1, 1, embedder.dim)
    assert np.corrcoef(grid.ravel(), want.ravel())[0, 1] > 0.95


def test_numbers_that_follow_from_nothing_score_nothing(client: Client) -> None:
    noise = np.random.default_rng(5).normal(size=300).tolist()
    answer = client.ask("/predict", body(noise)).json()
    assert answer["random"]["value"] < 0.1
    assert answer["regional"]["value"] < 0.1


def test_classes_are_mapped_in_their_own_colours(client: Client) -> None:
    names = ["south", "north"]
    answer = client.ask("/predict", body([names[int(lat > 0)] for lat in PLACES[:, 0]])).json()
    assert answer["classes"] == ["north", "south"]
    assert answer["colours"] == class_colours(2)
    assert answer["random"]["value"] > answer["random"]["baseline"]
    pixels = picture(client.ask(answer["tiles"].format(z=0, x=0, y=0)).body)
    found = {"#" + bytes(colour).hex() for colour in np.unique(pixels.reshape(-1, 3), axis=0)}
    assert found == set(answer["colours"])
    assert client.ask(f"/legend/prediction?probe={answer['probe']}").json()["kind"] == "classes"


def test_the_same_labels_are_the_same_probe(client: Client) -> None:
    values = PLACES[:, 0].tolist()
    first, second = (client.ask("/predict", body(values)).json()["probe"] for _ in range(2))
    assert first == second
    assert client.ask("/predict", body(PLACES[:, 1].tolist())).json()["probe"] != first


def test_few_rows_are_learned_from_without_a_score_of_regions(client: Client) -> None:
    answer = client.ask("/predict", body(["a", "b", "a", "b", "a", "b"])).json()
    assert answer["rows"] == 6


WRONG: dict[str, tuple[dict[str, object], str]] = {
    "too few": (body([1, 2, 3]), "3 labelled places are too few"),
    "lengths": ({**body([1.0] * 10), "values": [1, 2]}, "10 places and 2 values do not go together"),
    "constant": (body([4] * 10), "all 10 values are 4: there is nothing to learn"),
    "one class": (body(["x"] * 10), "a classifier needs at least two classes"),
    "all different": (body([f"n{i}" for i in range(20)]), "every class has a single place"),
    "too many classes": (body([f"n{i % 70}" for i in range(280)]), "70 classes; a map shows at most 64"),
    "text for numbers": (body(["a", "b"] * 5, kind="regress"), "values holds 'a', where numbers belong"),
    "a huge number": (body([1.0, 1e300] * 5), "beyond 1e30"),
    "too many": (body([0.0]) | {"lat": [0.0] * 501, "lon": [50.0] * 501, "values": [1.0] * 501}, "send at most 500"),
    "a fine grid": (body([1, 2] * 5, step_degrees=0.01), "step_degrees is 0.01"),
    "an odd grid": (body([1, 2] * 5, step_degrees=7.3), "must divide 180"),
    "swapped": ({**body([1, 2] * 5), "lat": [139.7] * 10, "lon": [35.7] * 10}, "swap the two"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_what_cannot_be_learned_is_said(client: Client, wrong: str) -> None:
    sent, words = WRONG[wrong]
    answer = client.ask("/predict", sent)
    assert answer.status == 422
    assert words in answer.error


def test_not_a_number_is_no_label(client: Client) -> None:
    answer = client.ask("/predict", {**body([1.0] * 10), "values": [1.0] * 9 + [float("nan")]})
    assert answer.status == 422
    assert "values[9] is nan" in answer.error
