"""`tessearth evaluate` and `tessearth compare`."""

from pathlib import Path

import pytest

from tessearth.embedding import cache as cache_module
from tessearth.evaluation.results import read_results, write_results
from tests.cli.conftest import Command
from tests.evaluation.fabricate import PLACES, results_of, write_table


@pytest.fixture(autouse=True)
def _embeddings(tmp_path_factory: pytest.TempPathFactory, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = tmp_path_factory.mktemp("embeddings")
    monkeypatch.setattr(cache_module, "cache_folder", lambda name: folder)


@pytest.fixture
def table(tmp_path: Path) -> Path:
    zones = ["north" if lat > 0 else "south" for lat in PLACES[:, 0]]
    return write_table(tmp_path, height=PLACES[:, 0] * 2, zone=zones, same=[1] * len(zones))


def test_models_are_scored_on_tables_of_ones_own(tessearth: Command, table: Path, model: Path) -> None:
    out = table.parent / "out"
    outcome = tessearth(
        *("evaluate", "--models", f"mine:{model}|{model},direct", "--splits", "random,20deg", "--out", out),
        *("--tasks", f"{table}:height,{table}:zone:classify,{table}:same"),
    )
    assert outcome.status == 0
    assert "20deg, ridge" in outcome.out
    assert "mine (2 members)" in outcome.out
    assert "random-features" in outcome.out
    assert outcome.out.strip().splitlines()[-1].startswith(f"{out}: results.json, report.md, report.html; ")
    assert outcome.err.count("\n") == 1
    assert f"tessearth: skipped: task {table}:same: " in outcome.err
    results = read_results(out)
    assert {row.task for row in results.scores} == {f"{table}:height", f"{table}:zone:classify"}
    assert [row.label for row in results.models][:2] == ["mine", "direct"]
    assert {path.name for path in out.iterdir()} == {".lock", "results.json", "report.md", "report.html", "maps"}


def test_a_run_is_compared_with_an_earlier_one(tessearth: Command, table: Path, model: Path) -> None:
    common = ("--models", f"mine:{model}", "--tasks", f"{table}:height", "--splits", "20deg", "--maps", "none")
    assert tessearth("evaluate", *common, "--no-references", "--out", table.parent / "a").status == 0
    assert tessearth("evaluate", *common, "--out", table.parent / "b").status == 0
    outcome = tessearth("compare", table.parent / "a", table.parent / "b")
    assert outcome.status == 0
    assert "within the spread" in outcome.out
    assert "0 of 1 differences exceed the spread" in outcome.out
    assert not (table.parent / "b" / "maps").exists()


def test_two_results_are_compared(tessearth: Command, tmp_path: Path) -> None:
    draws = [0.5, 0.6, 0.4, 0.55, 0.45]
    for name, change in (("a.json", 0.0), ("b.json", 0.02)):
        scores = {("m", "t", "10deg"): [[value + change for value in draws]], ("m", "t", "random"): [[0.5]]}
        write_results(results_of(scores), tmp_path / name)
    outcome = tessearth("compare", tmp_path / "a.json", tmp_path / "b.json")
    assert outcome.status == 0
    lines = outcome.out.splitlines()
    assert lines[1].split()[-1] == "higher"
    assert lines[2].endswith("no spread known")
    assert "1 of 2 differences exceed the spread" in outcome.out


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "no folder": (("--models", "direct"), "Missing option '--out'"),
    "no such model": (("--models", "dirct", "--out", "o", "--tasks", "{table}:height"), "did you mean 'direct'?"),
    "no target": (("--models", "direct", "--out", "o", "--input", "{table}"), "go together"),
    "no such column": (("--out", "o", "--input", "{table}", "--target", "heigth"), "did you mean 'height'?"),
    "no such setting": (("--out", "o", "--set", "datadir=x"), "did you mean 'data_dir'?"),
    "no such task": (("--models", "direct", "--out", "o", "--tasks", "kopen"), "did you mean 'koppen'?"),
    "no such split": (("--out", "o", "--splits", "10dg"), "did you mean '10deg'?"),
    "no such probe": (("--out", "o", "--probes", "knnn"), "did you mean 'knn'?"),
    "an empty name": (("--out", "o", "--models", "direct,,wrap"), "has an empty name between commas"),
    "a file for a folder": (("--models", "direct", "--out", "{table}", "--tasks", "{table}:height"), "cannot make"),
    "no csv files": (("--out", "o", "--tasks", "range/biome"), "say where they are with data_dir"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_one_line(tessearth: Command, table: Path, monkeypatch: pytest.MonkeyPatch, wrong: str) -> None:
    monkeypatch.chdir(table.parent)
    arguments, words = WRONG[wrong]
    outcome = tessearth("evaluate", *(argument.format(table=table) for argument in arguments))
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert outcome.err.startswith("tessearth: error: ")
    assert words in outcome.err
    assert not (table.parent / "o" / "results.json").exists()


def test_a_table_of_ones_own_is_read_as_encode_reads_it(tessearth: Command, tmp_path: Path) -> None:
    lines = [
        f"{str(lat).replace('.', ',')};{str(lon).replace('.', ',')};{lat * 2!r};a{i % 2}"
        for i, (lat, lon) in enumerate(PLACES.tolist())
    ]
    (tmp_path / "odd.csv").write_text("\n".join(["breite;laenge;height;zone", "x;1,5;1;a0", *lines]))
    where = ("--input", tmp_path / "odd.csv", "--target", "height,zone", "--lat", "breite", "--lon", "laenge")
    common = (
        "evaluate",
        *where,
        "--models",
        "direct,drect",
        "--splits",
        "random",
        "--maps",
        "none",
        "--out",
        tmp_path / "o",
    )
    assert "--bad-rows skip" in tessearth(*common, "--coordinates", "comma").err
    unknown = tessearth(*common, "--coordinates", "comma", "--bad-rows", "skip")
    assert "did you mean 'direct'?" in unknown.err
    assert not (tmp_path / "o").exists()
    done = tessearth(*common, "--coordinates", "comma", "--bad-rows", "skip", "--skip-unknown", "--no-references")
    assert done.status == 0, done.err
    assert "tessearth: skipped: model drect: there is no model named" in done.err
    assert "odd.csv:height: 1 rows without a label or a place left out" in done.out
    assert {row.task for row in read_results(tmp_path / "o").scores} == {
        f"{tmp_path / 'odd.csv'}:height",
        f"{tmp_path / 'odd.csv'}:zone",
    }
