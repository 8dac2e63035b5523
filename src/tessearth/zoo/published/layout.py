"""What a reader makes of a published file."""

from collections.abc import Mapping
from typing import Any, NamedTuple

from torch import Tensor

from tessearth.errors import WeightsError


class Described(NamedTuple):
    """A published file in our words."""

    baseline: str
    """Which baseline it fits."""
    settings: Any
    """The settings to build that baseline from, read off the file."""
    state: dict[str, Tensor]
    """Its tensors under our names."""
    names: dict[str, str]
    """Ours -> the file's, for errors."""


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
