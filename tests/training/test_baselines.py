"""Every baseline is trained by the same loop: end to end at toy size, with what it needs kept exact."""

import json
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth import Embedder
from tessearth.encoder.config import EncoderConfig
from tessearth.encoder.contract import LocationEncoder
from tessearth.errors import ConfigError, UnknownNameError
from tessearth.imagery.recipe import RECIPE_FOLDERS
from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.training.data import Moments
from tessearth.training.loop import pretrain
from tessearth.training.model import PretrainingModel
from tessearth.training.objective import ObjectiveConfig
from tessearth.training.recipe import BaselineRecipe, Recipe, read_recipe
from tessearth.zoo import BASELINES, BaselineCard, build_baseline, load_baseline
from tests.training.fabricate import toy_recipe

STEPS = 60
TOY = (
    "features=none",
    "baseline.settings.network.hidden_dim=24",
    "baseline.settings.network.output_dim=16",
    "objective.distillation=3",
    "training.batch_size=32",
    f"training.steps={STEPS}",
    "training.warmup_epochs=1",
    "training.groups.head.learning_rate=5e-3",
    "training.groups.decoder.learning_rate=1e-2",
    "training.log_every=10",
    "training.checkpoint_every=20",
    "training.evaluate_every=30",
)
SMALLER = {
    "harmonics": ("baseline.settings.degrees=8",),
    "harmonics-siren": ("baseline.settings.degrees=5",),
    "fourier": ("baseline.settings.num_frequencies=32",),
}


def toy(name: str, *changes: str) -> Recipe:
    return read_recipe(f"baselines/{name}", [*TOY, *SMALLER.get(name, ()), *changes])


def metrics(run: Path, kind: str) -> list[dict[str, float]]:
    found = [json.loads(line) for line in (run / "metrics.jsonl").read_text().splitlines()]
    return [line[kind] for line in found if kind in line]


def test_there_is_a_recipe_for_every_baseline() -> None:
    folder = next(folder for folder in RECIPE_FOLDERS if folder.is_dir()) / "baselines"
    assert {path.stem for path in folder.glob("*.toml")} == set(BASELINES)


@pytest.mark.parametrize("name", BASELINES)
def test_a_recipe_names_its_baseline_and_shares_everything_else(name: str) -> None:
    recipe, comparison = read_recipe(f"baselines/{name}"), read_recipe("comparison")
    assert recipe.baseline is not None
    assert recipe.baseline.name == name
    assert recipe.baseline.settings["network"]["output_dim"] == comparison.encoder.output_dim
    assert (recipe.features, recipe.objective, recipe.training) == (
        comparison.features,
        comparison.objective,
        comparison.training,
    )


@pytest.mark.parametrize("name", BASELINES)
def test_a_baseline_trains_end_to_end(name: str, store: Path, tmp_path: Path) -> None:
    recipe = toy(name)
    result = pretrain(recipe, tmp_path / "run", store=store, device="cpu")
    losses = metrics(tmp_path / "run", "training")
    assert losses[-1]["total"] < 0.9 * losses[0]["total"]
    assert losses[-1]["distillation"] < losses[0]["distillation"]
    judged = metrics(tmp_path / "run", "validation")
    assert judged[-1]["total"] < losses[0]["total"]
    assert {loss[term] for loss in losses for term in ("reconstruction", "alignment")} == {0.0}
    assert result.left_out == ("reconstruction", "alignment")
    assert result.weights == tmp_path / "run" / "weights" / "best.safetensors"
    assert not (tmp_path / "run" / "trajectories.npz").exists()
    assert read_recipe(str(tmp_path / "run" / "recipe.toml")) == recipe
    assert recipe.baseline is not None
    trained = load_baseline(result.weights)
    start = build_baseline(name, recipe.baseline.settings, seed=recipe.training.seed)
    assert trained.settings == start.settings
    for key, tensor in start.state_dict().items():
        assert torch.equal(tensor, trained.state_dict()[key]) == key.startswith("position."), key
    assert bool(trained(torch.tensor([[48.86, 2.35], [-1.3, 36.8]], dtype=torch.float64)).isfinite().all())


@pytest.mark.parametrize("name", ["sphereM+", "harmonics-siren"])
def test_an_interrupted_baseline_goes_on_to_the_same_weights(name: str, store: Path, tmp_path: Path) -> None:
    class EnoughError(Exception):
        pass

    def stop(step: int, steps: int, loss: float) -> None:
        if step == 50:
            raise EnoughError

    whole, broken = tmp_path / "whole", tmp_path / "broken"
    pretrain(toy(name), whole, store=store, device="cpu")
    with pytest.raises(EnoughError):
        pretrain(toy(name), broken, store=store, device="cpu", progress=stop)
    pretrain(toy(name), broken, store=store, device="cpu", resume=True)
    for weights in ("best", "last"):
        one, other = (load_baseline(run / "weights" / f"{weights}.safetensors") for run in (whole, broken))
        for key, tensor in one.state_dict().items():
            assert torch.equal(tensor, other.state_dict()[key]), key


def test_a_trained_baseline_is_where_another_run_starts(store: Path, tmp_path: Path) -> None:
    first = pretrain(toy("grid"), tmp_path / "first", store=store, device="cpu")
    bare = tmp_path / "bare.toml"
    bare.write_text("[objective]\ndistillation = 3.0\n\n[training]\nbatch_size = 32\nsteps = 1\n")
    recipe = read_recipe(str(bare), [f"start_from={first.weights}", "training.groups.head.learning_rate=0"])
    assert recipe.baseline == toy("grid").baseline
    second = pretrain(recipe, tmp_path / "second", store=store, device="cpu")
    one, other = (load_baseline(path).state_dict() for path in (first.weights, second.weights))
    assert all(torch.equal(tensor, other[key]) for key, tensor in one.items())
    with pytest.raises(ConfigError, match="an encoder of other sizes than the recipe's"):
        changed = toy("grid", "baseline.settings.num_scales=5", f"start_from={first.weights}")
        pretrain(changed, tmp_path / "third", store=store, device="cpu")


def build_model(name: str, precision: str = "tf32") -> PretrainingModel:
    recipe = toy(name, f"training.precision={precision}")
    assert recipe.baseline is not None
    moments = Moments(torch.zeros(24, dtype=torch.float64), torch.tensor(24.0, dtype=torch.float64))
    encoder = build_baseline(name, recipe.baseline.settings)
    return PretrainingModel(encoder, moments, recipe.objective, recipe.training, torch.Generator().manual_seed(0))


@pytest.mark.parametrize("name", ["fourier", "sphereC", "harmonics"])
def test_positional_features_are_exact_in_training(name: str) -> None:
    model = build_model(name).eval()
    latlon = torch.tensor([[12.3456, -179.9], [89.9, 17.0], [-45.0, 0.001]])
    (features,) = model.encoder.exact(latlon)
    assert features.dtype == torch.float32
    assert not features.requires_grad
    assert torch.equal(features, model.encoder.position(latlon.double()).float())  # type: ignore[union-attr]
    location = model.sides(latlon, torch.zeros(3, 24)).location
    own = torch.nn.functional.normalize(model.encoder(latlon.double()), dim=-1)
    torch.testing.assert_close(location, own)


@pytest.mark.parametrize("name", ["harmonics-siren", "fourier", "sphereM+", "grid-feedforward"])
def test_a_baselines_step_traces_whole_for_the_compiler(name: str) -> None:
    model = build_model(name).eval()
    rng = np.random.default_rng(0)
    latlon = torch.from_numpy(rng.uniform(-80, 80, (20, 2))).float()
    features = torch.from_numpy(rng.normal(size=(20, 24))).float()
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(latlon, features).total, model(latlon, features).total)


def test_settings_are_filled_in_and_an_encoding_is_given_a_network() -> None:
    bare = BaselineRecipe(name="wrap")
    assert bare.settings["network"]["hidden_dim"] == 256
    assert BaselineRecipe(name="wrap", settings={"network": None}) == bare
    assert BaselineRecipe(name="fourier", settings={"network": None}).settings["network"]["output_dim"] == 512
    assert BaselineRecipe(name="harmonics", settings={"degrees": 9}).settings["degrees"] == 9


def test_one_layer_of_a_recipe_takes_the_place_of_the_encoder_below(tmp_path: Path) -> None:
    file = tmp_path / "mine.toml"
    file.write_text('base = "smoke"\n[baseline]\nname = "wrap"\n')
    recipe = read_recipe(str(file))
    assert recipe.baseline == BaselineRecipe(name="wrap")
    assert recipe.encoder == EncoderConfig()
    assert recipe.features == read_recipe("smoke").features
    assert read_recipe("smoke", ["baseline.name=wrap"]).baseline == BaselineRecipe(name="wrap")
    back = tmp_path / "back.toml"
    back.write_text(f'base = "{file}"\n[encoder]\noutput_dim = 32\n')
    assert read_recipe(str(back)).baseline is None
    assert read_recipe("baselines/wrap", ["baseline=none"]).baseline is None


def test_mistakes_are_one_line(tmp_path: Path) -> None:
    both = tmp_path / "both.toml"
    both.write_text('[encoder]\noutput_dim = 32\n[baseline]\nname = "wrap"\n')
    with pytest.raises(ConfigError, match=r"both a \[baseline\] and \[encoder\]"):
        read_recipe(str(both))
    with pytest.raises(ConfigError, match=r"both a \[baseline\] and \[encoder\]"):
        read_recipe("baselines/wrap", ["encoder.output_dim=32"])
    with pytest.raises(ConfigError, match=r"both a \[baseline\] and \[sites\]"):
        read_recipe("baselines/wrap", ["sites.start=full"])
    with pytest.raises(UnknownNameError, match="did you mean 'harmonics'"):
        read_recipe("baselines/wrap", ["baseline.name=harmonic"])
    with pytest.raises(ConfigError, match=r"unknown setting baseline\.settings\.degree; did you mean 'degrees'"):
        read_recipe("baselines/harmonics", ["baseline.settings.degree=3"])
    with pytest.raises(ConfigError, match=r"setting baseline\.name is missing"):
        read_recipe("smoke", ["baseline.settings.degrees=3"])


def test_what_has_nothing_to_train_is_refused() -> None:
    moments = Moments(torch.zeros(24), torch.tensor(24.0))
    with pytest.raises(ConfigError, match="wrap has no network, so there is nothing to train"):
        PretrainingModel(build_baseline("wrap"), moments, ObjectiveConfig(), toy_recipe().training)
    encoder = build_baseline("wrap", {"network": {"hidden_dim": 4}})
    with pytest.raises(ConfigError, match="about tokens alone, and this encoder has none"):
        PretrainingModel(encoder, moments, ObjectiveConfig(contrastive=0.0), toy_recipe().training)


class OneClass(LocationEncoder):
    """The least an encoder of one's own needs."""

    output_dim = 16

    def __init__(self) -> None:
        super().__init__()
        self.entry, self.exit = torch.nn.Linear(3, 24), torch.nn.Linear(24, 16)

    def forward(self, latlon: torch.Tensor) -> torch.Tensor:
        return self.exit(self.entry(latlon_to_xyz(latlon)).sin())


def test_one_class_with_a_card_trains_and_loads(store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    card = BaselineCard(summary="one class", citation="this test", build=lambda settings, generator: OneClass())
    monkeypatch.setitem(BASELINES, "one-class", card)
    changes = [change for change in TOY if not change.startswith("baseline.")]
    recipe = read_recipe("comparison", [*changes, "baseline.name=one-class"])
    result = pretrain(recipe, tmp_path / "run", store=store, device="cpu")
    losses = [line["total"] for line in metrics(tmp_path / "run", "training")]
    assert losses[-1] < losses[0]
    assert Embedder(result.weights)([(48.0, 2.0)]).shape == (1, 16)
