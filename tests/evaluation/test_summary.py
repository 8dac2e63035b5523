"""Means, spreads and marks: best and second of the encoders, and references that beat them all."""

import pytest

from tessearth.evaluation.results import Cell, best_model, mark, score_tables, summarise
from tests.evaluation.fabricate import results_of


def cells(*means: float | None) -> list[Cell | None]:
    return [None if mean is None else Cell(mean, None) for mean in means]


def test_the_best_and_the_second_encoder_are_marked_and_references_do_not_compete() -> None:
    references = [False, False, False, True, True]
    column = list(zip(references, cells(0.5, 0.9, 0.7, 0.8, 0.95), strict=True))
    assert mark(column) == ["", "best", "second", "", "beats"]


def test_equal_means_share_a_mark_and_missing_ones_have_none() -> None:
    assert mark([(False, cell) for cell in cells(0.9, 0.9, 0.7, None)]) == ["best", "best", "second", ""]
    assert mark([(False, cell) for cell in cells(-2.0, None, -1.0)]) == ["second", "", "best"]


def test_one_encoder_alone_is_not_the_best_of_anything() -> None:
    assert mark([(False, cells(0.5)[0]), (True, cells(0.4)[0])]) == ["", ""]
    assert mark([(False, cells(0.5)[0]), (True, cells(0.6)[0])]) == ["", "beats"]
    assert mark([(False, None), (True, cells(0.6)[0])]) == ["", ""]


def test_the_spread_is_over_draws_and_over_members_when_there_are_several() -> None:
    assert summarise({(0, "a"): 0.5}) == Cell(0.5, None)
    one = summarise({(0, "a"): 0.4, (0, "b"): 0.6})
    assert one is not None
    assert one == (pytest.approx(0.5), pytest.approx(0.02**0.5))
    several = summarise({(0, "a"): 0.4, (0, "b"): 0.6, (1, "a"): 0.9, (1, "b"): 0.9})
    assert several is not None
    assert several == (pytest.approx(0.7), pytest.approx(0.08**0.5))
    assert summarise({}) is None


def test_means_of_tasks_are_columns_when_all_of_them_are_there() -> None:
    kinds = {"koppen": "classify", "country": "classify"}
    scores = {("m", "koppen", "10deg"): [[0.5, 0.7]], ("m", "country", "10deg"): [[0.9, 0.7]]}
    (table,) = score_tables(results_of(scores, kinds=kinds))
    assert [column.title for column in table.columns] == ["koppen", "country", "class mean"]
    cell = table.rows[0].cells[2]
    assert cell is not None
    assert cell.mean == pytest.approx(0.7)
    assert cell.spread == pytest.approx(0, abs=1e-12)  # the two tasks' draws vary against each other
    (part,) = score_tables(results_of({("m", "koppen", "10deg"): [[0.5]]}, kinds=kinds))
    assert [column.title for column in part.columns] == ["koppen"]


def test_a_model_without_one_of_the_tasks_has_no_mean_of_them() -> None:
    scores = {(m, t, "random"): [[0.5]] for m in "ab" for t in ("temperature", "elevation", "rain", "population")}
    del scores["b", "rain", "random"]
    (table,) = score_tables(results_of(scores))
    assert [row.cells[-1] is None for row in table.rows] == [False, True]


def test_each_split_has_its_table_and_references_come_last() -> None:
    scores = {(model, "t", split): [[0.5]] for model in ("majority", "m") for split in ("random", "10deg")}
    tables = score_tables(results_of(scores, references=["majority"]))
    assert [table.split for table in tables] == ["random", "10deg"]
    assert [[row.label for row in table.rows] for table in tables] == [["m", "majority"]] * 2


def test_the_best_model_has_the_best_mean_rank_and_is_no_reference() -> None:
    scores = {
        ("a", "t", "random"): [[0.1]],
        ("a", "u", "random"): [[0.8]],
        ("b", "t", "random"): [[0.2]],
        ("b", "u", "random"): [[0.9]],
        ("c", "t", "random"): [[0.9]],  # c has no score on the other task
        ("idw", "t", "random"): [[1.0]],
        ("idw", "u", "random"): [[1.0]],
    }
    assert best_model(results_of(scores, references=["idw"])) == "b"
    assert best_model(results_of({("idw", "t", "random"): [[1.0]]}, references=["idw"])) is None
