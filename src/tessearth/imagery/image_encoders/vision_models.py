"""Vision models of the transformers library: SSL4EO-S12 checkpoints, and any model that lies in a folder."""

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.errors import ConfigError, WeightsError
from tessearth.imagery.image_encoders.base import ImageEncoder, Scratch, plain, tensors_sha256
from tessearth.packages import require
from tessearth.storage import count_parts, load_state, read_weight_file, rename


@dataclass(frozen=True, slots=True, kw_only=True)
class FolderSettings:
    """How tiles reach the model and what is read off it."""

    pooling: Literal["auto", "cls", "mean", "pooler"] = "auto"
    """The first token, the mean over patch tokens or pixels, or the model's own pooled output. "auto" is the first
    token of a transformer and the mean over the feature map of a convolutional network."""

    resolution: int | None = None
    """Tiles are resized to this many pixels a side; by default what the folder's configuration says."""

    mean: tuple[float, ...] | None = None
    """What is subtracted from the bands; by default what preprocessor_config.json says, else 0."""

    deviation: tuple[float, ...] | None = None
    """What they are then divided by; by default what preprocessor_config.json says, else 1."""


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


class VisionModel(ImageEncoder):
    """A vision model of the transformers library: bands are normalised, tiles resized, and its output pooled."""

    def __init__(
        self,
        model: nn.Module,
        settings: FolderSettings | VitSettings,
        title: str,
        *,
        mean: tuple[float, ...],
        deviation: tuple[float, ...],
        resolution: int | None = None,
    ) -> None:
        super().__init__()
        config: Any = model.config
        self.model, self.settings, self.title = model, settings, title
        self.bands = int(getattr(config, "num_channels", 3))
        size = getattr(config, "image_size", 224)
        self.resolution = resolution or int(size if isinstance(size, int) else size[0])
        for name, values in (("mean", mean), ("deviation", deviation)):
            if len(values) not in (1, self.bands):
                raise ConfigError(
                    f"{name} has {len(values)} values for {self.bands} bands; give one, or one for each band"
                )
            self.register_buffer(name, torch.tensor(values).expand(self.bands).contiguous(), persistent=False)
        self.requires_grad_(False).eval()
        blank = torch.zeros(1, self.bands, self.resolution, self.resolution)
        with torch.no_grad():
            self.width = self.features(blank, Scratch()).shape[1]
        self.made_from: dict[str, Any] = {}

    def check_tiles(self, tiles: Tensor) -> None:
        """Refuse tiles without the bands the model reads; a model of three reads one grey band as well."""
        if (tiles.shape[1], self.bands) != (1, 3):
            super().check_tiles(tiles)

    def describe(self) -> dict[str, Any]:
        """What made these features, ready for JSON."""
        return {**self.made_from, "width": self.width, "settings": plain(self.settings)}

    def features(self, tiles: Tensor, scratch: Scratch) -> Tensor:
        """One chunk of tiles (n, C, H, W) to features (n, F); missing pixels stand at the mean."""
        mean, deviation = (self.get_buffer(name)[:, None, None] for name in ("mean", "deviation"))
        pixels = ((tiles.expand(-1, self.bands, -1, -1) - mean) / deviation).nan_to_num(0.0)
        size = (self.resolution, self.resolution)
        if pixels.shape[-2:] != size:
            pixels = F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True)
        return self._pool(self.model(pixel_values=pixels)).float()

    def _pool(self, output: Any) -> Tensor:
        """The model's output as features (n, F)."""
        pooling = self.settings.pooling
        hidden: Tensor = output.last_hidden_state  # (n, 1 + patches, F) of a transformer
        if pooling == "pooler":
            pooled: Tensor | None = getattr(output, "pooler_output", None)
            if pooled is None:
                raise ConfigError(f"{self.title} has no pooled output; set pooling to cls or mean")
            return pooled.flatten(1)
        if hidden.ndim == 4:
            if pooling == "cls":
                raise ConfigError(f"{self.title} has a feature map, no tokens; set pooling to mean")
            return hidden.mean((2, 3))
        return hidden[:, 1:].mean(dim=1) if pooling == "mean" else hidden[:, 0]


HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "decoder.", "lm_head.", "head.")
"""Parts a folder may hold in addition to the features: the outputs the model was trained for."""


def load_model_folder(folder: str | Path, settings: FolderSettings | None = None) -> VisionModel:
    """Read a vision model from disk: nothing is fetched, no code in the folder is run, no pickle is opened."""
    settings, path = settings or FolderSettings(), Path(folder)
    transformers = require("transformers", extra="vision", what=f"the image encoder in {path}")
    if not (path / "config.json").is_file():
        raise WeightsError(f"{path} is no folder of a transformers model: there is no config.json in it")
    safely = {"local_files_only": True, "trust_remote_code": False, "use_safetensors": True}
    try:
        model, found = transformers.AutoModel.from_pretrained(path, output_loading_info=True, **safely)
    except (OSError, ValueError, RuntimeError, KeyError) as error:
        reason = str(error).strip().splitlines()[0]
        raise WeightsError(f"{path} cannot be read as a transformers model: {reason}") from error
    _check_complete(found, settings, path)
    part = _vision_part(model, path)
    mean, deviation = _colours(path, settings)
    title, resolution = f"the model in {path.name}", settings.resolution
    encoder = VisionModel(part, settings, title, mean=mean, deviation=deviation, resolution=resolution)
    encoder.made_from = {
        "name": "transformers",
        "model": path.name,
        "architecture": type(part).__name__,
        "bands": encoder.bands,
        "resolution": encoder.resolution,
        "mean": encoder.get_buffer("mean").tolist(),
        "deviation": encoder.get_buffer("deviation").tolist(),
        "sha256": _files_sha256(path),
    }
    return encoder


def _vision_part(model: nn.Module, path: Path) -> nn.Module:
    """The model itself, or the vision half of a text-and-image model."""
    part: nn.Module = getattr(model, "vision_model", model)
    if part is model and getattr(part, "main_input_name", "") != "pixel_values":
        raise WeightsError(f"{path} holds a {type(model).__name__}, which does not read images")
    if hasattr(part.config, "mask_ratio"):
        # A masked autoencoder hides patches at random in training; features are of the whole picture.
        part.config.mask_ratio = 0.0
    return part


def _check_complete(found: dict[str, Any], settings: FolderSettings, path: Path) -> None:
    """Refuse a folder that leaves a part of the model at random numbers, or holds tensors the model does not know."""
    allowed = () if settings.pooling == "pooler" else ("pooler.",)
    missing = sorted(name for name in found["missing_keys"] if not name.startswith(allowed))
    surplus = sorted(name for name in found["unexpected_keys"] if not name.startswith(HEADS))
    for names, what in ((missing, "lacks"), (surplus, "holds unknown")):
        if names:
            raise WeightsError(f"{path} {what} tensors, {len(names)} in all: {', '.join(names[:3])}")


def _files_sha256(folder: Path) -> str:
    """One SHA-256 over the folder's configuration and weights files, in the order of their names."""
    digest = hashlib.sha256()
    for path in sorted((folder / "config.json", *folder.glob("*.safetensors"))):
        with open(path, "rb") as file:
            digest.update(f"{path.name}:{hashlib.file_digest(file, 'sha256').hexdigest()};".encode())
    return digest.hexdigest()


def _colours(folder: Path, settings: FolderSettings) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """Mean and deviation: as set, else as the folder's preprocessor says, else 0 and 1."""
    file = folder / "preprocessor_config.json"
    said = json.loads(file.read_text()) if file.is_file() else {}
    mean = settings.mean or tuple(said.get("image_mean") or (0.0,))
    return mean, settings.deviation or tuple(said.get("image_std") or (1.0,))


class Layout(NamedTuple):
    """How a training method lays out its checkpoint."""

    containers: tuple[str, ...]
    """Entries of the file that may hold the weights, best first; a file without any of them is the weights itself."""
    prefixes: tuple[str, ...]
    """What may stand before every name of the image encoder."""
    dropped: tuple[str, ...]
    """Prefixes of known names that are not part of the image encoder."""


LAYOUTS = {
    "mae": Layout(("model",), ("",), ("decoder_", "mask_token")),
    "moco": Layout(
        ("state_dict",),
        ("module.base_encoder.", "base_encoder."),
        (
            *("module.base_encoder.head.", "module.momentum_encoder.", "module.predictor."),
            *("base_encoder.head.", "momentum_encoder.", "predictor."),
        ),
    ),
    "dino": Layout(("teacher", "student"), ("module.backbone.", "backbone."), ("module.head.", "head.")),
}

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


def load_vit(weights: str | Path, settings: VitSettings | None = None) -> VisionModel:
    """A transformer with the weights of an SSL4EO-S12 checkpoint (.pth or .safetensors); strict about every name."""
    settings = settings or VitSettings()
    where = Path(weights).name
    layout, tensors = _read_layout(read_weight_file(weights), settings.layout, where)
    model = _empty_vit(tensors, settings, where)
    load_state(model, library_names(tensors, model.state_dict()), {}, where)
    title = "the image encoder vit"
    encoder = VisionModel(model, settings, title, mean=settings.mean, deviation=settings.deviation)
    config: Any = model.config
    encoder.made_from = {
        "name": "vit",
        "layout": layout,
        "pooling": "mean" if settings.pooling == "mean" else "cls",
        "heads": config.num_attention_heads,
        "shape": {
            "bands": config.num_channels,
            "patch": config.patch_size,
            "image_size": config.image_size,
            "width": config.hidden_size,
            "depth": config.num_hidden_layers,
            "hidden": config.intermediate_size,
        },
        "sha256": tensors_sha256(tensors),  # under the checkpoint's names, which do not change with the library
    }
    return encoder


def _read_layout(content: Mapping[str, Any], wanted: str, where: str) -> tuple[str, dict[str, Tensor]]:
    """Which layout a file's content has, and the image encoder's tensors under their names without prefix."""
    sought = []
    for name in LAYOUTS if wanted == "auto" else (wanted,):
        containers, prefixes, dropped = LAYOUTS[name]
        found = next((content[key] for key in containers if isinstance(content.get(key), dict)), content)
        for prefix in prefixes:
            if f"{prefix}cls_token" in found:
                tensors = {key: value for key, value in found.items() if isinstance(value, Tensor)}
                names = _checkpoint_names(max(1, count_parts(tensors, f"{prefix}blocks.")))
                return name, rename(tensors, {own: prefix + own for own in names}, dropped, where)
            sought.append(f"{prefix}cls_token")
    raise WeightsError(f"{where} is no checkpoint of layout {wanted!r}: it holds none of {', '.join(sought)}")


def _checkpoint_names(depth: int) -> list[str]:
    """Every tensor an encoder of this depth has in a checkpoint, without prefix."""
    parts = [f"{part}.{kind}" for part in LIBRARY_NAMES["layers.{}."] for kind in ("weight", "bias")]
    return [*OUTER_NAMES, *(f"blocks.{number}.{part}" for number in range(depth) for part in parts)]


def _empty_vit(tensors: Mapping[str, Tensor], settings: VitSettings, where: str) -> nn.Module:
    """A transformer of the sizes that a checkpoint's tensors show."""
    transformers = require("transformers", extra="vision", what="the image encoder vit")
    width, bands, patch, _ = tensors["patch_embed.proj.weight"].shape
    patches = tensors["pos_embed"].shape[1] - 1
    side = round(patches**0.5)
    if side * side != patches:
        raise WeightsError(f"{where}: pos_embed has {patches} patches next to the class token, which is no square")
    heads = settings.num_heads or max(1, width // 64)
    if width % heads:
        raise ConfigError(f"{width} features cannot be shared among {heads} attention heads; set num_heads")
    config = transformers.ViTConfig(
        hidden_size=width,
        num_hidden_layers=count_parts(tensors, "blocks."),
        num_attention_heads=heads,
        intermediate_size=len(tensors["blocks.0.mlp.fc1.weight"]),
        image_size=side * patch,
        patch_size=patch,
        num_channels=bands,
        layer_norm_eps=1e-6,
        hidden_act="gelu",
        qkv_bias=True,
    )
    model: nn.Module = transformers.ViTModel(config, add_pooling_layer=False)
    return model


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
