"""The objective: its terms and their weighted sum.

N pairs of a place and its image, D the embedding's width, T tokens, F the raw feature's width. Every term is a mean
over the pairs, so that the mean over processes with equal shares is the term of the whole batch.
"""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import torch
import torch.distributed as dist
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.settings import check_at_least


def is_distributed() -> bool:
    """Whether several processes train together."""
    return dist.is_available() and dist.is_initialized() and dist.get_world_size() > 1


def gather_rows(rows: Tensor) -> Tensor:
    """The rows of all processes in the order of their ranks, (n, D) -> (n W, D); the same n everywhere.

    A row's gradient is the sum over all processes.
    """
    if not is_distributed():
        return rows
    gathered: Tensor = _Gather.apply(rows)  # type: ignore[no-untyped-call]
    return gathered


class _Gather(torch.autograd.Function):
    @staticmethod
    def forward(ctx: Any, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(dist.get_world_size())]
        dist.all_gather(parts, rows.contiguous())
        return torch.cat(parts)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Tensor:
        total = gradients[0].contiguous()
        dist.all_reduce(total)
        return total.chunk(dist.get_world_size())[dist.get_rank()]


Negatives = Literal["gathered", "local"]
"""The negatives of a pair: the pairs of all processes, or only those of its own."""

Reduction = Literal["mean", "sum"]
"""How the dimensions of a squared distance add up: "sum" is the squared norm, "mean" divides it by the width."""

ALIGNMENT_FLOOR = 1e-8
"""Added to attentions inside the logarithm, which is minus infinity for a token without attention."""


def contrastive(location: Tensor, image: Tensor, scale: Tensor, *, negatives: Negatives = "gathered") -> Tensor:
    """Symmetric cross-entropy of the right image for a place and the right place for an image.

    L = scale V F^T for unit rows F, V (N, D); (CE(L, I) + CE(L^T, I)) / 2. Written as log-sum-exp of rows and columns
    minus the diagonal, so that L and its gradient are the only N x N matrices. The products are taken in the
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
    """The distance of the tokens an image attends to from the image: mean_i |z_i - v_i|^2, both (N, D).

    No gradient reaches the image: tokens learn to span image features, not features to suit the tokens.
    """
    squared = (reconstructed - image.detach()).square()
    return squared.mean() if reduction == "mean" else squared.sum(-1).mean()


def alignment(location_attention: Tensor, image_attention: Tensor) -> Tensor:
    """The divergence of the place's attention from the image's: mean_i KL(a_loc || sg(a_img)), both (N, T)."""
    target = (image_attention.detach() + ALIGNMENT_FLOOR).log()
    return (location_attention * ((location_attention + ALIGNMENT_FLOOR).log() - target)).sum(-1).mean()


def distillation(decoded: Tensor, image_feature: Tensor, variance: Tensor) -> Tensor:
    """The error of a linear decoder of the embedding: mean_i |d_i - v_i|^2 / Var(v) for the frozen feature v, (N, F).

    `variance` is the total over the F dimensions, so 1 is the error of always predicting the mean.
    """
    return (decoded - image_feature).square().sum(-1).mean() / variance


@dataclass(frozen=True, slots=True, kw_only=True)
class ObjectiveConfig:
    """The weight of each term; the defaults are the paper's. A term of weight 0 is left out and reported as 0.

    Reconstruction and alignment are about tokens, so they are left out at any weight for an encoder without.
    """

    contrastive: float = 1.0
    """The right image is found for a place and the right place for an image."""
    reconstruction: float = 100.0
    """Tokens span the image features (lambda_recon)."""
    alignment: float = 0.1
    """A place attends to the tokens its image attends to (lambda_align)."""
    distillation: float = 0.0
    """A linear map decodes the frozen image feature from the embedding; ours, 0 in the paper."""
    reduction: Reduction = "mean"
    """Whether the reconstruction term is divided by the width, as the released code does, or is the squared norm."""
    negatives: Negatives = "gathered"
    """Whether several processes share their pairs as negatives."""
    distil_from: Literal["raw", "unit"] = "raw"
    """The decoder's input: the head's output, or the same at unit length, as users get it."""
    prefixes: tuple[int, ...] = ()
    """For each n here the feature is decoded from the first n dimensions as well, so that they are useful alone; the
    distillation term is then the mean over the whole embedding and these."""
    position: float = 0.0
    """The weight of smooth waves of the position in the distillation, relative to the image feature. Images show
    little of a place's country or continent; with this the embedding keeps it in a form that probes can read."""
    position_degrees: int = 16
    """The highest degree of these waves, spherical harmonics from degree 1 on; the finest are 360 / degree long."""
    position_decay: float = 1.0
    """The decay of finer waves: those of degree l are scaled by l^-decay."""

    def __post_init__(self) -> None:
        check_at_least(self, 0, *TERMS, "position", "position_decay", where="objective.")
        if not 1 <= self.position_degrees <= 100:
            raise ConfigError(f"objective.position_degrees is {self.position_degrees}; it lies between 1 and 100")
        if self.position and not self.distillation > 0:
            raise ConfigError("objective.position is a part of what is distilled; set objective.distillation above 0")
        if any(n < 1 for n in self.prefixes) or len(set(self.prefixes)) < len(self.prefixes):
            raise ConfigError(f"objective.prefixes is {list(self.prefixes)}; widths are different and at least 1")
        if self.prefixes and not self.distillation > 0:
            raise ConfigError("objective.prefixes are widths to distil from; set objective.distillation above 0")
        if not any(getattr(self, name) > 0 for name in TERMS):
            raise ConfigError(f"every weight of the objective is 0; set one of {', '.join(TERMS)}")


class Sides(NamedTuple):
    """The parts of N pairs that the terms need; None for a part that no term needs."""

    location: Tensor
    """Unit embeddings of the places, (N, D)."""
    image: Tensor
    """Unit embeddings of the images, (N, D)."""
    scale: Tensor
    """The factor of similarities, ()."""
    location_attention: Tensor | None = None
    """(N, T)."""
    image_attention: Tensor | None = None
    """(N, T)."""
    reconstructed: Tensor | None = None
    """The tokens mixed by the images' attention, (N, D)."""
    decoded: Tensor | None = None
    """Features decoded from the places' embeddings, (N, F)."""
    prefix_decoded: tuple[Tensor, ...] = ()
    """Features decoded from the embeddings' first dimensions, (N, F) each."""
    feature: Tensor | None = None
    """The decoders' target: the frozen image features, then waves of the position where they count, (N, F)."""
    variance: Tensor | None = None
    """The total variance of the image features, ()."""


class Terms(NamedTuple):
    """The weighted sum and its terms before weighting, each ()."""

    total: Tensor
    contrastive: Tensor
    reconstruction: Tensor
    alignment: Tensor
    distillation: Tensor


TERMS = Terms._fields[1:]
TOKEN_TERMS = ("reconstruction", "alignment")
"""The terms that only apply to an encoder with tokens."""


def total_loss(sides: Sides, weights: ObjectiveConfig) -> Terms:
    """L = sum of weight x term over the terms that have a weight above 0 and all their parts."""
    found: dict[str, Tensor] = {}
    if weights.contrastive > 0:
        found["contrastive"] = contrastive(sides.location, sides.image, sides.scale, negatives=weights.negatives)
    if weights.reconstruction > 0 and sides.reconstructed is not None:
        found["reconstruction"] = reconstruction(sides.reconstructed, sides.image, reduction=weights.reduction)
    if weights.alignment > 0 and sides.location_attention is not None and sides.image_attention is not None:
        found["alignment"] = alignment(sides.location_attention, sides.image_attention)
    by_width = distillation_by_width(sides) if weights.distillation > 0 else []
    if by_width:
        found["distillation"] = torch.stack(by_width).mean() if len(by_width) > 1 else by_width[0]
    zero = torch.zeros_like(sides.scale, requires_grad=False)
    total = sum((getattr(weights, name) * term for name, term in found.items()), zero)
    return Terms(total, *(found.get(name, zero) for name in TERMS))


def distillation_by_width(sides: Sides) -> list[Tensor]:
    """The distillation of the whole embedding, then of each prefix; empty without a decoder."""
    if sides.decoded is None or sides.feature is None or sides.variance is None:
        return []
    return [distillation(part, sides.feature, sides.variance) for part in (sides.decoded, *sides.prefix_decoded)]
