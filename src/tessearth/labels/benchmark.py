"""The embedded benchmark: places drawn once, with every label, kept in one file that explains itself."""

from collections.abc import Mapping
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from tessearth.labels.housing import load_housing
from tessearth.labels.places import Values, land_places, sphere_places
from tessearth.labels.prepared import Arrays, Prepared, load_prepared, prepared_path, read_prepared
from tessearth.labels.sources import SOURCES
from tessearth.labels.table import LABELS, Codes, describe_labels, prepare_labels
from tessearth.settings import Kind

BENCHMARK_COUNT = 40_000
BENCHMARK_SEED = 0
BENCHMARK_SOURCES = tuple(name for name in SOURCES if any(name in label.sources for label in LABELS.values()))


class LabelTable(NamedTuple):
    """Places and one label of them."""

    latlon: Values
    """(N, 2) degrees; labels of the same places share one array."""
    values: Codes | Values
    """(N,): codes of `classes`, -1 where unknown, or numbers, NaN where unknown."""
    kind: Kind
    unit: str
    classes: tuple[str, ...]
    """The names of the classes in the order of their codes; empty for numbers."""
    about: dict[str, Any]
    """The label's row of `describe_labels`, as it was when the table was made."""

    @property
    def known(self) -> np.ndarray[Any, np.dtype[np.bool_]]:
        """Which places have a value, (N,)."""
        return np.asarray(self.values >= 0 if self.kind == "classify" else np.isfinite(self.values))


def benchmark_places(count: int = BENCHMARK_COUNT, seed: int = BENCHMARK_SEED) -> Values:
    """Places (count, 2) uniform over land without Antarctica; a smaller count gives the first of the same places."""
    return land_places(count, seed)


def load_benchmark(count: int = BENCHMARK_COUNT, seed: int = BENCHMARK_SEED) -> dict[str, LabelTable]:
    """Every label of the benchmark with its places: read from the cache, prepared first when it is not there."""
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
    places = {"land": land_places(count, seed), "sphere": sphere_places(count, seed), "own": houses.latlon}
    values: dict[str, Codes | Values] = {"housing": houses.values}
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
