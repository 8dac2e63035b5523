"""Trained baselines on disk: one safetensors file whose header says which baseline it is and how it was built."""

import json
import os
from pathlib import Path
from typing import Any

import safetensors

from tessearth.encoder import BASELINE_FORMAT, BASELINE_FORMAT_VERSION, LocationEncoder
from tessearth.errors import ConfigError, TessearthError, WeightsError
from tessearth.storage import read_sealed_tensors, read_weight_file, take_state
from tessearth.zoo.cards import build_baseline

SMALL = 256
"""Sizes up to this need no tensor that has them: waves of a position without a network are in no file."""


def load_baseline(path: str | os.PathLike[str]) -> LocationEncoder:
    """Rebuild a saved baseline, ready for inference."""
    header = _read_header(path)
    if header.get("format") != BASELINE_FORMAT or header.get("format_version") != BASELINE_FORMAT_VERSION:
        read_weight_file(path)  # where the file is no weights file at all, it says so
        raise WeightsError(f"{path} is no baseline of format {BASELINE_FORMAT_VERSION}: no encoder was saved in it")
    _, tensors = read_sealed_tensors(path)
    try:
        settings = json.loads(header["settings"])
        _check_sizes(
            settings, max([SMALL, len(tensors), *(max(tensor.shape, default=0) for tensor in tensors.values())])
        )
        encoder = build_baseline(header["baseline"], settings)
    except (TessearthError, ValueError, KeyError, RecursionError) as error:
        raise WeightsError(f"{path} has a header that cannot be used: {error}") from None
    encoder.load_state_dict(take_state(tensors, encoder.state_dict(), str(path)))
    return encoder


def _check_sizes(settings: object, most: int) -> None:
    """Refuse sizes that nothing in the file has, before memory is taken for them."""
    if isinstance(settings, dict | list):
        for value in settings.values() if isinstance(settings, dict) else settings:
            _check_sizes(value, most)
    elif isinstance(settings, int) and settings > most:
        raise ConfigError(f"its settings hold {settings}, and no tensor in it is that large")


def is_saved_baseline(path: str | os.PathLike[str]) -> bool:
    """Whether a file says that it holds a saved baseline."""
    return os.path.exists(path) and Path(path).is_file() and _read_header(path).get("format") == BASELINE_FORMAT


def read_provenance(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The provenance of a saved baseline."""
    provenance: dict[str, Any] = json.loads(_read_header(path).get("provenance", "{}"))
    return provenance


def _read_header(path: str | os.PathLike[str]) -> dict[str, str]:
    try:
        with safetensors.safe_open(path, framework="pt") as file:
            return file.metadata() or {}
    except (safetensors.SafetensorError, OSError):
        return {}  # a PyTorch file: not ours, and said so by the caller
