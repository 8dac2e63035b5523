"""The feature store: features of many places as one memory-mapped array, with the places and a manifest.

STORE/
manifest.json     what made it: recipe, sources, encoders, versions; shapes; checksums of every chunk and of itself
places.parquet    lat, lon, and whether the place is held out for validation
features.npy      (places, views, width), float16 or float32
encoders/*        the fitted encoders, where they have weights of their own
components.npy    (places, views, components), when the recipe wants principal components
components.safetensors   their directions, mean and variances
"""

import json
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet as pq

from tessearth.errors import DataError, first_line
from tessearth.imagery.recipe import FeatureRecipe
from tessearth.settings import from_plain
from tessearth.storage import atomic_write, checksum, checksum_of_plain, write_bytes

FORMAT = "tessearth-features"
FORMAT_VERSION = 1
MANIFEST, PLACES, FEATURES = "manifest.json", "places.parquet", "features.npy"
COMPONENTS, DIRECTIONS, ENCODERS = "components.npy", "components.safetensors", "encoders"
CHUNK_PLACES = 2048
"""How many places are computed, written and checked together."""
CHECKSUM = "sha256"
"""The manifest's entry about all its other entries."""
NEEDED = ("recipe", "recipe_sha256", "places", "places_sha256", "views", "width", "dtype", "chunk_places", "complete")
VERIFIED_BYTES = 2 * 2**30
"""Stores up to this size are verified whole whenever they are opened, larger ones with `verify=True`."""


class Places(NamedTuple):
    """The point table of a store."""

    latlon: npt.NDArray[np.float64]
    """(N, 2) degrees."""
    validation: npt.NDArray[np.bool_]
    """(N,): held out for validation."""


class PlaceRows:
    """Where the rows of features lie, and which are for training."""

    places: Places

    @property
    def latlon(self) -> npt.NDArray[np.float64]:
        """Where the places lie, (N, 2) degrees."""
        return self.places.latlon

    @property
    def training(self) -> npt.NDArray[np.int64]:
        """The rows to train on."""
        return np.flatnonzero(~self.places.validation)

    @property
    def validation(self) -> npt.NDArray[np.int64]:
        """The rows held out."""
        return np.flatnonzero(self.places.validation)


class FeatureStore(PlaceRows):
    """A finished store, opened for reading."""

    def __init__(self, path: str | Path, *, verify: bool | None = None) -> None:
        """Open and check a store; `verify` reads every byte against its checksum, by default when that is quick."""
        self.path = Path(path)
        self.manifest = read_manifest(self.path)
        if not self.manifest["complete"]:
            raise DataError(f"{self.path} is not finished; run the same `tessearth features` again and it goes on")
        self.recipe = from_plain(FeatureRecipe, self.manifest["recipe"])
        self.places = read_places(self.path, self.manifest)
        self.features = open_array(self.path / FEATURES, feature_shape(self.manifest), self.manifest["dtype"])
        self.components: npt.NDArray[Any] | None = None
        if described := self.manifest.get("components"):
            shape = (*self.features.shape[:2], described["width"])
            self.components = open_array(self.path / COMPONENTS, shape, self.manifest["dtype"])
        if verify or (verify is None and self.features.nbytes <= VERIFIED_BYTES):
            self.verify()

    def verify(self) -> None:
        """Compare every chunk of features and components with the checksum it was written with."""
        self._verify(FEATURES, self.features, self.manifest["chunks"])
        if self.components is not None:  # early stores have no checksums of components
            self._verify(COMPONENTS, self.components, self.manifest["components"].get("chunks", []))
            directions = self.path / DIRECTIONS
            found = checksum(directions.read_bytes()) if directions.is_file() else ""
            if self.manifest["components"].get("directions_sha256", found) != found:
                raise DataError(f"{directions} is damaged or missing; make the store again")

    def _verify(self, name: str, array: npt.NDArray[Any], checksums: list[str]) -> None:
        step = self.manifest["chunk_places"]
        for start, expected in zip(range(0, len(array), step), checksums, strict=False):
            if checksum(array[start : start + step]) != expected:
                raise DataError(
                    f"{self.path / name} is damaged: places {start} to {min(start + step, len(array)) - 1} do not "
                    f"match their checksum; make the store again"
                )

    def describe(self) -> dict[str, Any]:
        """What `tessearth info` shows."""
        return {
            "store": str(self.path),
            "places": len(self.latlon),
            "training_places": len(self.training),
            "validation_places": len(self.validation),
            "views": self.manifest["views"],
            "width": self.manifest["width"],
            "dtype": self.manifest["dtype"],
            "megabytes": self.features.nbytes / 1e6,
            "components": 0 if self.components is None else self.components.shape[-1],
            "sources": {str(i): _flat(entry) for i, entry in enumerate(self.manifest["sources"])},
            "made_with": self.manifest["made_with"],
            "recipe_sha256": self.manifest["recipe_sha256"],
        }


def is_store(path: str | Path) -> bool:
    """Whether a folder is a feature store, finished or not."""
    return (Path(path) / MANIFEST).is_file()


def read_manifest(path: Path) -> dict[str, Any]:
    """The manifest of a store, of this format and version."""
    try:
        manifest = json.loads((path / MANIFEST).read_text("utf-8"))
    except FileNotFoundError:
        raise DataError(f"{path} is not a feature store: it has no {MANIFEST}") from None
    except (OSError, ValueError, RecursionError) as error:
        raise DataError(f"{path / MANIFEST} cannot be read: {error}") from None
    if not isinstance(manifest, dict) or manifest.get("format") != FORMAT:
        raise DataError(f"{path / MANIFEST} does not describe a feature store")
    if manifest.get("format_version") != FORMAT_VERSION:
        raise DataError(
            f"{path} is of format {manifest.get('format_version')}, this tessearth reads format {FORMAT_VERSION}"
        )
    if manifest.pop(CHECKSUM, None) != checksum_of_plain(manifest):
        raise DataError(f"{path / MANIFEST} is damaged: it does not match its own checksum; make the store again")
    missing = [key for key in (*NEEDED, *(["chunks"] if manifest.get("complete") else [])) if key not in manifest]
    if missing:
        raise DataError(f"{path / MANIFEST} is damaged: it has no {missing[0]}; make the store again")
    return manifest


def write_manifest(path: Path, manifest: dict[str, Any]) -> None:
    """Replace the manifest in one step."""
    whole = {**manifest, CHECKSUM: checksum_of_plain(manifest)}
    write_bytes(path / MANIFEST, (json.dumps(whole, indent=2, sort_keys=True) + "\n").encode())


def feature_shape(manifest: dict[str, Any]) -> tuple[int, int, int]:
    """(places, views, width)."""
    return manifest["places"], manifest["views"], manifest["width"]


def write_places(path: Path, places: Places) -> None:
    """Write the point table."""
    lat, lon = places.latlon.T
    table = pa.table({"lat": lat, "lon": lon, "validation": places.validation})
    with atomic_write(path / PLACES) as file:
        pq.write_table(table, file)


def read_places(path: Path, manifest: dict[str, Any]) -> Places:
    """Read the point table and check that it is the one the manifest names."""
    try:
        table = pq.read_table(path / PLACES, columns=["lat", "lon", "validation"])
        latlon = np.stack([table["lat"].to_numpy(), table["lon"].to_numpy()], axis=-1)
        places = Places(latlon, np.asarray(table["validation"].to_numpy(zero_copy_only=False), dtype=np.bool_))
    except (OSError, ValueError, KeyError, pa.ArrowException) as error:
        first = first_line(error)
        raise DataError(f"{path / PLACES} cannot be read: {first}") from None
    if places_sha256(places) != manifest["places_sha256"]:
        raise DataError(f"{path / PLACES} was changed: it does not match the manifest; make the store again")
    return places


def places_sha256(places: Places) -> str:
    """The checksum of a point table."""
    return checksum(places.latlon.tobytes() + places.validation.tobytes())


def open_array(path: Path, shape: tuple[int, ...], dtype: str) -> npt.NDArray[Any]:
    """Map an array into memory and check its shape and type."""
    try:
        array: npt.NDArray[Any] = np.load(path, mmap_mode="r", allow_pickle=False)
    except Exception as error:  # damage makes the reader of array headers raise many kinds
        first = first_line(error)
        raise DataError(f"{path} is damaged or missing: {first}") from None
    if array.shape != shape or array.dtype != np.dtype(dtype):
        raise DataError(f"{path} is {array.shape} of {array.dtype}, the manifest says {shape} of {dtype}")
    return array


def _flat(entry: dict[str, Any]) -> dict[str, Any]:
    """A source and its encoder, with lists as text so that they read well on a terminal."""
    return {
        part: {
            key: value if isinstance(value, int | float | str | bool) else json.dumps(value)
            for key, value in entry[part].items()
        }
        for part in ("source", "encoder")
    }
