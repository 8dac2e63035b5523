"""How SSL4EO-S12 checkpoints are laid out, and the strict map from their names to those of the transformers library.

Three training methods wrote them: MAE (ViT-L/16), MoCo v3 and DINO (both ViT-S/16). Inside, all name the parts of the
image encoder alike: cls_token, pos_embed, patch_embed.proj, blocks.N.{norm1, attn.qkv, attn.proj, norm2, mlp}, norm.
"""

import re
from collections.abc import Mapping
from typing import Any, Literal, NamedTuple

from torch import Tensor

from tessearth.errors import WeightsError
from tessearth.imagery.image_encoders.weight_files import check_names
from tessearth.registry import Registry

Pooling = Literal["cls", "mean"]


class Layout(NamedTuple):
    """How a training method lays out its checkpoint."""

    containers: tuple[str, ...]
    """Entries of the file that may hold the weights, best first; a file without any of them is the weights itself."""
    prefixes: tuple[str, ...]
    """What may stand before every name of the image encoder."""
    dropped: tuple[str, ...]
    """Names that are known and not part of the image encoder, by how they begin."""
    pooling: Pooling
    """The features the method is used with."""


LAYOUTS = Registry(
    "checkpoint layout",
    {
        "mae": Layout(("model",), ("",), ("decoder_", "mask_token"), "cls"),
        "moco": Layout(
            ("state_dict",),
            ("module.base_encoder.", "base_encoder."),
            (
                *("module.base_encoder.head.", "module.momentum_encoder.", "module.predictor."),
                *("base_encoder.head.", "momentum_encoder.", "predictor."),
            ),
            "cls",
        ),
        "dino": Layout(("teacher", "student"), ("module.backbone.", "backbone."), ("module.head.", "head."), "cls"),
    },
)


class VitShape(NamedTuple):
    """What the weights say about their transformer."""

    bands: int
    patch: int
    image_size: int
    width: int
    depth: int
    hidden: int


def find_layout(content: Mapping[str, Any], wanted: str, where: str) -> tuple[str, dict[str, Tensor]]:
    """Which layout a file's content has, and the tensors inside its container."""
    for name in LAYOUTS if wanted == "auto" else (wanted,):
        layout = LAYOUTS[name]
        tensors = next((content[key] for key in layout.containers if isinstance(content.get(key), dict)), content)
        if any(f"{prefix}cls_token" in tensors for prefix in layout.prefixes):
            return name, {key: value for key, value in tensors.items() if isinstance(value, Tensor)}
    sought = [f"{prefix}cls_token" for name in LAYOUTS if wanted in ("auto", name) for prefix in LAYOUTS[name].prefixes]
    raise WeightsError(f"{where} is no checkpoint of layout {wanted!r}: it holds none of {', '.join(sought)}")


def image_encoder(tensors: Mapping[str, Tensor], layout: Layout, where: str) -> dict[str, Tensor]:
    """The image encoder's tensors without their prefix; what is left over must be known to be something else."""
    prefix = next(prefix for prefix in layout.prefixes if f"{prefix}cls_token" in tensors)
    inside = {name for name in tensors if name.startswith(prefix) and not name.startswith(layout.dropped)}
    check_names(tensors.keys() - inside, (), layout.dropped, where)
    return {name.removeprefix(prefix): tensors[name] for name in sorted(inside)}


def read_shape(encoder: Mapping[str, Tensor], where: str) -> VitShape:
    """The transformer's sizes, read off the tensors that show them."""
    needed = ("patch_embed.proj.weight", "pos_embed", "blocks.0.mlp.fc1.weight")
    check_names(encoder, needed, ("",), where)
    width, bands, patch, _ = encoder["patch_embed.proj.weight"].shape
    patches = encoder["pos_embed"].shape[1] - 1
    side = round(patches**0.5)
    if side * side != patches:
        raise WeightsError(f"{where}: pos_embed has {patches} patches beside the class token, which is no square")
    depth = 1 + max(int(found[1]) for name in encoder if (found := re.match(r"blocks\.(\d+)\.", name)))
    hidden = len(encoder["blocks.0.mlp.fc1.weight"])
    return VitShape(bands=bands, patch=patch, image_size=side * patch, width=width, depth=depth, hidden=hidden)


OUTER_NAMES = {
    "cls_token": "embeddings.cls_token",
    "pos_embed": "embeddings.position_embeddings",
    "patch_embed.proj.weight": "embeddings.patch_embeddings.projection.weight",
    "patch_embed.proj.bias": "embeddings.patch_embeddings.projection.bias",
    "norm.weight": "layernorm.weight",
    "norm.bias": "layernorm.bias",
}
"""The checkpoint's name of everything outside the blocks, and the library's."""

BLOCK_PARTS = ("norm1", "attn.qkv", "attn.proj", "norm2", "mlp.fc1", "mlp.fc2")
"""A checkpoint's parts of a block, each with weight and bias; qkv holds query, key and value one above another."""


class LibraryNames(NamedTuple):
    """What a release of the transformers library calls the parts of a block."""

    block: str
    parts: dict[str, tuple[str, ...]]


LIBRARY_NAMES = (
    LibraryNames(
        "layers.{}.",
        {
            "norm1": ("layernorm_before",),
            "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
            "attn.proj": ("attention.o_proj",),
            "norm2": ("layernorm_after",),
            "mlp.fc1": ("mlp.fc1",),
            "mlp.fc2": ("mlp.fc2",),
        },
    ),
    LibraryNames(
        "encoder.layer.{}.",
        {
            "norm1": ("layernorm_before",),
            "attn.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
            "attn.proj": ("attention.output.dense",),
            "norm2": ("layernorm_after",),
            "mlp.fc1": ("intermediate.dense",),
            "mlp.fc2": ("output.dense",),
        },
    ),
)
"""The library has named its parts in two ways; the model at hand shows which one is installed."""


def checkpoint_names(depth: int) -> list[str]:
    """Every tensor an encoder of this depth has in a checkpoint, without prefix."""
    blocks = [
        f"blocks.{number}.{part}.{kind}"
        for number in range(depth)
        for part in BLOCK_PARTS
        for kind in ("weight", "bias")
    ]
    return [*OUTER_NAMES, *blocks]


def library_names(encoder: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under the library's names, query, key and value taken apart."""
    renamed = {library: encoder[name] for name, library in OUTER_NAMES.items()}
    names = next(
        (names for names in LIBRARY_NAMES if any(key.startswith(names.block.split("{")[0]) for key in own)), None
    )
    for name, tensor in encoder.items():
        if names and (found := re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)):
            number, part, kind = found.groups()
            targets = names.parts[part]
            for target, piece in zip(targets, tensor.chunk(len(targets)), strict=True):
                renamed[f"{names.block.format(number)}{target}.{kind}"] = piece.contiguous()
    if renamed.keys() != own.keys():
        unknown = ", ".join(sorted(own.keys() ^ renamed.keys())[:3])
        raise WeightsError(f"the installed transformers release names its ViT in a way not known here: {unknown}")
    return renamed
