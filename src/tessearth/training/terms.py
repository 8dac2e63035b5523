"""The terms of the objective. N pairs of a place and its image, D the embedding's width, T tokens, F the raw feature's.

Every term is a mean over the pairs, so that the mean over processes with equal shares is the term of the whole batch.
"""

from typing import Literal

import torch
from torch import Tensor

from tessearth.training.gathering import gather_rows, is_distributed

Negatives = Literal["gathered", "local"]
"""What a pair is told apart from: the pairs of all processes, or only those of its own."""

Reduction = Literal["mean", "sum"]
"""How a squared distance adds up its dimensions: "sum" is the squared norm, "mean" divides it by the width."""

ALIGNMENT_FLOOR = 1e-8
"""Added to attentions inside the logarithm, which a token nobody attends to would send to minus infinity."""


def contrastive(location: Tensor, image: Tensor, scale: Tensor, *, negatives: Negatives = "gathered") -> Tensor:
    """Symmetric cross-entropy of telling the right image for a place and the right place for an image.

    L = scale V F^T for unit rows F, V (N, D); (CE(L, I) + CE(L^T, I)) / 2. Written as log-sum-exp of rows and columns
    minus the diagonal, so that no N x N matrix besides L and its gradient is ever made. The products are taken in the
    rows' own precision also under autocast: logits reach 100, where eight bits of mantissa are steps of a half.
    """
    with torch.autocast(location.device.type, enabled=False):
        scaled = scale * image
        right = (scaled * location).sum(-1)
        if negatives == "gathered" and is_distributed():
            to_places = scaled @ gather_rows(location).T
            to_images = (scale * location) @ gather_rows(image).T
            return (0.5 * (to_places.logsumexp(1) + to_images.logsumexp(1)) - right).mean()
        logits = scaled @ location.T
        return (0.5 * (logits.logsumexp(1) + logits.logsumexp(0)) - right).mean()


def reconstruction(reconstructed: Tensor, image: Tensor, *, reduction: Reduction = "mean") -> Tensor:
    """How far the tokens an image attends to are from the image: mean_i |z_i - v_i|^2, both (N, D).

    No gradient reaches the image: tokens learn to span image features, not features to suit the tokens.
    """
    squared = (reconstructed - image.detach()).square()
    return squared.mean() if reduction == "mean" else squared.sum(-1).mean()


def alignment(location_attention: Tensor, image_attention: Tensor) -> Tensor:
    """How far the place's attention is from the image's: mean_i KL(a_loc || sg(a_img)), both (N, T)."""
    target = (image_attention.detach() + ALIGNMENT_FLOOR).log()
    return (location_attention * ((location_attention + ALIGNMENT_FLOOR).log() - target)).sum(-1).mean()


def distillation(decoded: Tensor, image_feature: Tensor, variance: Tensor) -> Tensor:
    """What a linear decoder of the embedding misses of the frozen feature: mean_i |d_i - v_i|^2 / Var(v), both (N, F).

    `variance` is the total over the F dimensions, so 1 means no better than always answering the mean.
    """
    return (decoded - image_feature).square().sum(-1).mean() / variance
