"""Where a score comes from: what a continent's rows can tell, and whose rows are broken down."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.embedding import cache as cache_module
from tessearth.evaluation.runner import NAMES, class_table, continent_table, evaluate, find_continents
from tessearth.labels import prepare_labels
from tests.conftest import tiny_encoder
from tests.evaluation.fabricate import class_task, number_task

AFRICA, ASIA = NAMES.index("Africa"), NAMES.index("Asia")


def test_a_continent_of_one_number_has_no_r2_and_of_two_has_one() -> None:
    continents = np.array([ASIA, AFRICA, ASIA, AFRICA, ASIA])
    target, said = np.array([3.0, 1.0, 3.0, 2.0, 3.0]), np.array([3.0, 1.0, 4.0, 1.5, 3.0])
    table = continent_table(number_task(), continents, target, said)
    assert (table.names, table.rows) == (("Africa", "Asia"), (2, 3))
    assert table.scores == (pytest.approx(1 - 0.25 / 0.5), None)


def test_a_continent_of_one_class_still_has_an_accuracy() -> None:
    table = continent_table(class_task(), np.full(4, ASIA), np.zeros(4, int), np.array([0, 0, 0, 1]))
    assert (table.names, table.rows, table.scores) == (("Asia",), (4,), (0.75,))


def test_classes_that_were_never_predicted_have_no_precision() -> None:
    table = class_table(class_task(), np.array([0, 0, 1]), np.array([0, 3, 0]))
    assert (table.names, table.rows) == (("sw", "nw", "ne"), (2, 1, 0))
    assert table.recall == (0.5, 0.0, None)
    assert table.precision == (0.5, None, 0.0)


def test_places_lie_where_everyone_knows_they_do() -> None:
    places = np.array([[48.85, 2.35], [-1.3, 36.8], [35.7, 139.7], [40.7, -74.0], [-15.8, -47.9], [0.0, -30.0]])
    found = [NAMES[number] for number in find_continents(number_task(latlon=places))]
    assert found == ["Europe", "Africa", "Asia", "North America", "South America", "sea"]


def test_countries_that_a_task_brings_are_not_looked_up() -> None:
    task = number_task()
    codes = prepare_labels(task.latlon, ["country"])["country"]
    assert codes.min() == -1
    np.testing.assert_array_equal(find_continents(replace(task, countries=codes)), find_continents(task))
    assert set(find_continents(replace(task, countries=np.zeros_like(codes)))) < set(range(7))


@pytest.mark.parametrize("probes", [["ridge", "knn"], ["knn", "ridge"]])
def test_the_first_probe_and_the_first_member_are_broken_down(
    probes: list[str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(cache_module, "cache_folder", lambda name: tmp_path)
    members = [tiny_encoder(seed=seed, dtype=torch.float32) for seed in range(2)]
    results = evaluate({"two": members}, [class_task()], ["random"], probes, references=False)
    (row,) = results.breakdowns
    assert row.probe == probes[0]
    assert row.classes is not None
    found = sum(rows * (recall or 0) for rows, recall in zip(row.classes.rows, row.classes.recall, strict=True))
    first = next(score for score in results.scores if (score.member, score.probe) == (0, probes[0]))
    assert found / first.test_rows == pytest.approx(first.score)
