"""The report's parts from results whose every number is known."""

from dataclasses import replace
from typing import Any

import pytest

from tessearth.evaluation.report import (
    Entry,
    Grid,
    Heading,
    Listing,
    Paragraph,
    build_report,
    class_grid,
    to_markdown,
)
from tessearth.evaluation.results import Breakdown, ClassTable, ContinentTable, Member, Model, Results, Skipped
from tests.evaluation.fabricate import results_of

KINDS = {"zone": "classify"}


def breakdown(task: str, split: str, **parts: Any) -> Breakdown:
    return Breakdown(model="a", task=task, split=split, draw=f"{split}-42", probe="ridge", **parts)


def full_results() -> Results:
    """Two encoders, the first of two members, and a reference, on a class and a number."""
    scores = {
        ("a", "zone", "random"): [[0.5], [0.7]],
        ("a", "height", "random"): [[0.8], [0.9]],
        ("b", "zone", "random"): [[0.4]],
        ("mean", "zone", "random"): [[0.3]],
        ("mean", "height", "random"): [[0.95]],
    }
    found = results_of(scores, references=["mean"], kinds=KINDS, rows=12_345)
    continents = ContinentTable(names=("Africa", "sea"), rows=(1200, 7), scores=(0.5, None))
    alone = ContinentTable(names=("Asia",), rows=(10,), scores=(0.5,))
    classes = ClassTable(names=("x", "y"), rows=(10, 9), recall=(0.25, 1.0), precision=(None, 0.5))
    cards = [replace(card, about={"unit": "metres"} if card.name == "height" else {}) for card in found.tasks]
    cards[0] = replace(cards[0], classes=1234, notes=("one", "two"))
    first = Member(
        name="first", fingerprint="0123456789abcdef", dim=8, embedding_seconds=1.26, embeddings="", probing_seconds=2.04
    )
    models = (
        replace(found.models[0], members=(first, found.models[0].members[1])),
        found.models[1],
        Model(label="mean", members=(replace(first, name="mean", dim=0, fingerprint=""),), reference=True),
    )
    return replace(
        found,
        seconds=1234.5,
        models=models,
        tasks=tuple(cards),
        skipped=(Skipped(reason="no file", task="t", split="s"), Skipped(reason="alone")),
        breakdowns=(
            breakdown("zone", "random", classes=classes, continents=continents),
            breakdown("height", "random", continents=alone),
        ),
    )


def after(blocks: list[Any], heading: str) -> list[Any]:
    """What follows a heading, up to the next."""
    start = next(i for i, block in enumerate(blocks) if isinstance(block, Heading) and block.text == heading)
    rest = blocks[start + 1 :]
    return rest[: next((i for i, block in enumerate(rest) if isinstance(block, Heading)), len(rest))]


def texts(grid: Grid) -> list[list[str]]:
    return [[entry.text for entry in row] for row in grid.rows]


def test_scores_stand_in_their_tables_with_references_below_a_line() -> None:
    grid, beaten, reading = after(build_report(full_results()), "Split random")
    assert grid.head == ("", "zone (%)", "height (R2)")
    assert texts(grid) == [
        ["a (2 members)", "60.0 ± 14.1", "0.850 ± 0.071"],
        ["b", "40.0", "-"],
        ["references", "", ""],
        ["mean", "30.0", "0.950"],
    ]
    assert beaten.text == "† A reference beats every encoder: height (mean)."
    assert "and over members for a model that has several" in reading.text


def test_without_references_there_is_no_line_for_them() -> None:
    blocks = build_report(results_of({("a", "t", "random"): [[0.5]]}))
    grid, reading = after(blocks, "Split random")
    assert texts(grid) == [["a", "0.500"]]
    assert "members" not in reading.text
    headings = [block.text for block in blocks if isinstance(block, Heading)]
    assert headings == ["Location encoders compared", "Split random", "Tasks", "Models"]


def test_several_probes_are_named_in_the_headings() -> None:
    found = results_of({("a", "t", "random"): [[0.5]]})
    both = replace(found, scores=(*found.scores, replace(found.scores[0], probe="knn")))
    headings = [block.text for block in build_report(both) if isinstance(block, Heading)]
    assert headings[1:3] == ["Split random, probe ridge", "Split random, probe knn"]


def test_the_first_lines_say_what_ran_where_and_how_long() -> None:
    said = build_report(full_results())[1]
    assert isinstance(said, Paragraph)
    assert said.text == (
        "2026-01-01T00:00:00+00:00 (UTC); tessearth 0, python 3, torch 2, numpy 2; 1,234 s on cpu, ? threads. "
        "Probes: ridge."
    )


def test_what_was_skipped_is_listed_line_by_line() -> None:
    assert after(build_report(full_results()), "Skipped") == [Listing(("task t, split s: no file", "alone"))]


def test_tasks_and_models_are_listed_with_what_is_known_of_them() -> None:
    blocks = build_report(full_results())
    (tasks,), (models,) = after(blocks, "Tasks"), after(blocks, "Models")
    assert texts(tasks) == [
        ["zone", "class", "12,345", "1,234", "one; two"],
        ["height", "number", "12,345", "-", "metres"],
    ]
    assert texts(models) == [
        ["a", "first", "8", "0123456789ab", "1.3 (made)", "2.0"],
        ["a", "a", "8", "000000000000", "0.0 (made)", "0.0"],
        ["b", "b", "8", "000000000000", "0.0 (made)", "0.0"],
        ["mean", "mean", "-", "-", "-", "2.0"],
    ]
    assert tasks.words
    assert models.words


def test_continents_are_shown_for_tasks_tested_on_more_than_one() -> None:
    blocks = build_report(full_results())
    (grid,) = [block for block in blocks if isinstance(block, Grid) and "sea" in block.head]
    assert grid.head == ("", "Africa", "sea")
    assert texts(grid) == [["zone (%)", "50.0 (1,200)", "- (7)"]]


def test_classes_of_ten_rows_are_shown_and_of_nine_are_not() -> None:
    (grid,) = after(build_report(full_results()), "zone, random-42")
    assert grid.head == ("class", "rows tested", "recall (%)", "precision (%)")
    assert texts(grid) == [["x", "10", "25.0", "-"]]


@pytest.mark.parametrize(("classes", "shown"), [(10, 10), (11, 11), (12, 11)])
def test_up_to_ten_classes_are_all_shown_and_of_more_the_ends(classes: int, shown: int) -> None:
    table = ClassTable(
        names=tuple(f"c{i}" for i in range(classes)),
        rows=(10,) * classes,
        recall=tuple(i / classes for i in range(classes)),
        precision=(0.5,) * classes,
    )
    grid = class_grid(breakdown("t", "s", classes=table))
    assert grid is not None
    assert len(grid.rows) == shown
    assert [row[0].text for row in grid.rows if row[0].emphasis == "note"] == (
        [f"{classes - 10} more"] if classes > 10 else []
    )
    assert class_grid(breakdown("t", "s", classes=replace(table, rows=(9,) * classes))) is None
    assert class_grid(breakdown("t", "s")) is None


def test_numbers_stand_to_the_right_and_words_to_the_left() -> None:
    rows = ((Entry("x"), Entry("1"), Entry("2")),)
    for words, line in ((False, "| --- | ---: | ---: |"), (True, "| --- | --- | --- |")):
        assert to_markdown([Grid(("", "a", "b"), rows, words)]).splitlines() == ["|  | a | b |", line, "| x | 1 | 2 |"]
