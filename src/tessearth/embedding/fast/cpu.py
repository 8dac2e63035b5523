"""The fast path of a Voronoi encoder on a CPU: neighbours together, short series for sites, a head that skips zeros.

Equal to the plain path up to rounding and the epsilon of `assignment` and `expansion`.
"""

from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessearth.embedding.fast.block_threads import for_each_block
from tessearth.embedding.fast.bounds import EPSILON, read_logits
from tessearth.embedding.fast.few import Floats, OnePlace
from tessearth.embedding.fast.grouping import SortedPlaces, sort_places
from tessearth.embedding.fast.head import Folded, fold
from tessearth.embedding.fast.mixture import TessellationMixture, Way
from tessearth.embedding.fast.precision import FastHead, Precision
from tessearth.encoder.model import SphericalVoronoiEncoder

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

    def calibrate(self, xyz: Tensor) -> None:
        """Round the head to eight bits by what it is fed at these places."""
        places = SortedPlaces(torch.arange(len(xyz)), torch.zeros(len(xyz), dtype=torch.long))
        self.head.calibrate(self._activate(xyz, places.fine, [Way()] * len(self.mixtures)))

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
