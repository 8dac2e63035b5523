"""Any vision model of the transformers library that lies in a folder: config.json next to model.safetensors."""

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders.base import LibraryEncoder, Scratch, plain
from tessearth.packages import require

HEADS = ("classifier.", "cls_classifier.", "distillation_classifier.", "decoder.", "lm_head.", "head.")
"""Parts a folder may hold in addition to the features: the outputs the model was trained for."""


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


class FolderEncoder(LibraryEncoder):
    """A vision model as it lies in a folder; its configuration says how many bands it reads and at what size."""

    def __init__(self, model: nn.Module, folder: Path, settings: FolderSettings) -> None:
        config: Any = model.config
        size = getattr(config, "image_size", 224)
        resolution = settings.resolution or int(size if isinstance(size, int) else size[0])
        super().__init__(model, int(getattr(config, "num_channels", 3)), resolution, *_colours(folder, settings))
        self.settings, self.folder_name, self.sha256 = settings, folder.name, _files_sha256(folder)
        blank = torch.zeros(1, self.bands, self.resolution, self.resolution)
        with torch.no_grad():
            self.width = self.features(blank, Scratch()).shape[1]

    def check_tiles(self, tiles: Tensor) -> None:
        """Refuse tiles without the bands the model reads; a model of three reads one grey band as well."""
        if tiles.shape[1] != self.bands and (tiles.shape[1], self.bands) != (1, 3):
            raise DataError(
                f"tiles have {tiles.shape[1]} bands, but the model in {self.folder_name} reads {self.bands}"
            )

    def pool(self, output: Any) -> Tensor:
        """The model's output as features (n, F)."""
        pooling, hidden = self.settings.pooling, output.last_hidden_state
        if pooling == "pooler":
            pooled: Tensor | None = getattr(output, "pooler_output", None)
            if pooled is None:
                raise ConfigError(f"the model in {self.folder_name} has no pooled output; set pooling to cls or mean")
            return pooled.flatten(1)
        if hidden.ndim == 4:
            if pooling == "cls":
                raise ConfigError(f"the model in {self.folder_name} has a feature map, no tokens; set pooling to mean")
            return hidden.mean((2, 3))  # type: ignore[no-any-return]
        return hidden[:, 1:].mean(dim=1) if pooling == "mean" else hidden[:, 0]  # type: ignore[no-any-return]

    def describe(self) -> dict[str, Any]:
        """What made these features, ready for JSON."""
        return {
            "name": "transformers",
            "model": self.folder_name,
            "architecture": type(self.model).__name__,
            "bands": self.bands,
            "resolution": self.resolution,
            "mean": self.get_buffer("mean").tolist(),
            "deviation": self.get_buffer("deviation").tolist(),
            "width": self.width,
            "settings": plain(self.settings),
            "sha256": self.sha256,
        }


def load_model_folder(folder: str | Path, settings: FolderSettings | None = None) -> FolderEncoder:
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
    return FolderEncoder(_vision_part(model, path), path, settings)


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
