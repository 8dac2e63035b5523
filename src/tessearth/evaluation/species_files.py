"""Files of the geographic prior: sightings to fit it on, image scores to judge it by, and the fitted prior itself.

iNaturalist-2018 comes as inat2018_train.npz {lon, lat, classes} and inat2018_val.npz, the same plus `prediction`, the
image scores of 24 thousand photographs for 8,142 species; these are read a block of rows at a time. Any other table of
species works as csv or Parquet with a column of names.
"""

import difflib
import zipfile
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import IO, Any, NamedTuple

import numpy as np
import numpy.lib.format as npy
import numpy.typing as npt

from tessearth.embedding.retrieval import read_npz
from tessearth.errors import CoordinateError, DataError, UnknownNameError, WeightsError
from tessearth.evaluation.geoprior import SCORES_AT_ONCE, GeoPrior
from tessearth.sphere.coordinates import check_latlon
from tessearth.storage.files import write_bytes
from tessearth.storage.labelled_tables import read_labelled
from tessearth.storage.sealed import read_sealed_tensors, seal_tensors

Floats = npt.NDArray[np.float64]
Codes = npt.NDArray[np.int64]

SIGHTINGS = ("lon", "lat", "classes")
SCORES = "prediction"
FORMAT = "tessearth-prior"


class Sightings(NamedTuple):
    """Where each class was seen."""

    latlon: Floats
    """(N, 2) degrees; rows of NaN where the place is unknown."""
    classes: Codes
    """(N,) codes from 0."""
    names: tuple[str, ...]
    """Of the classes; empty when the file has only numbers."""

    @property
    def known(self) -> npt.NDArray[np.bool_]:
        """Which rows have a place, (N,)."""
        return np.asarray(np.isfinite(self.latlon).all(1))


def read_sightings(path: str | PathLike[str], species: str = "species") -> Sightings:
    """Read an npz of iNaturalist's layout (with or without image scores), or a table with a column of species names."""
    if Path(path).suffix.lower() != ".npz":
        table = read_labelled(path, species, "classify")
        return Sightings(table.latlon, table.target, table.classes)
    names = (*SIGHTINGS, SCORES) if _has_scores(path) else SIGHTINGS
    arrays = _read_small(path) if SCORES in names else read_npz(path, names)
    lat, lon, classes = arrays["lat"], arrays["lon"], arrays["classes"]
    if not lat.shape == lon.shape == classes.shape or lat.ndim != 1:
        raise DataError(f"{path}: lon, lat and classes have shapes {lon.shape}, {lat.shape} and {classes.shape}")
    if classes.dtype.kind not in "iu" or (len(classes) and classes.min() < 0):
        raise DataError(f"{path}: classes are {classes.dtype}; they must be whole numbers from 0")
    sightings = Sightings(np.stack((lat, lon), -1).astype(np.float64), classes.astype(np.int64), ())
    try:
        check_latlon(sightings.latlon[sightings.known])
    except CoordinateError as error:
        raise DataError(f"{path}: among the rows with a place, {error}") from None
    return sightings


def read_scores(path: str | PathLike[str]) -> Iterator[npt.NDArray[np.float32]]:
    """The image scores of an npz, (n, C) at a time in the order of the rows, never whole in memory."""
    try:
        with zipfile.ZipFile(path) as archive, archive.open(f"{SCORES}.npy") as file:
            rows, width, dtype = _read_header(file, path)
            step = max(1, SCORES_AT_ONCE // width)
            for start in range(0, rows, step):
                count = min(step, rows - start)
                content = file.read(count * width * dtype.itemsize)
                if len(content) < count * width * dtype.itemsize:
                    raise DataError(f"{path}: {SCORES} ends after fewer than its {rows} rows")
                yield np.frombuffer(content, dtype).reshape(count, width).astype(np.float32, copy=False)
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except KeyError:
        raise DataError(f"{path} holds no image scores ({SCORES})") from None
    except (OSError, zipfile.BadZipFile, EOFError):
        raise DataError(f"{path} is not an npz of plain arrays, or is damaged") from None


def has_scores(path: str | PathLike[str]) -> bool:
    """Whether a file holds image scores beside its sightings."""
    return Path(path).suffix.lower() == ".npz" and _has_scores(path)


def save_prior(
    prior: GeoPrior,
    path: str | PathLike[str],
    *,
    names: tuple[str, ...] = (),
    model: str = "",
    fingerprint: str = "",
) -> None:
    """Write a prior with the names of its classes and the model whose embeddings it reads."""
    header = {"format": FORMAT, "model": model, "fingerprint": fingerprint, "names": "\n".join(names)}
    write_bytes(path, seal_tensors({"weight": prior.weight, "bias": prior.bias}, header))


class SavedPrior(NamedTuple):
    """What a prior's file holds."""

    prior: GeoPrior
    names: tuple[str, ...]
    model: str
    fingerprint: str = ""
    """Of the embeddings it was fitted to."""

    def code_of(self, species: str) -> int:
        """The code of a class by its name, or by its number where classes have no names."""
        if self.names:
            if species not in self.names:
                raise UnknownNameError(f"the prior knows no species {species!r}{_near(species, self.names)}")
            return self.names.index(species)
        if not (species.isdecimal() and int(species) < len(self.prior.bias)):
            raise UnknownNameError(f"the prior's species are numbers from 0 to {len(self.prior.bias) - 1}")
        return int(species)

    def codes_of(self, sightings: Sightings) -> Codes:
        """The classes of sightings in the prior's codes, (N,); -1 for a species the prior does not know."""
        if bool(sightings.names) != bool(self.names):
            raise DataError("either the prior or the table has names for its species, and the other only numbers")
        if not self.names:
            return np.where(sightings.classes < len(self.prior.bias), sightings.classes, -1)
        own = {name: code for code, name in enumerate(self.names)}
        translated = np.array([own.get(name, -1) for name in sightings.names], dtype=np.int64)
        return np.asarray(translated[sightings.classes])


def load_prior(path: str | PathLike[str]) -> SavedPrior:
    """Read a prior that `save_prior` wrote."""
    if not Path(path).exists():
        raise DataError(f"there is no file {path}")
    try:
        header, tensors = read_sealed_tensors(path)
    except WeightsError:
        raise DataError(f"{path} is not a prior, or is damaged") from None
    weight, bias = tensors.get("weight"), tensors.get("bias")
    if header.get("format") != FORMAT or weight is None or bias is None or len(weight) != len(bias):
        raise DataError(f"{path} is not a prior written by tessearth")
    names = tuple(header["names"].split("\n")) if header.get("names") else ()
    if names and len(names) != len(bias):
        raise DataError(f"{path} is damaged: {len(names)} names for {len(bias)} species")
    return SavedPrior(GeoPrior(weight, bias), names, header.get("model", ""), header.get("fingerprint", ""))


def _near(species: str, names: tuple[str, ...]) -> str:
    """Thousands of names are not listed."""
    near = difflib.get_close_matches(species, names, n=1)
    return f"; did you mean {near[0]!r}?" if near else f" among its {len(names):,}, such as {names[0]!r}"


def _has_scores(path: str | PathLike[str]) -> bool:
    try:
        with zipfile.ZipFile(path) as archive:
            return f"{SCORES}.npy" in archive.namelist()
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, zipfile.BadZipFile):
        raise DataError(f"{path} is not an npz of plain arrays, or is damaged") from None


def _read_small(path: str | PathLike[str]) -> dict[str, npt.NDArray[Any]]:
    """The sightings of a file that also holds image scores, which stay unread."""
    with np.load(path, allow_pickle=False) as archive:
        for name in SIGHTINGS:
            if name not in archive.files:
                raise DataError(f"{path} has no {name}; it must hold {', '.join((*SIGHTINGS, SCORES))}")
        return {name: np.asarray(archive[name]) for name in SIGHTINGS}


def _read_header(file: IO[bytes], path: str | PathLike[str]) -> tuple[int, int, np.dtype[Any]]:
    """The shape and type of an array at the beginning of its file."""
    try:
        read = {(1, 0): npy.read_array_header_1_0, (2, 0): npy.read_array_header_2_0}[npy.read_magic(file)]
        shape, by_column, dtype = read(file)
    except (ValueError, KeyError):
        raise DataError(f"{path}: {SCORES} is not a plain array") from None
    if len(shape) != 2 or by_column or dtype.kind != "f":
        raise DataError(f"{path}: {SCORES} is {dtype} of shape {shape}; it must be numbers (rows, classes) row by row")
    return shape[0], shape[1], dtype
