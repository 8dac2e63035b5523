"""`tessearth export`, and what `encode` does with its files."""

import json
from pathlib import Path

import numpy as np
import pytest

from tessearth import Embedder
from tests.cli.conftest import Command


@pytest.mark.parametrize("name", ["m.onnx", "m.pt2", "m.safetensors"])
def test_a_model_is_written_and_its_distance_from_torch_said(
    tessearth: Command, model: Path, tmp_path: Path, name: str
) -> None:
    outcome = tessearth("export", "--model", model, "--out", tmp_path / name)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{tmp_path / name}: ")
    assert "of torch at 1, 7 and 4096 places" in outcome.out
    again = tessearth("export", "--model", model, "--out", tmp_path / name)
    assert (again.status, again.err.count("add --overwrite")) == (2, 1)
    if not name.endswith(".pt2"):
        outcome = tessearth("encode", "--model", tmp_path / name, 48.86, 2.35, "--json")
        got = np.array(json.loads(outcome.out)["embedding"], dtype=np.float32)
        np.testing.assert_allclose(got, Embedder(model)((48.86, 2.35)), atol=1e-5)


WRONG = {
    "unknown model": (("export", "--model", "nothing", "--out", "x.onnx"), "there is no model named 'nothing'"),
    "no suffix": (("export", "--model", "direct", "--out", "x"), "the suffix of x names no format"),
    "no such onnx": (("encode", "1", "30", "--model", "x.onnx"), "there is no ONNX file x.onnx"),
    "onnx in half": (
        ("encode", "1", "30", "--model", "x.onnx", "--precision", "float16"),
        "runs in float32 on the CPU",
    ),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_one_clear_line(
    tessearth: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.chdir(tmp_path)
    arguments, words = WRONG[wrong]
    outcome = tessearth(*arguments)
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert words in outcome.err
    assert list(tmp_path.iterdir()) == []
