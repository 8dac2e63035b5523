"""Reading other people's weights: without running code from the file, and with every tensor accounted for."""

import argparse
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors
import safetensors.torch
import torch
from torch import Tensor

from tessearth.errors import WeightsError

NAMES_SHOWN = 3


def read_weights(path: str | Path) -> dict[str, Any]:
    """The content of a .safetensors file, or of a PyTorch file whose pickle may name tensors and plain values only."""
    file = Path(path)
    if not file.is_file():
        raise WeightsError(f"there is no weights file at {file}")
    try:
        if file.suffix == ".safetensors":
            return dict(safetensors.torch.load_file(file))
        # Training scripts store their arguments beside the weights; a Namespace only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]):
            content = torch.load(file, map_location="cpu", weights_only=True)
    except pickle.UnpicklingError as error:
        raise WeightsError(
            f"{file} is damaged or would run code when read, so it was refused; save its tensors as .safetensors"
        ) from error
    except (safetensors.SafetensorError, RuntimeError, EOFError, OSError, ValueError) as error:
        reason = str(error).splitlines()[0] if str(error) else type(error).__name__
        raise WeightsError(f"{file} cannot be read as weights: {reason}") from error
    if not isinstance(content, dict):
        raise WeightsError(f"{file} holds a {type(content).__name__}, not a table of named tensors")
    return content


def check_names(found: Iterable[str], wanted: Iterable[str], dropped: tuple[str, ...], where: str) -> None:
    """Refuse weights unless every tensor is either wanted or starts with a prefix that is known and dropped."""
    names, expected = set(found), set(wanted)
    if missing := sorted(expected - names):
        raise WeightsError(f"{where} lacks {len(missing)} tensors of this model, first {_first(missing)}")
    if surplus := sorted(name for name in names - expected if not name.startswith(dropped)):
        raise WeightsError(f"{where} holds {len(surplus)} tensors this model does not know, first {_first(surplus)}")


def check_shapes(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str) -> None:
    """Refuse weights whose tensors have other shapes than the model's own of the same names."""
    for name, own in wanted.items():
        if tensors[name].shape != own.shape:
            given, expected = tuple(tensors[name].shape), tuple(own.shape)
            raise WeightsError(f"{where}: {name} has shape {given}, but this model needs {expected}")


def _first(names: list[str]) -> str:
    more = ", ..." if len(names) > NAMES_SHOWN else ""
    return ", ".join(names[:NAMES_SHOWN]) + more
