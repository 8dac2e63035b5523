"""Other programs' weights: read without running code from the file, named and sized, and put into our modules."""

import argparse
import os
import pickle
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import safetensors.torch
import torch
from torch import Tensor, nn

from tessearth.errors import WeightsError, first_line


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
        reason = first_line(error)
        raise WeightsError(f"{file} is damaged, cut short or no weights file: {reason}") from None
    if not isinstance(content, dict):
        raise WeightsError(f"{file} holds a {type(content).__name__}, not a table of named tensors")
    return content


def _load(file: Path) -> Any:
    with open(file, "rb") as opened:
        if opened.read(9)[8:] == b"{":  # safetensors: eight bytes of length, then the header's brace
            return safetensors.torch.load_file(file)
        opened.seek(0)
        # Opened, not by its path: the first bytes tell the format, and torch would believe the suffix.
        # Training scripts store their arguments with the weights; a Namespace only holds attributes.
        with torch.serialization.safe_globals([argparse.Namespace]):
            return torch.load(opened, map_location="cpu", weights_only=True)


def tensors_in(content: Mapping[str, Any], containers: Iterable[str], where: str) -> dict[str, Tensor]:
    """The named tensors of a file: in the first container it has, or at its top."""
    found = next((content[key] for key in containers if isinstance(content.get(key), dict)), content)
    tensors = {str(name): value for name, value in found.items() if isinstance(value, Tensor)}
    if not tensors:
        raise WeightsError(f"{where} holds no named tensors")
    return tensors


def rename(
    tensors: Mapping[str, Tensor], names: Mapping[str, str], dropped: tuple[str, ...], where: str
) -> dict[str, Tensor]:
    """Tensors under our names, by the table of our names to the file's; missing and surplus ones are refused by name.

    `dropped` are beginnings of names that are known to belong to something else.
    """
    wanted = set(names.values())
    missing = sorted(wanted - tensors.keys())
    surplus = sorted(name for name in tensors.keys() - wanted if not name.startswith(dropped))
    for word, wrong in (("missing", missing), ("surplus", surplus)):
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise WeightsError(f"{where}: {word} tensor {wrong[0]}{more}")
    return {ours: tensors[name] for ours, name in names.items()}


def take_state(tensors: Mapping[str, Tensor], wanted: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The tensors of a file of ours: these names and no others, these shapes, finite numbers."""
    names = {name: name for name in wanted}
    state = rename(tensors, names, (), where)
    _check_state(state, wanted, names, where)
    return state


def load_state(module: nn.Module, state: Mapping[str, Tensor], names: Mapping[str, str], where: str) -> None:
    """Put tensors into a module once they are of its shapes and finite; `names` are what the file calls them."""
    _check_state(state, module.state_dict(), names, where)
    module.load_state_dict(dict(state), strict=True)


def _check_state(
    state: Mapping[str, Tensor], wanted: Mapping[str, Tensor], names: Mapping[str, str], where: str
) -> None:
    """Refuse tensors of other shapes than those of a module, or with values that are not finite."""
    for name, tensor in sorted(state.items()):
        if tensor.shape != wanted[name].shape:
            given, needed = tuple(tensor.shape), tuple(wanted[name].shape)
            raise WeightsError(f"{where}: tensor {names.get(name, name)} has shape {given}, its model needs {needed}")
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise WeightsError(f"{where}: tensor {names.get(name, name)} holds values that are not finite numbers")


def find_prefix(tensors: Mapping[str, Tensor], first: str, prefixes: tuple[str, ...], where: str) -> str:
    """What stands before every name of the location encoder, found by a tensor that every such file has."""
    for prefix in prefixes:
        if prefix + first in tensors:
            return prefix
    raise WeightsError(f"{where}: missing tensor {prefixes[0]}{first}")


def matrix_shape(tensors: Mapping[str, Tensor], name: str, where: str) -> tuple[int, int]:
    """The (outputs, inputs) of a weight that sizes are read from."""
    if name not in tensors:
        raise WeightsError(f"{where}: missing tensor {name}")
    if tensors[name].ndim != 2:
        raise WeightsError(f"{where}: tensor {name} has shape {tuple(tensors[name].shape)}, not (outputs, inputs)")
    outputs, inputs = tensors[name].shape
    return outputs, inputs


def count_parts(tensors: Mapping[str, Tensor], before: str, *, first: int = 0, step: int = 1) -> int:
    """How many numbered parts follow each other from `first` on, by names such as "<before>3.weight".

    One tensor is enough for a part to count, so that the others it lacks can be missed by name.
    """
    numbers = {name.removeprefix(before).partition(".")[0] for name in tensors if name.startswith(before)}
    count = 0
    while str(first + step * count) in numbers:
        count += 1
    return count


def linear_names(ours: str, theirs: str) -> dict[str, str]:
    """Ours -> theirs for the weight and the bias of one layer."""
    return {f"{ours}.{kind}": f"{theirs}.{kind}" for kind in ("weight", "bias")}
