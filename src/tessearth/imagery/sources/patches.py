"""Located patches: pictures that come with their own places, and are found again by them."""

import re
import tarfile
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import DataError, TableError
from tessearth.imagery.source import check_tile_size, fingerprint
from tessearth.imagery.sources.images import MODES, decode_picture
from tessearth.packages import package_version
from tessearth.sphere.coordinates import LATITUDE_NAMES, LONGITUDE_NAMES, as_places
from tessearth.sphere.sampling import KEYS_AROUND, place_keys

FILE_NAMES = ("fn", "file_name", "filename", "file", "path", "image", "name")


class PatchReader(Protocol):
    """Encoded patches by number."""

    @property
    def names(self) -> tuple[str, ...]:
        """What each patch is called in messages."""

    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of every patch, -1 for one that is missing."""

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Each number asked for with its bytes, in an order that suits the files."""

    def describe(self) -> dict[str, Any]:
        """Where the patches come from, ready for JSON."""


@dataclass(frozen=True, slots=True)
class PatchFiles:
    """One file per patch inside a folder."""

    folder: Path
    names: tuple[str, ...]
    index: Path

    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of every file, -1 for one that is missing."""
        paths = [self.folder / name for name in self.names]
        return np.array([path.stat().st_size if path.is_file() else -1 for path in paths], dtype=np.int64)

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Each number with its file's content."""
        for number in numbers:
            path = self.folder / self.names[number]
            try:
                yield number, path.read_bytes()
            except OSError as error:
                raise DataError(f"cannot read {path}: {error.strerror}") from error

    def describe(self) -> dict[str, Any]:
        """The index's hash and the files' total size; hashing every patch would cost as much as reading them."""
        sizes = self.sizes()
        return {"files": [fingerprint(self.index)], "patches": len(sizes), "bytes": int(sizes[sizes > 0].sum())}


class Member(NamedTuple):
    """A patch inside a tar shard: the shard's number, and the bytes it occupies there."""

    shard: int
    start: int
    size: int


@dataclass(frozen=True, slots=True)
class PatchShards:
    """Patches inside plain tar files, read in place: nothing is unpacked to disk."""

    shards: tuple[Path, ...]
    members: tuple[Member | None, ...]
    names: tuple[str, ...]
    index: Path

    def sizes(self) -> npt.NDArray[np.int64]:
        """The bytes of every patch, -1 for one its shard does not have."""
        return np.array([-1 if member is None else member.size for member in self.members], dtype=np.int64)

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Each number with its content, shard after shard."""
        wanted = sorted((member, number) for number in numbers if (member := self.members[number]) is not None)
        for shard in sorted({member.shard for member, _ in wanted}):
            with open(self.shards[shard], "rb") as file:
                for member, number in wanted:
                    if member.shard == shard:
                        file.seek(member.start)
                        yield number, file.read(member.size)

    def describe(self) -> dict[str, Any]:
        """The hashes of index and shards."""
        return {"files": [fingerprint(path) for path in (self.index, *self.shards)], "patches": len(self.names)}


def open_shards(folder: Path, index: Path, names: Sequence[str], shards: Sequence[Any]) -> PatchShards:
    """Find every patch in the shard its row names; a shard that is not there is an error, a missing member is not."""
    tars = sorted(folder.rglob("*.tar"))
    kinds = list(dict.fromkeys(shards))
    paths = [_find_shard(tars, shard, folder) for shard in kinds]
    contents = [_list_members(path) for path in paths]
    number_of = {shard: number for number, shard in enumerate(kinds)}
    members = []
    for name, shard in zip(names, shards, strict=True):
        place = contents[number_of[shard]].get(Path(name).name)
        members.append(None if place is None else Member(number_of[shard], *place))
    return PatchShards(shards=tuple(paths), members=tuple(members), names=tuple(names), index=index)


def _find_shard(tars: list[Path], shard: Any, folder: Path) -> Path:
    """A shard by its file name, with or without .tar, or by the number its name ends with."""
    for path in tars:
        digits = re.search(r"(\d+)$", path.stem)
        by_number = not isinstance(shard, str) and digits is not None and int(digits.group()) == shard
        if by_number or (isinstance(shard, str) and Path(shard).name in {path.name, path.stem}):
            return path
    there = ", ".join(path.name for path in tars[:5]) or "no .tar file"
    raise DataError(f"shard {shard} is missing from {folder}; there is {there}")


def _list_members(path: Path) -> dict[str, tuple[int, int]]:
    """Where the regular files of an uncompressed tar lie, by their last name."""
    found: dict[str, tuple[int, int]] = {}
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    name = Path(member.name).name
                    if name in found:
                        raise DataError(f"{path} holds two files named {name}")
                    found[name] = (member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"cannot read {path} as an uncompressed tar: {error}") from error
    return found


class PlaceTable(NamedTuple):
    """A table of patches: every column, and the places of its rows."""

    table: pa.Table
    places: npt.NDArray[np.float64]


def read_place_table(path: Path, *, lat: str | None = None, lon: str | None = None) -> PlaceTable:
    """Read a CSV or Parquet file with coordinates in degrees."""
    table = read_table(path)
    return PlaceTable(table=table, places=places_of(table, str(path), lat=lat, lon=lon))


def read_table(path: Path) -> pa.Table:
    """Read a CSV (also tab-separated) or Parquet file."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    try:
        if path.suffix.lower() == ".parquet":
            return pa.parquet.read_table(path)
        separator = "\t" if path.suffix.lower() == ".tsv" else ","
        return pa.csv.read_csv(path, parse_options=pa.csv.ParseOptions(delimiter=separator))
    except (pa.ArrowException, OSError) as error:
        raise TableError(f"cannot read {path} as a table: {' '.join(str(error).split())}") from error


def places_of(table: pa.Table, name: str, *, lat: str | None = None, lon: str | None = None) -> npt.NDArray[np.float64]:
    """The places (N, 2) of a table's rows from the columns named, or from the first that is usually called so."""
    chosen = [
        find_column(table.column_names, lat, LATITUDE_NAMES, "latitude", name),
        find_column(table.column_names, lon, LONGITUDE_NAMES, "longitude", name),
    ]
    try:
        columns = [table[column].cast(pa.float64()).to_numpy() for column in chosen]
    except pa.ArrowException as error:
        raise TableError(f"{name} has text where coordinates belong, in {' or '.join(chosen)}") from error
    return as_places(np.stack(columns, axis=-1))


def find_column(columns: Sequence[str], wanted: str | None, usual: tuple[str, ...], what: str, name: str) -> str:
    """A column by its name, or by the names such a column usually has, whatever their case."""
    lowered = {column.lower(): column for column in reversed(columns)}
    known = [wanted] if wanted in columns else []
    found = known if wanted is not None else [lowered[candidate] for candidate in usual if candidate in lowered]
    if found:
        return str(found[0])
    missing = f"column {wanted!r}" if wanted is not None else f"{what} column ({', '.join(usual)})"
    raise TableError(f"{name} has no {missing}; it has: {', '.join(columns)}")


def check_names(names: Sequence[Any], folder: Path, table: str) -> tuple[str, ...]:
    """Return file names that stay inside their folder, or say which one does not."""
    root = folder.resolve()
    for row, name in enumerate(names):
        if not isinstance(name, str) or not (root / name).resolve().is_relative_to(root):
            raise DataError(f"row {row} of {table} names {name!r}, which is not a file inside {folder}")
    return tuple(names)


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
