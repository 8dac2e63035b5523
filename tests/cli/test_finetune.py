"""`tessearth finetune` and `tessearth predict`."""

import os
import signal
import sys
from pathlib import Path
from typing import Any

import pytest
import rasterio
import typer
from typer.testing import CliRunner

from tessearth.cli import commands
from tessearth.cli import finetune as cli
from tessearth.errors import TessearthError
from tessearth.sphere.sampling import sample_sphere
from tests.cli.conftest import Command

LATLON = sample_sphere(120, 8).tolist()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    lines = [f"{lat!r},{lon!r},{'north' if lat > 0 else 'south'},{lat * 2!r}" for lat, lon in LATLON]
    path.write_text("\n".join(["lat,lon,side,double", *lines]) + "\n")
    return path


def run(*arguments: object) -> Any:
    app = typer.Typer()
    commands.add(app, "finetune", cli.finetune)
    commands.add(app, "predict", cli.predict)
    return CliRunner().invoke(app, [str(argument) for argument in arguments])


@pytest.mark.parametrize(("label", "metric"), [("side", "accuracy"), ("double", "R2"), ("side:classify", "accuracy")])
def test_a_label_is_learned_and_predicted(model: Path, table: Path, label: str, metric: str) -> None:
    out = table.parent / "run"
    done = run("finetune", f"{table}:{label}", "--model", model, "--out", out, "--epochs", 2, "--device", "cpu")
    assert done.exit_code == 0, done.output
    assert f"held-out {metric}: " in done.output
    assert "ridge on the frozen encoder" in done.output
    predicted = run("predict", out, "--input", table, "--out", table.parent / "predicted.csv", "--device", "cpu")
    assert predicted.exit_code == 0, predicted.output
    assert "120 rows" in predicted.output
    lines = (table.parent / "predicted.csv").read_text().splitlines()
    assert len(lines) == 121
    assert lines[0].split(",")[4].strip('"') == "prediction"
    if metric == "accuracy":
        right = sum(line.split(",")[2] == line.split(",")[4] for line in lines[1:])
        assert right > 100


def test_options_reach_the_settings(model: Path, table: Path) -> None:
    from tessearth.training.finetuned import load_finetuned

    options = ("--frozen", "--set", "hidden_dim=6", "--set", "block_degrees=20", "--set", "class_weights=balanced",
               "--set", "seed=3", "--epochs", 1)  # fmt: skip
    done = run("finetune", f"{table}:side", "--model", model, "--out", table.parent / "run", *options)
    assert done.exit_code == 0, done.output
    settings = load_finetuned(table.parent / "run").about["settings"]
    expected = {"frozen": True, "hidden_dim": 6, "block_degrees": 20.0, "class_weights": "balanced", "seed": 3}
    assert expected.items() <= settings.items()


@pytest.mark.parametrize(
    ("label", "words"),
    [
        ("", "is not of the form FILE:COLUMN"),
        (":", "is not of the form FILE:COLUMN"),
        (":sid", "there is no column 'sid'; did you mean 'side'"),
        (":side:regress", "not a number; give kind classify"),
    ],
)
def test_a_mistake_is_one_line(model: Path, table: Path, label: str, words: str) -> None:
    done = run("finetune", f"{table}{label}", "--model", model, "--out", table.parent / "run")
    assert isinstance(done.exception, TessearthError)
    assert words in str(done.exception)
    assert "\n" not in str(done.exception)


def test_the_commands_stay_light_to_import() -> None:
    import subprocess

    code = "import sys, tessearth.cli.finetune; print('torch' in sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "False"


def settings_of(path: Path) -> dict[str, Any]:
    from tessearth.training.finetuned import load_finetuned

    found: dict[str, Any] = load_finetuned(path).about["settings"]
    return found


def test_a_dirty_table_becomes_a_model_and_the_model_a_map(tessearth: Command, model: Path, tmp_path: Path) -> None:
    rows = [f"00{i};{lat};{lon}".replace(".", ",") + f";{lat * 2!r}" for i, (lat, lon) in enumerate(LATLON)]
    rows[3], rows[7] = "003;;12,5;1", "007;91,5;2,5;1"
    (tmp_path / "dirty.csv").write_text("\n".join(["id;breite;laenge;height", *rows]), encoding="latin-1")
    where = ("--input", tmp_path / "dirty.csv", "--lat", "breite", "--lon", "laenge", "--coordinates", "comma")
    learn = ("finetune", *where, "--target", "height", "--model", model, "--epochs", 1, "--out", tmp_path / "run")
    refused = tessearth(*learn)
    assert "2 of 120 rows have no usable place" in refused.err
    assert "--bad-rows skip" in refused.err
    assert not (tmp_path / "run").exists()
    done = tessearth(*learn, "--bad-rows", f"skip={tmp_path / 'bad.csv'}", "--sep", ";", "--encoding", "latin-1")
    assert done.status == 0, done.err
    assert "2 without a target or a place left out" in done.out
    assert "90 % intervals: +-" in done.out
    assert len((tmp_path / "bad.csv").read_text().splitlines()) == 3
    assert "holds a fine-tuned model already" in tessearth(*learn, "--bad-rows", "skip").err
    drawn = tessearth(
        *("predict", tmp_path / "run", "--region", "kenya", "--resolution", 0.5, "--land"),
        *("--coverage", 0.8, "--out", tmp_path / "map.tif"),
    )
    assert drawn.status == 0, drawn.err
    assert "bands prediction, low, high (80%)" in drawn.out
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.bounds.left < 34.5
        assert file.bounds.right > 41
        assert file.count == 3
    filled = tessearth("predict", tmp_path / "run", *where, "--bad-rows", "null", "--out", tmp_path / "filled.csv")
    assert filled.status == 0, filled.err
    assert "120 rows; 2 without a usable place have no prediction" in filled.out
    lines = (tmp_path / "filled.csv").read_text().splitlines()
    assert lines[0] == "id;breite;laenge;height;prediction;low;high"
    assert lines[4] == "003;;12,5;1;;;"
    again = tessearth("predict", tmp_path / "run", *where, "--bad-rows", "null", "--out", tmp_path / "filled.csv")
    assert "exists already: add --overwrite" in again.err
    described = tessearth("info", tmp_path / "run")
    assert "finetuned" in described.out
    assert tessearth("encode", "1", "2", "--model", tmp_path / "run").status == 0


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("finetune", "--input", "{table}", "--out", "o"), "Add --target, one of lat, lon, side, double"),
        (("finetune", "{table}:side", "--input", "{table}", "--out", "o"), "say once what is learned"),
        (("finetune", "--input", "{table}", "--target", "side", "--kind", "guess", "--out", "o"), "--kind is 'guess'"),
        (("finetune", "{table}:side", "--set", "hiden_dim=3", "--out", "o"), "did you mean 'hidden_dim'?"),
        (("predict", "o", "--out", "map.tif"), "say where: --input TABLE, or --region NAME"),
        (("predict", "o", "--out", "map.tif", "--input", "t.csv", "--region", "kenya"), "are for a map"),
        (("predict", "o", "--out", "map.tif", "--region", "kenya", "--coverage", "most"), "coverage is 'most'"),
    ],
)
def test_what_is_missing_is_named(tessearth: Command, table: Path, arguments: tuple[str, ...], words: str) -> None:
    done = tessearth(*(argument.format(table=table) for argument in arguments))
    assert done.status == 2
    assert words in done.err
    assert done.err.count("\n") == 1


def test_a_file_with_a_colon_in_its_path_is_named_by_the_options(model: Path, table: Path) -> None:
    odd = table.rename(table.parent / "c:mine.csv")
    done = run("finetune", odd, "--target", "side", "--model", model, "--out", table.parent / "run", "--epochs=0")
    assert done.exit_code == 0, done.output
    assert settings_of(table.parent / "run")["epochs"] == 0


def test_every_setting_of_the_training_is_an_option() -> None:
    import dataclasses

    from tessearth.training.finetuning import FinetuneSettings

    assert {field.name for field in dataclasses.fields(FinetuneSettings)} == {*cli.LEARNING, "frozen"}


def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    tessearth: Command, model: Path, table: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tessearth.training.finetuning import _Finetuning

    def interrupted(self: Any, *arguments: Any) -> Any:
        os.kill(os.getpid(), signal.SIGINT)
        return step(self, *arguments)

    step, out = _Finetuning._step, table.parent / "run"
    monkeypatch.setattr(_Finetuning, "_step", interrupted)
    done = tessearth("finetune", "--input", table, "--target", "double", "--model", model, "--out", out)
    assert done.status == 130
    assert f"stopped after epoch 0; the best so far is kept in {out} and can be used" in done.err
    assert tessearth("predict", out, "--input", table, "--out", table.parent / "filled.csv").status == 0
