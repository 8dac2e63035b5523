"""An encoder with levels by the few sites that matter at a place, on any device and in any precision.

What the plain strategy computes from every site's weight is computed here from lists: embeddings on a GPU and with
`top_k`, explanations, and what the explorer asks of sites.
"""

import functools
import importlib.util
import math

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON
from tessearth.embedding.fast.listed import ListedSites, Nearby, takes_lists
from tessearth.encoder import SoftVoronoi, SphericalVoronoiEncoder, mix_listed
from tessearth.sphere import cell_keys

LISTED_AT_ONCE = 1024
"""Numbers per place of the widest array in memory, where sites are listed."""


class FewSites:
    """The tessellations of an encoder, those with sharp sites by lists."""

    def __init__(self, encoder: SphericalVoronoiEncoder) -> None:
        self.encoder = encoder
        sizes = [voronoi.config.num_sites for voronoi in encoder.voronois()]
        self.first = [sum(sizes[:i]) for i in range(len(sizes))]
        """The number of each tessellation's first site, tessellations one after another."""

    @functools.cached_property
    def levels(self) -> list[ListedSites | SoftVoronoi]:
        """The tessellations in the form they are mixed in."""
        return [ListedSites(v) if takes_lists(v) else v for v in self.encoder.voronois()]

    @property
    def widest(self) -> int:
        """The numbers per place of the widest array in memory."""
        dense = [voronoi.config.num_sites for voronoi in self.encoder.voronois() if not takes_lists(voronoi)]
        return max(LISTED_AT_ONCE, 4 * self.encoder.output_dim, *dense)

    def weigh(self, xyz: Tensor, top_k: int | None = None) -> list[Nearby]:
        """The sites that matter at directions (N, 3) in each tessellation, with their weights."""
        keys, found = cell_keys(xyz), []
        for level in self.levels:
            if isinstance(level, SoftVoronoi):
                weights = level.weights(xyz, top_k)
                sites = torch.arange(weights.shape[1], dtype=torch.int32, device=xyz.device)
                found.append(Nearby(sites.expand_as(weights), weights))
            else:
                level.prepare(keys)
                found.append(level.weigh(xyz, keys, top_k))
        return found

    def add_up(self, nearby: list[Nearby]) -> list[Tensor]:
        """The mixtures of site embeddings by weights, (N, S) each."""
        return [
            level.mix(part.weights) if isinstance(level, SoftVoronoi) else level.add_up(part)
            for level, part in zip(self.levels, nearby, strict=True)
        ]

    def embed_xyz(self, xyz: Tensor, top_k: int | None = None) -> Tensor:
        """Embeddings (N, D) of directions (N, 3)."""
        by_kernels = xyz.is_cuda and xyz.dtype == torch.float32 and top_k is None and has_kernels()
        mixtures = self.mix_by_kernels(xyz) if by_kernels else self.add_up(self.weigh(xyz, top_k))
        return self.encoder.from_mixtures(xyz, mixtures)[0]

    def mix_by_kernels(self, xyz: Tensor) -> list[Tensor]:
        """The mixtures of site embeddings at directions (N, 3), (N, S) each, without a weight in memory for lists."""
        keys, mixtures = cell_keys(xyz), []
        for level in self.levels:
            if isinstance(level, SoftVoronoi):
                mixtures.append(level.mix(level.weights(xyz)))
                continue
            level.prepare(keys)
            table = [torch.stack(level.axes, dim=1), 2 * level.half, level.territory, level.rows]
            background = -math.inf if level.background is None else level.background
            mixtures.append(mix_listed(xyz, background, [*table, *level.regions.joined()])[0])
        return mixtures

    def explain(self, xyz: Tensor, top_k: int | None = None) -> tuple[Tensor, Tensor | None, list[Nearby]]:
        """Embeddings (N, D), token attention (N, T), and the sites of each tessellation that weigh anything.

        Sites are numbered tessellations one after another, the heaviest first; -1 stands where a place has fewer.
        """
        nearby = self.weigh(xyz, top_k)
        embedding, attention = self.encoder.from_mixtures(xyz, self.add_up(nearby))
        return embedding, attention, [shorten(part, first) for part, first in zip(nearby, self.first, strict=True)]


@functools.cache
def has_kernels() -> bool:
    """Whether Triton is there, which comes with most builds of PyTorch for GPUs."""
    return importlib.util.find_spec("triton") is not None


def shorten(nearby: Nearby, first: int) -> Nearby:
    """The heaviest sites first, numbered from `first` on, without those that weigh epsilon together."""
    weights, order = nearby.weights.sort(dim=-1, descending=True, stable=True)
    sites = nearby.sites.gather(-1, order).long() + first
    rest = weights.flip(-1).cumsum(-1).flip(-1)  # of this site and the lighter ones
    light = rest <= EPSILON
    longest = int((~light).sum(-1).max()) if len(light) else 0
    return Nearby(sites.masked_fill(light, -1)[:, :longest], weights.masked_fill(light, 0)[:, :longest])
