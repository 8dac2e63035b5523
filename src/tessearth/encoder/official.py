"""The authors' released layout (`MVRL/TTE`): reading and writing its configuration and its tensors' names."""

import dataclasses
import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.errors import WeightsError

# The keys of config.json: what each is called here, and the types it may have.
_TESSELLATION_KEYS: dict[str, tuple[str, tuple[type, ...]]] = {
    "n_sites": ("num_sites", (int,)),
    "site_embed_dim": ("site_dim", (int,)),
}
_ENCODER_KEYS: dict[str, tuple[str, tuple[type, ...]]] = {
    "output_dim": ("output_dim", (int,)),
    "hidden_dim": ("hidden_dim", (int,)),
    "n_reslayers": ("num_blocks", (int,)),
    "n_registers": ("num_tokens", (int,)),
    "register_fixed_gate": ("token_gate", (float, int)),
    "use_cosine_attention": ("cosine_attention", (bool,)),
    "normalize": ("normalize", (bool,)),
}
CONFIG_KEYS = _TESSELLATION_KEYS | _ENCODER_KEYS

# A training checkpoint holds the location encoder and parts that only training needs.
CHECKPOINT_PREFIX = "model."
TRAINING_ONLY = ("model.visual.", "model.logit_scale")

_SITES = "tessellations.0."
_TOKENS = "location.semantic_registers."

# Ours -> official, for everything whose name does not depend on the number of blocks.
_NAMES = {
    _SITES + "directions": "location._directions",
    _SITES + "log_sharpness": "location._log_tau",
    _SITES + "embeddings": "location._embeddings",
    "tokens.tokens": _TOKENS + "registers",
    "tokens.log_temperature": _TOKENS + "log_temperature",
    "tokens.image_temperature": _TOKENS + "_img_temperature",
    "tokens.location_logits.weight": _TOKENS + "loc_to_logits.weight",
    "tokens.location_logits.bias": _TOKENS + "loc_to_logits.bias",
    "tokens.image_logits.weight": _TOKENS + "img_to_logits.weight",
    "tokens.image_logits.bias": _TOKENS + "img_to_logits.bias",
    "projection.weight": _TOKENS + "site_to_out.weight",
    "projection.bias": _TOKENS + "site_to_out.bias",
    "norm.weight": _TOKENS + "norm.weight",
    "norm.bias": _TOKENS + "norm.bias",
    "head.entry.weight": "location.mlp.0.weight",
    "head.entry.bias": "location.mlp.0.bias",
}

# The release does not save the progress of annealing: its weights run at exp(theta), progress 0.
_PROGRESS = "tokens.temperature_progress"


def read_config(values: Mapping[str, Any], tensors: Mapping[str, Tensor], source: str) -> EncoderConfig:
    """The configuration in a released config.json; the fixed image temperature comes from the tensors."""
    missing = [key for key in CONFIG_KEYS if key not in values]
    if missing:
        raise WeightsError(f"{source}: config.json lacks {', '.join(missing)}")
    for key, (_, kinds) in CONFIG_KEYS.items():
        if type(values[key]) not in kinds:
            raise WeightsError(f"{source}: config.json has {key} = {values[key]!r}, not {kinds[0].__name__}")
    tessellation, encoder = (
        {ours: kinds[0](values[key]) for key, (ours, kinds) in keys.items()}
        for keys in (_TESSELLATION_KEYS, _ENCODER_KEYS)
    )
    config = EncoderConfig(tessellations=(TessellationConfig(**tessellation),), **encoder)
    image_temperature = tensors.get(_NAMES["tokens.image_temperature"])
    if image_temperature is None or image_temperature.numel() != 1:
        return config  # reported with the other missing or misshapen tensors
    return dataclasses.replace(config, image_temperature=float(image_temperature))


def write_config(config: EncoderConfig) -> dict[str, Any]:
    """The released config.json of an encoder; an error names what that layout cannot express."""
    (first, *others) = config.tessellations
    for unfit, what in (
        (bool(others), "several tessellations"),
        (first.logits != "paper", f"{first.logits} logits"),
        (not first.on_sphere, "sites off the sphere"),
        (config.coordinate_octaves > 0, "coordinate conditioning"),
        (config.num_tokens == 0, "an encoder without tokens"),
    ):
        if unfit:
            raise WeightsError(f"the official layout has no room for {what}; save with layout='tessearth'")
    return {
        key: getattr(part, ours)
        for part, keys in ((first, _TESSELLATION_KEYS), (config, _ENCODER_KEYS))
        for key, (ours, _) in keys.items()
    }


def infer_config(tensors: Mapping[str, Tensor], source: str) -> dict[str, Any]:
    """A released config.json inferred from tensor shapes, for files without one.

    The gate and normalisation do not show in shapes: they are the release's 0.5 and true.
    """
    try:
        num_sites, site_dim = tensors[_NAMES[_SITES + "embeddings"]].shape
        num_tokens, output_dim = tensors[_NAMES["tokens.tokens"]].shape
        hidden_dim, _ = tensors[_NAMES["head.entry.weight"]].shape
    except KeyError as error:
        raise WeightsError(f"{source}: tensor {error.args[0]} is missing") from None
    except ValueError:
        raise WeightsError(f"{source}: the tensors are not of the official layout's shapes") from None
    return {
        "n_sites": num_sites,
        "site_embed_dim": site_dim,
        "output_dim": output_dim,
        "hidden_dim": hidden_dim,
        "n_reslayers": sum(bool(re.fullmatch(r"location\.mlp\.\d+\.w1\.weight", name)) for name in tensors),
        "n_registers": num_tokens,
        "register_fixed_gate": 0.5,
        "use_cosine_attention": _NAMES["tokens.location_logits.bias"] not in tensors,
        "normalize": True,
    }


def read_state(tensors: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Released tensors under our names; unknown names stay, for the strict check to refuse."""
    ours = {official: name for name, official in _names(config).items()}
    state = {ours.get(name, name): tensor for name, tensor in tensors.items()}
    state[_PROGRESS] = torch.tensor(0.0)
    return state


def write_state(state: Mapping[str, Tensor], config: EncoderConfig) -> dict[str, Tensor]:
    """Our tensors in float32 under the released names, with the annealed temperature in theta."""
    kept = {name: tensor.float() for name, tensor in state.items()}
    progress = kept.pop(_PROGRESS)
    if progress != 0:
        theta = kept["tokens.log_temperature"]
        kept["tokens.log_temperature"] = (theta.exp() * (1 - progress) + config.final_temperature * progress).log()
    names = _names(config)
    return {names[name]: tensor for name, tensor in kept.items()}


def read_checkpoint_state(checkpoint: Mapping[str, Any], source: str) -> dict[str, Tensor]:
    """The location encoder's tensors in a training checkpoint, without the parts that only training needs."""
    state = checkpoint.get("state_dict")
    if not isinstance(state, dict) or not all(isinstance(value, Tensor) for value in state.values()):
        raise WeightsError(f"{source}: not a training checkpoint (no state_dict of tensors in it)")
    wanted = {name: tensor for name, tensor in state.items() if not name.startswith(TRAINING_ONLY)}
    foreign = sorted(name for name in wanted if not name.startswith(CHECKPOINT_PREFIX + "location."))
    if foreign:
        raise WeightsError(f"{source}: surplus tensor {foreign[0]} ({len(foreign)} that this model does not have)")
    return {name.removeprefix(CHECKPOINT_PREFIX): tensor for name, tensor in wanted.items()}


def _names(config: EncoderConfig) -> dict[str, str]:
    """Ours -> official for an encoder of this size; entry 1 of the released head is its ReLU, blocks begin at 2."""
    names = dict(_NAMES)
    for block in range(config.num_blocks):
        for ours, official in (("first", "w1"), ("second", "w2")):
            for kind in ("weight", "bias"):
                names[f"head.blocks.{block}.{ours}.{kind}"] = f"location.mlp.{2 + block}.{official}.{kind}"
    names["head.exit.weight"] = f"location.mlp.{2 + config.num_blocks}.weight"
    return names
