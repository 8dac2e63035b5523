"""What a finished run leaves unexplained, place by place."""

import torch
from torch import Tensor

from tessearth.encoder import load_weights
from tessearth.errors import ConfigError, WeightsError
from tessearth.imagery import DeviceFeatures, FeatureStore, compute_features, is_store
from tessearth.storage import read_sealed_tensors
from tessearth.training.data import Moments, TrainingData
from tessearth.training.model import PretrainingModel, meeting_width
from tessearth.training.recipe import Recipe
from tessearth.training.run_folder import CHECKPOINT, STORE, RunFolder

PLACES_AT_ONCE = 1024


@torch.no_grad()
def read_residuals(run: str, places: int) -> tuple[Tensor, Tensor]:
    """At most so many of a run's training places, (P, 2) degrees, and the squared error of its decoder there, (P,)."""
    folder, device = RunFolder(run), torch.device("cuda" if torch.cuda.is_available() else "cpu")
    recipe = folder.recipe()
    if recipe.objective.distillation == 0:
        raise ConfigError(f"{run} distilled nothing, so it has no residual; choose a run with objective.distillation")
    model = _read_model(folder, recipe).float().to(device).eval()
    data = TrainingData(
        _open_features(folder, recipe, device), recipe.training, output_dim=meeting_width(model.encoder), device=device
    )
    latlon, features = data.some_training(places)
    data.close()
    rows = zip(torch.split(latlon, PLACES_AT_ONCE), torch.split(features, PLACES_AT_ONCE), strict=True)
    residual = torch.cat([model.residual(model.sides(where.float(), values)) for where, values in rows])
    return latlon.cpu().double(), residual.cpu().double()


def _open_features(folder: RunFolder, recipe: Recipe, device: torch.device) -> FeatureStore | DeviceFeatures:
    """The store that the run was trained on; features that were never stored are made again."""
    store, own = folder.find_store(), folder.path / STORE
    if store is not None or is_store(own) or recipe.features is None:
        return FeatureStore(store or own)
    return compute_features(recipe.features, device=device, folder=own)


def _read_model(folder: RunFolder, recipe: Recipe) -> PretrainingModel:
    """The encoder of the last weights with the decoder of the checkpoint."""
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
    return model
