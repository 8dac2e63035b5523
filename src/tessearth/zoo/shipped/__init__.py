"""The models that come with the package, by name; `zoo.names` loads these and all others."""

import os
from dataclasses import dataclass
from pathlib import Path

from tessearth.settings import Registry

SHIPPED = Path(__file__).parent
"""A folder for every model that comes with the package: weights, card and, for `earth`, the trajectory of its sites."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """A shipped model by its name."""

    summary: str
    """One sentence for lists and for `tessearth info`."""
    trained: bool
    """Whether the embeddings carry knowledge of places, or only of where they lie."""


MODELS: Registry[ModelCard] = Registry(
    "model",
    {
        "earth": ModelCard(
            summary="Ours, the default: relief, seasons and night lights around 500,000 places; 1,024 numbers a place.",
            trained=True,
        ),
        "earth-small": ModelCard(
            summary="The same in 2 MB, for browsers and small machines: 256 numbers a place.",
            trained=True,
        ),
        "untrained": ModelCard(
            summary="The paper's architecture with random weights and its sites on land: for trying things out only.",
            trained=False,
        ),
    },
)

DEFAULT_MODEL = "earth"


def list_models() -> list[str]:
    """The names of the shipped models."""
    return list(MODELS)


def shipped_folder(model: str | os.PathLike[str]) -> Path | None:
    """The folder of a shipped model's files; None for every other model."""
    folder = SHIPPED / str(model)
    return folder if str(model) in MODELS and folder.is_dir() else None
