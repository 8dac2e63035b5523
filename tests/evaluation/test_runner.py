"""Models over tasks and splits: scores, what is shared, what is cached, and what is skipped with a reason."""

import itertools
import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow as pa
import pytest
import torch

from tessearth.embedding import cache as cache_module
from tessearth.embedding.cache import EmbeddingCache, places_key
from tessearth.embedding.embedder import Embedder
from tessearth.errors import ConfigError, DataError, OutputError, TableError, TessearthError, UnknownNameError
from tessearth.evaluation import report, runner
from tessearth.evaluation.plan import Split, build_plan, build_splits, check_draw, name_tasks, rows_within
from tessearth.evaluation.probes import REFERENCES, build_probe
from tessearth.evaluation.results import Breakdown, Results, Skipped, read_results, to_json, write_results
from tessearth.evaluation.runner import evaluate, read_models, split_names
from tessearth.evaluation.tasks import Task
from tessearth.labels import LABELS
from tests.conftest import tiny_encoder
from tests.evaluation.fabricate import PLACES, ROWS, class_task, number_task, results_of, write_table

ENCODER = tiny_encoder(dtype=torch.float32)


@pytest.fixture(autouse=True)
def embeddings(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Embeddings are cached in a folder of the test's own; labels stay where they are."""
    folder = tmp_path / "cache"
    folder.mkdir()
    monkeypatch.setattr(cache_module, "cache_folder", lambda name: folder)
    return folder


@pytest.fixture
def embedded(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """How many places every call of `embed` was given."""
    calls: list[int] = []
    original = Embedder.embed

    def count(self: Embedder, points: Any = None, **others: Any) -> Any:
        calls.append(len(points))
        return original(self, points, **others)

    monkeypatch.setattr(Embedder, "embed", count)
    return calls


def table(results: Results) -> dict[tuple[str, int, str, str, str], float]:
    return {(row.model, row.member, row.task, row.draw, row.probe): row.score for row in results.scores}


def reasons(results: Results) -> dict[str, str]:
    return {row.line().removesuffix(row.reason).removesuffix(": "): row.reason for row in results.skipped}


def test_every_score_is_what_the_probe_alone_gives() -> None:
    tasks = [number_task(), number_task("depth", 1), class_task()]
    results = evaluate({"tiny": ENCODER}, tasks, ["random", "20deg"], ["ridge", "knn"])
    features = Embedder(ENCODER).embed(PLACES)
    found = table(results)
    compared = 0
    for task, split, probe in itertools.product(tasks, ("random", "20deg"), ("ridge", "knn")):
        for rows in build_splits(split, PLACES):
            fitted = build_probe(probe, task.kind).fit(features[rows.train], task.target[rows.train])
            expected = fitted.score(features[rows.test], task.target[rows.test])
            assert found["tiny", 0, task.name, rows.name, probe] == pytest.approx(expected, abs=1e-9)
            compared += 1
            row = next(
                row for row in results.scores if (row.task, row.draw, row.probe) == (task.name, rows.name, probe)
            )
            assert (row.train_rows, row.test_rows) == (len(rows.train), len(rows.test))
            assert row.chosen.get("alpha") == fitted.describe().get("alpha")
    assert compared == 3 * (1 + 5) * 2


def test_references_stand_beside_every_model_and_can_be_left_out() -> None:
    task = number_task()
    results = evaluate({"tiny": ENCODER}, [task], ["random"])
    rows = build_splits("random", PLACES)[0]
    for name in ("majority", "inverse-distance", "random-features"):
        alone = REFERENCES[name]("regress").fit(PLACES[rows.train], task.target[rows.train])
        expected = alone.score(PLACES[rows.test], task.target[rows.test])
        assert table(results)[name, 0, "height", "random-42", "own"] == pytest.approx(expected, abs=1e-9)
    assert [model.reference for model in results.models] == [False, True, True, True]
    without = evaluate({"tiny": ENCODER}, [task], ["random"], references=False)
    assert [model.label for model in without.models] == ["tiny"]


def test_places_are_embedded_once_for_all_tasks_splits_and_probes(embedded: list[int]) -> None:
    part = PLACES[::-2]  # the same places, fewer, in another order
    tasks = [number_task(), class_task(), number_task("part", latlon=part), number_task("apart", latlon=PLACES + 0.25)]
    results = evaluate({"tiny": ENCODER}, tasks, ["random", "20deg"], ["ridge", "knn"], references=False, cache=False)
    assert embedded == [ROWS, ROWS]
    rows = build_splits("random", part)[0]
    features, target = Embedder(ENCODER).embed(part), tasks[2].target
    expected = build_probe("ridge", "regress").fit(features[rows.train], target[rows.train])
    score = expected.score(features[rows.test], target[rows.test])
    assert table(results)["tiny", 0, "part", "random-42", "ridge"] == pytest.approx(score, abs=1e-6)


def test_a_second_run_embeds_nothing_and_scores_the_same(embedded: list[int]) -> None:
    first = evaluate({"tiny": ENCODER}, [number_task()], ["random"])
    assert embedded == [ROWS]
    second = evaluate({"other name": tiny_encoder(dtype=torch.float32)}, [class_task(), number_task()], ["random"])
    assert embedded == [ROWS]
    assert second.models[0].members[0].embeddings == "from the cache"
    assert first.models[0].members[0].fingerprint == second.models[0].members[0].fingerprint
    assert table(first)["tiny", 0, "height", "random-42", "ridge"] == pytest.approx(
        table(second)["other name", 0, "height", "random-42", "ridge"], abs=1e-12
    )
    evaluate({"another": tiny_encoder(seed=1, dtype=torch.float32)}, [number_task()], ["random"])
    evaluate({"tiny": ENCODER}, [number_task(latlon=PLACES + 0.5)], ["random"])
    evaluate({"tiny": ENCODER}, [number_task()], ["random"], cache=False)
    assert embedded == [ROWS] * 4


def test_a_damaged_cache_file_is_made_again(embedded: list[int], embeddings: Path) -> None:
    first = evaluate({"tiny": ENCODER}, [number_task()], ["random"])
    (file,) = embeddings.iterdir()
    content = bytearray(file.read_bytes())
    for damaged in (content[:-7], b"", content[:-9] + bytes([content[-9] ^ 1]) + content[-8:]):
        file.write_bytes(damaged)
        again = evaluate({"tiny": ENCODER}, [number_task()], ["random"])
        assert table(again) == table(first)
        assert file.read_bytes() == content
    assert len(embedded) == 4


def test_the_cache_keeps_to_its_bound_and_drops_what_was_not_used_for_longest(tmp_path: Path) -> None:
    rows = np.ones((100, 10), dtype=np.float32)
    probe = EmbeddingCache(tmp_path / "cache", 10**9)
    probe.write("size", "of one", rows)
    size = next((tmp_path / "cache").iterdir()).stat().st_size
    kept = EmbeddingCache(tmp_path / "cache", 3 * size + 100)
    probe.path("size", "of one").unlink()
    for name in "abc":
        kept.write(name, "places", rows)
    assert kept.read("a", "places", (100, 10)) is not None  # used just now: b is the oldest
    kept.write("d", "places", rows)
    there = [kept.read(name, "places", (100, 10)) is not None for name in "abcd"]
    assert there == [True, False, True, True]
    assert kept.read("a", "places", (100, 11)) is None
    kept.write("e", "places", np.ones((3000, 100), dtype=np.float32))  # larger than the bound: not kept
    assert kept.read("a", "places", (100, 10)) is not None


def test_a_cache_holds_exactly_as_much_as_its_bound(tmp_path: Path) -> None:
    rows = np.ones((100, 10), dtype=np.float32)
    sized = EmbeddingCache(tmp_path, 10**9)
    sized.write("a", "places", rows)
    size = sized.path("a", "places").stat().st_size
    for limit, kept in ((2 * size, 2), (2 * size - 1, 1), (size, 1)):
        cache = EmbeddingCache(tmp_path / str(limit), limit)
        cache.folder.mkdir()
        for name in "ab":
            cache.write(name, "places", rows)
        assert len(list(cache.folder.iterdir())) == kept
        assert cache.read("b", "places", (100, 10)) is not None
    small = EmbeddingCache(tmp_path, rows.nbytes - 1)
    small.write("b", "places", rows)  # larger than all there may be: what is there stays
    assert sized.read("a", "places", (100, 10)) is not None
    assert EmbeddingCache().limit_bytes == 2 * 10**9


def test_embeddings_are_known_by_model_and_places(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path)
    paths = {cache.path(model, places) for model in ("m", "n") for places in ("p", "q")}
    assert len(paths) == 4
    assert cache.path("m", "p") == EmbeddingCache(tmp_path).path("m", "p")
    assert all(len(path.stem) == 40 for path in paths)


def test_a_cache_that_cannot_be_written_is_no_reason_to_stop(monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(*_: object) -> None:
        raise OutputError("cannot write: no space left on device")

    monkeypatch.setattr(cache_module, "write_bytes", fail)
    assert evaluate({"tiny": ENCODER}, [number_task()], ["random"]).scores


def test_what_cannot_be_evaluated_is_one_line_and_the_rest_runs(tmp_path: Path) -> None:
    often = ["a", "b"] * (ROWS // 2)
    path = write_table(
        tmp_path,
        good=np.arange(ROWS),
        one=["same"] * ROWS,
        constant=[3.5] * ROWS,
        empty=["nan"] * ROWS,
        few=[1, 2, 3, *[""] * (ROWS - 3)],
        once=["rare", *often[1:]],
        every=[f"name{i}" for i in range(ROWS)],
    )
    names = [f"{path}:{column}" for column in ("good", "one", "constant", "empty", "few", "once", "every", "nowhere")]
    models = {"tiny": ENCODER, "wrong": "no/such/file.safetensors"}
    results = evaluate(models, [*names, "kopen"], ["random", "randm"], ["ridge", "rigde"], skip_unknown=True)
    said = reasons(results)
    expected = {
        "one": "every one of its 240 rows is of one class, 'same'; there is nothing to predict",
        "constant": "every one of its 240 rows is 3.5",
        "empty": "column 'empty' is empty in all 240 rows",
        "few": "3 rows are too few for 3 folds; it needs at least 6",
        "every": "no class has more than 1 of the 240 rows",
        "nowhere": "there is no column 'nowhere'",
    }
    for column, words in expected.items():
        assert words in said[f"task {path}:{column}"]
    assert "there is no task named 'kopen'; did you mean 'koppen'?" in said["task kopen"]
    assert "no/such/file.safetensors" in said["model wrong"]
    told = [row.reason for row in results.skipped if row.line() == row.reason]
    assert any("'randm'" in reason for reason in told)
    assert any("'rigde'" in reason for reason in told)
    assert all("\n" not in reason for reason in said.values())
    assert [task.name for task in results.tasks] == [f"{path}:good", f"{path}:once"]
    assert "1 of 3 classes seen once (rare)" in results.tasks[1].notes[0]
    assert len(results.scores) == 2 * (1 + 3)


def test_a_split_a_task_cannot_have_is_one_line_and_the_others_run() -> None:
    results = evaluate({"tiny": ENCODER}, [number_task()], ["random", "20deg", "few1000"], references=False)
    said = reasons(results)
    assert said["task height, split few1000"] == "1000 labels are wanted; there are 192 rows to learn from"
    assert {row.split for row in results.scores} == {"random", "20deg"}


def test_places_in_one_block_have_no_regional_split() -> None:
    near = number_task("near", latlon=5 + np.abs(PLACES) / 200)
    results = evaluate({"tiny": ENCODER}, [near, number_task()], ["20deg"], references=False)
    assert reasons(results) == {
        "task near, split 20deg": "all 240 places lie in one block of 20 degrees: none can be held out"
    }


def test_a_draw_with_nothing_to_tell_apart_is_said() -> None:
    rows = Split("draw", np.arange(5), np.arange(5, 10))
    numbers = Task(name="n", kind="regress", latlon=PLACES[:10], target=np.array([1.0] * 5 + [1, 2, 3, 4, 5]))
    assert check_draw(numbers, rows) == "every one of the 5 rows to learn from in draw is 1"
    back = Split("back", rows.test, rows.train)
    assert check_draw(numbers, back) == "every one of the 5 rows to test on in back is 1"
    classes = Task(
        name="c", kind="classify", latlon=PLACES[:10], target=np.array([0] * 5 + [0, 1, 0, 1, 1]), classes=("x", "y")
    )
    assert check_draw(classes, rows) == "every one of the 5 rows to learn from in draw is of class 'x'"
    assert check_draw(classes, back) is None  # one class to test on still has an accuracy
    assert check_draw(classes, Split("none", rows.test, rows.train[:0])) == "none has no rows to test on"


def test_a_task_with_a_split_of_its_own_keeps_it() -> None:
    rows = Split("fixed", np.arange(0, 200), np.arange(200, ROWS))
    own = Task(name="own", kind="regress", latlon=PLACES, target=number_task().target, split=rows)
    results = evaluate({"tiny": ENCODER}, [own, number_task()], ["random", "20deg"], references=False)
    assert [(row.split, row.test_rows) for row in results.scores if row.task == "own"] == [("fixed", 40)]
    assert {row.split for row in results.scores if row.task == "height"} == {"random", "20deg"}


def test_few_labels_take_fewer_folds() -> None:
    results = evaluate({"tiny": ENCODER}, [class_task(), number_task()], ["few10"], references=False)
    assert len(results.scores) == 2 * 5
    assert all(row.train_rows == 10 and row.chosen["folds"] < 10 for row in results.scores)


def test_members_of_one_recipe_are_one_model() -> None:
    seeds = [tiny_encoder(seed=seed, dtype=torch.float32) for seed in range(3)]
    members = [*seeds[:2], "no/file.safetensors", seeds[2]]
    with pytest.raises(UnknownNameError, match="no/file"):
        evaluate({"tiny": members}, [number_task()], ["random"])
    results = evaluate({"tiny": members}, [number_task()], ["random"], skip_unknown=True)
    assert len(results.models[0].members) == 3
    assert [row.member for row in results.scores if row.model == "tiny"] == [0, 1, 2]
    assert len({member.fingerprint for member in results.models[0].members}) == 3
    assert "no/file.safetensors" in reasons(results)["model tiny"]


def test_a_model_that_fails_half_way_leaves_nothing_behind(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    original = Embedder.embed

    def fail_elsewhere(self: Embedder, points: Any = None, **others: Any) -> Any:
        if self.dim == 19 and points[0, 0] != PLACES[0, 0]:
            raise DataError("the database of this model has no such place")
        return original(self, points, **others)

    monkeypatch.setattr(Embedder, "embed", fail_elsewhere)
    tasks = [number_task(), number_task("elsewhere", latlon=PLACES + 0.5)]
    models = {"tiny": ENCODER, "fails": tiny_encoder(output_dim=19, dtype=torch.float32)}
    results = evaluate(models, tasks, ["random"], out=tmp_path / "out", maps=[])
    assert reasons(results) == {"model fails": "the database of this model has no such place"}
    assert {row.model for row in results.scores} == {"tiny", *runner.REFERENCES}
    assert read_results(tmp_path / "out") == results


def test_nothing_to_run_is_one_error_and_earlier_results_stay(tmp_path: Path) -> None:
    out = tmp_path / "out"
    evaluate({"tiny": ENCODER}, [number_task()], ["random"], out=out, maps=[])
    before = {path: path.read_bytes() for path in out.iterdir()}
    with pytest.raises(DataError, match="no task can be evaluated: there is no task named 'kopen'") as told:
        evaluate({"tiny": ENCODER}, ["kopen", "contry"], ["random"], out=out, skip_unknown=True)
    assert "(and 1 more)" in str(told.value)
    with pytest.raises(DataError, match=r"no model can be evaluated: .*nowhere"):
        evaluate(["nowhere"], [number_task()], ["random"], out=out, skip_unknown=True)
    assert {path: path.read_bytes() for path in out.iterdir()} == before


def test_results_appear_whole_or_not_at_all(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    out = tmp_path / "out"
    evaluate({"tiny": ENCODER}, [number_task()], ["random"], out=out, maps=[])
    before = (out / "results.json").read_bytes()

    def stop(done: int, total: int | None, note: str = "") -> None:
        if done > 3:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        evaluate({"tiny": ENCODER}, [number_task(), class_task()], ["random", "20deg"], out=out, progress=stop)
    assert (out / "results.json").read_bytes() == before
    with monkeypatch.context() as patched:
        patched.setattr(report, "to_html", lambda blocks: 1 / 0)
        with pytest.raises(ZeroDivisionError):
            evaluate({"tiny": ENCODER}, [class_task()], ["random"], out=out, maps=[])
    assert read_results(out).tasks[0].name == "zone"  # the results were whole before the report was begun
    assert not [path for path in out.iterdir() if path.suffix == ".part"]


def test_progress_counts_every_score_and_ends_at_the_total() -> None:
    seen: list[tuple[int, int | None]] = []
    models = {"tiny": ENCODER, "wrong": "nowhere"}
    results = evaluate(
        models,
        [number_task(), class_task()],
        ["20deg"],
        probes=["ridge", "knn"],
        skip_unknown=True,
        progress=lambda done, total, note="": seen.append((done, total)),
    )
    assert seen[-1] == (2 * 5 * 7, 2 * 5 * 7)  # two models by two probes, and three references
    assert [done for done, _ in seen] == sorted(done for done, _ in seen)
    assert len(results.scores) == 2 * 5 * 5


def test_results_say_where_they_come_from(tmp_path: Path) -> None:
    results = evaluate([ENCODER], [number_task(), class_task()], ["random"], out=tmp_path / "out", maps=[])
    assert read_results(tmp_path / "out") == results
    assert read_results(tmp_path / "out" / "results.json") == results
    plain = json.loads((tmp_path / "out" / "results.json").read_text())
    assert plain["arguments"]["models"] == {"SphericalVoronoiEncoder": ["SphericalVoronoiEncoder"]}
    assert plain["versions"]["torch"] == torch.__version__
    assert plain["models"][0]["members"][0]["fingerprint"] == Embedder(ENCODER).fingerprint()
    assert plain["models"][0]["members"][0]["dim"] == 18
    assert plain["tasks"][1]["metric"] == "accuracy"
    assert all(row["chosen"]["alpha"] in (0.1, 1, 10) for row in plain["scores"] if row["probe"] == "ridge")


def test_breakdowns_add_up_to_the_score() -> None:
    results = evaluate({"tiny": ENCODER}, [class_task(), number_task()], ["random", "20deg"])
    assert len(results.breakdowns) == 2 * 2 * 4  # tasks, splits, one model and three references
    for row in results.breakdowns:
        assert row.draw == f"{row.split}-42"
        of = next(s for s in results.scores if (s.model, s.task, s.draw) == (row.model, row.task, row.draw))
        assert row.continents is not None
        assert sum(row.continents.rows) == of.test_rows
        if row.classes is None:
            assert row.task == "height"
            continue
        found = sum(rows * (recall or 0) for rows, recall in zip(row.classes.rows, row.classes.recall, strict=True))
        assert found / of.test_rows == pytest.approx(of.score)
        shares = zip(row.continents.rows, row.continents.scores, strict=True)
        assert sum(rows * (score or 0) for rows, score in shares) / of.test_rows == pytest.approx(of.score)


def test_continents_are_left_out_with_a_line_where_their_data_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    def missing(latlon: object) -> None:
        raise DataError("the land mask needs an optional part")

    monkeypatch.setattr("tessearth.evaluation.runner.find_continents", missing)
    results = evaluate({"tiny": ENCODER}, [class_task()], ["20deg"])
    assert all(row.continents is None and row.classes is not None for row in results.breakdowns)
    expected = Skipped(reason="there is no breakdown by continent: the land mask needs an optional part")
    assert results.skipped == (expected,)


@pytest.mark.parametrize(
    ("models", "options", "words"),
    [
        ([], {}, "no model was named"),
        (["tiny", "tiny"], {}, "two models are called 'tiny'"),
        (["majority"], {}, "'majority' is the name of a reference"),
        (["a|"], {}, "'a|' has an empty name in it"),
        (["tiny"], {"splits": ["randm"]}, "there is no split named 'randm'; did you mean 'random'?"),
        (["tiny"], {"probes": ["rigde"]}, "there is no probe named 'rigde'; did you mean 'ridge'?"),
        (["tiny"], {"device": "quantum"}, "the device 'quantum' cannot be used"),
        (["tiny"], {"maps": ["tinny"]}, "no model to draw is called 'tinny'; did you mean 'tiny'?"),
        (["tiny"], {"tasks": []}, "no task was named"),
        (["tiny"], {"tasks": ["range"]}, "say where they are with data_dir"),
        (["untrained"], {"tasks": ["kopen"]}, "there is no task named 'kopen'; did you mean 'koppen'?"),
        (["untrained"], {"tasks": "kopen"}, "there is no task named 'kopen'; did you mean 'koppen'?"),
        (["untrained"], {"tasks": ["nowhere.csv:y"]}, "there is no such file"),
        (["untrained"], {"tasks": {"lat": [1.0], "lon": [2.0], "y": [3.0]}}, "Give target=, one of lat, lon, y"),
        (["untrained"], {"tasks": ["koppen"], "target": "y"}, "target names columns of a table"),
        (["untrained"], {"onbad": "skip"}, "unknown setting onbad; did you mean 'on_bad'?"),
        (["untraned"], {}, "nor such a file or folder; did you mean 'untrained'?"),
    ],
)
def test_a_mistake_in_the_call_is_one_line_before_any_work(
    embedded: list[int], models: list[str], options: dict[str, Any], words: str
) -> None:
    with pytest.raises(TessearthError) as told:
        evaluate(models, **{"tasks": [number_task()], **options})
    assert words in str(told.value)
    assert "\n" not in str(told.value)
    assert embedded == []


def test_models_have_labels_and_members(tmp_path: Path) -> None:
    odd = tmp_path / "a:b.safetensors"
    odd.touch()
    assert [tuple(group) for group in read_models(["earth", "mine:x|y", "geoclip=/a/b:c", str(odd)])] == [
        ("earth", ("earth",)),
        ("mine", ("x", "y")),
        ("geoclip=/a/b:c", ("geoclip=/a/b:c",)),
        (str(odd), (str(odd),)),
    ]
    assert [tuple(group) for group in read_models({"a": "x", "b": ["y", "z"]})] == [("a", ("x",)), ("b", ("y", "z"))]
    assert split_names("a, b,c") == ["a", "b", "c"]
    for wrong in ("a,,b", "", "a,", " , b"):
        with pytest.raises(ConfigError, match="empty name between commas"):
            split_names(wrong)
    for wrong in (":x", "mine:", "mine:x||y", "x|", "  "):
        with pytest.raises(ConfigError, match=r"has an empty name in it; write label:member\|member"):
            read_models(wrong)
    with pytest.raises(ConfigError, match="a label stands for no model"):
        read_models({"a": []})
    assert [tuple(group) for group in read_models(" mine : x | y ")] == [("mine", ("x", "y"))]
    assert [tuple(group) for group in read_models("a|b:c")] == [("a|b:c", ("a", "b:c"))]
    assert [tuple(group) for group in read_models(("x", "y"))] == [("x", ("x",)), ("y", ("y",))]
    path = Path("some") / "where"
    assert [tuple(group) for group in read_models(path)] == [(str(path), (path,))]


def test_names_for_several_tasks_are_spelled_out(tmp_path: Path) -> None:
    assert name_tasks(None) == list(LABELS)
    assert name_tasks(["rain", "embedded"]) == ["rain", *(name for name in LABELS if name != "rain")]
    (tmp_path / "temp.csv").write_text("Lon,Lat,meanT\n1,2,3\n")
    assert name_tasks(["range"], tmp_path) == ["range/temperature"]


def test_rows_are_found_in_a_larger_set_or_not_at_all() -> None:
    order = np.random.default_rng(0).permutation(ROWS)[:50]
    found = rows_within(PLACES[order], PLACES)
    assert found is not None
    np.testing.assert_array_equal(found, order)
    assert rows_within(PLACES[order] + 1e-9, PLACES) is None
    assert rows_within(PLACES, PLACES[order]) is None
    assert places_key(PLACES) != places_key(PLACES[::-1])


def test_a_plan_groups_tasks_of_the_same_places() -> None:
    plan = build_plan([number_task(), class_task(), number_task("other", latlon=PLACES + 0.5)], ["random", "20deg"])
    random = [draw for draw in plan.draws if draw.split == "random"]
    assert [[task.name for task in draw.tasks] for draw in random] == [["height", "zone"], ["other"]]
    assert plan.units() == 3 * 6
    assert plan.detailed >= {("height", "random-42"), ("height", "20deg-42")}
    with pytest.raises(UnknownNameError):
        build_plan([number_task()], ["30deg"])


BROKEN: dict[str, tuple[Any, str]] = {
    "not JSON": ("{", "it is not JSON"),
    "a list": ("[]", "its schema is None"),
    "another schema": ('{"schema": 99}', "its schema is 99"),
    "a part missing": ('{"schema": 1}', "setting created is missing"),
    "a part too many": ({"colour": "red"}, "unknown setting colour"),
    "a score of text": ({"scores": [{"score": "high"}]}, "setting scores[0].model is missing"),
    "a score of NaN": ({"seconds": float("nan")}, "seconds is nan, not a number"),
    "a score of nobody": ({"models": []}, "not listed"),
}


@pytest.mark.parametrize("wrong", BROKEN)
def test_a_results_file_that_cannot_be_used_is_one_line(tmp_path: Path, wrong: str) -> None:
    content, words = BROKEN[wrong]
    path = tmp_path / "results.json"
    if isinstance(content, dict):
        evaluate({"tiny": ENCODER}, [number_task()], ["random"], out=tmp_path, references=False, maps=[])
        content = json.dumps(json.loads(path.read_text()) | content)
    path.write_text(content)
    with pytest.raises(DataError) as told:
        read_results(path)
    assert words in str(told.value)
    assert str(path) in str(told.value)
    assert "\n" not in str(told.value)


@pytest.mark.parametrize(("member", "known"), [(0, True), (1, True), (2, False), (-1, False)])
def test_scores_are_of_members_that_are_there(tmp_path: Path, member: int, known: bool) -> None:
    found = results_of({("m", "t", "random"): [[0.5], [0.6]]})
    write_results(replace(found, scores=(*found.scores, replace(found.scores[0], member=member))), tmp_path / "r.json")
    if known:
        assert len(read_results(tmp_path / "r.json").scores) == 3
    else:
        with pytest.raises(DataError, match=f"row 2 is of model 'm', member {member}, task 't': not listed"):
            read_results(tmp_path / "r.json")


def test_breakdowns_are_of_models_and_tasks_that_are_there(tmp_path: Path) -> None:
    found = results_of({("m", "t", "random"): [[0.5]]})
    for model, task, known in (("m", "t", True), ("n", "t", False), ("m", "u", False)):
        row = Breakdown(model=model, task=task, split="random", draw="random-42", probe="ridge")
        write_results(replace(found, breakdowns=(row,)), tmp_path / "r.json")
        if known:
            assert read_results(tmp_path / "r.json").breakdowns == (row,)
        else:
            with pytest.raises(DataError, match="not listed"):
                read_results(tmp_path / "r.json")


def test_plain_values_are_what_json_can_hold() -> None:
    given = {
        1: np.float32(0.5),
        "n": [np.int64(3), float("nan"), float("inf"), -float("inf"), None, True, "x"],
        "deep": {"p": Path("a/b"), "t": (1, 2.5)},
        "scalar": np.array(float("nan")),
    }
    plain = to_json(given)
    assert plain == {
        "1": 0.5,
        "n": [3, None, None, None, None, True, "x"],
        "deep": {"p": "a/b", "t": [1, 2.5]},
        "scalar": None,
    }
    assert plain["n"][5] is True
    assert json.loads(json.dumps(plain)) == plain


def test_what_was_skipped_says_where() -> None:
    assert Skipped(reason="r").line() == "r"
    assert Skipped(reason="r", model="m", task="t", split="s").line() == "model m, task t, split s: r"
    assert Skipped(reason="r", split="s").line() == "split s: r"


def test_missing_results_are_named(tmp_path: Path) -> None:
    with pytest.raises(DataError, match=r"there is no results file at .*results\.json"):
        read_results(tmp_path)
    with pytest.raises(DataError, match="cannot be read: not a directory"):
        (tmp_path / "file").touch()
        read_results(tmp_path / "file" / "results.json")


def test_a_frame_is_the_users_task_whatever_its_columns_are_called(tmp_path: Path) -> None:
    frame = pd.DataFrame({"gps_lat": PLACES[:, 0], "gps_lon": PLACES[:, 1], "koppen": PLACES[:, 0] * 2, "zone": "a"})
    frame.loc[::2, "zone"] = "b"
    frame.loc[0, "gps_lat"] = np.nan
    how: dict[str, Any] = {"lat": "gps_lat", "lon": "gps_lon", "references": False}
    with pytest.raises(TableError, match=r"row 1.*gps_lat|row 1 is"):
        evaluate({"tiny": ENCODER}, frame, "random", "ridge", target="koppen", **how)
    results = evaluate({"tiny": ENCODER}, frame, "random", "ridge", target=["koppen", "zone"], on_bad="skip", **how)
    assert [(task.name, task.kind, task.rows) for task in results.tasks] == [
        ("koppen", "regress", ROWS - 1),
        ("zone", "classify", ROWS - 1),
    ]
    assert "1 rows without a label or a place left out" in results.tasks[0].notes[0]
    frame.to_csv(tmp_path / "mine.csv", index=False)
    for table in (tmp_path / "mine.csv", pa.table(frame)):
        other = evaluate({"tiny": ENCODER}, table, "random", "ridge", target="koppen", on_bad="skip", **how)
        assert other.scores[0].score == pytest.approx(results.scores[0].score, abs=1e-9)
    named = evaluate({"tiny": ENCODER}, f"{tmp_path / 'mine.csv'}:koppen", "random", on_bad="skip", **how)
    assert named.scores[0].score == pytest.approx(results.scores[0].score, abs=1e-9)


@pytest.mark.parametrize("skip_unknown", [False, True])
def test_a_model_is_loaded_once(monkeypatch: pytest.MonkeyPatch, skip_unknown: bool) -> None:
    loaded: list[Any] = []
    original = Embedder.__init__

    def load(self: Embedder, model: Any, **options: Any) -> None:
        loaded.append(model)
        original(self, model, **options)

    monkeypatch.setattr(Embedder, "__init__", load)
    evaluate(["harmonics", "cartesian3d"], [number_task()], ["random"], references=False, skip_unknown=skip_unknown)
    assert loaded == ["harmonics", "cartesian3d"]
