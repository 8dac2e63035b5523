"""Linear maps in closed form, for training to begin from what an encoder already gives."""

from collections.abc import Sequence

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.training.data import Batch
from tessearth.training.model import PretrainingModel

PLACES = 16_384
"""The image side of a trained encoder is fitted to at most so many training places."""
PLACES_AT_ONCE = 2048
PENALTY = 1e-3
"""Of that fit, for inputs of unit mean square, as a share of the number of rows."""


def ridges(
    x: Tensor, y: Tensor, penalties: Sequence[float], counted: Tensor | None = None
) -> list[tuple[Tensor, Tensor]]:
    """Slopes (D, C) and biases (C,) of y (N, C) on x (N, D) for every penalty, from one eigendecomposition.

    min sum_i c_i |y_i - x_i W - b|^2 + penalty |W|^2, with what each row counts, c (N,), 1 when left out.
    """
    x, y = x.double(), y.double()
    counted = torch.ones(len(x), dtype=x.dtype, device=x.device) if counted is None else counted.double()
    x_mean, y_mean = counted @ x / counted.sum(), counted @ y / counted.sum()
    x, y = x - x_mean, y - y_mean
    weighted = x * counted[:, None]
    values, vectors = torch.linalg.eigh(weighted.T @ x)
    across = vectors.T @ (weighted.T @ y)
    slopes = [vectors @ (across / (values.clamp_min(0) + penalty)[:, None]) for penalty in penalties]
    return [(slope, y_mean - x_mean @ slope) for slope in slopes]


@torch.no_grad()
def fit_image_side_(model: PretrainingModel, batch: Batch) -> None:
    """Set the image head and the decoders to the ridge regressions that suit the encoder as it is.

    They are not part of an encoder's weights. Drawn at random, they would pull trained weights towards noise first.
    """
    feature = (batch.features.to(model.feature_mean.dtype) - model.feature_mean) * model.feature_scale
    raw = _raw(model, batch.latlon)
    unit = F.normalize(raw, dim=-1)
    read = raw if model.objective.distil_from == "raw" else unit
    target = model.distilled(batch.latlon, feature)
    if model.image_head is not None:
        _set_ridge_(model.image_head, feature, unit)
    if model.decoder is not None:
        _set_ridge_(model.decoder, read, target)
    for decoder in model.prefix_decoders:
        if isinstance(decoder, nn.Linear):
            _set_ridge_(decoder, read[:, : decoder.in_features], target)


def _raw(model: PretrainingModel, latlon: Tensor) -> Tensor:
    """Raw embeddings without dropout, (N, 2) degrees -> (N, D)."""
    model.eval()
    try:
        parts = torch.split(latlon, PLACES_AT_ONCE)
        return torch.cat([model.side.encode(model.side.exact(part))[0] for part in parts])
    finally:
        model.train()


def _set_ridge_(layer: nn.Linear, x: Tensor, y: Tensor) -> None:
    penalty = PENALTY * len(x) * float(x.double().square().mean())
    ((slope, bias),) = ridges(x, y, (penalty,))
    layer.weight.copy_(slope.T)
    layer.bias.copy_(bias)
