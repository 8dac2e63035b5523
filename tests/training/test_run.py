"""A run: what it leaves behind, that interruptions change no bit, and that faults are found."""

import errno
import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from typer.testing import CliRunner

from tessearth.cli import pretrain as cli
from tessearth.encoder.weights import load_weights, read_weights
from tessearth.errors import ConfigError, DataError, OutputError, WeightsError
from tessearth.imagery.store import FeatureStore
from tessearth.storage import files
from tessearth.training.loop import pretrain
from tessearth.training.model import PretrainingModel
from tessearth.training.recipe import Recipe, read_recipe
from tessearth.training.run_folder import RunFolder
from tests.training.fabricate import fabricate_store, toy_recipe
from tests.training.growing import growing_recipe

KILLS = 10

KILLER = """
import os, random, signal, sys, time
import torch
torch.set_num_threads(1)
from tessearth.encoder.sites import start_sites
from tessearth.imagery.store import FeatureStore
from tessearth.training.loop import pretrain
from tests.training.fabricate import toy_recipe
from tests.training.growing import growing_recipe

# What is slow the first time happens here, once, and not in every child.
torch.optim.AdamW([torch.nn.Parameter(torch.ones(1))])
start_sites("land", 24)
out, store, rng = sys.argv[1], sys.argv[2], random.Random(4)
FeatureStore(store)
recipe = {recipe}(steps={steps}, checkpoint_every=3, log_every=1)
for attempt in range({kills} + 1):
    read, write = os.pipe()
    child = os.fork()
    if child == 0:
        report = lambda step, steps, loss: os.write(write, b"%d\\n" % step)
        pretrain(recipe, out, store=store, resume=True, device="cpu", progress=report)
        os._exit(0)
    os.close(write)
    with os.fdopen(read) as steps:
        begun = int(steps.readline())
        print(begun, flush=True)
        if attempt < {kills}:
            wanted = begun + rng.randrange(12)
            while begun < wanted:
                begun = int(steps.readline())
            time.sleep(rng.uniform(0, 0.02))
            os.kill(child, signal.SIGKILL)
        else:
            steps.read()
    _, status = os.waitpid(child, 0)
sys.exit(os.waitstatus_to_exitcode(status))
"""


def train(out: Path, store: Path, recipe: Recipe | None = None, **options: object):  # type: ignore[no-untyped-def]
    return pretrain(recipe or toy_recipe(), out, store=store, device="cpu", **options)  # type: ignore[arg-type]


def weights_of(run: Path) -> dict[str, tuple[object, dict[str, bytes]]]:
    """Everything but the order of the header's entries, which safetensors shuffles."""
    found = {name: read_weights(run / "weights" / f"{name}.safetensors") for name in ("best", "last")}
    return {
        name: (weights.provenance, {key: tensor.numpy().tobytes() for key, tensor in weights.state.items()})
        for name, weights in found.items()
    }


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


def lines(run: Path) -> list[dict[str, object]]:
    return [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]


@pytest.fixture(scope="module")
def finished(store: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("runs") / "finished"
    train(out, store)
    return out


def test_a_run_leaves_everything_behind(finished: Path) -> None:
    assert read_recipe(str(finished / "recipe.toml")) == toy_recipe()
    encoder = load_weights(finished / "weights" / "last.safetensors")
    assert encoder.config == toy_recipe().encoder
    about = read_weights(finished / "weights" / "last.safetensors").provenance
    assert about["objective"]["reduction"] == "mean"
    assert (about["step"], about["image_features"]) == (20, "features")
    environment = json.loads((finished / "environment.json").read_text())
    assert environment["torch"] == torch.__version__
    trained = [line for line in lines(finished) if "training" in line]
    assert [line["step"] for line in trained] == [5, 10, 15, 20]
    terms = ("total", "contrastive", "reconstruction", "alignment", "distillation", "gradient_norm")
    assert tuple(trained[0]["training"]) == terms  # type: ignore[arg-type]
    judged = [line["validation"] for line in lines(finished) if "validation" in line]
    assert len(judged) == 2
    assert {"total", "image_to_place_top1", "place_to_image_top10", "tokens"} <= set(judged[0])  # type: ignore[arg-type]


def test_sites_are_recorded_along_the_way(finished: Path) -> None:
    with np.load(finished / "trajectories.npz") as found:
        assert found["steps"].tolist() == [0, 4, 8, 12, 16, 20]
        assert found["positions"].shape == (6, 24, 3)
        np.testing.assert_allclose(np.linalg.norm(found["positions"], axis=-1), 1, rtol=1e-5)
        assert (np.abs(np.diff(found["positions"], axis=0)).max(axis=(1, 2)) > 0).all()
        np.testing.assert_allclose(found["sharpness"][0], 20, rtol=1e-5)
        last = load_weights(finished / "weights" / "last.safetensors")
        np.testing.assert_array_equal(found["positions"][-1], last.sites().positions.detach().numpy())


def test_the_annealed_temperature_is_part_of_the_weights(finished: Path) -> None:
    tokens = load_weights(finished / "weights" / "last.safetensors").tokens
    assert tokens is not None
    assert float(tokens.temperature()) == pytest.approx(0.2)


def test_training_learns(store: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(steps=250, log_every=50, evaluate_every=50, checkpoint_every=250, warmup_epochs=2.0)
    result = train(tmp_path / "run", store, recipe)
    losses = [line["training"]["total"] for line in lines(tmp_path / "run") if "training" in line]  # type: ignore[index]
    assert losses[-1] < 0.85 * losses[0]
    first = next(line["validation"] for line in lines(tmp_path / "run") if "validation" in line)
    assert result.validation["total"] < first["total"]  # type: ignore[index]
    assert result.validation["image_to_place_top10"] > 1.5 * 10 / 43


def test_the_seed_decides_and_nothing_else_does(finished: Path, store: Path, tmp_path: Path) -> None:
    torch.manual_seed(99)
    before = torch.random.get_rng_state()
    train(tmp_path / "again", store, toy_recipe())
    assert torch.equal(torch.random.get_rng_state(), before)
    assert weights_of(tmp_path / "again") == weights_of(finished)
    train(tmp_path / "streamed", store, toy_recipe(keep_features="disk"))
    one, other = (load_weights(run / "weights" / "last.safetensors") for run in (finished, tmp_path / "streamed"))
    assert all(torch.equal(a, b) for a, b in zip(one.parameters(), other.parameters(), strict=True))
    train(tmp_path / "other", store, toy_recipe(seed=1))
    assert weights_of(tmp_path / "other") != weights_of(finished)


def test_ctrl_c_saves_and_resuming_changes_no_bit(finished: Path, store: Path, tmp_path: Path) -> None:
    def interrupt(step: int, steps: int, loss: float) -> None:
        if step == 10:
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(KeyboardInterrupt, match="stopped after step 11 of 20, which is saved"):
        train(tmp_path / "run", store, progress=interrupt)
    train(tmp_path / "run", store, resume=True)
    assert weights_of(tmp_path / "run") == weights_of(finished)
    assert [line["step"] for line in lines(tmp_path / "run")] == [5, 10, 10, 11, 15, 20, 20]
    with np.load(tmp_path / "run" / "trajectories.npz") as one, np.load(finished / "trajectories.npz") as other:
        assert all(np.array_equal(one[name], other[name]) for name in other)


@pytest.mark.parametrize("kind", [toy_recipe, growing_recipe], ids=["sites move", "sites are born and die"])
def test_killed_at_random_moments_the_weights_are_the_same_to_the_bit(
    kind: Callable[..., Recipe], store: Path, tmp_path: Path
) -> None:
    steps = 120
    untouched = content(store)
    whole, killed = tmp_path / "whole", tmp_path / "killed"
    train(whole, store, kind(steps=steps, checkpoint_every=3, log_every=1))
    killer = [sys.executable, "-c", KILLER.format(recipe=kind.__name__, steps=steps, kills=KILLS)]
    killer += [str(killed), str(store)]
    done = subprocess.run(killer, capture_output=True, text=True, timeout=300, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    begun = [int(line) for line in done.stdout.split()]
    assert len(begun) == KILLS + 1
    assert begun[0] == 0 < begun[-1]
    assert begun == sorted(begun)
    assert weights_of(killed) == weights_of(whole)
    with np.load(killed / "trajectories.npz") as one, np.load(whole / "trajectories.npz") as other:
        assert all(np.array_equal(one[name], other[name]) for name in other)
    assert content(store) == untouched


def test_a_full_disk_while_saving_loses_nothing_saved(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out, real = tmp_path / "run", os.fsync
    saves = iter(range(1000))

    def full(descriptor: int) -> None:
        if next(saves) > 12:
            raise OSError(errno.ENOSPC, "No space left on device")
        real(descriptor)

    monkeypatch.setattr(files.os, "fsync", full)
    with pytest.raises(OutputError, match="no space left"):
        train(out, store)
    monkeypatch.undo()
    kept = RunFolder(out).load_checkpoint(_state(out, store))
    assert kept is not None
    assert 0 < kept.step < 20
    train(out, store, resume=True)


def _state(out: Path, store: Path) -> dict[str, torch.Tensor]:
    import safetensors.torch

    return safetensors.torch.load_file(out / "checkpoint.safetensors")


def test_a_finished_run_is_resumed_to_itself_and_not_begun_again(finished: Path, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    assert train(copy, store, resume=True).steps == 20
    assert weights_of(copy) == weights_of(finished)
    with pytest.raises(OutputError, match="holds a run: tessearth pretrain --resume"):
        train(copy, store)
    with pytest.raises(ConfigError, match=r"run of another recipe: training\.seed is 7, there it is 0"):
        train(copy, store, toy_recipe(seed=7), resume=True)


def test_damaged_checkpoints_are_refused(finished: Path, store: Path, tmp_path: Path) -> None:
    copy = tmp_path / "copy"
    shutil.copytree(finished, copy)
    whole = (copy / "checkpoint.safetensors").read_bytes()
    (copy / "checkpoint.safetensors").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(WeightsError, match="damaged"):
        train(copy, store, resume=True)


@pytest.mark.parametrize("culprit", ["contrastive", "reconstruction", "alignment", "distillation", "gradient norm"])
def test_a_loss_that_is_no_longer_finite_stops_the_run(
    culprit: str, store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    real, calls = PretrainingModel.sides, iter(range(1000))

    def spoil(gradient: torch.Tensor) -> torch.Tensor:
        return gradient * torch.nan

    def sides(self: PretrainingModel, latlon: torch.Tensor, features: torch.Tensor):  # type: ignore[no-untyped-def]
        found = real(self, latlon, features)
        if not self.training or next(calls) < 13:
            return found
        if culprit == "gradient norm":
            found.location.register_hook(spoil)
            return found
        part = {
            "contrastive": "scale",
            "reconstruction": "reconstructed",
            "alignment": "location_attention",
            "distillation": "decoded",
        }[culprit]
        return found._replace(**{part: getattr(found, part) * torch.inf})

    monkeypatch.setattr(PretrainingModel, "sides", sides)
    with pytest.raises(DataError, match=f"the {culprit} is no longer finite at step 15; .* is kept"):
        train(tmp_path / "run", store)
    monkeypatch.undo()
    state = _state(tmp_path / "run", store)
    assert all(bool(tensor.isfinite().all()) for tensor in state.values())
    kept = RunFolder(tmp_path / "run").load_checkpoint(state)
    assert kept is not None
    assert kept.step == 10


def test_bad_input_is_one_clear_line(store: Path, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="no \\[features\\] table, so give it a store"):
        pretrain(toy_recipe(), tmp_path / "a", device="cpu")
    with pytest.raises(DataError, match="fewer than the batch of 5000"):
        train(tmp_path / "b", store, toy_recipe(batch_size=5000))
    with pytest.raises(DataError, match=r"not the store this recipe asks for: features\.\S+ is"):
        train(tmp_path / "c", store, read_recipe("smoke"))
    with pytest.raises(ConfigError, match="the device 'gpu' cannot be used"):
        pretrain(toy_recipe(), tmp_path / "d", store=store, device="gpu")
    if not torch.cuda.is_available():
        with pytest.raises(ConfigError, match="the device 'cuda:0' cannot be used"):
            pretrain(toy_recipe(), tmp_path / "e", store=store, device="cuda")
    with pytest.raises(DataError, match="is not a feature store"):
        train(tmp_path / "f", tmp_path)


def test_a_store_of_another_image_encoder_is_refused_by_its_place(store: Path, tmp_path: Path) -> None:
    features = FeatureStore(store).recipe
    other = replace(features, sources=(replace(features.sources[0], encoder="vit"),))
    assert train(tmp_path / "same", store, replace(toy_recipe(steps=1), features=features)).steps == 1
    with pytest.raises(DataError, match=r'features\.sources\.0\.encoder is "vit", there it is "rcf"'):
        train(tmp_path / "other", store, replace(toy_recipe(), features=other))
    assert not (tmp_path / "other" / "checkpoint.safetensors").exists()


@pytest.mark.parametrize("side", ["training", "validation"])
def test_features_that_are_not_numbers_are_found_before_the_first_step(side: str, store: Path, tmp_path: Path) -> None:
    spoiled = int(getattr(FeatureStore(store), side)[3])
    fabricate_store(tmp_path / "store", spoil=spoiled)
    with pytest.raises(
        DataError, match=f"the features of place {spoiled} are not finite numbers; make the store again"
    ):
        train(tmp_path / "run", tmp_path / "store")
    assert not (tmp_path / "run" / "metrics.jsonl").exists()


def test_tensorboard_sees_what_the_log_says(store: Path, tmp_path: Path) -> None:
    pytest.importorskip("tensorboard")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    train(tmp_path / "run", store)
    board = EventAccumulator(str(tmp_path / "run" / "tensorboard"))
    board.Reload()
    logged = lines(tmp_path / "run")
    for path in ("training/total", "training/gradient_norm", "validation/total", "learning_rate/sites"):
        kind, name = path.split("/")
        expected = [(line["step"], line[kind][name]) for line in logged if kind in line]  # type: ignore[index]
        assert [event.step for event in board.Scalars(path)] == [step for step, _ in expected]
        assert [event.value for event in board.Scalars(path)] == pytest.approx([value for _, value in expected])


def test_two_runs_do_not_share_a_folder(store: Path, tmp_path: Path) -> None:
    with (
        RunFolder(tmp_path / "run").locked(),
        pytest.raises(OutputError, match="another process is training"),
    ):
        train(tmp_path / "run", store)


def test_a_run_can_start_from_weights(finished: Path, store: Path, tmp_path: Path) -> None:
    start = str(finished / "weights" / "last.safetensors")
    recipe = toy_recipe(steps=2, anneal_temperature=False)
    train(tmp_path / "run", store, replace(recipe, start_from=start))
    with np.load(tmp_path / "run" / "trajectories.npz") as found, np.load(finished / "trajectories.npz") as before:
        np.testing.assert_array_equal(found["positions"][0], before["positions"][-1])
    other = replace(toy_recipe(encoder={"num_tokens": 3}), start_from=start)
    with pytest.raises(ConfigError, match="other sizes"):
        train(tmp_path / "other", store, other)


def test_the_command_trains_and_says_where_the_weights_are(store: Path, tmp_path: Path) -> None:
    app = typer.Typer()
    app.command()(cli.pretrain)
    sizes = [
        "encoder.tessellations.0.num_sites=16",
        "encoder.output_dim=16",
        "training.batch_size=32",
        "training.steps=4",
    ]
    changes = [part for size in ["features=none", *sizes] for part in ("--set", size)]
    found = CliRunner().invoke(
        app, ["smoke", "--store", str(store), "--out", str(tmp_path / "run"), "--device", "cpu", *changes]
    )
    assert found.exit_code == 0, found.output
    assert "4 steps, validation loss" in found.output
    assert load_weights(tmp_path / "run" / "weights" / "best.safetensors").config.num_sites == 16
    again = CliRunner().invoke(app, ["smoke", "--store", str(store), "--out", str(tmp_path / "run"), *changes])
    assert isinstance(again.exception, OutputError)


def test_a_store_without_held_out_places_still_trains(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tests.training import fabricate

    monkeypatch.setattr(fabricate, "split_places", lambda latlon, **_: np.zeros(len(latlon), np.bool_))
    fabricate_store(tmp_path / "store")
    assert train(tmp_path / "run", tmp_path / "store").validation == {}
    assert set(weights_of(tmp_path / "run")) == {"best", "last"}
