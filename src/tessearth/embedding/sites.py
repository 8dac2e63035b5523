"""What the sites of a Voronoi encoder say of places: their weights, how well they cover a place, the nearest ones."""

from collections.abc import Callable, Iterable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import normalize

from tessearth.embedding.engines import Places, VoronoiEngine
from tessearth.embedding.fast.listed import Nearby
from tessearth.encoder import SoftVoronoi
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


class Territory:
    """Where an encoder's sites are, and how far apart."""

    def __init__(self, engine: VoronoiEngine) -> None:
        voronois = engine.encoder.voronois()
        self.is_exact = engine.is_sparse  # nearby sites of fine levels differ by less than float32's products tell
        self.positions = [self._locate(voronoi) for voronoi in voronois]
        is_spaced = any(voronoi.config.is_spaced for voronoi in voronois)
        self.spacing = [_spacing(voronoi) for voronoi in voronois] if is_spaced else None
        """(K,) for each tessellation, in radians."""

    def _locate(self, voronoi: SoftVoronoi) -> Tensor:
        positions = normalize(voronoi.positions(), dim=-1)
        if voronoi.config.logits != "paper":
            positions = positions.masked_fill((voronoi.territory == -torch.inf)[:, None], torch.nan)
        return positions.double() if self.is_exact else positions

    def nearest(self, xyz: Tensor, count: int) -> tuple[Tensor, Tensor]:
        """Numbers and distances in degrees, each (N, count), of the sites nearest to directions (N, 3)."""
        return _nearest(xyz, torch.cat(self.positions), count)

    def support(self, xyz: Tensor, weights: Iterable[Tensor]) -> tuple[Tensor, ...]:
        """The fields of `Support` at directions (N, 3) whose sites have weights (N, L) in each tessellation."""
        entropy = torch.stack([torch.special.entr(part).sum(-1) for part in weights]).mean(0)
        if self.spacing is None:
            return entropy, self.nearest(xyz, 1)[1][..., 0]
        found = [_nearest(xyz, positions, 1) for positions in self.positions]
        distance = torch.cat([part.distance for part in found], dim=-1)
        own = torch.cat([spacing[part.site] for spacing, part in zip(self.spacing, found, strict=True)], dim=-1)
        return entropy, distance.amin(-1), (distance.deg2rad() / own).to(entropy.dtype)


class _Found(NamedTuple):
    site: Tensor
    distance: Tensor


def _nearest(xyz: Tensor, sites: Tensor, count: int) -> _Found:
    """Sites that take no part have no position, and are nearest to nothing."""
    xyz = xyz.to(sites.dtype)
    index = (xyz @ sites.T).nan_to_num_(nan=-2.0).topk(count, dim=-1).indices
    distance, order = angular_distance(xyz[:, None, :], sites[index]).sort(dim=-1)
    return _Found(index.gather(-1, order), distance.rad2deg())


def _spacing(voronoi: SoftVoronoi) -> Tensor:
    if voronoi.config.is_spaced:
        return voronoi.spacing
    return mean_chord(normalize(voronoi.positions(), dim=-1), min(NEIGHBOURS, voronoi.config.num_sites - 1))
