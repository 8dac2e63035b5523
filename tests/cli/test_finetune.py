"""`tessearth finetune` and `tessearth predict`."""

import sys
from pathlib import Path
from typing import Any

import pytest
import typer
from typer.testing import CliRunner

from tessearth.cli import finetune as cli
from tessearth.errors import TessearthError
from tessearth.sphere.sampling import sample_sphere

LATLON = sample_sphere(120, 8).tolist()


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    lines = [f"{lat!r},{lon!r},{'north' if lat > 0 else 'south'},{lat * 2!r}" for lat, lon in LATLON]
    path.write_text("\n".join(["lat,lon,side,double", *lines]) + "\n")
    return path


def run(*arguments: object) -> Any:
    app = typer.Typer()
    app.command("finetune")(cli.finetune)
    app.command("predict")(cli.predict)
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
        (":side:regress", "not a number; give it as :classify"),
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
