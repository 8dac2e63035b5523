"""Models by name, path and hub id."""

import shutil
from pathlib import Path

import pytest
import torch

import tessearth
from tessearth.encoder.weights import load_weights
from tessearth.errors import MissingExtraError, UnknownNameError
from tessearth.zoo import names

OFFICIAL = Path(__file__).parents[1] / "reference" / "official" / "plain"


@pytest.fixture
def hub_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A hub cache as the client leaves it after fetching MVRL/TTE, with the network switched off."""
    import huggingface_hub.constants

    repository = tmp_path / "models--MVRL--TTE"
    (repository / "snapshots" / "abc123").mkdir(parents=True)
    (repository / "refs").mkdir()
    (repository / "refs" / "main").write_text("abc123")
    for name in ("config.json", "model.safetensors"):
        shutil.copy(OFFICIAL / name, repository / "snapshots" / "abc123" / name)
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_CACHE", str(tmp_path))
    monkeypatch.setattr(huggingface_hub.constants, "HF_HUB_OFFLINE", True)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_hub_id_is_loaded_through_the_hubs_own_cache(hub_cache: Path) -> None:
    places = torch.tensor([[48.85, 2.35]])
    assert torch.equal(tessearth.load("MVRL/TTE")(places), load_weights(OFFICIAL)(places))
    assert torch.equal(tessearth.load("MVRL/TTE@main")(places), load_weights(OFFICIAL)(places))


def test_a_hub_id_that_cannot_be_had_is_one_line(hub_cache: Path) -> None:
    with pytest.raises(UnknownNameError) as caught:
        tessearth.load("MVRL/other")
    assert "the model 'MVRL/other' is no path here and cannot be had from the hub" in str(caught.value)
    assert "\n" not in str(caught.value)


def test_a_hub_id_without_the_extra_says_which(hub_cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    import sys

    monkeypatch.setitem(sys.modules, "huggingface_hub", None)
    with pytest.raises(MissingExtraError, match=r"pip install 'tessearth\[hub\]'"):
        tessearth.load("MVRL/TTE")


def test_a_mistyped_path_never_reaches_the_hub(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs").mkdir()
    monkeypatch.setattr(names, "fetch", lambda model: pytest.fail("the hub was asked"))
    for model in ("runs/model", "model.safetensors", "a/b/c", "/nowhere/model", "../x", "untraned"):
        with pytest.raises(UnknownNameError, match="nor such a file or folder"):
            tessearth.load(model)


def test_the_untrained_model_is_always_the_same() -> None:
    assert "untrained" in tessearth.list_models()
    torch.manual_seed(5)
    one, other = tessearth.load("untrained"), tessearth.load("untrained")
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
