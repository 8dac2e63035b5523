"""Located patches: pictures that come with their own places, and are found again by them."""

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.imagery.source import check_tile_size
from tessearth.imagery.sources.images import MODES, decode_picture
from tessearth.imagery.sources.patch_files import (
    FILE_NAMES,
    PatchFiles,
    PatchReader,
    check_names,
    find_column,
    read_place_table,
)
from tessearth.packages import package_version
from tessearth.sphere.coordinates import as_places
from tessearth.sphere.sampling import KEYS_AROUND, place_keys

NAMES_IN_A_MESSAGE = 20
NEIGHBOURS = (0, 1, -1, KEYS_AROUND, -KEYS_AROUND, KEYS_AROUND + 1, KEYS_AROUND - 1, 1 - KEYS_AROUND, -1 - KEYS_AROUND)
"""Steps between keys of places that differ by a rounding; the place itself comes first."""

WhenBroken = Literal["raise", "skip"]
Decode = Callable[[bytes, str], npt.NDArray[np.float32]]
"""From a patch's bytes and name to (C, H, W)."""


class Broken(NamedTuple):
    """A patch that cannot be used, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


class LocatedPatches:
    """Patches that know their places; `tiles` finds them by place, to a millionth of a degree.

    Patches missing or smaller than `least_bytes` are broken downloads. With `check="read"` every patch is also decoded
    once, which finds damage of any kind. Broken patches are an error that names them, or with `broken="skip"` they are
    left out and listed in `.broken`.
    """

    def __init__(
        self,
        reader: PatchReader,
        places: npt.NDArray[np.float64],
        *,
        kind: str,
        bands: tuple[str, ...],
        decode: Decode,
        size: int | None = None,
        least_bytes: int = 1,
        broken: WhenBroken = "raise",
        check: Literal["size", "read"] = "size",
        settings: dict[str, Any] | None = None,
    ) -> None:
        self.kind, self._bands, self._decode = kind, bands, decode
        self.reader, self.settings = reader, dict(settings or {})
        self._all_places = as_places(places)
        self.size = None if size is None else check_tile_size(size)
        found = _too_small(reader, least_bytes)
        if check == "read":
            found |= self._unreadable(number for number in range(len(places)) if number not in found)
        self.broken = tuple(Broken(reader.names[number], reason) for number, reason in sorted(found.items()))
        if self.broken and broken == "raise":
            raise DataError(f"{_listing(self.broken)}; pass broken='skip' to leave them out")
        self._numbers = np.array([number for number in range(len(places)) if number not in found], dtype=np.int64)
        self._keys, self._order = self._index()

    @property
    def bands(self) -> tuple[str, ...]:
        """The names of the bands."""
        return self._bands

    @property
    def places(self) -> npt.NDArray[np.float64]:
        """Where the patches lie, (N, 2) in degrees, in the order of the table; broken ones left out."""
        return self._all_places[self._numbers]

    @property
    def names(self) -> tuple[str, ...]:
        """The patches' names, in the order of `places`."""
        return tuple(self.reader.names[number] for number in self._numbers)

    def __len__(self) -> int:
        return len(self._numbers)

    def tiles(self, latlon: npt.NDArray[np.float64]) -> npt.NDArray[np.float32]:
        """The patches of places (N, 2) as (N, C, H, W); damaged ones are an error that names all of them."""
        numbers = self.find(latlon)
        rows_of: dict[int, list[int]] = {}
        for row, number in enumerate(numbers.tolist()):
            rows_of.setdefault(number, []).append(row)
        result: npt.NDArray[np.float32] | None = None
        damaged: list[Broken] = []
        for number, content in self.reader.read_many(list(rows_of)):
            try:
                patch = self._patch(number, content, like=result)
            except DataError as error:
                damaged.append(Broken(self.reader.names[number], str(error)))
                continue
            if result is None:
                result = np.empty((len(numbers), *patch.shape), dtype=np.float32)
            result[rows_of[number]] = patch
        if damaged:
            raise DataError(_listing(damaged))
        return (
            result
            if result is not None
            else np.empty((0, len(self._bands), self.size or 0, self.size or 0), np.float32)
        )

    def find(self, latlon: npt.ArrayLike) -> npt.NDArray[np.int64]:
        """The number of the patch at each place (N, 2) -> (N,), or an error that names a place without one."""
        places = as_places(latlon)
        wanted = place_keys(places)
        found = np.full(len(wanted), -1, dtype=np.int64)
        for step in NEIGHBOURS if len(self._keys) else ():
            near = np.minimum(np.searchsorted(self._keys, wanted + step), len(self._keys) - 1)
            hit = (found < 0) & (self._keys[near] == wanted + step)
            found[hit] = self._order[near[hit]]
        if (found < 0).any():
            row = int((found < 0).argmax())
            lat, lon = places[row]
            raise DataError(f"no patch of {self.kind} lies at lat {lat:.7g}, lon {lon:.7g} (row {row}); see .places")
        return found

    def describe(self) -> dict[str, Any]:
        """The patches' record."""
        return {
            "kind": self.kind,
            **self.reader.describe(),
            "bands": list(self._bands),
            "size": self.size,
            "broken": [str(patch) for patch in self.broken],
            **self.settings,
            "packages": {name: package_version(name) for name in ("pillow", "rasterio")},
        }

    def _index(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sorted keys of the places and the patches they belong to; no place may have two."""
        keys = place_keys(self.places)
        order = np.argsort(keys, kind="stable")
        keys, numbers = keys[order], self._numbers[order]
        twice = np.flatnonzero(np.diff(keys) == 0)
        if len(twice):
            first, second = (self.reader.names[numbers[twice[0] + side]] for side in (0, 1))
            lat, lon = self._all_places[numbers[twice[0]]]
            raise DataError(f"{first} and {second} both claim the place lat {lat:.7g}, lon {lon:.7g}; keep one of them")
        return keys, numbers

    def _patch(
        self, number: int, content: bytes, *, like: npt.NDArray[np.float32] | None = None
    ) -> npt.NDArray[np.float32]:
        name = self.reader.names[number]
        patch = self._decode(content, name)
        if len(patch) != len(self._bands):
            raise DataError(f"{name} has {len(patch)} bands, not {len(self._bands)}")
        patch = patch if self.size is None else _crop(patch, self.size, name)
        if like is not None and like.shape[1:] != patch.shape:
            (height, width), (others_height, others_width) = patch.shape[1:], like.shape[2:]
            raise DataError(
                f"{name} is {width} x {height} pixels, others {others_width} x {others_height}; give a size"
            )
        return patch

    def _unreadable(self, numbers: Iterable[int]) -> dict[int, str]:
        found = {}
        for number in numbers:
            for _, content in self.reader.read_many([number]):
                try:
                    self._patch(number, content)
                except DataError as error:
                    found[number] = str(error)
        return found


@dataclass(frozen=True, slots=True)
class DecodeImage:
    """Decodes ordinary pictures, in the mode given and scaled: 8-bit values to [0, 1] unless a scale is given."""

    mode: str | None
    scale: float | None

    def __call__(self, content: bytes, name: str) -> npt.NDArray[np.float32]:
        """From bytes to (C, H, W)."""
        pixels = decode_picture(content, name=name, mode=self.mode)
        scale = self.scale if self.scale is not None else 1 / 255 if pixels.dtype == np.uint8 else 1.0
        return pixels.astype(np.float32) * np.float32(scale)


def image_folder(
    folder: str | Path,
    table: str | Path,
    *,
    size: int | None = None,
    file_column: str | None = None,
    lat_column: str | None = None,
    lon_column: str | None = None,
    bands: Sequence[str] = MODES["RGB"].bands,
    scale: float | None = None,
    broken: WhenBroken = "raise",
    check: Literal["size", "read"] = "size",
) -> LocatedPatches:
    """A folder of pictures with a CSV or Parquet table of their names and coordinates.

    Three bands are read as colour and one as gray whatever the picture's own mode; any other number must be the
    picture's own (a TIFF). Patches larger than `size` are cropped to their middle.
    """
    path = Path(table) if Path(table).is_file() else Path(folder) / table
    rows, places = read_place_table(path, lat=lat_column, lon=lon_column)
    names = rows[find_column(rows.column_names, file_column, FILE_NAMES, "file name", str(path))].to_pylist()
    return LocatedPatches(
        PatchFiles(folder=Path(folder), names=check_names(names, Path(folder), str(path)), index=path),
        places,
        kind="image-folder",
        bands=tuple(bands),
        decode=decoder_for(len(bands), scale),
        size=size,
        broken=broken,
        check=check,
        settings={"scale": scale},
    )


def decoder_for(bands: int, scale: float | None) -> DecodeImage:
    """Colour for three bands, gray for one, whatever the file holds otherwise."""
    return DecodeImage(mode={1: "L", 3: "RGB"}.get(bands) if scale is None else None, scale=scale)


def _too_small(reader: PatchReader, least_bytes: int) -> dict[int, str]:
    sizes = reader.sizes()
    return {
        int(number): "missing" if sizes[number] < 0 else f"only {sizes[number]} bytes"
        for number in np.flatnonzero(sizes < least_bytes)
    }


def _crop(patch: npt.NDArray[np.float32], size: int, name: str) -> npt.NDArray[np.float32]:
    height, width = patch.shape[1:]
    if min(height, width) < size:
        raise DataError(f"{name} is {width} x {height} pixels, smaller than the size {size} asked for")
    top, left = (height - size) // 2, (width - size) // 2
    return patch[:, top : top + size, left : left + size]


def _listing(patches: Sequence[Broken]) -> str:
    shown = ", ".join(str(patch) for patch in patches[:NAMES_IN_A_MESSAGE])
    more = f" and {len(patches) - NAMES_IN_A_MESSAGE} more" if len(patches) > NAMES_IN_A_MESSAGE else ""
    return f"{len(patches)} broken {'patch' if len(patches) == 1 else 'patches'}: {shown}{more}"
