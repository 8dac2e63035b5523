"""`tessearth pretrain`: what it prints for encoders with and without tokens, and its mistakes as one line each."""

import os
import signal
from pathlib import Path

import numpy as np
import pytest

from tessearth.training.step import Stepper
from tessearth.zoo import load_baseline
from tests.cli.conftest import Command
from tests.training import fabricate
from tests.training.fabricate import fabricate_store


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "store"
    fabricate_store(path)
    return path


def changed(*changes: str) -> list[str]:
    return [part for change in ("features=none", *changes) for part in ("--set", change)]


SHORT = ("training.batch_size=32", "training.steps=2", "baseline.settings.network.hidden_dim=12")


def test_a_baseline_trains_and_says_which_terms_it_has_no_parts_for(
    tessearth: Command, store: Path, tmp_path: Path
) -> None:
    run = tmp_path / "run"
    done = tessearth("pretrain", "baselines/wrap", "--store", store, "--out", run, "--device", "cpu", *changed(*SHORT))
    assert done.status == 0, done.err
    assert "2 steps, validation loss" in done.out
    assert "reconstruction and alignment left out of the objective: they need tokens" in done.out
    assert load_baseline(run / "weights" / "best.safetensors").name == "wrap"


def test_a_single_place_held_out_is_said_to_be_too_few_to_compare(
    tessearth: Command, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    held_out = np.arange(240) == 0
    monkeypatch.setattr(fabricate, "split_places", lambda latlon, **_: held_out)
    fabricate_store(tmp_path / "store")
    where = ("--store", tmp_path / "store", "--out", tmp_path / "run", "--device", "cpu")
    done = tessearth("pretrain", "baselines/wrap", *where, *changed(*SHORT))
    assert done.status == 0, done.err
    assert "2 steps, no validation loss: fewer than two places are held out" in done.out
    assert "nan" not in done.out


def test_a_finished_run_asked_for_again_says_what_it_said(tessearth: Command, store: Path, tmp_path: Path) -> None:
    where = ("--store", store, "--out", tmp_path / "run", "--device", "cpu")
    done = tessearth("pretrain", "baselines/wrap", *where, *changed(*SHORT))
    again = tessearth("pretrain", "baselines/wrap", *where, *changed(*SHORT), "--resume", tmp_path / "run")
    assert again.status == 0, again.err
    assert "2 steps, validation loss" in again.out
    assert again.out == done.out


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("papr",), "there is no recipe 'papr', neither as a file nor by name; did you mean 'paper'?"),
        (
            ("baselines/wrap", "--set", "baseline.name=wrapp"),
            "there is no baseline named 'wrapp'; did you mean 'wrap'?",
        ),
        (("baselines/wrap", "--set", "encoder.output_dim=32"), "both a [baseline] and [encoder]"),
        (("smoke", "--set", "training.batchsize=3"), "unknown setting training.batchsize"),
        (("smoke",), "is not the store this recipe asks for: features"),
        (("smoke", *changed("training.batch_size=5000")), "fewer than the batch of 5000"),
        (("smoke", *changed("start_from=erth")), "there is no model named 'erth'"),
        (("smoke", *changed(), "--device", "gpu"), "the device 'gpu' cannot be used"),
    ],
)
def test_a_mistake_is_one_line(
    tessearth: Command, store: Path, tmp_path: Path, arguments: tuple[str, ...], words: str
) -> None:
    done = tessearth("pretrain", *arguments, "--store", store, "--out", tmp_path / "run")
    assert done.status == 2
    assert done.err.count("\n") == 1, done.err
    assert words in done.err


def test_a_run_of_another_recipe_is_refused(tessearth: Command, store: Path, tmp_path: Path) -> None:
    run = (
        "pretrain",
        "baselines/wrap",
        "--store",
        store,
        "--out",
        tmp_path / "run",
        "--device",
        "cpu",
        *changed(*SHORT),
    )
    assert tessearth(*run).status == 0
    again = tessearth(*run)
    assert f"holds a run: tessearth pretrain --resume {tmp_path / 'run'} continues it" in again.err
    other = tessearth(*run, "--set", "baseline.settings.network.num_blocks=1", "--resume", tmp_path / "run")
    assert "is a run of another recipe: baseline.settings.network.num_blocks is 1, there it is 2" in other.err
    assert [outcome.status for outcome in (again, other)] == [2, 2]


def test_a_run_is_resumed_by_its_name_alone(
    tessearth: Command, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def interrupted(self: Stepper, step: int) -> None:
        if step == 1:
            os.kill(os.getpid(), signal.SIGINT)
        take(self, step)

    take, run, options = Stepper.take, tmp_path / "run", changed(*SHORT[:1], "training.steps=4", SHORT[2])
    with monkeypatch.context() as patch:
        patch.setattr(Stepper, "take", interrupted)
        stopped = tessearth("pretrain", "baselines/wrap", "--store", store, "--out", run, "--device", "cpu", *options)
    assert stopped.status == 130
    assert f"stopped after step 2 of 4, which is saved; to go on: tessearth pretrain --resume {run}" in stopped.err
    for wrong, words in (
        (("--out", tmp_path / "other"), "leave out --out"),
        (("--set", "training.steps=9"), "leave out --set"),
        (("smoke",), "is a run of another recipe"),
    ):
        assert words in tessearth("pretrain", "--resume", run, *wrong).err
    done = tessearth("pretrain", "--resume", run, "--device", "cpu")
    assert done.status == 0, done.err
    assert f"{run}: 4 steps" in done.out
    assert "there is no run" in tessearth("pretrain", "--resume", tmp_path / "nowhere").err
    assert "say where the run is written" in tessearth("pretrain", "smoke").err


def test_what_failed_before_its_first_step_does_not_block_the_next_try(
    tessearth: Command, store: Path, tmp_path: Path
) -> None:
    common = ("pretrain", "baselines/wrap", "--out", tmp_path / "run", "--device", "cpu", *changed(*SHORT))
    assert tessearth(*common, "--store", tmp_path / "nowhere").status == 2
    failed = tessearth(*common, "--store", store, "--set", "training.batch_size=5000")
    assert "fewer than the batch of 5000" in failed.err
    assert tessearth(*common, "--store", store).status == 0
