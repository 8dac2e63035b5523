"""Which models to evaluate, and what to call them.

"earth" or a path                     one model under its own name
"mine:run.safetensors"                one model under a label
"mine:run0.safetensors|run1.safetensors"   several of one recipe as one row: their mean and spread
"""

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, NamedTuple

from tessearth.errors import ConfigError


class ModelGroup(NamedTuple):
    """One row of the tables and the models behind it."""

    label: str
    members: tuple[Any, ...]
    """Names as `Embedder` takes them, or encoders."""


def read_models(models: Any, reserved: Iterable[str] = ()) -> list[ModelGroup]:
    """Groups from a name, an encoder, several of either, or a mapping of labels to those."""
    if isinstance(models, Mapping):
        groups = [ModelGroup(str(label), _as_members(value)) for label, value in models.items()]
    else:
        groups = [_read_one(model) for model in (models if isinstance(models, list | tuple) else [models])]
    if not groups:
        raise ConfigError("no model was named; there must be at least one")
    labels = [group.label for group in groups]
    for label in labels:
        if labels.count(label) > 1:
            raise ConfigError(f"two models are called {label!r}; give them labels, such as first:{label}")
        if label in reserved:
            raise ConfigError(f"{label!r} is the name of a reference; give the model a label, such as mine:{label}")
    return groups


def split_names(text: str) -> list[str]:
    """Names with commas between them, blanks around each left out."""
    names = [name.strip() for name in text.split(",")]
    if not all(names):
        raise ConfigError(f"{text!r} has an empty name between commas")
    return names


def _read_one(model: Any) -> ModelGroup:
    if not isinstance(model, str):
        return ModelGroup(str(model) if isinstance(model, Path) else type(model).__name__, (model,))
    label, colon, rest = model.partition(":")
    # A path or "geoclip=PATH" may hold a colon of its own; a label holds none of their signs.
    if not colon or set(label) & set("/=|") or Path(model).exists():
        label, rest = model, model
    members = tuple(part.strip() for part in rest.split("|"))
    if not label.strip() or not all(members):
        raise ConfigError(f"{model!r} has an empty name in it; write label:member|member")
    return ModelGroup(label.strip(), members)


def _as_members(value: Any) -> tuple[Any, ...]:
    members = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not members:
        raise ConfigError("a label stands for no model; give it at least one")
    return members
