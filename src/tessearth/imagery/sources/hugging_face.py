"""Patches from a Hugging Face dataset folder on disk, read with pyarrow: no dataset code is ever run."""

import contextlib
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from tessearth.errors import CoordinateError, DataError, TableError
from tessearth.imagery.source import fingerprint
from tessearth.imagery.sources.images import MODES, damage_named
from tessearth.imagery.sources.patches import (
    Check,
    LocatedPatches,
    PatchSet,
    WhenBroken,
    check_names,
    picture_decoder,
)
from tessearth.sphere import Floats, as_places, find_columns

ARROW_FILE_MAGIC = b"ARROW1"


class Row(NamedTuple):
    """Where a row lies: which file, which row group of it (an Arrow file has one), which row of that."""

    file: int
    group: int
    row: int


@dataclass(frozen=True, slots=True)
class PatchRows:
    """Patches in an image column of Arrow or Parquet files: {bytes, path}, or bytes alone.

    Parquet is read by whole row groups: ask for patches in the order of `places`, or each is read many times over.
    """

    folder: Path
    files: tuple[Path, ...]
    column: str
    rows: tuple[Row, ...]
    names: tuple[str, ...]

    def sizes(self) -> npt.NDArray[np.int64]:
        """One for every patch: their true sizes would take reading them."""
        return np.ones(len(self.rows), dtype=np.int64)

    def read_many(self, numbers: Sequence[int]) -> Iterator[tuple[int, bytes]]:
        """Each number with its content, file after file; an empty row has no bytes."""
        wanted: dict[tuple[int, int], list[tuple[int, int]]] = {}
        for number in numbers:
            file, group, row = self.rows[number]
            wanted.setdefault((file, group), []).append((row, number))
        for (file, group), rows in sorted(wanted.items()):
            with _open(self.files[file]) as data:
                images = data.read(group, [self.column])[self.column]
            for row, number in rows:
                yield number, self._content(images[row].as_py(), self.files[file])

    def describe(self) -> dict[str, Any]:
        """The files' hashes."""
        return {"files": [fingerprint(path) for path in self.files], "patches": len(self.rows)}

    def _content(self, image: Any, file: Path) -> bytes:
        """A cell's own bytes, or those of the file it names next to the data."""
        if not isinstance(image, dict):
            return image or b""
        if image.get("bytes") or not image.get("path"):
            return image.get("bytes") or b""
        (name,) = check_names([image["path"]], self.folder, str(file))
        with contextlib.suppress(OSError):
            return (self.folder / name).read_bytes()
        return b""


def hugging_face_folder(
    folder: str | Path,
    *,
    size: int | None = None,
    split: str | None = None,
    image_column: str | None = None,
    lat_column: str | None = None,
    lon_column: str | None = None,
    bands: Sequence[str] = MODES["RGB"].bands,
    scale: float | None = None,
    broken: WhenBroken = "raise",
    check: Check = "size",
) -> LocatedPatches:
    """A dataset folder of Arrow or Parquet files with an image column and coordinates, as saved or downloaded.

    `split` takes only files whose path holds that word ("train").
    """
    files = _data_files(Path(folder), split)
    with _open(files[0]) as first:
        column = _image_column(first.schema, image_column, files[0])
    rows: list[Row] = []
    places: list[Floats] = []
    for number, path in enumerate(files):
        with _open(path) as data:
            _image_column(data.schema, column, path)
            for group, latlon in enumerate(_places(data, path, lat_column, lon_column)):
                places.append(latlon)
                rows += [Row(number, group, row) for row in range(len(latlon))]
    names = tuple(
        f"row {row} of {files[file].name}" + (f" (group {group})" if group else "") for file, group, row in rows
    )
    patches = PatchSet(
        kind="hugging-face-folder",
        reader=PatchRows(folder=Path(folder), files=files, column=column, rows=tuple(rows), names=names),
        places=np.concatenate(places) if places else np.empty((0, 2)),
        bands=tuple(bands),
        decode=picture_decoder(len(bands), scale),
        settings={"split": split, "image_column": column, "scale": scale},
    )
    return LocatedPatches(patches, size=size, broken=broken, check=check)


def _data_files(folder: Path, split: str | None) -> tuple[Path, ...]:
    """Arrow and Parquet files, without caches: hidden folders, and the cache-*.arrow files dataset operations leave."""
    found = {}
    for path in sorted(folder.rglob("*")):
        inside = path.relative_to(folder)
        cached = path.name.startswith("cache-") or any(part.startswith(".") for part in inside.parts)
        if path.suffix in {".arrow", ".parquet"} and not cached:
            found[path] = set(re.split(r"[^A-Za-z0-9]+", inside.as_posix()))
    chosen = tuple(path for path, words in found.items() if split is None or split in words)
    if chosen:
        return chosen
    if not found and any(folder.glob("*.py")):
        raise DataError(f"{folder} needs its own code to be read, which is never run; convert it to Parquet first")
    about = f" of split {split!r}" if split is not None and found else ""
    raise DataError(f"{folder} holds no .arrow or .parquet file{about}")


def _places(data: "_DataFile", path: Path, lat: str | None, lon: str | None) -> Iterator[Floats]:
    """The places of each row group, (n, 2); pictures stay unread."""
    try:
        columns = find_columns(data.schema.names, lat, lon)
        for group in range(data.groups):
            table = data.read(group, list(columns))
            yield as_places(np.stack([_degrees(table[column], column) for column in columns], axis=-1))
    except (CoordinateError, TableError) as error:
        raise TableError(f"{path}: {error}") from None


def _degrees(column: pa.ChunkedArray, name: str) -> Floats:
    try:
        return np.asarray(column.cast(pa.float64()).to_numpy())
    except pa.ArrowException:
        raise TableError(f"column {name!r} has text where coordinates belong") from None


def _image_column(schema: pa.Schema, wanted: str | None, path: Path) -> str:
    """The column of pictures: the one named, or the only one that holds bytes."""
    pictures = [str(field.name) for field in schema if _holds_pictures(field.type)]
    if wanted is not None and wanted in pictures:
        return wanted
    if wanted is None and len(pictures) == 1:
        return pictures[0]
    there = f"columns of encoded pictures: {', '.join(pictures) or 'none'}"
    raise TableError(f"{path} has no image column {wanted or 'that is unmistakable'}; {there}")


def _holds_pictures(kind: pa.DataType) -> bool:
    if pa.types.is_struct(kind):
        return any(field.name == "bytes" and _holds_pictures(field.type) for field in kind)
    return bool(pa.types.is_binary(kind) or pa.types.is_large_binary(kind))


class _DataFile(NamedTuple):
    """An open Arrow or Parquet file."""

    schema: pa.Schema
    groups: int
    read: Callable[[int, list[str]], pa.Table]
    """Columns of a row group."""


@contextlib.contextmanager
def _open(path: Path) -> Iterator[_DataFile]:
    """Open a Parquet file, or map an Arrow file of either format."""
    with damage_named(str(path)):
        if path.suffix == ".parquet":
            with pa.parquet.ParquetFile(path) as file:
                read = lambda group, columns: file.read_row_group(group, columns=columns)  # noqa: E731
                yield _DataFile(file.schema_arrow, file.num_row_groups, read)
            return
        mapped = pa.memory_map(str(path))
        whole_file = mapped.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC
        mapped.seek(0)
        table = (pa.ipc.open_file if whole_file else pa.ipc.open_stream)(mapped).read_all()
        yield _DataFile(table.schema, 1, lambda _, columns: table.select(columns))
