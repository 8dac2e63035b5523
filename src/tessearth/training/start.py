"""The encoder that a run begins with: random or given weights, ours or a published one (`build_start`).

Sites start on a lattice, at clusters of another encoder, where a finished run errs, or at places of a density.
"""

import dataclasses
from collections.abc import Sequence
from typing import Any

import torch
from torch import Tensor, nn

from tessearth.embedding import Embedder
from tessearth.encoder import (
    EMBEDDING_SPREAD,
    LocationEncoder,
    ResidualBlock,
    SphericalVoronoiEncoder,
    add_slots,
    start_sites,
)
from tessearth.errors import ConfigError
from tessearth.imagery import read_density
from tessearth.packages import require
from tessearth.sphere import latlon_to_xyz, sample_land
from tessearth.training.finished import read_residuals
from tessearth.training.recipe import ENCODERS, Recipe, describe_encoder
from tessearth.training.sites_recipe import SitesRecipe, Start
from tessearth.zoo import build_baseline, load_base

PLACES_PER_SITE = 8
"""Of a density at least so many places are drawn for each site, whose mean it becomes."""
EVENING_ROUNDS = 4
"""Sites that are drawn at random clump; a few rounds spread them within their neighbourhood and keep their density."""
ROWS_AT_ONCE = 8192
CENTRING_PLACES = 8192
"""The number of places, spread evenly over the sphere, whose mean is subtracted."""
ROUNDS = 8
"""Shifted site embeddings change the tokens' mixtures, so the mean is subtracted again, this many times in all."""


def build_start(recipe: Recipe, generator: torch.Generator) -> LocationEncoder:
    """The encoder before its first step, in training mode."""
    if recipe.start_from is not None:
        return _load_start(recipe, recipe.start_from).train()
    if recipe.baseline is not None:
        return build_baseline(recipe.baseline.name, recipe.baseline.settings, seed=recipe.training.seed).train()
    return build_encoder(recipe, generator)


def _load_start(recipe: Recipe, name: str) -> LocationEncoder:
    """The encoder of given weights, with empty slots where it is to grow."""
    encoder = load_base(name)
    budgets = tuple(t.num_sites for t in recipe.encoder.tessellations)
    if recipe.sites.growth is not None and isinstance(encoder, SphericalVoronoiEncoder):
        found = tuple(t.num_sites for t in encoder.config.tessellations)
        asked = recipe.sites.growth.start
        if asked not in (None, found):
            raise ConfigError(f"sites.growth.start is {list(asked or ())}, and {name} has {list(found)}; leave it out")
        if len(found) == len(budgets) and all(a <= b for a, b in zip(found, budgets, strict=True)):
            encoder = add_slots(encoder, budgets)
    described, wanted = describe_encoder(encoder), recipe.to_dict()
    if any(described.get(table) != wanted.get(table) for table in ENCODERS):
        raise ConfigError(
            f"start_from: {name} is an encoder of other sizes than the recipe's; "
            f"take its own with --set encoder=none, or leave [encoder] out"
        )
    return encoder


def build_encoder(recipe: Recipe, generator: torch.Generator) -> SphericalVoronoiEncoder:
    """An encoder with random weights, in training mode; where it is to grow, with empty slots."""
    budgets = tuple(t.num_sites for t in recipe.encoder.tessellations)
    growth = recipe.sites.growth
    counts = budgets if growth is None or growth.start is None else growth.start
    sizes = zip(recipe.encoder.tessellations, counts, strict=True)
    config = dataclasses.replace(
        recipe.encoder, tessellations=tuple(dataclasses.replace(t, num_sites=count) for t, count in sizes)
    )
    positions = place_sites(recipe.sites, counts, recipe.training.seed)
    encoder = SphericalVoronoiEncoder(config, sites=positions, generator=generator)
    if recipe.sites.spread != EMBEDDING_SPREAD:
        for voronoi in encoder.voronois():
            voronoi.embeddings.data *= recipe.sites.spread / EMBEDDING_SPREAD
    if recipe.sites.centred:
        centre_(encoder)
    return add_slots(encoder, budgets)


def place_sites(recipe: SitesRecipe, counts: Sequence[int], seed: int) -> list[Tensor]:
    """Start positions of so many sites in each tessellation, (K, 3) unit vectors each."""
    starts = recipe.starts(len(counts))
    return [_place(recipe, start, count, seed) for start, count in zip(starts, counts, strict=True)]


def _place(recipe: SitesRecipe, start: Start, count: int, seed: int) -> Tensor:
    if start == "land" or start == "full":  # noqa: PLR1714 (mypy narrows by ==)
        return start_sites(start, count)
    if start == "clusters":
        return cluster_sites(recipe, [count], seed)[0]
    if start == "density":
        assert recipe.density is not None, "a recipe that starts by density names the file"
        density = read_density(recipe.density, above=recipe.density_above, km=recipe.density_km)
        drawn = density.draw(max(recipe.places, PLACES_PER_SITE * count), seed)
        places = latlon_to_xyz(torch.from_numpy(drawn))
        return spread_sites(places, places.new_ones(len(places)), count, seed)
    assert recipe.model is not None, "a recipe that starts by error names the run"
    latlon, residual = read_residuals(recipe.model, recipe.places)
    return spread_sites(latlon_to_xyz(latlon), residual, count, seed)


def spread_sites(places: Tensor, weights: Tensor, count: int, seed: int) -> Tensor:
    """Sites as dense as the weights of places, evenly spaced for their density: (P, 3) and (P,) -> (count, 3).

    Drawn with probability in proportion to the weight, each place at most once, then moved to the weighted mean of the
    places that are nearest to them (Lloyd's rounds).
    """
    if int((weights > 0).sum()) < count:
        raise ConfigError(
            f"{count} sites cannot be drawn from {int((weights > 0).sum())} places of any weight; raise sites.places, "
            f"or ask for fewer sites"
        )
    spatial = require("scipy.spatial", extra="data", what="evenly spaced sites")
    generator = torch.Generator().manual_seed(seed)
    waits = torch.empty(len(weights), dtype=torch.float64).exponential_(generator=generator) / weights
    sites = places[waits.sort(stable=True).indices[:count]].clone()
    for _ in range(EVENING_ROUNDS):
        nearest = torch.from_numpy(spatial.cKDTree(sites.numpy()).query(places.numpy())[1])
        sums = torch.zeros_like(sites).index_add_(0, nearest, places * weights[:, None])
        length = sums.norm(dim=-1, keepdim=True)
        sites = torch.where(length > 0, sums / length.clamp_min(1e-300), sites)
    return sites


def cluster_sites(recipe: SitesRecipe, counts: list[int], seed: int) -> list[Tensor]:
    """Site positions from clusters of another encoder's embeddings, (K, 3) for every count of sites.

    Places drawn over land are embedded and clustered by k-means; a site is the mean of its cluster's places, projected
    to the sphere. A cluster whose places surround the globe evenly has no mean: its first place is the site.
    """
    assert recipe.model is not None, "a recipe of clusters names the encoder"
    if max(counts) > recipe.places:
        raise ConfigError(f"sites.places is {recipe.places}, fewer than the {max(counts)} sites to be found among them")
    latlon = sample_land(recipe.places, seed, purpose="clusters")
    embeddings = torch.from_numpy(Embedder(recipe.model).embed(latlon)).float()
    xyz = latlon_to_xyz(torch.from_numpy(latlon))
    return [_means_on_sphere(xyz, k_means(embeddings, count, recipe.rounds, seed), count) for count in counts]


def k_means(points: Tensor, clusters: int, rounds: int, seed: int) -> Tensor:
    """The cluster of each point, (N, D) -> (N,), by Lloyd's rounds from randomly chosen points.

    An empty cluster gets the point farthest from its centre, so that all stay in use. (Scikit-learn's k-means gives
    other clusters, and the weights of a recipe must not change.)
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


@torch.no_grad()
def centre_(encoder: SphericalVoronoiEncoder) -> None:
    """Shift biases so that the blend and every ReLU of the head have mean 0 over the sphere.

    Each layer is shifted as soon as its output is known and passes on the shifted output, so one pass is enough.
    """
    blocks = [block for block in encoder.head.blocks if isinstance(block, ResidualBlock)]
    first = [encoder.head.entry] if encoder.head.entry is not None else []
    layers = [*first, *(layer for block in blocks for layer in (block.first, block.second))]
    hooks = [layer.register_forward_hook(_shift_output) for layer in layers]
    hooks.append(encoder.norm.register_forward_pre_hook(lambda _, inputs: (_shift_blend(encoder, inputs[0]),)))
    training = encoder.training
    spread_over_earth = start_sites("full", CENTRING_PLACES)
    try:
        for _ in range(1 if isinstance(encoder.projection, nn.Linear) else ROUNDS):
            encoder.eval().embed_xyz(spread_over_earth)
    finally:
        encoder.train(training)
        for hook in hooks:
            hook.remove()


def _shift_output(layer: nn.Module, _: Any, output: Tensor) -> Tensor:
    mean = output.mean(dim=0)
    assert isinstance(layer.bias, Tensor)
    layer.bias.sub_(mean)
    return output - mean


def _shift_blend(encoder: SphericalVoronoiEncoder, blend: Tensor) -> Tensor:
    """Through the projection's bias, or, where mixtures are as wide as the blend, through every site's embedding."""
    share = 1 - encoder.config.token_gate if encoder.tokens is not None else 1.0
    if share == 0:
        return blend  # the sites take no part
    mean = blend.mean(dim=0)
    if isinstance(encoder.projection, nn.Linear):
        encoder.projection.bias.sub_(mean / share)
        return blend - mean
    widths = [voronoi.config.site_dim for voronoi in encoder.voronois()]
    for voronoi, part in zip(encoder.voronois(), torch.split(mean, widths), strict=True):
        voronoi.embeddings[:, : len(part)].sub_(part / share)  # a place's weights sum to 1
    return blend - mean
