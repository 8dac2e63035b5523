"""A fresh encoder, its sites on a lattice or on the clusters of another encoder's embeddings."""

import torch
from torch import Tensor

from tessearth.embedding.embedder import Embedder
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.sites import SiteStart
from tessearth.encoder.voronoi import EMBEDDING_SPREAD
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.sphere.sampling import sample_land
from tessearth.training.centring import centre_
from tessearth.training.recipe import Recipe, SitesRecipe

ROWS_AT_ONCE = 8192


def build_encoder(recipe: Recipe, generator: torch.Generator) -> SphericalVoronoiEncoder:
    """An encoder with random weights, in training mode."""
    positions: SiteStart | list[Tensor]
    if recipe.sites.start == "clusters":
        counts = [tessellation.num_sites for tessellation in recipe.encoder.tessellations]
        positions = cluster_sites(recipe.sites, counts, recipe.training.seed)
    else:
        positions = recipe.sites.start
    encoder = SphericalVoronoiEncoder(recipe.encoder, sites=positions, generator=generator)
    if recipe.sites.spread != EMBEDDING_SPREAD:
        for voronoi in encoder.voronois():
            voronoi.embeddings.data *= recipe.sites.spread / EMBEDDING_SPREAD
    if recipe.sites.centred:
        centre_(encoder)
    return encoder


def cluster_sites(recipe: SitesRecipe, counts: list[int], seed: int) -> list[Tensor]:
    """Where another encoder's embeddings cluster, (K, 3) for every count of sites.

    Places drawn over land are embedded and clustered by k-means; a site is the mean of its cluster's places, brought
    back to the sphere. A cluster whose places surround the globe evenly has no mean: its first place stands for it.
    """
    if recipe.model is None:
        raise ConfigError("sites.model is missing: name the encoder whose embeddings are clustered")
    if max(counts) > recipe.places:
        raise ConfigError(f"sites.places is {recipe.places}, fewer than the {max(counts)} sites to be found among them")
    latlon = sample_land(recipe.places, seed, purpose="clusters")
    embeddings = torch.from_numpy(Embedder(recipe.model).embed(latlon)).float()
    xyz = latlon_to_xyz(torch.from_numpy(latlon))
    return [_means_on_sphere(xyz, k_means(embeddings, count, recipe.rounds, seed), count) for count in counts]


def k_means(points: Tensor, clusters: int, rounds: int, seed: int) -> Tensor:
    """Which cluster each point is in, (N, D) -> (N,), by Lloyd's rounds from randomly chosen points.

    A cluster that loses all its points is given the one farthest from its centre, so that all stay in use.
    """
    generator = torch.Generator().manual_seed(seed)
    centres = points[torch.randperm(len(points), generator=generator)[:clusters]].clone()
    for last in reversed(range(rounds)):
        distance, nearest = _nearest(points, centres)
        empty = torch.bincount(nearest, minlength=clusters) == 0
        farthest = distance.topk(int(empty.sum())).indices
        nearest[farthest] = empty.nonzero().flatten()
        if not last:
            break
        counts = torch.bincount(nearest, minlength=clusters).clamp_min(1)
        centres = torch.zeros_like(centres).index_add_(0, nearest, points) / counts[:, None]
    return nearest


def _nearest(points: Tensor, centres: Tensor) -> tuple[Tensor, Tensor]:
    squares = centres.square().sum(-1)
    found = [(squares - 2 * rows @ centres.T).min(-1) for rows in torch.split(points, ROWS_AT_ONCE)]
    distance = torch.cat([part.values for part in found]) + points.square().sum(-1)
    return distance, torch.cat([part.indices for part in found])


def _means_on_sphere(xyz: Tensor, cluster: Tensor, count: int) -> Tensor:
    sums = torch.zeros(count, 3, dtype=xyz.dtype).index_add_(0, cluster, xyz)
    length = sums.norm(dim=-1, keepdim=True)
    first = torch.full((count,), len(xyz), dtype=torch.long)
    first.scatter_reduce_(0, cluster, torch.arange(len(xyz)), "amin")
    return torch.where(length > 1e-6, sums / length.clamp_min(1e-6), xyz[first.clamp_max(len(xyz) - 1)])
