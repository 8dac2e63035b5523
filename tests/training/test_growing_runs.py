"""Runs whose sites are born and die: files, interruptions, several processes, and what can be begun from them."""

import dataclasses
import json
import os
import signal
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.encoder import load_weights, read_slots, read_trajectory, read_weights
from tessearth.errors import ConfigError, DataError
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe, read_recipe, to_toml
from tests.training.growing import GROWTH, growing_recipe, listed_recipe


def train(out: Path, store: Path, recipe: Recipe | None = None, **options: object):  # type: ignore[no-untyped-def]
    return pretrain(recipe or growing_recipe(), out, store=store, device="cpu", **options)  # type: ignore[arg-type]


def content(run: Path) -> dict[str, object]:
    """Everything that a resumed run must have the same of."""
    found: dict[str, object] = {}
    for name in ("best", "last"):
        weights = read_weights(run / "weights" / f"{name}.safetensors")
        found[name] = weights.provenance, weights.config, {k: v.numpy().tobytes() for k, v in weights.state.items()}
    with np.load(run / "trajectories.npz") as slots:
        found |= {name: slots[name].tobytes() for name in slots.files}
    return found


def sites_said(run: Path) -> list[dict[str, float]]:
    lines = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line["sites"]["1"] for line in lines if "sites" in line]


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(out, store)
    return out


def test_the_log_tells_how_the_sites_become_more(finished: Path) -> None:
    said = sites_said(finished)
    alive = [line["sites"] for line in said]
    assert alive == sorted(alive)
    assert (alive[0], alive[-1]) == (16, 40)
    assert said[-1]["births"] - said[-1]["deaths"] == 24
    assert 1 / 40 < said[-1]["heaviest"] < 1
    assert said[-1]["median_spacing_km"] < said[0]["median_spacing_km"]


def test_files_hold_the_living_alone(store: Path, tmp_path: Path) -> None:
    train(tmp_path / "run", store, growing_recipe(steps=40, evaluate_every=20, checkpoint_every=20))
    best, last = (read_weights(tmp_path / "run" / "weights" / f"{name}.safetensors") for name in ("best", "last"))
    assert last.config.tessellations[1].num_sites == 40
    assert best.config.tessellations[1].num_sites in {read_alive(tmp_path / "run", step) for step in (20, 40)}
    assert all(bool(tensor.isfinite().all()) for tensor in (*last.state.values(), *best.state.values()))


def read_alive(run: Path, step: int) -> int:
    """How many sites of the second tessellation there were at a step."""
    slots = read_slots(run / "trajectories.npz")
    assert slots.alive is not None
    assert slots.births is not None
    return int(slots.alive[slots.steps <= step][-1, 12:].sum())


def test_a_site_was_where_its_parent_was(finished: Path) -> None:
    slots, living = read_slots(finished / "trajectories.npz"), read_trajectory(finished / "trajectories.npz")
    assert slots.positions.shape == (6, 52, 3)
    assert slots.alive is not None
    assert slots.births is not None
    assert living.alive is not None
    assert slots.alive.sum(1)[0] == 28
    assert slots.births[:, 0].tolist() == sorted(slots.births[:, 0])
    last = load_weights(finished / "weights" / "last.safetensors")
    np.testing.assert_array_equal(living.positions[-1], last.sites().positions.detach().numpy())
    begun = {tuple(row) for row in slots.positions[0, slots.alive[0]].tolist()}
    assert {tuple(row) for row in living.positions[0].tolist()} <= begun
    moved = np.linalg.norm(np.diff(living.positions, axis=0), axis=-1).max()
    assert moved < 0.5  # from record to record, across every birth
    assert living.alive.sum(1)[0] < living.alive.sum(1)[-1] == 52


@pytest.mark.parametrize("kind", [growing_recipe, listed_recipe], ids=["all sites", "lists of near sites"])
def test_interrupted_between_events_not_a_bit_changes(kind: Callable[..., Recipe], store: Path, tmp_path: Path) -> None:
    recipe = kind(log_every=1)
    train(tmp_path / "whole", store, recipe)
    for stop in (5, 9, 13, 19, 24, 31, None):

        def interrupt(step: int, steps: int, loss: float, stop: int | None = stop) -> None:
            if step == stop:
                os.kill(os.getpid(), signal.SIGINT)

        if stop is None:
            train(tmp_path / "stopped", store, recipe, resume=True)
        else:
            with pytest.raises(KeyboardInterrupt):
                train(tmp_path / "stopped", store, recipe, resume=True, progress=interrupt)
    assert content(tmp_path / "stopped") == content(tmp_path / "whole")


def test_lists_of_near_sites_train_what_all_sites_do(store: Path, tmp_path: Path) -> None:
    exact: dict[str, object] = {"precision": "float64", "steps": 25, "encoder": {"dropout": 0.0, "token_dropout": 0.0}}
    recipe = listed_recipe(**exact)
    recipe = dataclasses.replace(recipe, sites=dataclasses.replace(recipe.sites, left_out=1e-13))
    train(tmp_path / "lists", store, recipe)
    train(tmp_path / "all", store, growing_recipe(**exact))  # type: ignore[arg-type]
    one, other = (load_weights(tmp_path / name / "weights" / "last.safetensors") for name in ("lists", "all"))
    assert one.config == other.config
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(other.state_dict()[name], tensor, rtol=1e-5, atol=1e-7, msg=lambda t, n=name: n + t)


def test_another_schedule_is_another_run(finished: Path, store: Path) -> None:
    other = growing_recipe(growth=dataclasses.replace(GROWTH, every=3))
    with pytest.raises(ConfigError, match=r"is a run of another recipe: sites\.growth\.every is 3, there it is 6"):
        train(finished, store, other, resume=True)
    with pytest.raises(ConfigError, match=r"is a run of another recipe: sites\.growth is null, there it is"):
        train(finished, store, growing_recipe(growth=None), resume=True)


def test_a_grown_model_can_be_trained_on_and_grow_on(finished: Path, store: Path, tmp_path: Path) -> None:
    start = str(finished / "weights" / "last.safetensors")
    whole = dataclasses.replace(growing_recipe(growth=None, steps=2), start_from=start)
    train(tmp_path / "on", store, whole)
    larger = tuple(
        dataclasses.replace(t, num_sites=60) if t.is_spaced else t for t in growing_recipe().encoder.tessellations
    )
    growth = dataclasses.replace(GROWTH, start=None)
    recipe = growing_recipe(growth=None, encoder={"tessellations": larger})
    grown = dataclasses.replace(recipe.sites, growth=growth)
    recipe = dataclasses.replace(recipe, start_from=start, sites=grown)
    train(tmp_path / "grown", store, recipe)
    assert read_weights(tmp_path / "grown" / "weights" / "last.safetensors").config.tessellations[1].num_sites == 60
    asked = dataclasses.replace(recipe.sites, growth=dataclasses.replace(growth, start=(12, 20)))
    with pytest.raises(ConfigError, match=r"start is \[12, 20\], and .* has \[12, 40\]; leave it out"):
        train(tmp_path / "other", store, dataclasses.replace(recipe, sites=asked))


def test_growth_needs_sites_that_move_and_a_residual() -> None:
    groups = dataclasses.replace(
        growing_recipe().training.groups,
        sites=dataclasses.replace(growing_recipe().training.groups.sites, learning_rate=0.0),
    )
    with pytest.raises(ConfigError, match=r"training\.groups\.sites\.learning_rate is 0"):
        growing_recipe(groups=groups)
    recipe = growing_recipe()
    with pytest.raises(ConfigError, match=r"set objective\.distillation above 0"):
        dataclasses.replace(recipe, objective=dataclasses.replace(recipe.objective, distillation=0.0))


def test_a_recipe_of_growth_reads_back_as_it_is(tmp_path: Path) -> None:
    recipe = growing_recipe()
    (tmp_path / "recipe.toml").write_text(to_toml(recipe.to_dict()))
    assert read_recipe(str(tmp_path / "recipe.toml")) == recipe


def test_levels_of_which_none_says_its_sharpness_are_refused(tmp_path: Path) -> None:
    (tmp_path / "recipe.toml").write_text("[[encoder.tessellations]]\nnum_sites = 8\n" * 2)
    with pytest.raises(ConfigError, match="2 tessellations, and none says its sharpness"):
        read_recipe(str(tmp_path / "recipe.toml"))


def test_damaged_records_of_births_are_refused(finished: Path, tmp_path: Path) -> None:
    with np.load(finished / "trajectories.npz") as found:
        arrays = dict(found)
    for name, value in (("births", arrays["births"] + 52), ("alive", arrays["alive"][:, 1:])):
        np.savez(tmp_path / "bad.npz", **arrays | {name: value})
        with pytest.raises(DataError, match="its alive and births do not fit"):
            read_trajectory(tmp_path / "bad.npz")
