"""Patches from a Hugging Face dataset folder on disk, read with pyarrow: no dataset code is ever run."""

import contextlib
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute
import pyarrow.parquet

from tessearth.errors import DataError, TableError
from tessearth.imagery.source import fingerprint
from tessearth.imagery.sources.images import MODES
from tessearth.imagery.sources.patches import (
    LocatedPatches,
    WhenBroken,
    check_names,
    decoder_for,
    find_column,
    places_of,
)
from tessearth.sphere.coordinates import LATITUDE_NAMES, LONGITUDE_NAMES

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
            images = _read_group(self.files[file], group, [self.column])[self.column]
            for row, number in rows:
                yield number, self._content(images[row].as_py(), self.files[file])

    def describe(self) -> dict[str, Any]:
        """The files' hashes."""
        return {"files": [fingerprint(path) for path in self.files], "patches": len(self.rows)}

    def _content(self, image: Any, file: Path) -> bytes:
        """A cell's own bytes, or those of the file it names beside the data."""
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
    check: Literal["size", "read"] = "size",
) -> LocatedPatches:
    """A dataset folder of Arrow or Parquet files with an image column and coordinates, as saved or downloaded.

    `split` takes only files whose path speaks of it ("train"). Patches larger than `size` are cropped to their middle.
    """
    root = Path(folder)
    files = _data_files(root, split)
    column = _image_column(_schema(files[0]), image_column, files[0])
    reader, places = _scan(root, files, column, lat_column, lon_column)
    return LocatedPatches(
        reader,
        places,
        kind="hugging-face-folder",
        bands=tuple(bands),
        decode=decoder_for(len(bands), scale),
        size=size,
        broken=broken,
        check=check,
        settings={"split": split, "image_column": column, "scale": scale},
    )


def _data_files(folder: Path, split: str | None) -> tuple[Path, ...]:
    found = sorted(
        path for path in folder.rglob("*") if path.suffix in {".arrow", ".parquet"} and _visible(path, folder)
    )
    chosen = [path for path in found if split is None or split in _words(path, folder)]
    if chosen:
        return tuple(chosen)
    if not found and any(folder.glob("*.py")):
        raise DataError(f"{folder} needs its own code to be read, which is never run; convert it to Parquet first")
    about = f" of split {split!r}" if split is not None and found else ""
    raise DataError(f"{folder} holds no .arrow or .parquet file{about}")


def _visible(path: Path, folder: Path) -> bool:
    """Leaves out caches: hidden folders, and the cache-*.arrow files that dataset operations leave behind."""
    parts = path.relative_to(folder).parts
    return not path.name.startswith("cache-") and not any(part.startswith(".") for part in parts)


def _words(path: Path, folder: Path) -> set[str]:
    return set(re.split(r"[^A-Za-z0-9]+", path.relative_to(folder).as_posix()))


def _scan(
    folder: Path, files: tuple[Path, ...], column: str, lat: str | None, lon: str | None
) -> tuple[PatchRows, npt.NDArray[np.float64]]:
    """Go through all files once for their places; pictures stay unread."""
    rows: list[Row] = []
    places: list[npt.NDArray[np.float64]] = []
    for number, path in enumerate(files):
        schema = _schema(path)
        _image_column(schema, column, path)
        columns = [
            find_column(schema.names, lat, LATITUDE_NAMES, "latitude", str(path)),
            find_column(schema.names, lon, LONGITUDE_NAMES, "longitude", str(path)),
        ]
        for group in range(_count_groups(path)):
            places.append(places_of(_read_group(path, group, columns), str(path), lat=columns[0], lon=columns[1]))
            rows += [Row(number, group, row) for row in range(len(places[-1]))]
    names = tuple(
        f"row {row} of {files[file].name}" + (f" (group {group})" if group else "") for file, group, row in rows
    )
    reader = PatchRows(folder=folder, files=files, column=column, rows=tuple(rows), names=names)
    return reader, np.concatenate(places) if places else np.empty((0, 2))


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


def _schema(path: Path) -> pa.Schema:
    if path.suffix == ".parquet":
        with _damage_named(path):
            return pa.parquet.read_schema(path)
    return _read_arrow(path).schema


def _count_groups(path: Path) -> int:
    if path.suffix == ".parquet":
        with _damage_named(path), pa.parquet.ParquetFile(path) as file:
            return int(file.num_row_groups)
    return 1


def _read_group(path: Path, group: int, columns: list[str]) -> pa.Table:
    if path.suffix == ".parquet":
        with _damage_named(path), pa.parquet.ParquetFile(path) as file:
            return file.read_row_group(group, columns=columns)
    return _read_arrow(path).select(columns)


def _read_arrow(path: Path) -> pa.Table:
    """An Arrow file of either format, mapped rather than read."""
    with _damage_named(path):
        mapped = pa.memory_map(str(path))
        whole_file = mapped.read(len(ARROW_FILE_MAGIC)) == ARROW_FILE_MAGIC
        mapped.seek(0)
        return (pa.ipc.open_file if whole_file else pa.ipc.open_stream)(mapped).read_all()


@contextlib.contextmanager
def _damage_named(path: Path) -> Iterator[None]:
    try:
        yield
    except (pa.ArrowException, OSError) as error:
        raise DataError(f"cannot read {path}: {' '.join(str(error).split())}") from error
