"""Other people's weights: every tensor accounted for."""

from collections.abc import Iterable, Mapping

from torch import Tensor

from tessearth.errors import WeightsError

NAMES_SHOWN = 3


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
