"""The encoder a run begins with: fresh or from weights, ours or a published one."""

import dataclasses
import json
from typing import Any

import torch

from tessearth.errors import ConfigError
from tessearth.training.location_side import TrainableEncoder
from tessearth.training.recipe import Recipe
from tessearth.training.sites import build_encoder
from tessearth.zoo.baselines import LocationEncoder, build_baseline
from tessearth.zoo.names import load_base


def build_start(recipe: Recipe, generator: torch.Generator) -> TrainableEncoder:
    """The encoder before its first step, in training mode."""
    if recipe.start_from is not None:
        return _load_start(recipe, recipe.start_from).train()
    if recipe.baseline is not None:
        return build_baseline(recipe.baseline.name, recipe.baseline.settings, seed=recipe.training.seed).train()
    return build_encoder(recipe, generator)


def describe_start(model: str) -> dict[str, Any]:
    """What a recipe says of an encoder that is there: its [encoder] table, or its [baseline]."""
    return _description(load_base(model))


def _load_start(recipe: Recipe, model: str) -> TrainableEncoder:
    encoder = load_base(model)
    found, wanted = _description(encoder), recipe.to_dict()
    if any(found.get(name) != wanted.get(name) for name in ("encoder", "baseline")):
        raise ConfigError(
            f"start_from: {model} is an encoder of other sizes than the recipe's; "
            f"take its own with --set encoder=none, or leave [encoder] out"
        )
    return encoder


def _description(encoder: TrainableEncoder) -> dict[str, Any]:
    if isinstance(encoder, LocationEncoder):
        settings = dataclasses.asdict(encoder.settings)  # type: ignore[call-overload]
        plain: dict[str, Any] = {"baseline": {"name": encoder.name, "settings": settings}}
    else:
        plain = {"encoder": encoder.config.to_dict()}
    described: dict[str, Any] = json.loads(json.dumps(plain))
    return described
