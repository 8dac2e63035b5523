"""The optimiser: which parameter is in which group, and its state as named tensors."""

import dataclasses
import fnmatch
from typing import Any

import torch
from torch import Tensor, nn

from tessearth.errors import ConfigError
from tessearth.training.recipe import GroupRecipe, GroupsRecipe

GROUP_OF = {
    "encoder.tessellations.*.directions": "sites",
    "encoder.tessellations.*.log_sharpness": "sharpness",
    "encoder.tessellations.*.territory": "sharpness",
    "encoder.tessellations.*.embeddings": "head",
    "encoder.head.*": "head",
    "encoder.network.*": "head",
    "encoder.tokens.*": "tokens",
    "encoder.projection.*": "tokens",
    "encoder.norm.*": "tokens",
    "image_head.*": "image",
    "logit_scale": "image",
    "decoder.*": "decoder",
    "prefix_decoders.*": "decoder",
}
"""Parameter names to groups of the recipe."""

GROUPS = tuple(field.name for field in dataclasses.fields(GroupsRecipe))
MOMENTS = ("exp_avg", "exp_avg_sq")


def group_of(name: str) -> str:
    """The group a parameter belongs to; every parameter belongs to one."""
    found = next((group for pattern, group in GROUP_OF.items() if fnmatch.fnmatchcase(name, pattern)), None)
    if found is None:
        raise ConfigError(f"parameter {name} belongs to no optimiser group")
    return found


def build_optimiser(model: nn.Module, recipe: GroupsRecipe, rates: Tensor) -> torch.optim.AdamW:
    """AdamW over the groups; those with learning rate 0 are frozen.

    On a GPU the groups' learning rates are elements of `rates`, in the order of GROUPS, so that a captured step reads
    what is written there later. The state is made at once rather than at the first step, so that it can be named, saved
    and restored at any time.
    """
    groups: dict[str, list[nn.Parameter]] = {}
    for name, parameter in model.named_parameters():
        settings: GroupRecipe = getattr(recipe, group_of(name))
        parameter.requires_grad_(settings.learning_rate > 0)
        if settings.learning_rate > 0:
            groups.setdefault(group_of(name), []).append(parameter)
    if not groups:
        raise ConfigError("every learning rate is 0: there is nothing to train")
    optimiser = torch.optim.AdamW(
        [
            {
                "params": parameters,
                "name": name,
                "weight_decay": getattr(recipe, name).weight_decay,
                "lr": rates[GROUPS.index(name)] if rates.is_cuda else 0.0,
            }
            for name, parameters in groups.items()
        ],
        fused=True,
        capturable=rates.is_cuda,
    )
    for group in optimiser.param_groups:
        for parameter in group["params"]:
            optimiser.state[parameter] = _empty_state(parameter)
    return optimiser


def state_tensors(model: nn.Module, optimiser: torch.optim.Optimizer) -> dict[str, Tensor]:
    """Everything a step changes, by name, as the live tensors."""
    tensors = {f"model.{name}": tensor for name, tensor in model.state_dict(keep_vars=True).items()}
    for name, parameter in model.named_parameters():
        for key, value in optimiser.state.get(parameter, {}).items():
            tensors[f"optimiser.{name}.{key}"] = value
    return {name: tensor.detach() for name, tensor in tensors.items()}


def _empty_state(parameter: nn.Parameter) -> dict[str, Any]:
    moments = {name: torch.zeros_like(parameter, memory_format=torch.preserve_format) for name in MOMENTS}
    return {"step": torch.zeros((), dtype=torch.float32, device=parameter.device), **moments}
