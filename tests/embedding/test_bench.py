"""`tessearth bench`: every contestant takes its turns, errors are those of the embeddings, threads are given back."""

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

from tessearth import save
from tessearth.cli.app import app
from tessearth.embedding import bench
from tessearth.embedding.bench import Bench, compare, in_turns, random_places
from tessearth.errors import ConfigError
from tests.conftest import tiny_encoder


@pytest.fixture
def model(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(bench, "RIVALS", ("wrap", "satclip"))
    monkeypatch.setattr(bench, "SINGLE_CALLS", 3)
    save(tiny_encoder(dtype=torch.float32), tmp_path / "tiny.safetensors")
    return str(tmp_path / "tiny.safetensors")


def test_every_contestant_has_its_speed_and_ours_their_error(model: str) -> None:
    rows = {row.name: row for row in compare(Bench(model=model, places=500, threads=2, rounds=2))}
    assert list(rows) == ["plain dense", "ours float32", "ours bfloat16", "wrap", "satclip"]
    assert rows["plain dense"].times_plain == 1
    assert rows["ours float32"].largest_error is not None
    assert rows["ours float32"].largest_error < 1e-5 < (rows["ours bfloat16"].largest_error or 0)
    assert rows["wrap"].largest_error is None
    assert rows["wrap"].places_per_second > 0
    assert rows["satclip"].note
    assert torch.get_num_threads() == 1


def test_the_best_round_counts_and_the_first_call_does_not() -> None:
    calls: list[str] = []
    works = {"a": lambda: calls.append("a"), "b": lambda: calls.append("b")}
    seconds = in_turns(works, 2)
    assert calls == ["a", "b", "a", "b", "a", "b"]
    assert all(0 < value < 1 for value in seconds.values())


def test_places_depend_on_the_seed_alone() -> None:
    assert (random_places(20, 3) == random_places(20, 3)).all()
    assert (random_places(20, 3) != random_places(20, 4)).any()


def test_the_command_prints_a_table_or_json(model: str) -> None:
    arguments = ["bench", "--model", model, "--places", "50", "--threads", "1", "--rounds", "1"]
    shown = CliRunner().invoke(app, arguments)
    assert "x dense" in shown.output
    assert "one place at a time" in shown.output
    parsed = json.loads(CliRunner().invoke(app, [*arguments, "--json"]).output)
    assert parsed["rows"][0]["name"] == "plain dense"
    assert parsed["single_place_ms"] > 0


def test_only_voronoi_encoders_are_measured() -> None:
    with pytest.raises(ConfigError, match="wrap is none"):
        compare(Bench(model="wrap", places=5))
    with pytest.raises(ConfigError, match="rounds is 0; it must be at least 1"):
        Bench(rounds=0)
