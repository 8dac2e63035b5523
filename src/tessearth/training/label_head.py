"""A small head that reads labels off embeddings: a ridge regression to begin with, trained on from there."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.settings import Kind
from tessearth.training.linear_start import ridges

PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""What a ridge is tried with; features have unit variance."""
TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""What a ridge's scores are divided by to become logits."""
MARGIN = 0.25
"""Predicted numbers leave the range of those learned from by at most this share of it, on either side."""


class Judged(NamedTuple):
    """How good predictions are on places the head was not fitted to."""

    score: float
    """Accuracy for classes, R2 for numbers."""
    loss: float


class LabelHead(nn.Module):
    """y = W x + b + V ReLU(U x + u) of the standardised embedding x; without a hidden layer the last part is absent.

    Classes: (N, C) logits. Numbers: (N, 1), standardised; `values` brings them back to their unit and keeps them near
    those ever seen, because far from every labelled place a linear map goes anywhere.
    """

    feature_mean: Tensor
    feature_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    target_range: Tensor

    def __init__(self, kind: Kind, input_dim: int, outputs: int, hidden_dim: int = 0) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(input_dim, outputs)
        self.entry = nn.Linear(input_dim, hidden_dim) if hidden_dim else None
        self.exit = nn.Linear(hidden_dim, outputs, bias=False) if hidden_dim else None
        self.register_buffer("feature_mean", torch.zeros(input_dim))
        self.register_buffer("feature_scale", torch.ones(input_dim))
        self.register_buffer("target_mean", torch.zeros(()))
        self.register_buffer("target_scale", torch.ones(()))
        self.register_buffer("target_range", torch.tensor((-torch.inf, torch.inf)))

    def forward(self, embedding: Tensor) -> Tensor:
        """(N, D) -> (N, C), or (N, 1)."""
        x = (embedding - self.feature_mean) * self.feature_scale
        out: Tensor = self.linear(x)
        if self.entry is not None and self.exit is not None:
            out = out + self.exit(F.relu(self.entry(x)))
        return out

    def values(self, out: Tensor) -> Tensor:
        """Probabilities (N, C), or numbers (N,) in the target's unit."""
        if self.kind == "classify":
            return torch.softmax(out, dim=-1)
        return (out[:, 0] * self.target_scale + self.target_mean).clamp(*self.target_range)

    def loss(self, out: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy of codes, weighted by class, or the mean square of standardised differences."""
        if self.kind == "classify":
            return F.cross_entropy(out, target, weights)
        return (out[:, 0] - (target - self.target_mean) / self.target_scale).square().mean()

    @torch.no_grad()
    def judge(self, embedding: Tensor, target: Tensor) -> Judged:
        """How good the head is on embeddings (N, D) and their targets (N,)."""
        out = self(embedding)
        loss = float(self.loss(out, target))
        if self.kind == "classify":
            return Judged(float((out.argmax(-1) == target).double().mean()), loss)
        missed = (self.values(out).double() - target.double()).square().sum()
        spread = (target.double() - target.double().mean()).square().sum()
        return Judged(float(1 - missed / spread), loss)


class Rows(NamedTuple):
    """Embeddings and what is known of them."""

    embedding: Tensor
    """(N, D)."""
    target: Tensor
    """(N,): codes or numbers."""


@torch.no_grad()
def fit_ridge_(head: LabelHead, training: Rows, validation: Rows, weights: Tensor | None = None) -> Judged:
    """Set a head to the ridge regression of its training rows; the penalty is the best on the validation rows.

    Classes are +1 and -1, one column each, and the scores become logits at the temperature of the lowest validation
    loss. The hidden layer's output starts at 0, so that the head is the ridge until it is trained. `weights` (C,) count
    rows by class.
    """
    _standardise_(head, training)
    x = (training.embedding - head.feature_mean) * head.feature_scale
    if head.kind == "classify":
        y = 2.0 * F.one_hot(training.target, head.linear.out_features) - 1
    else:
        y = ((training.target - head.target_mean) / head.target_scale)[:, None]
    counted = None if weights is None else weights[training.target]
    temperatures = TEMPERATURES if head.kind == "classify" else (1.0,)
    found: list[tuple[Judged, Tensor, Tensor]] = []
    for slope, bias in ridges(x, y, PENALTIES, counted):
        judged = [_judge_linear_(head, validation, slope / t, bias / t) for t in temperatures]
        best = min(range(len(judged)), key=lambda i: judged[i].loss)
        found.append((judged[best], slope / temperatures[best], bias / temperatures[best]))
    _, slope, bias = max(found, key=lambda row: (row[0].score, -row[0].loss))
    return _judge_linear_(head, validation, slope, bias)


def _standardise_(head: LabelHead, rows: Rows) -> None:
    deviation, mean = torch.std_mean(rows.embedding.double(), dim=0)
    head.feature_mean.copy_(mean)
    head.feature_scale.copy_(torch.where(deviation > 1e-12, 1 / deviation.clamp_min(1e-12), 0.0))
    if head.kind == "regress":
        head.target_mean.copy_(rows.target.double().mean())
        head.target_scale.copy_(rows.target.double().std())
        low, high = rows.target.aminmax()
        head.target_range.copy_(torch.stack((low, high)) + MARGIN * (high - low) * head.target_range.sign())
    if head.exit is not None:
        head.exit.weight.zero_()


def _judge_linear_(head: LabelHead, rows: Rows, slope: Tensor, bias: Tensor) -> Judged:
    head.linear.weight.copy_(slope.T)
    head.linear.bias.copy_(bias)
    return head.judge(*rows)
