"""The embedded benchmark: places drawn once, with every label, in one self-describing file."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessearth.labels.people import load_housing
from tessearth.labels.sources import SOURCES, Arrays, Prepared, load_prepared, prepared_path, read_prepared
from tessearth.labels.table import LABELS, Codes, describe_labels, prepare_labels
from tessearth.settings import Kind
from tessearth.sphere import Floats, sample_land, sample_sphere

BENCHMARK_COUNT = 40_000
BENCHMARK_SEED = 0
PURPOSE = "benchmark"
"""Keeps test places apart from training places at any seeds."""
BENCHMARK_SOURCES = tuple(name for name in SOURCES if any(name in label.sources for label in LABELS.values()))


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
    """Every label of the benchmark with its places, read from the cache or prepared into it."""
    settings = {"count": count, "seed": seed}
    prepared = load_prepared("benchmark", BENCHMARK_SOURCES, lambda: _build(count, seed), settings)
    return _to_tables(prepared)


def benchmark_path(count: int = BENCHMARK_COUNT, seed: int = BENCHMARK_SEED) -> Path:
    """The file `load_benchmark` keeps its tables in; it can be carried to a machine without the data packages."""
    return prepared_path("benchmark", BENCHMARK_SOURCES, {"count": count, "seed": seed})


def read_benchmark(path: str | PathLike[str]) -> dict[str, LabelTable]:
    """Every label of a benchmark file made elsewhere; needs none of the packages it was made from."""
    return _to_tables(read_prepared(Path(path)))


def _build(count: int, seed: int) -> tuple[Arrays, Mapping[str, Any]]:
    houses = load_housing()
    sphere = sample_sphere(count, seed, purpose=PURPOSE)
    places = {"land": benchmark_places(count, seed), "sphere": sphere, "own": houses.latlon}
    values: dict[str, Codes | Floats] = {"housing": houses.values}
    for where in ("land", "sphere"):
        names = [name for name, label in LABELS.items() if label.places == where]
        values |= prepare_labels(places[where], names)
    arrays = {
        **{f"places/{name}": array for name, array in places.items()},
        **{f"labels/{name}": array for name, array in values.items()},
    }
    classes = {name: label.class_names() for name, label in LABELS.items() if label.class_names is not None}
    return arrays, {"count": count, "seed": seed, "labels": describe_labels(), "classes": classes}


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
