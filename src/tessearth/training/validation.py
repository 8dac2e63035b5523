"""What a model is worth on the validation places: the objective, retrieval, use of tokens, what stays unexplained."""

import dataclasses
from typing import Any

import torch
from torch import Tensor

from tessearth.encoder import measure_token_use
from tessearth.sphere import is_inhabited_land
from tessearth.training.data import Batch
from tessearth.training.model import PretrainingModel
from tessearth.training.objective import Sides, distillation_by_width, total_loss


@torch.no_grad()
def evaluate(model: PretrainingModel, batch: Batch) -> dict[str, Any]:
    """The objective, retrieval and use of tokens on held-out places, without dropout or jitter."""
    model.eval()
    try:
        sides = model.sides(*batch)
    finally:
        model.train()
    alone = dataclasses.replace(model.objective, negatives="local")  # the other processes do not take part
    terms = total_loss(sides, alone)
    results: dict[str, Any] = {name: float(value) for name, value in terms._asdict().items()}
    results |= retrieval(sides.location, sides.image)
    results |= unexplained(model, sides, batch.latlon)
    if model.objective.prefixes:
        widths = ("whole", *map(str, model.objective.prefixes))
        results["distillation_by_width"] = dict(zip(widths, map(float, distillation_by_width(sides)), strict=True))
    if sides.location_attention is not None:
        use = measure_token_use(sides.location_attention)
        results["tokens"] = {
            "entropy": use.entropy_share,
            "effective_tokens": use.effective_at_mean,
            "share_above_uniform": use.above_uniform / len(use.mean),
        }
    return results


def unexplained(model: PretrainingModel, sides: Sides, latlon: Tensor) -> dict[str, float]:
    """The share of the image features' variance over land that the decoder cannot read off the embedding."""
    land = torch.from_numpy(is_inhabited_land(latlon.cpu().numpy())).to(latlon.device)
    if sides.decoded is None or sides.feature is None or int(land.sum()) < 2:
        return {}
    feature = sides.feature[land, : len(model.feature_mean)]
    error, total = model.residual(sides)[land].mean(), feature.var(0, correction=0).mean()
    return {"unexplained": float(error / total)} if total > 0 else {}


TOP = (1, 5, 10)
ROWS_AT_ONCE = 1024


@torch.no_grad()
def retrieval(location: Tensor, image: Tensor) -> dict[str, float]:
    """The shares of images whose place, and of places whose image, is among the nearest 1, 5, 10; unit rows (N, D)."""
    ranks = {"image_to_place": _ranks(image, location), "place_to_image": _ranks(location, image)}
    return {f"{name}_top{k}": float((rank < k).double().mean()) for name, rank in ranks.items() for k in TOP}


def _ranks(queries: Tensor, answers: Tensor) -> Tensor:
    """How many other answers are at least as similar to each query as its own, (N,).

    A tie counts: an encoder that gives every place the same embedding finds nothing.
    """
    ranks = []
    for first in range(0, len(queries), ROWS_AT_ONCE):
        similarity = queries[first : first + ROWS_AT_ONCE] @ answers.T
        ranks.append((similarity >= similarity.diagonal(first)[:, None]).sum(-1) - 1)
    return torch.cat(ranks)
