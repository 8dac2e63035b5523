"""The table of labels: the kind, unit and source of each, and its values at places."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.labels import climate, countries, people
from tessearth.labels.sources import describe_source
from tessearth.settings import Kind, Registry
from tessearth.sphere import Floats, as_latlon, is_land

Codes = npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class Label:
    """One thing known about places."""

    kind: Kind
    """Whether the label is a class (a code from 0, -1 where unknown) or a number (NaN where unknown)."""
    unit: str
    """Of the number, or the meaning of the classes."""
    sources: tuple[str, ...]
    """The rows of `SOURCES` it is made from."""
    at: Callable[[Floats], Codes | Floats] | None = None
    """Places (N, 2) to labels (N,); None for a label that exists at its own places only."""
    class_names: Callable[[], tuple[str, ...]] | None = None
    """The names of the classes in the order of their codes."""
    places: Literal["land", "sphere", "own"] = "land"
    """The benchmark's places for it: land without Antarctica, the whole sphere, or the source's own."""


LABELS: Registry[Label] = Registry(
    "label",
    {
        "koppen": Label(
            kind="classify",
            unit="Koppen-Geiger class of a 5' cell",
            sources=("climate map",),
            at=climate.koppen,
            class_names=climate.koppen_names,
        ),
        "country": Label(
            kind="classify",
            unit="country or territory, as Natural Earth draws them",
            sources=("outlines", "land mask"),
            at=countries.country,
            class_names=countries.country_names,
        ),
        "land": Label(
            kind="classify",
            unit="sea or land (lakes are land)",
            sources=("land mask",),
            at=lambda latlon: is_land(latlon).astype(np.int64),
            class_names=lambda: ("sea", "land"),
            places="sphere",
        ),
        "temperature": Label(
            kind="regress",
            unit="annual mean, degrees Celsius",
            sources=("temperature",),
            at=climate.temperature,
        ),
        "temperature_range": Label(
            kind="regress",
            unit="warmest minus coldest monthly mean, degrees Celsius",
            sources=("temperature",),
            at=climate.temperature_range,
        ),
        "rain": Label(kind="regress", unit="log(1 + millimetres in a year)", sources=("rain",), at=climate.rain),
        "elevation": Label(kind="regress", unit="metres above the sea", sources=("topography",), at=climate.elevation),
        "population": Label(
            kind="regress",
            unit="log(1 + town dwellers per square kilometre, 25 km kernel)",
            sources=("towns",),
            at=people.population,
        ),
        "housing": Label(
            kind="regress",
            unit="median house value of a block group, 100,000 US dollars",
            sources=("houses",),
            places="own",
        ),
    },
)


def prepare_labels(latlon: npt.ArrayLike, names: Iterable[str] | None = None) -> dict[str, Codes | Floats]:
    """Labels of places (..., 2), degrees: a label name to values of shape (...).

    Classes are codes from 0, indices into `LABELS[name].class_names()`; -1 where the source has none. Numbers are NaN
    there. Without names it gives every label known at any place. The first call prepares the sources into the cache,
    which takes some ten seconds.
    """
    places = as_latlon(latlon)
    wanted = [name for name, label in LABELS.items() if label.at is not None] if names is None else list(names)
    labels = {name: LABELS[name] for name in wanted}
    flat = places.reshape(-1, 2)
    return {name: _label_at(name, label, flat).reshape(places.shape[:-1]) for name, label in labels.items()}


def describe_labels() -> list[dict[str, Any]]:
    """One row per label, ready for JSON: name, kind, unit, and the package, version, hashes and licence behind it."""
    return [
        {
            "name": name,
            "kind": label.kind,
            "unit": label.unit,
            "places": label.places,
            "sources": [describe_source(source) for source in label.sources],
        }
        for name, label in LABELS.items()
    ]


def _label_at(name: str, label: Label, latlon: Floats) -> Codes | Floats:
    if label.at is None:
        raise ConfigError(f"{name} is known at its own places only; load_benchmark()[{name!r}] has them")
    return label.at(latlon)
