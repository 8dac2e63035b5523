"""Where encoded patches lie: in files, in tar shards, or in the columns of Arrow and Parquet files.

Every reader numbers its patches, knows their names and sizes, and opens what it needs for each call alone.
"""

import re
import tarfile
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet

from tessearth.errors import DataError, TableError
from tessearth.imagery.source import fingerprint
from tessearth.sphere.coordinates import LATITUDE_NAMES, LONGITUDE_NAMES, as_places

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
