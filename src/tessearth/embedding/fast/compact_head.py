"""The residual head for places that lie together: units silent at all of them are left out, exactly.

Neighbours agree on most of the head's units: many are zero at every place of a block, and a zero adds nothing to the
next layer. So each layer multiplies only the rows of units that speak somewhere in the block. Nothing is approximated;
columns are places.
"""

import torch
from torch import Tensor, nn

from tessearth.encoder.head import ResidualBlock, ResidualHead

GATHER_BELOW = 0.9
"""The share of rows up to which bringing the others together costs less than multiplying them all."""

FEWEST_PLACES = 64
"""Blocks of fewer places are cheaper without all this."""


class CompactLayer:
    """ReLU(W x + b) by the inputs that speak."""

    def __init__(self, layer: nn.Linear) -> None:
        self.columns = layer.weight.detach().T.contiguous()  # (inputs, outputs)
        self.bias = layer.bias.detach().clone()

    def __call__(self, x: Tensor) -> Tensor:
        """(inputs, N) -> (outputs, N)."""
        x, rows = _speaking(x, self.columns)
        return torch.addmm(self.bias[:, None], rows.T, x).relu_()


class CompactHead:
    """The head behind its first activation, which `folding` gives."""

    def __init__(self, head: ResidualHead) -> None:
        blocks = [block for block in head.blocks if isinstance(block, ResidualBlock)]
        self.blocks = [(CompactLayer(block.first), CompactLayer(block.second)) for block in blocks]
        self.exit = head.exit.weight.detach().T.contiguous()  # (hidden, outputs)

    def __call__(self, x: Tensor) -> Tensor:
        """First activations, (hidden, N), which are used up, to outputs, (N, outputs)."""
        for first, second in self.blocks:
            x = x.add_(second(first(x)))
        x, rows = _speaking(x, self.exit)
        return x.T @ rows


def _speaking(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The units (inputs, N) that are above zero somewhere and the rows (inputs, outputs) they are multiplied with."""
    if x.shape[1] < FEWEST_PLACES:
        return x, rows
    kept = (x.amax(1) > 0).nonzero()[:, 0]
    if len(kept) > GATHER_BELOW * len(x):
        return x, rows
    return x.index_select(0, kept), rows.index_select(0, kept)
