"""The encoder that a run begins with: random or given weights, ours or a published one (`build_start`)."""

import dataclasses
from typing import Any

import torch
from torch import Tensor, nn

from tessearth.encoder import (
    EMBEDDING_SPREAD,
    LocationEncoder,
    ResidualBlock,
    SphericalVoronoiEncoder,
    add_slots,
    start_sites,
)
from tessearth.errors import ConfigError
from tessearth.training.placing import place_sites
from tessearth.training.recipe import ENCODERS, Recipe, describe_encoder
from tessearth.zoo import build_baseline, load_base


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


CENTRING_PLACES = 8192
"""The number of places, spread evenly over the sphere, whose mean is subtracted."""
ROUNDS = 8
"""Shifted site embeddings change the tokens' mixtures, so the mean is subtracted again, this many times in all."""


@torch.no_grad()
def centre_(encoder: SphericalVoronoiEncoder, places: int = CENTRING_PLACES) -> None:
    """Shift biases so that the blend and every ReLU of the head have mean 0 over the sphere.

    Each layer is shifted as soon as its output is known and passes on the shifted output, so one pass is enough.
    """
    blocks = [block for block in encoder.head.blocks if isinstance(block, ResidualBlock)]
    first = [encoder.head.entry] if encoder.head.entry is not None else []
    layers = [*first, *(layer for block in blocks for layer in (block.first, block.second))]
    hooks = [layer.register_forward_hook(_shift_output) for layer in layers]
    hooks.append(encoder.norm.register_forward_pre_hook(lambda _, inputs: (_shift_blend(encoder, inputs[0]),)))
    training = encoder.training
    spread_over_earth = start_sites("full", places)
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
