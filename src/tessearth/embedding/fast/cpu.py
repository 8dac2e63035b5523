"""The fast path of a Voronoi encoder on a CPU: neighbours together, short series for sites, a head that skips zeros.

Equal to the plain path up to rounding and the epsilon of `assignment` and `expansion`.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON, read_logits, sort_places
from tessearth.embedding.fast.head import CompactHead, FastHead, Folded, Precision, fold
from tessearth.embedding.fast.mixture import TessellationMixture, Way
from tessearth.encoder.model import SphericalVoronoiEncoder


def for_each_block(work: Callable[[int], None], blocks: Sequence[int]) -> None:
    """Call `work` with every block, by as many threads as torch was given; each must write to a place of its own."""
    allowed = torch.get_num_threads()
    if min(allowed, len(blocks)) < 2:
        for block in blocks:
            work(block)
        return

    def quietly(block: int) -> None:
        with torch.inference_mode():  # which is a thread's own
            work(block)

    try:
        with ThreadPoolExecutor(min(allowed, len(blocks)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(quietly, blocks):
                pass
    finally:
        torch.set_num_threads(allowed)  # threads that start later take what was set last


Floats = npt.NDArray[np.float32]

LIGHT = (128.0, 512.0)
"""How many times less than epsilon a site weighs that one tries to leave out, the boldest try first."""

ROUNDED_SUM = 0.9
"""How much of epsilon may be left out: float32 shares add up to one but for their rounding."""

FULL_ABOVE = 0.7
"""The share of units that speak above which a layer is multiplied whole."""

START = torch.zeros(1, dtype=torch.int64)
ZERO = np.float32(0)


class OneMixture:
    """A tessellation's mixture at one place, by its heaviest sites: the others weigh at most epsilon together."""

    def __init__(self, mixture: TessellationMixture) -> None:
        self.slopes = mixture.logits.slopes.T.contiguous().T  # (K, 3), each coordinate's numbers side by side
        self.offsets = mixture.logits.offsets
        self.rows, self.onwards, self.epsilon = mixture.rows, mixture.onwards, mixture.epsilon

    def add_to(self, mixed: Tensor, here: Tensor) -> Tensor:
        """(W,) and the direction, (3,), to (W,)."""
        weights = torch.softmax(torch.addmv(self.offsets, self.slopes, here), dim=0).numpy()
        return torch.addmv(mixed, self.onwards, _sum_rows(self.rows, *self._heaviest(weights)))

    def _heaviest(self, weights: Floats) -> tuple[npt.NDArray[np.int64], Floats]:
        for light in LIGHT:
            kept = (weights > self.epsilon / light).nonzero()[0]
            shares = weights[kept]
            held = shares.sum(dtype=np.float64)
            if held >= 1 - ROUNDED_SUM * self.epsilon:
                return kept, shares / np.float32(held)
        return np.arange(len(weights)), weights


class OnePlace:
    """The fast path for one direction; it shares its tensors with the path for many."""

    def __init__(
        self, mixtures: list[TessellationMixture], folded: Folded, head: CompactHead, octaves: int, normalize: bool
    ) -> None:
        self.mixtures = [OneMixture(mixture) for mixture in mixtures]
        self.folded, self.bias, self.normalize = folded, folded.bias.numpy(), normalize
        self.octaves = np.float32(np.pi) * np.exp2(np.arange(octaves, dtype=np.float32))[:, None]
        layers = ((layer.columns, layer.bias) for block in head.blocks for layer in block)
        self.blocks = list(zip(*[iter(layers)] * 2, strict=True))
        self.exit, self.silent = head.exit, torch.zeros(head.exit.shape[1])

    def embed(self, here: Floats) -> Floats:
        """A direction's embedding, (3,) -> (D,)."""
        mixed, direction = self.folded.offset, torch.from_numpy(here)
        for mixture in self.mixtures:
            mixed = mixture.add_to(mixed, direction)
        x = _relu(self._enter(mixed, here))
        for first, second in self.blocks:
            x = x + _relu(_times(_relu(_times(x, *first)), *second))
        raw = _times(x, self.exit, self.silent)
        return raw / max(np.sqrt(raw @ raw), np.float32(1e-12)) if self.normalize else raw

    def _enter(self, mixed: Tensor, here: Floats) -> Floats:
        """What `Folded.activate` does, for one place, before its rectification."""
        folded, tokens = self.folded, self.folded.num_tokens
        width = folded.blend_dim
        both = mixed[tokens : tokens + width + folded.hidden_dim]
        if tokens:
            numbers = mixed.numpy()
            logits = numbers[:tokens]
            if folded.compares_directions:
                logits = logits / max(float(np.linalg.norm(numbers[tokens + len(both) :])), 1e-12)
            attention = np.exp(logits - logits.max())
            both = torch.addmv(both, folded.tokens, torch.from_numpy(attention / attention.sum()))
        numbers = both.numpy()
        blend = numbers[:width]
        scale = np.float32(np.sqrt(float(blend @ blend) / folded.spread + folded.eps))
        entry: Floats = numbers[width:] / scale + self.bias
        if folded.coordinates is None:
            return entry
        return torch.addmv(torch.from_numpy(entry), folded.coordinates, self._features(here)).numpy()

    def _features(self, here: Floats) -> Tensor:
        """Sines and cosines of every octave, (6 octaves,), as `SphericalVoronoiEncoder.coordinate_features`."""
        angles = (here * self.octaves).ravel()
        return torch.from_numpy(np.concatenate((np.sin(angles), np.cos(angles))))


def _times(x: Floats, rows: Tensor, bias: Tensor) -> Floats:
    """X @ rows + bias, (n,), (n, m), (m,) -> (m,), by the rows of units that speak where those are clearly fewer."""
    heard = x.nonzero()[0]
    if len(heard) > FULL_ABOVE * len(x):
        # By torch: numpy's products start threads of their own, which torch's then wait for.
        return torch.addmv(bias, rows.T, torch.from_numpy(x)).numpy()
    return _sum_rows(rows, heard, x[heard]).add_(bias).numpy()


def _sum_rows(rows: Tensor, which: npt.NDArray[np.int64], shares: Floats) -> Tensor:
    """Some rows of a table (n, m), each times its share, added up: (m,), no copy made of them."""
    bag = torch.embedding_bag(rows, torch.from_numpy(which), START, False, 0, False, torch.from_numpy(shares))
    return bag[0][0]


def _relu(x: Floats) -> Floats:
    rectified: Floats = np.maximum(x, ZERO, out=x)
    return rectified


ROWS_AT_ONCE = 512
"""Places whose activations are held at once: they stay in a CPU's second cache, and neighbours share silent units."""

FEW_PLACES = 4
"""Up to this many places are embedded one by one."""


class FastVoronoi:
    """A Voronoi encoder on a CPU, prepared for speed: directions in, embeddings out, as `embed_xyz` gives them."""

    def __init__(self, encoder: SphericalVoronoiEncoder, precision: Precision, epsilon: float = EPSILON) -> None:
        """`encoder` is a copy of one's own, in float32 on the CPU and in evaluation mode; its head may be rounded."""
        self.encoder, self.config = encoder, encoder.config
        self.folded: Folded = fold(encoder, fewest_rows=True)
        widths = [voronoi.embeddings.shape[1] for voronoi in encoder.voronois()]
        maps = torch.split(self.folded.mixture, widths, dim=1)
        self.mixtures = [
            TessellationMixture(read_logits(voronoi), voronoi.embeddings.detach(), onwards.contiguous(), epsilon)
            for voronoi, onwards in zip(encoder.voronois(), maps, strict=True)
        ]
        self.head = FastHead(encoder.head, precision)
        self._one: OnePlace | None = None

    def embed(self, xyz: Tensor) -> Tensor:
        """(N, 3) in float32 -> (N, D)."""
        few = self.embed_few(xyz.numpy()) if 0 < len(xyz) <= FEW_PLACES else None
        return self._embed_many(xyz) if few is None else torch.from_numpy(few)

    def embed_few(self, xyz: Floats) -> Floats | None:
        """One by one, (n, 3) in float32 -> (n, D); None where the head's precision has no such way."""
        if self.head.compact is None:
            return None
        if self._one is None:
            config = self.config
            self._one = OnePlace(
                self.mixtures, self.folded, self.head.compact, config.coordinate_octaves, config.normalize
            )
        return np.stack([self._one.embed(here) for here in xyz])

    def _embed_many(self, xyz: Tensor) -> Tensor:
        places = sort_places(xyz)
        ways = [mixture.choose(places) for mixture in self.mixtures]
        sorted_xyz = xyz.index_select(0, places.order)
        out, order = torch.empty(len(xyz), self.config.output_dim), places.order.numpy()
        rows = out.numpy()

        def embed_block(start: int) -> None:
            part = slice(start, start + ROWS_AT_ONCE)
            raw = self.head(self._activate(sorted_xyz[part], places.fine[part], ways))
            rows[order[part]] = self._finish(raw).numpy()  # numpy puts rows away three times as fast as torch

        for_each_block(embed_block, range(0, len(xyz), ROWS_AT_ONCE))
        return out

    def _finish(self, raw: Tensor) -> Tensor:
        if not self.config.normalize:
            return raw
        return raw.div_(torch.linalg.vector_norm(raw, dim=1, keepdim=True).clamp_(min=1e-12))

    def _activate(self, xyz: Tensor, fine: Tensor, ways: list[Way]) -> Tensor:
        """The head's first activation, (H, N)."""
        mixed = self.folded.offset[:, None].repeat(1, len(xyz))  # a copy even for one place: what follows writes to it
        for mixture, way in zip(self.mixtures, ways, strict=True):
            mixture.add_to(mixed, xyz, fine, way)
        features = self.encoder.coordinate_features(xyz) if self.config.coordinate_octaves else None
        return self.folded.activate(mixed, features)

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"_one": None}
