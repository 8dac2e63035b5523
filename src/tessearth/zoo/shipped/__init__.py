"""Models by name: those shipped with the package, a file or folder, or an id on the Hugging Face hub."""

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from tessearth.errors import UnknownNameError
from tessearth.registry import Registry
from tessearth.settings import did_you_mean

if TYPE_CHECKING:
    from tessearth.encoder.model import SphericalVoronoiEncoder


SHIPPED = Path(__file__).parent
"""A folder for every model that comes with the package: weights, card and, for `earth`, its sites' way in training."""


def _build_untrained() -> "SphericalVoronoiEncoder":
    import torch

    from tessearth.encoder.model import SphericalVoronoiEncoder

    return SphericalVoronoiEncoder(generator=torch.Generator().manual_seed(0)).eval()


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelCard:
    """What is known of a model by its name alone."""

    summary: str
    """One sentence for lists and for `tessearth info`."""

    trained: bool
    """Whether the embeddings carry knowledge of places, or only of where they lie."""

    build: "Callable[[], SphericalVoronoiEncoder]"
    """Makes the encoder, ready for inference."""


def _shipped(name: str) -> "Callable[[], SphericalVoronoiEncoder]":
    def build() -> "SphericalVoronoiEncoder":
        from tessearth.encoder.weights import load_weights

        return load_weights(SHIPPED / name)

    return build


MODELS: Registry[ModelCard] = Registry(
    "model",
    {
        "earth": ModelCard(
            summary="Ours, the default: relief, seasons and night lights around 500,000 places; 1,024 numbers a place.",
            trained=True,
            build=_shipped("earth"),
        ),
        "earth-small": ModelCard(
            summary="The same in 2 MB, for browsers and small machines: 256 numbers a place.",
            trained=True,
            build=_shipped("earth-small"),
        ),
        "untrained": ModelCard(
            summary="The paper's architecture with random weights and its sites on land: for trying things out only.",
            trained=False,
            build=_build_untrained,
        ),
    },
)

DEFAULT_MODEL = "earth"


def list_models() -> list[str]:
    """The names that `load` knows without a path."""
    return list(MODELS)


def load(model: str | os.PathLike[str] = DEFAULT_MODEL) -> "SphericalVoronoiEncoder":
    """An encoder, ready for inference: by shipped name, by path of a file or folder, or by hub id such as MVRL/TTE.

    A hub id is looked up only when it is named and no such path exists, and needs the `hub` extra;
    `owner/name@revision` pins a revision.
    """
    if str(model) in MODELS:
        return MODELS[str(model)].build()
    from tessearth.encoder.weights import load_weights

    return load_weights(locate(model))


def shipped_folder(model: str | os.PathLike[str]) -> Path | None:
    """Where a shipped model's files lie, its record of training among them; None for every other model."""
    folder = SHIPPED / str(model)
    return folder if str(model) in MODELS and folder.is_dir() else None


def locate(model: str | os.PathLike[str]) -> Path:
    """The file or folder that holds a model which is not shipped: a path as it is, a hub id fetched first."""
    from tessearth.zoo.hub import fetch, is_hub_id

    path = Path(model)
    if os.path.exists(path):
        return path
    if isinstance(model, str) and is_hub_id(model):
        return fetch(model)
    known = did_you_mean(str(model), MODELS)
    raise UnknownNameError(f"there is no model named {str(model)!r}, nor such a file or folder{known}")
