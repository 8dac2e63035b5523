"""Located patches: pictures that come with their own places, and are found again by them."""

import itertools
import re
import tarfile
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa

from tessearth.errors import ConfigError, DataError, TableError
from tessearth.imagery.source import Tiles, fingerprint
from tessearth.packages import package_version
from tessearth.sphere import KEYS_AROUND, Floats, as_places, place_keys
from tessearth.storage import Reading, open_points

NAMES_IN_A_MESSAGE = 20
MISSING = -1
"""The size of a patch that is not there."""
NEIGHBOURS = (0, 1, -1, KEYS_AROUND, -KEYS_AROUND, KEYS_AROUND + 1, KEYS_AROUND - 1, 1 - KEYS_AROUND, -1 - KEYS_AROUND)
"""Steps between keys of places that differ by a rounding; the place itself comes first."""

WhenBroken = Literal["raise", "skip"]
Check = Literal["size", "read"]


class Span(NamedTuple):
    """Where a patch lies: the whole of a file, or a part of an uncompressed tar."""

    path: Path
    start: int
    size: int
    """In bytes, `MISSING` for a patch that is not there."""


def read_spans(spans: Sequence[Span], numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
    """Each number with its content, file after file and in place: nothing is unpacked to disk."""
    wanted = sorted((spans[number], number) for number in numbers)
    for path, inside in itertools.groupby(wanted, key=lambda one: one[0].path):
        try:
            with open(path, "rb") as file:
                for (_, start, size), number in inside:
                    file.seek(start)
                    yield number, file.read(size)
        except OSError as error:
            raise DataError(f"cannot read {path}: {error.strerror}") from error


def find_files(folder: Path, names: Sequence[str]) -> list[Span]:
    """Patches that are files in a folder."""
    paths = [folder / name for name in names]
    return [Span(path, 0, path.stat().st_size if path.is_file() else MISSING) for path in paths]


def total_bytes(spans: Sequence[Span]) -> int:
    """What the record says of single files: hashing them would cost as much as reading."""
    return sum(max(span.size, 0) for span in spans)


def find_in_shards(folder: Path, names: Sequence[str], shards: Sequence[Any]) -> tuple[list[Span], list[Path]]:
    """Every patch in the shard its row names, and the shards; a missing one is an error, a missing member is not."""
    tars = sorted(folder.rglob("*.tar"))
    paths = {shard: _find_shard(tars, shard, folder) for shard in dict.fromkeys(shards)}
    members: dict[tuple[Path, str], Span] = {}
    for path in paths.values():
        for name, span in _list_members(path):
            if (path, name) in members:
                raise DataError(f"{path} holds two files named {name}")
            members[path, name] = span
    keys = [(paths[shard], Path(name).name) for name, shard in zip(names, shards, strict=True)]
    return [members.get(key, Span(key[0], 0, MISSING)) for key in keys], list(paths.values())


def _find_shard(tars: list[Path], shard: Any, folder: Path) -> Path:
    """A shard by its file name, with or without .tar, or by the number its name ends with."""
    for path in tars:
        digits = re.search(r"(\d+)$", path.stem)
        by_number = not isinstance(shard, str) and digits is not None and int(digits.group()) == shard
        if by_number or (isinstance(shard, str) and Path(shard).name in {path.name, path.stem}):
            return path
    there = ", ".join(path.name for path in tars[:5]) or "no .tar file"
    raise DataError(f"shard {shard} is missing from {folder}; there is {there}")


def _list_members(path: Path) -> Iterator[tuple[str, Span]]:
    """The last part of the name, and the place, of every regular file of an uncompressed tar."""
    try:
        with tarfile.open(path, mode="r:") as archive:
            for member in archive:
                if member.isreg() and not member.issparse():
                    yield Path(member.name).name, Span(path, member.offset_data, member.size)
    except (tarfile.TarError, OSError, EOFError) as error:
        raise DataError(f"cannot read {path} as an uncompressed tar: {error}") from error


def read_index(path: Path, *columns: str, lat: str | None = None, lon: str | None = None) -> tuple[pa.Table, Floats]:
    """Every column of a CSV or Parquet file, some of them needed, and the places (N, 2) of its rows."""
    if not path.is_file():
        raise DataError(f"there is no file {path}")
    with open_points(path, Reading(lat=lat, lon=lon)) as points:
        batches = list(points.batches)
    rows = pa.Table.from_batches([batch.rows for batch in batches])
    for column in columns:
        if column not in rows.column_names:
            raise TableError(f"{path} has no column {column!r}; it has: {', '.join(rows.column_names)}")
    return rows, np.concatenate([batch.latlon for batch in batches])


def check_names(names: Sequence[Any], folder: Path, table: str) -> tuple[str, ...]:
    """File names that stay inside their folder; a name that does not is refused."""
    root = folder.resolve()
    for row, name in enumerate(names):
        if not isinstance(name, str) or not (root / name).resolve().is_relative_to(root):
            raise DataError(f"row {row} of {table} names {name!r}, which is not a file inside {folder}")
    return tuple(names)


class Broken(NamedTuple):
    """A patch that cannot be used, and why."""

    name: str
    reason: str

    def __str__(self) -> str:
        return f"{self.name} ({self.reason})"


@dataclass(frozen=True, slots=True, kw_only=True)
class PatchSet:
    """Patches as a folder holds them."""

    kind: str
    """The name of the source."""
    names: Sequence[str]
    """What each patch is called in messages."""
    sizes: Sequence[int]
    """The bytes of every patch, `MISSING` for one that is not there."""
    places: Floats
    """(N, 2) degrees."""
    bands: tuple[str, ...]
    read_many: Callable[[Sequence[int]], Iterator[tuple[int, bytes]]]
    """Each of some patches' numbers with its bytes, in an order that suits the files."""
    decode: Callable[[bytes, str], Tiles]
    """From a patch's bytes and name to (C, H, W)."""
    files: Sequence[Path]
    """Whose hashes are in the record."""
    least_bytes: int = 1
    """Smaller patches are broken downloads."""
    settings: dict[str, Any] = field(default_factory=dict)
    """Further entries of the record."""


class LocatedPatches:
    """Patches that know their places; `tiles` finds them by place, to a millionth of a degree.

    Patches that are missing or too small are broken. With `check="read"` every patch is also decoded once, which finds
    damage of any kind. Broken patches are an error that names them; with `broken="skip"` they are left out and listed
    in `.broken`. Patches larger than `size` are cropped to their middle.
    """

    def __init__(
        self, patches: PatchSet, *, size: int | None = None, broken: WhenBroken = "raise", check: Check = "size"
    ) -> None:
        self.patches, self.bands, self.size = patches, patches.bands, size
        if size is not None and size < 1:
            raise ConfigError(f"a tile of {size} pixels a side cannot be read; size must be at least 1")
        self._all_places = as_places(patches.places)
        found = {
            number: "missing" if length == MISSING else f"only {length} bytes"
            for number, length in enumerate(patches.sizes)
            if length < patches.least_bytes
        }
        whole = [number for number in range(len(patches.sizes)) if number not in found]
        if check == "read":
            for number, content in patches.read_many(whole):
                try:
                    self._patch(number, content)
                except DataError as error:
                    found[number] = str(error)
        self.broken = tuple(Broken(patches.names[number], reason) for number, reason in sorted(found.items()))
        if self.broken and broken == "raise":
            raise DataError(f"{_listing(self.broken)}; pass broken='skip' to leave them out")
        self._numbers = np.array([number for number in whole if number not in found], dtype=np.int64)
        self._keys, self._order = self._index()

    @property
    def places(self) -> Floats:
        """Where the patches lie, (N, 2) in degrees, in the order of the table; broken ones left out."""
        return self._all_places[self._numbers]

    def tiles(self, latlon: Floats) -> Tiles:
        """The patches of places (N, 2) as (N, C, H, W); damaged ones are an error that names all of them."""
        numbers = self.find(latlon)
        side = self.size or 0
        result: Tiles = np.empty((0, len(self.bands), side, side), dtype=np.float32)
        damaged: list[Broken] = []
        for number, content in self.patches.read_many(list(dict.fromkeys(numbers.tolist()))):
            try:
                patch = self._patch(number, content)
                if not len(result):
                    result = np.empty((len(numbers), *patch.shape), dtype=np.float32)
                if result.shape[1:] != patch.shape:
                    given, others = (f"{shape[-1]} x {shape[-2]}" for shape in (patch.shape, result.shape))
                    raise DataError(f"{self.patches.names[number]} is {given} pixels, others {others}; give a size")
                result[numbers == number] = patch
            except DataError as error:
                damaged.append(Broken(self.patches.names[number], str(error)))
        if damaged:
            raise DataError(_listing(damaged))
        return result

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
            kind = self.patches.kind
            raise DataError(f"no patch of {kind} lies at lat {lat:.7g}, lon {lon:.7g} (row {row}); see .places")
        return found

    def describe(self) -> dict[str, Any]:
        """The patches' record."""
        return {
            "kind": self.patches.kind,
            "files": [fingerprint(path) for path in self.patches.files],
            "patches": len(self.patches.names),
            "bands": list(self.bands),
            "size": self.size,
            "broken": [str(patch) for patch in self.broken],
            **self.patches.settings,
            "packages": {name: package_version(name) for name in ("pillow", "rasterio")},
        }

    def _index(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """Sorted keys of the places and the patches they belong to; no place may have two."""
        keys = place_keys(self.places)
        order = np.argsort(keys, kind="stable")
        keys, numbers = keys[order], self._numbers[order]
        twice = np.flatnonzero(np.diff(keys) == 0)
        if len(twice):
            first, second = (self.patches.names[numbers[twice[0] + side]] for side in (0, 1))
            lat, lon = self._all_places[numbers[twice[0]]]
            raise DataError(f"{first} and {second} both claim the place lat {lat:.7g}, lon {lon:.7g}; keep one of them")
        return keys, numbers

    def _patch(self, number: int, content: bytes) -> Tiles:
        name = self.patches.names[number]
        patch = self.patches.decode(content, name)
        if len(patch) != len(self.bands):
            raise DataError(f"{name} has {len(patch)} bands, not {len(self.bands)}")
        height, width = patch.shape[1:]
        if self.size is None:
            return patch
        if min(height, width) < self.size:
            raise DataError(f"{name} is {width} x {height} pixels, smaller than the size {self.size}")
        top, left = (height - self.size) // 2, (width - self.size) // 2
        return patch[:, top : top + self.size, left : left + self.size]


def _listing(patches: Sequence[Broken]) -> str:
    shown = ", ".join(str(patch) for patch in patches[:NAMES_IN_A_MESSAGE])
    more = f" and {len(patches) - NAMES_IN_A_MESSAGE} more" if len(patches) > NAMES_IN_A_MESSAGE else ""
    return f"{len(patches)} broken {'patch' if len(patches) == 1 else 'patches'}: {shown}{more}"
