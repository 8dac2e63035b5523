"""What a finished run leaves unexplained, place by place."""

import numpy as np
import torch
from torch import Tensor

from tessearth.encoder import load_weights
from tessearth.errors import ConfigError, WeightsError
from tessearth.imagery import FeatureStore
from tessearth.storage import read_sealed_tensors
from tessearth.training.data import Moments
from tessearth.training.model import PretrainingModel
from tessearth.training.recipe import Recipe
from tessearth.training.run_folder import CHECKPOINT, STORE, RunFolder

PLACES_AT_ONCE = 1024


def read_residuals(run: str, places: int, seed: int) -> tuple[Tensor, Tensor]:
    """At most so many of a run's training places, (P, 2) degrees, and the squared error of its decoder there, (P,)."""
    folder = RunFolder(run)
    recipe = folder.recipe()
    if recipe.objective.distillation == 0:
        raise ConfigError(f"{run} distilled nothing, so it has no residual; choose a run with objective.distillation")
    model = _read_model(folder, recipe)
    store = FeatureStore(folder.find_store() or folder.path / STORE)
    components = store.components
    fits = components is not None and components.shape[-1] == model.encoder.output_dim
    array = components if components is not None and fits else store.features
    rows = np.sort(np.random.default_rng([seed, *b"residual"]).permutation(store.training)[:places])
    latlon = torch.from_numpy(store.latlon[rows]).float()
    found = [
        _residuals(model, latlon[first : first + PLACES_AT_ONCE], torch.from_numpy(np.array(array[part, 0])))
        for first, part in (
            (first, rows[first : first + PLACES_AT_ONCE]) for first in range(0, len(rows), PLACES_AT_ONCE)
        )
    ]
    return latlon, torch.cat(found)


def _read_model(folder: RunFolder, recipe: Recipe) -> PretrainingModel:
    """The encoder of the last weights with the decoder of the checkpoint, in evaluation mode."""
    file = folder.path / CHECKPOINT
    if not file.is_file() or not folder.weights("last").is_file():
        raise WeightsError(f"{folder.path} is no finished run: it has no weights with a checkpoint")
    state = {
        name.removeprefix("model."): tensor
        for name, tensor in read_sealed_tensors(file)[1].items()
        if name.startswith("model.") and not name.startswith("model.encoder.")
    }
    mean = state["feature_mean"]
    model = PretrainingModel(
        load_weights(folder.weights("last")), Moments(mean, mean.new_ones(())), recipe.objective, recipe.training
    )
    model.load_state_dict(state, strict=False)
    return model.float().to("cuda" if torch.cuda.is_available() else "cpu").eval()


@torch.no_grad()
def _residuals(model: PretrainingModel, latlon: Tensor, features: Tensor) -> Tensor:
    device = model.feature_mean.device
    return model.residual(model.sides(latlon.to(device), features.to(device))).cpu()
