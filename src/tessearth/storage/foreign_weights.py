"""Putting weights that others wrote into our modules, every tensor accounted for."""

from collections.abc import Iterable, Mapping
from typing import Any

from torch import Tensor, nn

from tessearth.errors import WeightsError


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
    """Tensors under our names, by the table ours -> the file's; missing and surplus ones are refused by name.

    `dropped` are beginnings of names that are known to belong to something else.
    """
    theirs = set(names.values())
    missing = sorted(theirs - tensors.keys())
    surplus = sorted(name for name in tensors.keys() - theirs if not name.startswith(dropped))
    for word, wrong in (("missing", missing), ("surplus", surplus)):
        if wrong:
            more = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
            raise WeightsError(f"{where}: {word} tensor {wrong[0]}{more}")
    return {ours: tensors[name] for ours, name in names.items()}


def load_state(module: nn.Module, state: Mapping[str, Tensor], names: Mapping[str, str], where: str) -> None:
    """Put tensors into a module once they are of its shapes and finite; `names` are what the file calls them."""
    wanted = module.state_dict()
    for name, tensor in state.items():
        if tensor.shape != wanted[name].shape:
            given, needed = tuple(tensor.shape), tuple(wanted[name].shape)
            raise WeightsError(f"{where}: tensor {names.get(name, name)} has shape {given}, its model needs {needed}")
        if not tensor.is_floating_point() or not bool(tensor.isfinite().all()):
            raise WeightsError(f"{where}: tensor {names.get(name, name)} holds values that are not finite numbers")
    module.load_state_dict(dict(state), strict=True)
