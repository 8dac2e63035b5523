"""Reading weights that others wrote: no code from the file is ever run."""

import argparse
import os
import pickle
from pathlib import Path
from typing import Any

import safetensors.torch
import torch

from tessearth.errors import WeightsError


def read_weight_file(path: str | os.PathLike[str]) -> dict[str, Any]:
    """The content of a .safetensors file, or of a PyTorch file that may hold tensors and plain values only."""
    file = Path(path)
    if not file.is_file():
        raise WeightsError(f"there is no weights file {file}")
    try:
        content = _load(file)
    except pickle.UnpicklingError:
        raise WeightsError(
            f"{file} is damaged, or holds more than tensors and plain values and could run code when opened, so it was "
            f"refused; save its tensors as .safetensors"
        ) from None
    except Exception as error:  # the readers raise many kinds for a damaged file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{file} is damaged, cut short or no weights file: {reason}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{file} holds a {type(content).__name__}, not a table of named tensors")
    return content


def _load(file: Path) -> Any:
    with open(file, "rb") as opened:
        if opened.read(9)[8:] == b"{":  # safetensors: eight bytes of length, then the header's brace
            return safetensors.torch.load_file(file)
        opened.seek(0)
        # Opened, not by its path: what a file is, its first bytes say, and torch would believe its suffix.
        # Training scripts store their arguments beside the weights; a Namespace only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(opened, map_location="cpu", weights_only=True)
