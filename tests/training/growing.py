"""A small recipe whose second tessellation grows, and an encoder of it on its own."""

import dataclasses

import torch

from tessearth.encoder import SphericalVoronoiEncoder, TessellationConfig
from tessearth.training.recipe import Recipe
from tessearth.training.sites_recipe import GrowthRecipe, SitesRecipe
from tests.training.fabricate import toy_recipe

BROAD = TessellationConfig(num_sites=12, site_dim=6, sharpness=8.0, logits="chord")
SPACED = TessellationConfig(num_sites=40, site_dim=6, sharpness="spacing", logits="chord", background=-8.0)
GROWTH = GrowthRecipe(start=(12, 16), every=6, first=0.1, until=0.8, die_below=0.3, accumulate_every=2)


def growing_recipe(
    *,
    growth: GrowthRecipe | None = GROWTH,
    encoder: dict[str, object] | None = None,
    sites: dict[str, object] | None = None,
    **training: object,
) -> Recipe:
    """Forty steps with events before steps 6, 12, ... 30."""
    recipe = toy_recipe(
        encoder={"tessellations": (BROAD, SPACED), **(encoder or {})}, **{"steps": 40, "record_every": 8, **training}
    )
    settings = {"start": "full", "refresh_every": 3, **(sites or {})}
    return dataclasses.replace(recipe, sites=SitesRecipe(growth=growth, **settings))  # type: ignore[arg-type]


def listed_recipe(**settings: object) -> Recipe:
    """The same, with both tessellations mixed by lists."""
    return growing_recipe(sites={"sparse_from": 8}, **settings)  # type: ignore[arg-type]


def encoder_of(*sites: torch.Tensor, background: float | None = -8.0) -> SphericalVoronoiEncoder:
    """A small encoder of spaced tessellations of these sites."""
    config = toy_recipe().encoder
    tessellations = tuple(dataclasses.replace(SPACED, num_sites=len(part), background=background) for part in sites)
    return SphericalVoronoiEncoder(
        dataclasses.replace(config, tessellations=tessellations),
        sites=sites,
        generator=torch.Generator().manual_seed(0),
    )
