"""Frozen image encoders by name: tiles in, features out. No gradient ever reaches them.

`build_image_encoder("rcf", tiles=...)` draws filters from a source's own tiles; the others bring trained weights.
"""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.imagery.image_encoders.base import ImageEncoder
from tessearth.imagery.image_encoders.rcf import RandomConvolution, RcfSettings
from tessearth.imagery.image_encoders.vision_models import FolderSettings, VitSettings, load_model_folder, load_vit
from tessearth.settings import Registry, from_plain

__all__ = ["IMAGE_ENCODERS", "ImageEncoder", "RandomConvolution", "RcfSettings", "build_image_encoder"]


def _build_rcf(*, tiles: Tensor | None = None, seed: int = 0, **settings: Any) -> RandomConvolution:
    """Random convolutional features of whitened patches: any bands, no weights."""
    if tiles is None:
        raise ConfigError("the image encoder rcf draws its filters from the source: give it tiles=, shape (N, C, H, W)")
    return RandomConvolution.fit(torch.as_tensor(tiles), from_plain(RcfSettings, settings), seed)


def _build_vit(*, weights: str | Path | None = None, **settings: Any) -> ImageEncoder:
    """A vision transformer from an SSL4EO-S12 checkpoint (MAE, MoCo v3, DINO), with its own bands."""
    if weights is None:
        raise ConfigError("the image encoder vit needs weights=PATH: an SSL4EO-S12 checkpoint (.pth or .safetensors)")
    return load_vit(weights, from_plain(VitSettings, settings))


IMAGE_ENCODERS: Registry[Callable[..., ImageEncoder]] = Registry(
    "image encoder", {"rcf": _build_rcf, "vit": _build_vit}
)
"""Functions of settings by name; one that takes `tiles` draws from the source, and is saved to be the same again."""


def build_image_encoder(
    name_or_path: str | Path, *, device: str | torch.device = "cpu", **settings: Any
) -> ImageEncoder:
    """An image encoder by name, or by path: a folder of a transformers vision model, or a file that rcf saved.

    In addition to its settings rcf takes `tiles` and `seed`, and vit takes `weights`, a file.
    """
    path = Path(name_or_path)
    if str(name_or_path) in IMAGE_ENCODERS or not path.exists():
        return IMAGE_ENCODERS[str(name_or_path)](**settings).to(device)
    if path.is_dir():
        return load_model_folder(path, from_plain(FolderSettings, settings)).to(device)
    if settings:
        raise ConfigError(f"{path} carries its own settings; leave out {', '.join(settings)}")
    return RandomConvolution.load(path).to(device)
