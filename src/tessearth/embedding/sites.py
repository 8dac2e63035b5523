"""What the sites of a Voronoi encoder say of places: their weights, how well they cover a place, the nearest ones."""

from collections.abc import Iterable
from typing import Any, NamedTuple

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from tessearth.embedding.fast.levels import FewSites

Array = npt.NDArray[Any]


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


def explain_few(few: FewSites, batches: Iterable[Tensor], top_k: int | None) -> Explanation:
    """The explanation of directions that come in batches, (n, 3) each."""
    embeddings, attentions, nearby = zip(*(few.explain(xyz, top_k) for xyz in batches), strict=True)
    attention = None if attentions[0] is None else _join(attentions)
    shares = [
        SiteShares(_pad([part.sites for part in parts], -1), _pad([part.weights for part in parts], 0))
        for parts in zip(*nearby, strict=True)
    ]
    return Explanation(_join(embeddings), attention, None, tuple(shares))


def _join(parts: Iterable[Any]) -> Array:
    whole: Array = torch.cat(list(parts)).cpu().numpy()
    return whole


def _pad(parts: list[Tensor], value: int) -> Array:
    """Batches of lists of different lengths as one array."""
    longest = max(part.shape[1] for part in parts)
    return _join(pad(part, (0, longest - part.shape[1]), value=value) for part in parts)
