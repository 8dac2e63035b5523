"""An encoder with levels by the few sites that matter at a place, on any device and in any precision.

What the plain strategy computes from every site's weight is computed here from lists: embeddings on a GPU and with
`top_k`, explanations, and what the explorer asks of sites.
"""

import functools
import importlib.util
import math
from collections.abc import Iterable, Sequence

import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessearth.embedding.fast.bounds import EPSILON
from tessearth.embedding.fast.listed import ListedSites, Nearby, takes_lists
from tessearth.encoder import SoftVoronoi, SphericalVoronoiEncoder, mix_listed
from tessearth.sphere import angular_distance, cell_keys, mean_chord

NEIGHBOURS = 6
"""The nearest sites whose mean chord is the spacing of a site whose sharpness is not tied to it."""
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

    @functools.cached_property
    def site_map(self) -> "SiteMap":
        """Where the sites are."""
        is_exact = any(takes_lists(voronoi) for voronoi in self.encoder.voronois())
        return SiteMap(self.encoder, is_exact=is_exact)

    @property
    def widest(self) -> int:
        """The numbers per place of the widest array in memory."""
        dense = [voronoi.config.num_sites for voronoi in self.encoder.voronois() if not takes_lists(voronoi)]
        return max(LISTED_AT_ONCE, 4 * self.encoder.output_dim, *dense)

    def weigh(self, xyz: Tensor, top_k: int | None = None) -> list[Nearby]:
        """The sites that matter at directions (N, 3) in each tessellation, with their weights; see `number`."""
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

    def number(self, nearby: list[Nearby]) -> list[Nearby]:
        """The sites of `weigh` by the encoder's numbers, tessellations one after another."""
        found = []
        for level, part, first in zip(self.levels, nearby, self.first, strict=True):
            own = part.sites if isinstance(level, SoftVoronoi) else level.regions.order[part.sites]
            found.append(Nearby(own + first, part.weights))
        return found

    def add_up(self, nearby: list[Nearby], season: Tensor | None = None) -> list[Tensor]:
        """The mixtures of the numbers of sites by weights, of those over the year or of all."""
        return [
            level.mix(part.weights) if isinstance(level, SoftVoronoi) else level.add_up(part, level.rows_for(season))
            for level, part in zip(self.levels, nearby, strict=True)
        ]

    def embed_xyz(self, xyz: Tensor, top_k: int | None = None, season: Tensor | None = None) -> Tensor:
        """Embeddings (N, D) of directions (N, 3), over the year or at shares of it, (N,)."""
        by_kernels = xyz.is_cuda and xyz.dtype == torch.float32 and top_k is None and has_kernels()
        mixtures = self.mix_by_kernels(xyz, season) if by_kernels else self.add_up(self.weigh(xyz, top_k), season)
        return self.encoder.from_mixtures(xyz, mixtures, season)[0]

    def share(self, nearby: list[Nearby], sites: Tensor) -> Tensor:
        """The weights of sites (N, m), numbered tessellations one after another, at the places of `weigh`."""
        found = torch.zeros(sites.shape, dtype=nearby[0].weights.dtype, device=sites.device)
        for part in self.number(nearby):
            is_it = part.sites[:, None, :] == sites[:, :, None]
            found += (is_it * part.weights[:, None, :]).sum(-1)
        return found

    def average(self, nearby: list[Nearby], values: Sequence[Tensor]) -> list[Tensor]:
        """Each tessellation's mean of a number per site, (K,), by the weights of places, (N,)."""
        found = []
        numbered = self.number(nearby)
        for level, part, value, first in zip(self.levels, numbered, values, self.first, strict=True):
            if isinstance(level, SoftVoronoi) and level.config.background is None:
                found.append(part.weights @ value)
            else:
                total = part.weights.sum(-1).clamp_min(torch.finfo(value.dtype).tiny)
                found.append((part.weights * value[part.sites - first]).sum(-1) / total)
        return found

    def mix_by_kernels(self, xyz: Tensor, season: Tensor | None = None) -> list[Tensor]:
        """The same at directions (N, 3), without a weight in memory for lists."""
        keys, mixtures = cell_keys(xyz), []
        for level in self.levels:
            if isinstance(level, SoftVoronoi):
                mixtures.append(level.mix(level.weights(xyz)))
                continue
            level.prepare(keys)
            background = -math.inf if level.background is None else level.background
            table = [*level.columns, level.rows_for(season), *level.regions.joined()]
            mixtures.append(mix_listed(xyz, background, table, False)[0])
        return mixtures

    def explain(self, xyz: Tensor, top_k: int | None = None) -> tuple[Tensor, Tensor | None, list[Nearby]]:
        """Embeddings (N, D), token attention (N, T), and the sites of each tessellation that weigh anything.

        Sites are numbered tessellations one after another, the heaviest first; -1 stands where a place has fewer.
        """
        nearby = self.weigh(xyz, top_k)
        embedding, attention = self.encoder.from_mixtures(xyz, self.add_up(nearby))
        return embedding, attention, [shorten(part) for part in self.number(nearby)]


@functools.cache
def has_kernels() -> bool:
    """Whether Triton is there, which comes with most builds of PyTorch for GPUs."""
    return importlib.util.find_spec("triton") is not None


def shorten(nearby: Nearby) -> Nearby:
    """The heaviest sites first, without those that weigh epsilon together."""
    weights, order = nearby.weights.sort(dim=-1, descending=True, stable=True)
    sites = nearby.sites.gather(-1, order).long()
    rest = weights.flip(-1).cumsum(-1).flip(-1)  # of this site and the lighter ones
    light = rest <= EPSILON
    longest = int((~light).sum(-1).max()) if len(light) else 0
    return Nearby(sites.masked_fill(light, -1)[:, :longest], weights.masked_fill(light, 0)[:, :longest])


class SiteMap:
    """Where the sites of an encoder are, and how far apart; those that take no part are nowhere."""

    def __init__(self, encoder: SphericalVoronoiEncoder, *, is_exact: bool) -> None:
        """`is_exact` measures in float64, where float32 cannot tell which of two sites is nearer."""
        voronois, dtype = encoder.voronois(), torch.float64 if is_exact else encoder.input_dtype
        sizes = [voronoi.config.num_sites for voronoi in voronois]
        self.living = [_living(voronoi) for voronoi in voronois]
        positions = [normalize(voronoi.positions().to(dtype), dim=-1) for voronoi in voronois]
        self.positions = [part[living] for part, living in zip(positions, self.living, strict=True)]
        self.first = [sum(sizes[:i]) for i in range(len(sizes))]
        is_spaced = any(voronoi.config.is_spaced for voronoi in voronois)
        self.spacing = [_spacing(voronoi) for voronoi in voronois] if is_spaced else None
        """(K,) for each tessellation, in radians."""

    def nearest(self, xyz: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Numbers and distances in degrees, each (N, count), of the sites nearest to directions (N, 3)."""
        numbers = torch.cat([living + first for living, first in zip(self.living, self.first, strict=True)])
        index, distance = _nearest(xyz, torch.cat(self.positions), count)
        return numbers[index], distance.rad2deg()

    def support(self, xyz: Tensor, weights: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """The fields of `sites.Support` at directions (N, 3) whose sites have weights (N, L) in each tessellation."""
        entropy = torch.stack([torch.special.entr(part).sum(-1) for part in weights]).mean(0)
        if self.spacing is None:
            return entropy, self.nearest(xyz, 1)[1][..., 0]
        found = [_nearest(xyz, positions, 1) for positions in self.positions]
        angle = torch.cat([part for _, part in found], dim=-1)
        own = [gap[living][at] for gap, living, (at, _) in zip(self.spacing, self.living, found, strict=True)]
        return entropy, angle.amin(-1).rad2deg(), (angle / torch.cat(own, dim=-1)).to(entropy.dtype)


def _nearest(xyz: Tensor, sites: Tensor, count: int) -> tuple[Tensor, Tensor]:
    """Indices and distances in radians, each (N, count), of the sites nearest to each direction."""
    xyz = xyz.to(sites.dtype)
    index = (xyz @ sites.T).topk(min(count, len(sites)), dim=-1).indices
    distance, order = angular_distance(xyz[:, None, :], sites[index]).sort(dim=-1)
    return index.gather(-1, order), distance


def _living(voronoi: SoftVoronoi) -> Tensor:
    numbers = torch.arange(voronoi.config.num_sites, device=voronoi.directions.device)
    return numbers if voronoi.config.logits == "paper" else numbers[voronoi.territory > -torch.inf]


def _spacing(voronoi: SoftVoronoi) -> Tensor:
    if voronoi.config.is_spaced:
        return voronoi.spacing
    return mean_chord(normalize(voronoi.positions(), dim=-1), min(NEIGHBOURS, voronoi.config.num_sites - 1))
