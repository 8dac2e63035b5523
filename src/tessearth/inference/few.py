"""A single place, as fast as it goes: vectors are small, so what counts is how few numbers are read and calls made.

numpy's small calls cost a fraction of torch's and share its memory; sites that weigh next to nothing are not read.
"""

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.inference.compact_head import CompactHead
from tessearth.inference.folding import Folded
from tessearth.inference.mixtures import TessellationMixture

Floats = npt.NDArray[np.float32]

LIGHT = (16.0, 256.0)
"""How many times less than epsilon a site weighs that one tries to leave out, the boldest try first."""

FULL_ABOVE = 0.6
"""The share of units that speak above which a layer is multiplied whole."""

START = torch.zeros(1, dtype=torch.int64)


class OneMixture:
    """A tessellation's mixture at one place, by its heaviest sites: the others weigh at most epsilon together."""

    def __init__(self, mixture: TessellationMixture) -> None:
        self.slopes = mixture.logits.slopes.T.contiguous().numpy()  # (3, K)
        self.offsets = mixture.logits.offsets.numpy() if bool(mixture.logits.offsets.any()) else None
        self.rows, self.onwards, self.epsilon = mixture.rows, mixture.onwards, mixture.epsilon

    def __call__(self, here: Floats) -> Floats:
        """(3,) -> (W,)."""
        logits = here[0] * self.slopes[0] + here[1] * self.slopes[1] + here[2] * self.slopes[2]
        if self.offsets is not None:
            logits += self.offsets
        logits -= logits.max()
        weights = np.exp(logits, out=logits)
        return _apply(self.onwards, _sum_rows(self.rows, *self._heaviest(weights)))

    def _heaviest(self, weights: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        total = weights.sum(dtype=np.float64)
        for light in LIGHT:
            kept = np.flatnonzero(weights > total * (self.epsilon / light))
            shares = weights[kept]
            held = shares.sum(dtype=np.float64)
            if held >= (1 - self.epsilon) * total:
                return kept, shares / np.float32(held)
        return np.arange(len(weights)), weights / np.float32(total)


class OnePlace:
    """The fast path for one direction; it shares its tensors with the path for many."""

    def __init__(self, mixtures: list[TessellationMixture], folded: Folded, head: CompactHead) -> None:
        self.mixtures = [OneMixture(mixture) for mixture in mixtures]
        self.folded = folded
        self.offset, self.tokens, self.bias = folded.offset.numpy(), folded.tokens, folded.bias.numpy()
        self.coordinates = folded.coordinates
        layers = ((layer.columns, layer.bias.numpy()) for block in head.blocks for layer in block)
        self.blocks = list(zip(*[iter(layers)] * 2, strict=True))
        self.exit = head.exit

    def embed(self, here: Floats, features: Floats | None) -> Floats:
        """The head's raw output, (3,) -> (D,); `features` are the coordinates' own, (6 octaves,)."""
        mixed = self.offset
        for mixture in self.mixtures:
            mixed = mixed + mixture(here)
        x = self._activate(mixed, features)
        for (first, first_bias), (second, second_bias) in self.blocks:
            inner = _relu(_times(x, first) + first_bias)
            x = x + _relu(_times(inner, second) + second_bias)
        return _times(x, self.exit)

    def _activate(self, mixed: Floats, features: Floats | None) -> Floats:
        """What `Folded.activate` does, for one place."""
        tokens, width, hidden = self.folded.num_tokens, self.folded.blend_dim, self.folded.hidden_dim
        both = mixed[tokens : tokens + width + hidden]
        if tokens:
            logits = mixed[:tokens]
            if self.folded.compares_directions:
                logits = logits / max(float(np.linalg.norm(mixed[tokens + width + hidden :])), 1e-12)
            attention = np.exp(logits - logits.max())
            both = both + _apply(self.tokens, attention / attention.sum())
        blend = both[:width]
        entry = both[width:] / np.float32(np.sqrt(float(blend @ blend) / width + self.folded.eps)) + self.bias
        if self.coordinates is not None and features is not None:
            entry = entry + _apply(self.coordinates, features)
        return _relu(entry)


def _times(x: Floats, rows: Tensor) -> Floats:
    """X @ rows, (n,) and (n, m) -> (m,), by the rows of units that are not silent where those are clearly fewer."""
    heard = np.flatnonzero(x)
    if len(heard) > FULL_ABOVE * len(x):
        return _apply(rows.T, x)
    return _sum_rows(rows, heard, x[heard])


def _apply(matrix: Tensor, x: Floats) -> Floats:
    """Matrix @ x, by torch: numpy's products start threads of their own, which torch's then wait for."""
    product: Floats = torch.mv(matrix, torch.from_numpy(x)).numpy()
    return product


def _sum_rows(rows: Tensor, which: npt.NDArray[np.int64], shares: Floats) -> Floats:
    """Some rows of a table (n, m), each times its share, added up: (m,), no copy made of them."""
    bag = torch.embedding_bag(rows, torch.from_numpy(which), START, False, 0, False, torch.from_numpy(shares))
    total: Floats = bag[0].numpy()[0]
    return total


def _relu(x: Floats) -> Floats:
    rectified: Floats = np.maximum(x, np.float32(0), out=x)
    return rectified
