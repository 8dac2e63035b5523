"""Folders of pictures with their places: any pictures with a table, S2-100K's Sentinel-2, a Hugging Face dataset.

A Hugging Face dataset is read with pyarrow: no dataset code is ever run.
"""

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

from tessearth.errors import ConfigError, CoordinateError, DataError, TableError
from tessearth.imagery.source import Tiles
from tessearth.imagery.sources.images import RGB, damage_named, decode_picture
from tessearth.imagery.sources.patches import (
    Check,
    LocatedPatches,
    PatchSet,
    Span,
    WhenBroken,
    check_names,
    find_files,
    find_in_shards,
    read_index,
    read_spans,
    total_bytes,
)
from tessearth.sphere import Floats, as_places, find_columns

FILE_NAMES = ("fn", "file_name", "filename", "file", "path", "image", "name")
FILE_BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
"""The bands of an S2-100K file, in order; surface reflectance products have no B10."""
ALL_BANDS = (*FILE_BANDS[:10], "B10", *FILE_BANDS[10:])
"""All thirteen bands of the instrument, in the order 13-band image encoders expect."""
REFLECTANCE_UNIT = 10_000
PROCESSING_OFFSET = 1_000
"""What products processed since 25 January 2022 add to every value."""
LEAST_BYTES = 10_000
KM_PER_PIXEL = 0.01
ARROW_FILE_MAGIC = b"ARROW1"


def decode_image(content: bytes, name: str, *, bands: int, scale: float | None) -> Tiles:
    """An ordinary picture as (C, H, W): colour for three bands and gray for one, from any mode, in [0, 1].

    With a scale, values and bands stay as they are and are multiplied by it; so do values that are not of 8 bits.
    """
    pixels = decode_picture(content, name=name, mode={1: "L", 3: "RGB"}.get(bands) if scale is None else None)
    factor = scale if scale is not None else 1 / 255 if pixels.dtype == np.uint8 else 1.0
    return pixels.astype(np.float32) * np.float32(factor)


def image_folder(
    folder: str | Path,
    table: str | Path,
    *,
    size: int | None = None,
    file_column: str | None = None,
    lat_column: str | None = None,
    lon_column: str | None = None,
    bands: Sequence[str] = RGB,
    scale: float | None = None,
    broken: WhenBroken = "raise",
    check: Check = "size",
) -> LocatedPatches:
    """A folder of pictures with a CSV or Parquet table of their names and coordinates.

    Three bands are read as colour and one as gray; any other number must be the picture's own (a TIFF).
    """
    path = Path(table) if Path(table).is_file() else Path(folder) / table
    rows, places = read_index(path, lat=lat_column, lon=lon_column)
    lowered = {column.lower(): column for column in reversed(rows.column_names)}
    usual = next((lowered[name] for name in FILE_NAMES if name in lowered), None)
    column = usual if file_column is None else file_column
    if column not in rows.column_names:
        missing = f"column {column!r}" if column else f"file name column ({', '.join(FILE_NAMES)})"
        raise TableError(f"{path} has no {missing}; it has: {', '.join(rows.column_names)}")
    names = check_names(rows[column].to_pylist(), Path(folder), str(path))
    spans = find_files(Path(folder), names)
    patches = PatchSet(
        kind="image-folder",
        names=names,
        sizes=[span.size for span in spans],
        places=places,
        bands=tuple(bands),
        read_many=partial(read_spans, spans),
        decode=partial(decode_image, bands=len(bands), scale=scale),
        files=(path,),
        settings={"bytes": total_bytes(spans), "scale": scale},
    )
    return LocatedPatches(patches, size=size, broken=broken, check=check)


def decode_reflectance(content: bytes, name: str, *, bands: tuple[str, ...], offset: bool) -> Tiles:
    """A 12-band TIFF as reflectance (C, H, W): value / 10000, after taking the offset away where there is one.

    B10, which the files lack, is zero. With the offset, what would fall below zero becomes zero.
    """
    pixels = decode_picture(content, name=name)
    if len(pixels) != len(FILE_BANDS):
        raise DataError(
            f"{name} has {len(pixels)} bands, not the {len(FILE_BANDS)} of S2-100K ({' '.join(FILE_BANDS)})"
        )
    reflectance = pixels.astype(np.float32)
    if offset:
        reflectance = np.maximum(reflectance - PROCESSING_OFFSET, 0)
    reflectance /= REFLECTANCE_UNIT
    empty = np.zeros_like(reflectance[0])
    return np.stack([reflectance[FILE_BANDS.index(band)] if band in FILE_BANDS else empty for band in bands])


def sentinel2_patches(
    folder: str | Path,
    *,
    bands: Sequence[str] = ALL_BANDS,
    offset: bool = False,
    size: int | None = None,
    broken: WhenBroken = "raise",
    check: Check = "size",
) -> LocatedPatches:
    """Patches of surface reflectance at 10 m, 256 x 256 pixels, cropped to their middle when `size` is smaller.

    The folder holds index.csv (fn, lon, lat) with images/<fn>, or metadata.parquet (fn, lon, lat, shard) with tar
    shards. `offset` is for scenes processed since 25 January 2022, whose values are 1000 too high. Files under 10 kB
    are broken downloads.
    """
    unknown = [band for band in bands if band not in ALL_BANDS]
    if unknown or not bands:
        raise ConfigError(
            f"Sentinel-2 has no band {unknown[0] if unknown else '()'!r}; there are {', '.join(ALL_BANDS)}"
        )
    index, names, spans, shards, places = _open_folder(Path(folder))
    settings = {"offset": offset, "km_per_pixel": KM_PER_PIXEL}
    patches = PatchSet(
        kind="sentinel2-patches",
        names=names,
        sizes=[span.size for span in spans],
        places=places,
        bands=tuple(bands),
        read_many=partial(read_spans, spans),
        decode=partial(decode_reflectance, bands=tuple(bands), offset=offset),
        files=(index, *shards),
        least_bytes=LEAST_BYTES,
        settings=settings if shards else {"bytes": total_bytes(spans), **settings},
    )
    return LocatedPatches(patches, size=size, broken=broken, check=check)


def _open_folder(folder: Path) -> tuple[Path, tuple[str, ...], list[Span], list[Path], Floats]:
    """The index of either layout, with the names, spans, shards and places of its patches."""
    index = folder / "index.csv"
    if index.is_file():
        rows, places = read_index(index, "fn", lat="lat", lon="lon")
        names = check_names(rows["fn"].to_pylist(), folder / "images", str(index))
        return index, names, find_files(folder / "images", names), [], places
    index = folder / "metadata.parquet"
    if index.is_file():
        rows, places = read_index(index, "fn", "shard", lat="lat", lon="lon")
        names = check_names(rows["fn"].to_pylist(), folder, str(index))
        return index, names, *find_in_shards(folder, names, rows["shard"].to_pylist()), places
    raise DataError(f"{folder} is no S2-100K folder: it has neither index.csv nor metadata.parquet")


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
    bands: Sequence[str] = RGB,
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
