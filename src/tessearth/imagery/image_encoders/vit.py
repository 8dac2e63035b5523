"""Vision transformers from SSL4EO-S12 checkpoints, with any number of bands.

The network is the transformers library's; a key map says where a checkpoint file keeps its weights.
"""

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders.base import LibraryEncoder, plain, tensors_sha256
from tessearth.packages import require
from tessearth.settings import Registry
from tessearth.storage import read_weight_file

Pooling = Literal["cls", "mean"]
HEAD_WIDTH = 64
"""Features each attention head sees by default: 16 heads at ViT-L's 1024, 6 at ViT-S's 384."""
NAMES_SHOWN = 3


class Layout(NamedTuple):
    """How a training method lays out its checkpoint."""

    containers: tuple[str, ...]
    """Entries of the file that may hold the weights, best first; a file without any of them is the weights itself."""
    prefixes: tuple[str, ...]
    """What may stand before every name of the image encoder."""
    dropped: tuple[str, ...]
    """Prefixes of known names that are not part of the image encoder."""
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
    """Sizes of a transformer, as its weights show them."""

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
    """The image encoder's tensors without their prefix; the others must be known and dropped."""
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
        raise WeightsError(f"{where}: pos_embed has {patches} patches next to the class token, which is no square")
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

LIBRARY_NAMES: dict[str, dict[str, tuple[str, ...]]] = {
    "layers.{}.": {
        "norm1": ("layernorm_before",),
        "attn.qkv": ("attention.q_proj", "attention.k_proj", "attention.v_proj"),
        "attn.proj": ("attention.o_proj",),
        "norm2": ("layernorm_after",),
        "mlp.fc1": ("mlp.fc1",),
        "mlp.fc2": ("mlp.fc2",),
    },
    "encoder.layer.{}.": {
        "norm1": ("layernorm_before",),
        "attn.qkv": ("attention.attention.query", "attention.attention.key", "attention.attention.value"),
        "attn.proj": ("attention.output.dense",),
        "norm2": ("layernorm_after",),
        "mlp.fc1": ("intermediate.dense",),
        "mlp.fc2": ("output.dense",),
    },
}
"""A checkpoint's parts of a block (each with weight and bias; qkv holds query, key and value one above another) under
the library's names, by what a block is called: the library has named them in two ways, and the model at hand shows
which one is installed."""


def checkpoint_names(depth: int) -> list[str]:
    """Every tensor an encoder of this depth has in a checkpoint, without prefix."""
    parts = [f"{part}.{kind}" for part in LIBRARY_NAMES["layers.{}."] for kind in ("weight", "bias")]
    return [*OUTER_NAMES, *(f"blocks.{number}.{part}" for number in range(depth) for part in parts)]


def library_names(encoder: Mapping[str, Tensor], own: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The checkpoint's tensors under the library's names, query, key and value taken apart."""
    renamed = {library: encoder[name] for name, library in OUTER_NAMES.items()}
    block = next((block for block in LIBRARY_NAMES if any(key.startswith(block.split("{")[0]) for key in own)), "")
    for name, tensor in encoder.items():
        if block and (found := re.fullmatch(r"blocks\.(\d+)\.(.+)\.(weight|bias)", name)):
            number, part, kind = found.groups()
            targets = LIBRARY_NAMES[block][part]
            for target, piece in zip(targets, tensor.chunk(len(targets)), strict=True):
                renamed[f"{block.format(number)}{target}.{kind}"] = piece.contiguous()
    if renamed.keys() != own.keys():
        unknown = ", ".join(sorted(own.keys() ^ renamed.keys())[:3])
        raise WeightsError(f"the installed transformers release names its ViT in a way not known here: {unknown}")
    return renamed


def check_names(found: Iterable[str], wanted: Iterable[str], dropped: tuple[str, ...], where: str) -> None:
    """Refuse weights unless every tensor is either wanted or starts with a prefix that is known and dropped."""
    names, expected = set(found), set(wanted)
    missing = sorted(expected - names)
    surplus = sorted(name for name in names - expected if not name.startswith(dropped))
    wrong_names = {"lacks {} tensors of this model": missing, "holds {} tensors this model does not know": surplus}
    for what, wrong in wrong_names.items():
        if wrong:
            first = ", ".join(wrong[:NAMES_SHOWN]) + (", ..." if len(wrong) > NAMES_SHOWN else "")
            raise WeightsError(f"{where} {what.format(len(wrong))}, first {first}")


@dataclass(frozen=True, slots=True, kw_only=True)
class VitSettings:
    """How tiles reach the transformer and what is read off it."""

    layout: Literal["auto", "mae", "moco", "dino"] = "auto"
    """The checkpoint's layout; "auto" finds the one whose names are there."""

    pooling: Literal["auto", "cls", "mean"] = "auto"
    """The class token after the last norm, or the mean of the patch tokens; "auto" is the class token, which is what
    all three methods hand on (for MAE the mean is the usual alternative)."""

    num_heads: int | None = None
    """Attention heads, which weights do not show; by default one for every 64 features."""

    mean: tuple[float, ...] = (0.0,)
    """What is subtracted from the bands: one value for all, or one each. SSL4EO-S12 reads reflectance as it is."""

    deviation: tuple[float, ...] = (1.0,)
    """What they are then divided by: one value for all, or one each."""

    def __post_init__(self) -> None:
        if not self.mean or not self.deviation or min(self.deviation) <= 0:
            raise ConfigError("mean and deviation need at least one value each, and deviations must be above 0")


class VisionTransformer(LibraryEncoder):
    """Tiles of the bands the checkpoint was trained on, resized to its image size, to its class token or patch mean."""

    def __init__(self, model: nn.Module, shape: VitShape, settings: VitSettings, *, layout: str, sha256: str) -> None:
        super().__init__(model, shape.bands, shape.image_size, settings.mean, settings.deviation)
        self.settings, self.shape, self.layout, self.sha256 = settings, shape, layout, sha256
        self.pooling = LAYOUTS[layout].pooling if settings.pooling == "auto" else settings.pooling
        self.width = shape.width

    def check_tiles(self, tiles: Tensor) -> None:
        """Refuse tiles without the checkpoint's bands."""
        if tiles.shape[1] != self.bands:
            raise DataError(f"tiles have {tiles.shape[1]} bands, but this checkpoint was trained on {self.bands}")

    def pool(self, output: Any) -> Tensor:
        """The class token or the mean of the patch tokens, (n, F)."""
        tokens: Tensor = output.last_hidden_state  # (n, 1 + patches, F)
        return tokens[:, 0] if self.pooling == "cls" else tokens[:, 1:].mean(dim=1)

    def describe(self) -> dict[str, Any]:
        """What made these features, ready for JSON."""
        return {
            "name": "vit",
            "layout": self.layout,
            "pooling": self.pooling,
            "heads": _num_heads(self.shape, self.settings),
            "shape": self.shape._asdict(),
            "width": self.width,
            "settings": plain(self.settings),
            "sha256": self.sha256,
        }


def load_vit(weights: str | Path, settings: VitSettings | None = None) -> VisionTransformer:
    """A transformer with the weights of an SSL4EO-S12 checkpoint (.pth or .safetensors); strict about every name."""
    settings = settings or VitSettings()
    where = Path(weights).name
    layout, tensors = find_layout(read_weight_file(weights), settings.layout, where)
    encoder = image_encoder(tensors, LAYOUTS[layout], where)
    shape = read_shape(encoder, where)
    check_names(encoder, checkpoint_names(shape.depth), (), where)
    model = _empty_model(shape, _num_heads(shape, settings))
    own = model.state_dict()
    renamed = library_names(encoder, own)
    for name, tensor in own.items():
        if renamed[name].shape != tensor.shape:
            given, expected = tuple(renamed[name].shape), tuple(tensor.shape)
            raise WeightsError(f"{where}: {name} has shape {given}, but this model needs {expected}")
    model.load_state_dict(renamed)
    # Hashed under the checkpoint's names, which do not change with the library's release.
    return VisionTransformer(model, shape, settings, layout=layout, sha256=tensors_sha256(encoder))


def _empty_model(shape: VitShape, heads: int) -> nn.Module:
    transformers = require("transformers", extra="vision", what="the image encoder vit")
    config = transformers.ViTConfig(
        hidden_size=shape.width,
        num_hidden_layers=shape.depth,
        num_attention_heads=heads,
        intermediate_size=shape.hidden,
        image_size=shape.image_size,
        patch_size=shape.patch,
        num_channels=shape.bands,
        layer_norm_eps=1e-6,
        hidden_act="gelu",
        qkv_bias=True,
    )
    model: nn.Module = transformers.ViTModel(config, add_pooling_layer=False)
    return model


def _num_heads(shape: VitShape, settings: VitSettings) -> int:
    heads = settings.num_heads or max(1, shape.width // HEAD_WIDTH)
    if shape.width % heads:
        raise ConfigError(f"{shape.width} features cannot be shared among {heads} attention heads; set num_heads")
    return heads
