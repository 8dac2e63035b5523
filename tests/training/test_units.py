"""Encoders whose embedding are units: trained through a bridge, written centred, begun from, asked for residuals."""

import os
import signal
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from tessearth.encoder.weights import load_weights
from tessearth.errors import ConfigError
from tessearth.imagery.store import FeatureStore
from tessearth.storage import read_sealed_tensors
from tessearth.training.finished import read_residuals
from tessearth.training.loop import Result, pretrain
from tessearth.training.recipe import Recipe
from tests.training.fabricate import toy_recipe

UNITS = {"exit": "units", "leak": 0.3, "num_blocks": 0, "num_tokens": 0, "hidden_dim": 40, "output_dim": 40}


def recipe(rate: float = 0.02, **training: object) -> Recipe:
    found = toy_recipe(encoder=UNITS, **training)
    terms = {"reconstruction": 0.0, "alignment": 0.0, "distillation": 10.0, "distil_from": "unit", "position": 0.2}
    groups = found.training.groups
    for name in ("head", "tokens", "decoder"):
        groups = replace(groups, **{name: replace(getattr(groups, name), learning_rate=rate)})
    training = replace(found.training, groups=groups)
    return replace(found, objective=replace(found.objective, **terms), training=training)


def train(out: Path, store: Path, wanted: Recipe | None = None, **options: object) -> Result:
    return pretrain(wanted or recipe(), out, store=store, device="cpu", **options)  # type: ignore[arg-type]


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(out, store, recipe(steps=100))
    return out


def state_of(run: Path) -> dict[str, torch.Tensor]:
    return load_weights(run / "weights" / "last.safetensors").state_dict()


def test_units_are_centred_over_the_training_places(finished: Path, store: Path) -> None:
    encoder = load_weights(finished / "weights" / "last.safetensors")
    opened = FeatureStore(store)
    raw = encoder.encode(torch.from_numpy(opened.latlon[opened.training]).float()).raw
    assert raw.std(0).min() > 1e-3
    assert raw.mean(0).abs().max() < 1e-5


def test_images_are_met_in_their_own_width_and_nothing_of_that_is_in_the_weights(finished: Path) -> None:
    state = read_sealed_tensors(finished / "checkpoint.safetensors")[1]
    assert state["model.bridge.weight"].shape == (24, 40)
    assert not any("image_head" in name for name in state)
    assert not any("bridge" in name for name in state_of(finished))


def test_training_learns_through_the_bridge(store: Path, tmp_path: Path) -> None:
    first = train(tmp_path / "short", store, recipe(steps=2)).validation
    last = train(tmp_path / "long", store, recipe(steps=100)).validation
    assert last["unexplained"] < 0.8 * first["unexplained"]


def test_saving_and_resuming_change_no_bit(store: Path, tmp_path: Path) -> None:
    def interrupt(step: int, steps: int, loss: float) -> None:
        if step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    train(tmp_path / "whole", store)
    with pytest.raises(KeyboardInterrupt):
        train(tmp_path / "run", store, progress=interrupt)
    train(tmp_path / "run", store, resume=True)
    one, other = state_of(tmp_path / "run"), state_of(tmp_path / "whole")
    assert one.keys() == other.keys()
    assert all(torch.equal(part, other[name]) for name, part in one.items())


def test_the_residual_of_a_run_is_that_of_its_own_bridge(finished: Path, store: Path) -> None:
    _, residual = read_residuals(str(finished), 192)
    logged = train(finished, store, recipe(steps=100), resume=True).validation["unexplained"]
    assert 0.5 * logged < float(residual.mean()) < 1.5 * logged


def test_a_run_begins_from_units_with_a_bridge_that_fits_them(finished: Path, store: Path, tmp_path: Path) -> None:
    start = str(finished / "weights" / "last.safetensors")
    begun = train(tmp_path / "more", store, replace(recipe(rate=1e-6, steps=1), start_from=start)).validation
    ended = train(finished, store, recipe(steps=100), resume=True).validation
    assert begun["unexplained"] < 1.3 * ended["unexplained"]


def test_units_come_in_no_order_so_they_have_no_prefixes(store: Path, tmp_path: Path) -> None:
    wanted = recipe()
    with pytest.raises(ConfigError, match=r"objective\.prefixes are not for encoder\.exit = 'units'"):
        train(tmp_path / "run", store, replace(wanted, objective=replace(wanted.objective, prefixes=(8,))))
