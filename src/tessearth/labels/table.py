"""The table of labels: the kind, unit and source of each, its values at places, and the embedded benchmark.

The benchmark is places drawn once, with every label, in one self-describing file.
"""

import contextlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, MissingExtraError
from tessearth.labels import climate, countries, people
from tessearth.labels.sources import (
    SOURCES,
    Arrays,
    Prepared,
    describe_source,
    load_prepared,
    prepared_path,
    read_prepared,
    source_hashes,
)
from tessearth.settings import Kind, Registry
from tessearth.sphere import Floats, as_latlon, is_land, sample_land, sample_sphere

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


def _number(unit: str, source: str, at: Callable[[Floats], Floats] | None) -> Label:
    places: Literal["land", "own"] = "own" if at is None else "land"
    return Label(kind="regress", unit=unit, sources=(source,), at=at, places=places)


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
        "temperature": _number(
            "annual mean, degrees Celsius", "temperature", partial(climate.interpolate, "temperature")
        ),
        "temperature_range": _number(
            "warmest minus coldest monthly mean, degrees Celsius",
            "temperature",
            partial(climate.interpolate, "temperature_range"),
        ),
        "rain": _number(
            "log(1 + millimetres in a year)", "rain", lambda latlon: np.log1p(climate.interpolate("rain", latlon))
        ),
        "elevation": _number("metres above the sea", "topography", partial(climate.interpolate, "elevation")),
        "population": _number("log(1 + town dwellers per square kilometre, 25 km kernel)", "towns", people.population),
        "housing": _number("median house value of a block group, 100,000 US dollars", "houses", None),
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
    found = {}
    for name, label in labels.items():
        if label.at is None:
            raise ConfigError(f"{name} is known at its own places only; load_benchmark()[{name!r}] has them")
        found[name] = label.at(flat).reshape(places.shape[:-1])
    return found


def describe_labels(names: Sequence[str] = tuple(LABELS)) -> list[dict[str, Any]]:
    """One row per label, ready for JSON: name, kind, unit, and the package, version, hashes and licence behind it."""
    return [
        {
            "name": name,
            "kind": label.kind,
            "unit": label.unit,
            "places": label.places,
            "sources": [describe_source(source) for source in label.sources],
        }
        for name, label in ((name, LABELS[name]) for name in names)
    ]


BENCHMARK_COUNT = 40_000
BENCHMARK_SEED = 0
PURPOSE = "benchmark"
"""Keeps test places apart from training places at any seeds."""
OPTIONAL = "housing"
"""The label that the benchmark is made without where its package is not installed."""


class LabelTable(NamedTuple):
    """Places and one label of them."""

    latlon: Floats
    """(N, 2) degrees; labels of the same places share one array."""
    values: Codes | Floats
    """(N,): codes of `classes`, -1 where unknown, or numbers, NaN where unknown."""
    kind: Kind
    unit: str
    classes: tuple[str, ...]
    """The names of the classes in the order of their codes; empty for numbers."""
    about: dict[str, Any]
    """The label's row of `describe_labels` when the table was made."""

    @property
    def known(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which places have a value, (N,)."""
        return np.asarray(self.values >= 0 if self.kind == "classify" else np.isfinite(self.values))


def benchmark_places(count: int = BENCHMARK_COUNT, seed: int = BENCHMARK_SEED) -> Floats:
    """Places (count, 2) uniform over land without Antarctica; a smaller count gives the first of the same places."""
    return sample_land(count, seed, purpose=PURPOSE)


def load_benchmark(count: int = BENCHMARK_COUNT, seed: int = BENCHMARK_SEED) -> dict[str, LabelTable]:
    """Every label of the benchmark with its places, read from the cache or prepared into it.

    The houses of California come only where their package is installed, which brings many others.
    """
    settings, names = {"count": count, "seed": seed}, _benchmark_labels()
    return _to_tables(load_prepared("benchmark", _sources(names), lambda: _build(count, seed, names), settings))


def benchmark_path(count: int = BENCHMARK_COUNT, seed: int = BENCHMARK_SEED) -> Path:
    """The file `load_benchmark` keeps its tables in; it can be carried to a machine without the data packages."""
    return prepared_path("benchmark", _sources(_benchmark_labels()), {"count": count, "seed": seed})


def read_benchmark(path: str | PathLike[str]) -> dict[str, LabelTable]:
    """Every label of a benchmark file made elsewhere; needs none of the packages it was made from."""
    return _to_tables(read_prepared(Path(path)))


def _benchmark_labels() -> list[str]:
    with contextlib.suppress(MissingExtraError):
        source_hashes(*LABELS[OPTIONAL].sources)
        return list(LABELS)
    return [name for name in LABELS if name != OPTIONAL]


def _sources(labels: Sequence[str]) -> tuple[str, ...]:
    return tuple(source for source in SOURCES if any(source in LABELS[name].sources for name in labels))


def _build(count: int, seed: int, names: Sequence[str]) -> tuple[Arrays, Mapping[str, Any]]:
    sphere = sample_sphere(count, seed, purpose=PURPOSE)
    places = {"land": benchmark_places(count, seed), "sphere": sphere}
    values: dict[str, Codes | Floats] = {}
    if OPTIONAL in names:
        places["own"], values[OPTIONAL] = people.load_housing()
    for where in ("land", "sphere"):
        values |= prepare_labels(places[where], [name for name in names if LABELS[name].places == where])
    arrays = {
        **{f"places/{name}": array for name, array in places.items()},
        **{f"labels/{name}": array for name, array in values.items()},
    }
    classes = {name: label.class_names() for name, label in LABELS.items() if label.class_names is not None}
    return arrays, {"count": count, "seed": seed, "labels": describe_labels(names), "classes": classes}


def _to_tables(prepared: Prepared) -> dict[str, LabelTable]:
    arrays, about = prepared
    return {
        row["name"]: LabelTable(
            latlon=arrays[f"places/{row['places']}"],
            values=arrays[f"labels/{row['name']}"],
            kind=row["kind"],
            unit=row["unit"],
            classes=tuple(about["classes"].get(row["name"], ())),
            about=row,
        )
        for row in about["labels"]
    }
