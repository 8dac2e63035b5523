"""The residual head for places that lie together: units silent at all of them are left out, exactly.

Neighbours agree on most of the head's units: many are zero at every place of a block, and a zero adds nothing to the
next layer. So each layer multiplies only the rows of units that speak somewhere in the block. Which of its own units
cannot speak is known beforehand where the block is tight: with every input between its least and largest value,

    W x + b <= W middle + |W| reach + b,

and a unit whose right side is not above zero is zero at every place. Nothing is approximated; columns are places.
"""

from typing import NamedTuple

import torch
from torch import Tensor, nn

from tessearth.encoder.head import ResidualBlock, ResidualHead

GATHER_BELOW = 0.85
"""The share of rows up to which bringing the others together costs less than multiplying them all."""

PREDICT_BELOW = 0.75
"""The share of outputs up to which leaving the others out pays for bringing columns together too."""

FEWEST_PLACES = 64
"""Blocks of fewer places are cheaper without all this."""


class Units(NamedTuple):
    """Activations of some of a layer's units; the others are zero."""

    values: Tensor
    """(units, N)."""
    which: Tensor | None
    """(units,) in rising order; None is all of them."""


class CompactLayer:
    """ReLU(W x + b) by the units that can matter."""

    def __init__(self, layer: nn.Linear) -> None:
        self.columns = layer.weight.detach().T.contiguous()  # (inputs, outputs)
        self.bias = layer.bias.detach().clone()

    def __call__(self, x: Units) -> Units:
        """Units of the inputs to those of the outputs."""
        if x.values.shape[1] < FEWEST_PLACES:
            rows = self.columns if x.which is None else self.columns.index_select(0, x.which)
            return Units(torch.addmm(self.bias[:, None], rows.T, x.values).relu_(), None)
        high, low = x.values.amax(1), x.values.amin(1)
        x, kept = _speaking(x, high)
        high, low = (high, low) if kept is None else (high[kept], low[kept])
        rows = self.columns if x.which is None else self.columns.index_select(0, x.which)
        heard, bias = self._heard(rows, (high + low) / 2, (high - low) / 2), self.bias
        if heard is not None:
            rows, bias = rows.index_select(1, heard), bias[heard]
        return Units(torch.addmm(bias[:, None], rows.T, x.values).relu_(), heard)

    def _heard(self, rows: Tensor, middle: Tensor, reach: Tensor) -> Tensor | None:
        """The outputs that may be above zero somewhere, (units,); None where they are too many to choose."""
        most = torch.addmv(torch.addmv(self.bias, rows.T, middle), rows.abs().T, reach)
        heard = (most > 0).nonzero()[:, 0]
        return heard if len(heard) < PREDICT_BELOW * len(most) else None


class CompactHead:
    """The head behind its first activation, which `folding` gives."""

    def __init__(self, head: ResidualHead) -> None:
        blocks = [block for block in head.blocks if isinstance(block, ResidualBlock)]
        self.blocks = [(CompactLayer(block.first), CompactLayer(block.second)) for block in blocks]
        self.exit = head.exit.weight.detach().T.contiguous()  # (hidden, outputs)

    def __call__(self, x: Tensor) -> Tensor:
        """First activations, (hidden, N), which are used up, to outputs, (N, outputs)."""
        for first, second in self.blocks:
            added = second(first(Units(x, None)))
            x = x.add_(added.values) if added.which is None else x.index_add_(0, added.which, added.values)
        units = Units(x, None)
        if x.shape[1] >= FEWEST_PLACES:
            units = _speaking(units, x.amax(1))[0]
        rows = self.exit if units.which is None else self.exit.index_select(0, units.which)
        return units.values.T @ rows


def _speaking(x: Units, high: Tensor) -> tuple[Units, Tensor | None]:
    """The units that are above zero somewhere, where they are few enough to be worth it, and their positions in x."""
    kept = (high > 0).nonzero()[:, 0]
    if len(kept) > GATHER_BELOW * len(high):
        return x, None
    which = kept if x.which is None else x.which[kept]
    return Units(x.values.index_select(0, kept), which), kept
