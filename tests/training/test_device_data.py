"""Features that lie on a device train as those of a store do, and a run that made its own is resumed to the bit."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tessearth.encoder.weights import read_weights
from tessearth.errors import ConfigError
from tessearth.imagery import DeviceFeatures, FeatureRecipe, FeatureStore, SourceRecipe
from tessearth.imagery.recipe import PlacesRecipe
from tessearth.sphere import split_places
from tessearth.training import loop
from tessearth.training.data import TrainingData
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe
from tests.training.fabricate import toy_recipe

CPU = torch.device("cpu")


@pytest.fixture
def recipe(tmp_path: Path) -> Recipe:
    """A toy that asks for components of a small globe of soft random colours."""
    coarse = Image.fromarray(np.random.default_rng(0).integers(0, 256, (9, 18, 3), dtype=np.uint8))
    coarse.resize((180, 90), Image.Resampling.BICUBIC).save(tmp_path / "earth.png")
    toy = toy_recipe(steps=6, checkpoint_every=1, log_every=1)
    source = SourceRecipe(
        kind="global-raster",
        options={"path": str(tmp_path / "earth.png"), "size": 8, "km_per_pixel": 200.0},
        encoder_options={"num_filters": 8, "num_patches": 400},
    )
    places = PlacesRecipe(where="sphere", count=150, validation=0.2)
    features = FeatureRecipe(sources=(source,), places=places, pca=toy.encoder.output_dim, fit_places=40)
    return replace(toy, features=features)


def test_batches_and_moments_are_those_of_the_store(store: Path) -> None:
    stored, training = FeatureStore(store), toy_recipe().training
    there = DeviceFeatures(
        recipe=stored.recipe, path=store, places=stored.places, array=torch.from_numpy(np.array(stored.features))
    )
    host, device = (TrainingData(each, training, output_dim=24, device=CPU) for each in (stored, there))
    assert torch.equal(host.moments.mean, device.moments.mean)
    assert torch.equal(host.moments.variance, device.moments.variance)
    rows = np.array([3, 77, 5])
    batches = [data.empty_batch(3) for data in (host, device)]
    for data, batch in zip((host, device), batches, strict=True):
        data.fill(batch, rows)
    assert batches[0].features.any()
    for ours, theirs in (
        batches,
        (host.held_out(9), device.held_out(9)),
        (host.some_training(9), device.some_training(9)),
    ):
        assert ours is not None
        assert theirs is not None
        assert all(map(torch.equal, ours, theirs))


def test_a_run_that_makes_its_own_features_is_resumed_to_the_bit(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(loop, "_needs_no_store", lambda recipe, device: True)

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 4:
            raise KeyboardInterrupt

    whole = pretrain(recipe, tmp_path / "whole", device="cpu")
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, tmp_path / "parts", device="cpu", progress=stop)
    parts = pretrain(None, tmp_path / "parts", device="cpu", resume=True)
    assert not (tmp_path / "parts" / "features" / "features.npy").exists()
    ours, theirs = (read_weights(result.weights) for result in (parts, whole))
    assert ours.provenance == theirs.provenance
    assert all(torch.equal(tensor, theirs.state[name]) for name, tensor in ours.state.items())
    assert parts.validation == whole.validation


def test_endless_places_are_new_every_epoch_and_the_same_when_resumed(
    recipe: Recipe, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert recipe.features is not None
    blocks = replace(recipe.features.places, validation_block_degrees=30.0)
    recipe = replace(
        recipe,
        features=replace(recipe.features, places=blocks),
        training=replace(recipe.training, places="endless", batch_size=50, steps=6),
    )
    seen: dict[int, np.ndarray] = {}
    begin = TrainingData.begin

    def watch(data: TrainingData, epoch: int) -> None:
        begin(data, epoch)
        latlon = data.latlon.numpy().copy()
        assert np.array_equal(seen.setdefault(epoch, latlon), latlon)
        rows, held_out = data.training, data.held_out(9)
        assert held_out is not None
        batch = data.empty_batch(len(rows))
        data.fill(batch, rows)
        assert data._drawn is not None
        features, other = data._drawn[0], batch.latlon.numpy()
        assert features.reader is not None
        made = features.reader.project(features.reader.features(other.astype(float), np.arange(len(rows))))
        torch.testing.assert_close(batch.features, made[:, 0], atol=1e-3, rtol=0)
        held = split_places(other.astype(float), validation=0.2, seed=blocks.seed, block_degrees=30.0)
        assert not held.any()

    monkeypatch.setattr(TrainingData, "begin", watch)

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 3:
            raise KeyboardInterrupt

    whole = pretrain(recipe, tmp_path / "whole", device="cpu")
    assert len(seen) == 3
    assert len({latlon.tobytes() for latlon in seen.values()}) == 3
    with pytest.raises(KeyboardInterrupt):
        pretrain(recipe, tmp_path / "parts", device="cpu", progress=stop)
    parts = pretrain(None, tmp_path / "parts", device="cpu", resume=True)
    ours, theirs = (read_weights(result.weights) for result in (parts, whole))
    assert all(torch.equal(tensor, theirs.state[name]) for name, tensor in ours.state.items())
    with pytest.raises(ConfigError, match="leave out --store"):
        pretrain(recipe, tmp_path / "third", store=tmp_path, device="cpu")
    with pytest.raises(ConfigError, match="not from a store, a table or a source"):
        replace(recipe, features=None)


def test_on_a_processor_a_store_is_made(recipe: Recipe, tmp_path: Path) -> None:
    pretrain(recipe, tmp_path / "run", device="cpu")
    assert FeatureStore(tmp_path / "run" / "features").components is not None


def test_where_features_cannot_stay_on_a_gpu_a_warning_says_why(recipe: Recipe) -> None:
    gpu, features = torch.device("cuda"), recipe.features
    assert features is not None
    assert loop._needs_no_store(recipe, gpu)
    assert not loop._needs_no_store(recipe, CPU)
    with pytest.warns(UserWarning, match=r"written to a store in the run: features.pca is neither 0 nor"):
        assert not loop._needs_no_store(replace(recipe, features=replace(features, pca=5)), gpu)
