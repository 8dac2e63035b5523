"""`tessearth info` and the command as a whole."""

import json
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tessearth.version import __version__
from tessearth.zoo import build_baseline
from tessearth.zoo.names import known_names
from tests.cli.conftest import Command
from tests.zoo import fabricate

OFFICIAL = Path(__file__).parents[1] / "reference" / "official"


def test_a_model_is_described(tessearth: Command, model: Path) -> None:
    outcome = tessearth("info", model)
    assert outcome.status == 0
    for words in ("parameters", "sharpness median", "effective tokens per place", "provenance", "recipe"):
        assert words in outcome.out


def test_the_description_as_json(tessearth: Command, model: Path) -> None:
    described = json.loads(tessearth("info", model, "--json").out)
    assert described["sites"] == 40
    assert described["tessellations"]["0"]["site_width"] == 12
    assert 1 <= described["token_use"]["effective_tokens_per_place"] <= 5
    assert described["provenance"]["layout"] == "tessearth"
    assert described["provenance"]["recipe"] == "none"


def test_official_models_are_described(tessearth: Command) -> None:
    described = json.loads(tessearth("info", OFFICIAL / "cosine", "--json").out)
    assert described["provenance"]["layout"] == "official"
    assert described["unit_length"] is False


def test_the_untrained_model_says_so(tessearth: Command) -> None:
    described = json.loads(tessearth("info", "untrained", "--json").out)
    assert described["provenance"]["trained"] is False
    assert described["parameters"] == 3_453_057


def test_without_a_name_every_name_is_listed(tessearth: Command) -> None:
    outcome = tessearth("info")
    assert (outcome.status, outcome.err) == (0, "")
    listed = json.loads(tessearth("info", "--json").out)
    assert listed.keys() == {"models", "baselines", "published_weights"}
    assert [name for part in listed.values() for name in part] == list(known_names())
    for name in known_names():
        assert f"\n  {name} " in outcome.out


def test_baselines_are_described(tessearth: Command, tmp_path: Path) -> None:
    described = json.loads(tessearth("info", "sphereM+", "--json").out)
    assert described["parameters"] == 0
    assert described["embedding_width"] == build_baseline("sphereM+").output_dim
    path = tmp_path / "trained.safetensors"
    settings = {"degrees": 8, "network": {"hidden_dim": 24, "output_dim": 20}}
    build_baseline("harmonics-siren", settings).save(path, provenance={"step": 7, "objective": {"a": 1}})
    described = json.loads(tessearth("info", path, "--json").out)
    assert described["baseline"] == "harmonics-siren"
    assert described["settings"]["degrees"] == 8
    assert described["provenance"]["step"] == 7
    assert "harmonics-siren" in tessearth("info", path).out
    torch.save(fabricate.geoclip(), tmp_path / "g.pth")
    described = json.loads(tessearth("info", f"taxabind={tmp_path / 'g.pth'}", "--json").out)
    assert described["provenance"]["outputs_compared_with_the_authors"] is False


@pytest.mark.parametrize("arguments", [("info", "nothing"), ("bogus",), ("info", "--bogus")])
def test_a_mistake_is_one_line(tessearth: Command, arguments: tuple[str, ...]) -> None:
    outcome = tessearth(*arguments)
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1


def test_version(tessearth: Command) -> None:
    assert tessearth("--version").out == f"tessearth {__version__}\n"


def test_help_lists_the_commands_without_loading_torch() -> None:
    code = (
        "import sys; sys.argv = ['tessearth', '--help']\n"
        "from tessearth.cli.app import main\n"
        "try: main()\n"
        "finally: print([m for m in ('torch', 'numpy', 'pyarrow') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert "encode" in done.stdout
    assert "info" in done.stdout
    assert done.stdout.splitlines()[-1] == "[]"


def test_a_reader_that_leaves_early_is_no_error(model: Path) -> None:
    command = f"{sys.executable} -m tessearth encode 1 30 --json --model {model} | true"
    done = subprocess.run(["bash", "-c", f"set -o pipefail; {command}"], capture_output=True, text=True, check=False)
    assert done.stderr == ""
