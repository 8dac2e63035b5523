"""Patches from a Hugging Face dataset folder on disk, read with pyarrow: no dataset code is ever run."""

import contextlib
import itertools
import re
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet

from tessearth.errors import CoordinateError, DataError, TableError
from tessearth.imagery.sources.images import MODES, damage_named
from tessearth.imagery.sources.patches import Check, LocatedPatches, PatchSet, WhenBroken, check_names, decode_image
from tessearth.sphere import Floats, as_places, find_columns

ARROW_FILE_MAGIC = b"ARROW1"


class Row(NamedTuple):
    """Where a row lies: which file, which row group of it (an Arrow file has one), which row of that."""

    file: int
    group: int
    row: int


def read_rows(
    folder: Path, files: Sequence[Path], column: str, rows: Sequence[Row], numbers: Sequence[int]
) -> Iterator[tuple[int, bytes]]:
    """Each number with the bytes of its row's picture, file after file; an empty row has none.

    Parquet is read by whole row groups: ask for patches in the order of `places`, or each is read many times over.
    """
    wanted = sorted((rows[number], number) for number in numbers)
    for (file, group), inside in itertools.groupby(wanted, key=lambda one: one[0][:2]):
        with _open(files[file]) as data:
            images = data.read(group, [column])[column]
        for row, number in inside:
            yield number, _picture_bytes(images[row.row].as_py(), folder, files[file])


def _picture_bytes(cell: Any, folder: Path, file: Path) -> bytes:
    """A cell's own bytes, alone or as {bytes, path}, or those of the file it names next to the data."""
    image = cell if isinstance(cell, dict) else {"bytes": cell}
    if not image.get("bytes") and image.get("path"):
        (name,) = check_names([image["path"]], folder, str(file))
        with contextlib.suppress(OSError):
            return (folder / name).read_bytes()
    return image.get("bytes") or b""


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
    patches = PatchSet(
        kind="hugging-face-folder",
        names=[
            f"row {row} of {files[file].name}" + (f" (group {group})" if group else "") for file, group, row in rows
        ],
        sizes=[1] * len(rows),  # their true sizes would take reading them
        places=np.concatenate(places) if places else np.empty((0, 2)),
        bands=tuple(bands),
        read_many=partial(read_rows, Path(folder), files, column, rows),
        decode=partial(decode_image, bands=len(bands), scale=scale),
        files=files,
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
