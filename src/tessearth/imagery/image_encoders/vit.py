"""Vision transformers from SSL4EO-S12 checkpoints, with any number of bands.

The network itself is the transformers library's; `checkpoints` says how its weights are found in a file.
"""

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.image_encoders.base import FrozenEncoder, Scratch, plain, tensors_sha256
from tessearth.imagery.image_encoders.checkpoints import (
    LAYOUTS,
    VitShape,
    checkpoint_names,
    find_layout,
    image_encoder,
    library_names,
    read_shape,
)
from tessearth.imagery.image_encoders.weight_files import check_names, check_shapes
from tessearth.packages import require
from tessearth.storage.sealed import read_weight_file

HEAD_WIDTH = 64
"""Features each attention head sees, unless told otherwise: 16 heads at ViT-L's 1024, 6 at ViT-S's 384."""

NORM_EPSILON = 1e-6


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


class VisionTransformer(FrozenEncoder):
    """Tiles of the bands the checkpoint was trained on, resized to its image size, to its class token or patch mean."""

    tiles_at_once = {"cpu": 1, "cuda": 128}  # noqa: RUF012

    def __init__(self, model: nn.Module, shape: VitShape, settings: VitSettings, *, layout: str, sha256: str) -> None:
        super().__init__()
        self.settings, self.shape, self.layout, self.sha256 = settings, shape, layout, sha256
        self.pooling = LAYOUTS[layout].pooling if settings.pooling == "auto" else settings.pooling
        self.register_buffer("mean", per_band("mean", settings.mean, shape.bands), persistent=False)
        self.register_buffer("deviation", per_band("deviation", settings.deviation, shape.bands), persistent=False)
        self.model = model
        self.requires_grad_(False).eval()

    @property
    def width(self) -> int:
        """How many features a tile gets (F)."""
        return self.shape.width

    def check_tiles(self, tiles: Tensor) -> Tensor:
        """The tiles as they came when they have the checkpoint's bands."""
        if tiles.shape[1] != self.shape.bands:
            raise DataError(f"tiles have {tiles.shape[1]} bands, but this checkpoint was trained on {self.shape.bands}")
        return tiles

    def features(self, tiles: Tensor, scratch: Scratch) -> Tensor:
        """One chunk of tiles (n, C, H, W) to features (n, F)."""
        size = (self.shape.image_size, self.shape.image_size)
        pixels = normalise_and_resize(tiles, self.get_buffer("mean"), self.get_buffer("deviation"), size)
        tokens: Tensor = self.model(pixel_values=pixels).last_hidden_state  # (n, 1 + patches, F)
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
    check_shapes(renamed, own, where)
    model.load_state_dict(renamed)
    # Hashed under the checkpoint's names, which do not change with the library's release.
    return VisionTransformer(model, shape, settings, layout=layout, sha256=tensors_sha256(encoder))


def normalise_and_resize(tiles: Tensor, mean: Tensor, deviation: Tensor, size: tuple[int, int]) -> Tensor:
    """Tiles (n, C, H, W) in deviations from the bands' means (C,), missing pixels at the mean, at another size."""
    pixels = ((tiles - mean[:, None, None]) / deviation[:, None, None]).nan_to_num(0.0)
    if pixels.shape[-2:] == size:
        return pixels
    return F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True)


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
        layer_norm_eps=NORM_EPSILON,
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


def per_band(name: str, values: tuple[float, ...], bands: int) -> Tensor:
    """One value for all bands, or one each, as a tensor (C,)."""
    if len(values) not in (1, bands):
        raise ConfigError(f"{name} has {len(values)} values for {bands} bands; give one, or one for each band")
    return torch.tensor(values).expand(bands).contiguous()
