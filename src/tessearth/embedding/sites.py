"""What the sites of a Voronoi encoder say of places: their weights, how well they cover a place, the nearest ones."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize, pad

from tessearth.embedding.fast.levels import FewSites
from tessearth.encoder import SoftVoronoi, SphericalVoronoiEncoder
from tessearth.sphere import angular_distance, mean_chord

Array = npt.NDArray[Any]
NEIGHBOURS = 6
"""The nearest sites whose mean chord is the spacing of a site whose sharpness is not tied to it."""


class SiteShares(NamedTuple):
    """The sites of one tessellation that weigh anything at a place, the heaviest first."""

    site: Array
    """Their numbers, tessellations one after another, (..., L); -1 where a place has fewer than others."""
    weight: Array
    """The place's share in each, (..., L); those left out add up to at most 2e-6."""


class Explanation(NamedTuple):
    """What an embedding is made of, as arrays whose leading shape is that of the places."""

    embedding: Array
    """(..., D)."""
    token_attention: Array | None
    """The attention of the place to each semantic token, (..., T); None for an encoder without tokens."""
    site_weights: Array | None
    """The place's share in every site, (..., K), tessellations one after another; None where `shares` says it."""
    shares: tuple[SiteShares, ...] | None = None
    """The few sites a place uses, by tessellation, for an encoder with levels of sharp sites."""


class Support(NamedTuple):
    """The coverage of a place by sites: far from every site, an embedding is a guess."""

    entropy: Array
    """Entropy of the site weights in nats, the mean over tessellations: 0 for one site, ln K for equal weights."""
    distance: Array
    """Distance to the nearest site, in degrees of arc."""
    relative: Array | None = None
    """Distance to the nearest site of each tessellation over that site's own spacing, (..., tessellations): below 1
    between sites, large where a level has none. None for an encoder whose sharpness is not tied to spacing."""


class NearestSites(NamedTuple):
    """The sites nearest to a place, nearest first, (..., k) each."""

    site: Array
    """Their numbers, tessellations one after another."""
    distance: Array
    """In degrees of arc."""


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
        """The fields of `Support` at directions (N, 3) whose sites have weights (N, L) in each tessellation."""
        entropy = torch.stack([torch.special.entr(part).sum(-1) for part in weights]).mean(0)
        if self.spacing is None:
            return entropy, self.nearest(xyz, 1)[1][..., 0]
        found = [_nearest(xyz, positions, 1) for positions in self.positions]
        angle = torch.cat([part for _, part in found], dim=-1)
        own = [gap[living][at] for gap, living, (at, _) in zip(self.spacing, self.living, found, strict=True)]
        return entropy, angle.amin(-1).rad2deg(), (angle / torch.cat(own, dim=-1)).to(entropy.dtype)


def explain_few(few: FewSites, batches: Iterable[Tensor], top_k: int | None) -> Explanation:
    """The explanation of directions that come in batches, (n, 3) each."""
    embeddings, attentions, nearby = zip(*(few.explain(xyz, top_k) for xyz in batches), strict=True)
    attention = None if attentions[0] is None else _join(attentions)
    shares = [
        SiteShares(_pad([part.sites for part in parts], -1), _pad([part.weights for part in parts], 0))
        for parts in zip(*nearby, strict=True)
    ]
    return Explanation(_join(embeddings), attention, None, tuple(shares))


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


def _join(parts: Iterable[Any]) -> Array:
    whole: Array = torch.cat(list(parts)).cpu().numpy()
    return whole


def _pad(parts: list[Tensor], value: int) -> Array:
    """Batches of lists of different lengths as one array."""
    longest = max(part.shape[1] for part in parts)
    return _join(pad(part, (0, longest - part.shape[1]), value=value) for part in parts)
