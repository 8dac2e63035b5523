"""Location encoders: turn a latitude and longitude into an embedding that knows what is there.

    import tessearth

    embed = tessearth.Embedder("earth")
    embed(lat=[48.86, -1.29], lon=[2.35, 36.82])

Importing this package loads no torch; each public name brings its module in when first used.
"""

import importlib
from typing import TYPE_CHECKING

from tessearth.errors import TessearthError
from tessearth.version import __version__

if TYPE_CHECKING:
    from tessearth.embedding.embedder import Embedder
    from tessearth.embedding.transformer import LocationFeatures
    from tessearth.encoder.config import EncoderConfig
    from tessearth.encoder.model import SphericalVoronoiEncoder
    from tessearth.encoder.weights import save
    from tessearth.evaluation.runner import evaluate
    from tessearth.training.loop import pretrain
    from tessearth.zoo.names import load
    from tessearth.zoo.shipped import list_models

_HOMES = {
    "Embedder": "tessearth.embedding.embedder",
    "EncoderConfig": "tessearth.encoder.config",
    "LocationFeatures": "tessearth.embedding.transformer",
    "SphericalVoronoiEncoder": "tessearth.encoder.model",
    "evaluate": "tessearth.evaluation.runner",
    "list_models": "tessearth.zoo.shipped",
    "load": "tessearth.zoo.names",
    "pretrain": "tessearth.training.loop",
    "save": "tessearth.encoder.weights",
}

__all__ = [
    "Embedder",
    "EncoderConfig",
    "LocationFeatures",
    "SphericalVoronoiEncoder",
    "TessearthError",
    "__version__",
    "evaluate",
    "list_models",
    "load",
    "pretrain",
    "save",
]


def __getattr__(name: str) -> object:
    if name not in _HOMES:
        raise AttributeError(f"module 'tessearth' has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return __all__
