"""Cloud-optimised GeoTIFF: windows go to a plain file, one after another, which becomes the GeoTIFF at the end.

Such a file begins with its smallest overview, so it can only be written as a whole. The plain file is what can be
interrupted; at the end its windows are read twice, first for the overviews, then as the tiles of the full size.

    header | note on the layout | directories: full size, overviews | tiles: smallest overview ... full size

TIFF 6.0 (BigTIFF where 4 GB may not do), Deflate after the predictor of its type, bands interleaved by pixel. The note
and the four bytes around every tile are GDAL's, which tell a reader on a network that one request is enough.
"""

import dataclasses
import os
import struct
import zlib
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple
from xml.sax.saxutils import escape, quoteattr

import numpy as np

from tessearth.bulk.stored import Array, Stored
from tessearth.sphere import WINDOW_SIDE, RasterGrid
from tessearth.storage import ArrayFile, Place, reserve

WINDOWS, WHOLE = "windows.raw", "whole.tif"


class GeoTiffTarget:
    """Bands of a grid; int8 carries each band's scale and offset, which GDAL and rasterio know how to apply."""

    one_scale = False
    types = ("int8", "float16", "float32")
    needs = ()
    what = "a GeoTIFF"
    room = (1 + 1 / 3) * 2.001
    """On disk while it is made: the plain file, the overviews (a third of it), and both again in the last one.

    That one is compressed, but numbers without any order in them grow by a thousandth.
    """

    def __init__(self, folder: Path, grid: RasterGrid, stored: Stored) -> None:
        self.folder, self.grid, self.stored = folder, grid, stored
        self.overviews = overview_grids(grid)
        self._cell_bytes = stored.dims * np.dtype(stored.dtype).itemsize
        windows = ArrayFile(folder / WINDOWS, stored.dtype, self._place)
        self.put, self.get = windows.put, windows.get

    def prepare(self) -> None:
        """Reserve the plain file, so that a full disk is found before the work is done."""
        path, size = self.folder / WINDOWS, self.grid.num_cells * self._cell_bytes
        if path.exists() and path.stat().st_size == size:
            return
        with open(path, "wb") as file:
            reserve(file, size)

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Make the overviews and the GeoTIFF inside the folder, then give it its name."""

        def tile(number: int) -> Array:
            return intact(number).reshape(*self._shape(number), self.stored.dims)

        for level, grid in enumerate(self.overviews):
            with open(self._overview(level), "wb") as file:
                reserve(file, grid.num_cells * self._cell_bytes)  # a full disk is found at once
        for number in range(self.grid.num_windows):
            self._add_to_overviews(number, tile(number))
        smaller = [Image(grid, partial(self._overview_tile, level)) for level, grid in enumerate(self.overviews)]
        write_cog(self.folder / WHOLE, [Image(self.grid, tile), *smaller], self.stored, facts)
        os.replace(self.folder / WHOLE, out)

    def _shape(self, number: int) -> tuple[int, int]:
        rows, columns = self.grid.window_slices(number)
        return rows.stop - rows.start, columns.stop - columns.start

    def _place(self, number: int) -> Place:
        """A window lies behind those above it and those left of it in its row, all of them without gaps."""
        rows, columns = self.grid.window_slices(number)
        height, width = self._shape(number)
        cells = rows.start * self.grid.columns + height * columns.start
        return Place(cells * self._cell_bytes, (height * width, self.stored.dims))

    def _overview(self, level: int) -> Path:
        """The plain file of an overview, cell after cell, row after row."""
        return self.folder / f"overview-{level}.raw"

    def _add_to_overviews(self, number: int, numbers: Array) -> None:
        """Put the part of a window, (rows, columns, dims), into every overview.

        A window divides evenly into the cells of every overview, so each window is read once and gives its part of all
        of them, exact means of the cells of full size; only the rounding to the stored type is added.
        """
        rows, columns = self.grid.window_slices(number)
        for level, means in enumerate(window_means(numbers, self.stored, len(self.overviews))):
            factor = 2 ** (level + 1)
            width = self.overviews[level].columns
            with open(self._overview(level), "r+b") as file:
                for row, cells in enumerate(means, rows.start // factor):
                    file.seek((row * width + columns.start // factor) * self._cell_bytes)
                    file.write(cells.tobytes())

    def _overview_tile(self, level: int, number: int) -> Array:
        """One tile of an overview, (rows, columns, dims)."""
        grid = self.overviews[level]
        shape = (grid.rows, grid.columns, self.stored.dims)
        whole = np.memmap(self._overview(level), self.stored.dtype, "r", shape=shape)
        return np.array(whole[grid.window_slices(number)])


def overview_grids(grid: RasterGrid) -> list[RasterGrid]:
    """Half the size each time, until all fits one tile or a cell covers a whole window."""
    grids: list[RasterGrid] = []
    while max(grid.rows, grid.columns) > WINDOW_SIDE and 2 ** len(grids) < WINDOW_SIDE:
        rows, columns = -(-grid.rows // 2), -(-grid.columns // 2)
        grid = dataclasses.replace(grid, rows=rows, columns=columns, resolution=2 * grid.resolution)
        grids.append(grid)
    return grids


def window_means(numbers: Array, stored: Stored, count: int) -> Iterator[Array]:
    """A window's part of `count` overviews: (rows, columns, dims), halved each time, an odd last row standing alone.

    A cell is the mean of the cells under it that have a value, rounded to the stored type; nodata where none has.
    """
    first = numbers[..., 0]  # a cell has all dimensions or none
    counts = (~np.isnan(first) if np.isnan(stored.nodata) else first != stored.nodata).astype(np.int32)
    sums = numbers if counts.all() else np.where(counts[..., None] > 0, numbers, np.zeros((), numbers.dtype))
    for _ in range(count):
        sums, counts = _add_fours(sums), _add_fours(counts)
        means = sums / np.maximum(counts, 1)[..., None]
        means = np.rint(means) if stored.dtype == "int8" else means
        yield np.where(counts[..., None] > 0, means, stored.nodata).astype(stored.dtype)


def _add_fours(cells: Array) -> Array:
    """Sums of four cells, wide enough for a whole window: (rows, columns, ...) -> half of both, rounded up."""
    wide = np.int32 if np.issubdtype(cells.dtype, np.integer) else np.float64
    odd = [(0, cells.shape[0] % 2), (0, cells.shape[1] % 2), *[(0, 0)] * (cells.ndim - 2)]
    even = np.pad(cells, odd) if cells.shape[0] % 2 or cells.shape[1] % 2 else cells
    pairs = np.add(even[0::2], even[1::2], dtype=wide)
    summed: Array = pairs[:, 0::2] + pairs[:, 1::2]
    return summed


LAYOUT = (
    b"LAYOUT=IFDS_BEFORE_DATA\nBLOCK_ORDER=ROW_MAJOR\nBLOCK_LEADER=SIZE_AS_UINT4\n"
    b"BLOCK_TRAILER=LAST_4_BYTES_REPEATED\nKNOWN_INCOMPATIBLE_EDITION=NO\n "
)
DEFLATE_LEVEL = 4
"""Of 9: higher ones take much longer for embeddings that hardly become smaller."""
KINDS = {"s": 2, "H": 3, "I": 4, "d": 12, "Q": 16}
"""TIFF's numbers for types of values, by their letters in `struct`; s is text."""
SIGNED, FLOAT = 2, 3
"""TIFF's sample formats."""
DIFFERENCES, FLOAT_DIFFERENCES = 2, 3
"""TIFF's predictors."""


class Dialect(NamedTuple):
    """Classic TIFF or BigTIFF: how the file begins, and the letters of a count of fields and of an offset."""

    begin: bytes
    fields: str
    offset: str


CLASSIC, BIG = Dialect(b"II*\0", "H", "I"), Dialect(b"II+\0\x08\0\0\0", "Q", "Q")
CLASSIC_BYTES = 2**32
ROWS_AT_ONCE = 16
"""Rows of a tile that Deflate takes together: copies of a whole tile of a thousand dimensions would fill memory."""
TILE_EXTRA = 2**10
"""More than the bytes of a tile's frame and its entries in a directory; Deflate adds at most a thousandth."""


class Field(NamedTuple):
    """An entry of a directory: a tag, a letter of `KINDS`, and values (bytes for text)."""

    tag: int
    kind: str
    values: Any


class Image(NamedTuple):
    """One size of a map: its grid, and a function that gives the tile of a number, (rows, columns, dims)."""

    grid: RasterGrid
    tile: Callable[[int], Array]


Tiles = list[tuple[int, int]]
"""Where each tile of an image lies, and how long it is."""


def write_cog(path: Path, images: Sequence[Image], stored: Stored, facts: dict[str, Any]) -> None:
    """Write a file of one map at several sizes, the full one first, and wait until it is on the disk."""
    tile_bytes = WINDOW_SIDE**2 * stored.dims * np.dtype(stored.dtype).itemsize * 1001 // 1000 + TILE_EXTRA
    most = sum(image.grid.num_windows for image in images) * tile_bytes
    dialect = CLASSIC if most < CLASSIC_BYTES else BIG
    tiles = [[(0, 0)] * image.grid.num_windows for image in images]
    with open(path, "wb") as file:
        file.write(_head(images, tiles, stored, facts, dialect))
        for number, image in reversed(list(enumerate(images))):
            for tile in range(image.grid.num_windows):
                content = encode_tile(image.tile(tile), stored)
                file.write(struct.pack("<I", len(content)))
                tiles[number][tile] = file.tell(), len(content)
                file.write(content + content[-4:])  # its length before it and its end again: the note says so
        file.seek(0)  # the head is as long as before: only numbers in it have changed
        file.write(_head(images, tiles, stored, facts, dialect))
        file.flush()
        os.fsync(file.fileno())


def encode_tile(numbers: Array, stored: Stored) -> bytes:
    """A tile, (rows, columns, dims), as compressed differences, filled up with nodata at the edge of the map."""
    if numbers.shape[:2] != (WINDOW_SIDE, WINDOW_SIDE):
        whole = np.full((WINDOW_SIDE, WINDOW_SIDE, stored.dims), stored.nodata, stored.dtype)
        whole[: numbers.shape[0], : numbers.shape[1]] = numbers
        numbers = whole
    packer = zlib.compressobj(DEFLATE_LEVEL)
    rows = (numbers[top : top + ROWS_AT_ONCE] for top in range(0, WINDOW_SIDE, ROWS_AT_ONCE))
    return b"".join([*(packer.compress(_differences(some).tobytes()) for some in rows), packer.flush()])


def _differences(numbers: Array) -> Array:
    """Bytes of which each is the difference to the same band of the pixel before it, row by row.

    Floats are first taken apart, the highest bytes of a row before the next ones: these hardly change.
    """
    rows, columns, dims = numbers.shape
    size = numbers.dtype.itemsize
    apart = numbers.astype(numbers.dtype.newbyteorder(">")).view(np.uint8).reshape(rows, columns * dims, size)
    values = np.ascontiguousarray(apart.transpose(0, 2, 1)).reshape(rows, -1)
    differences = values.copy()
    differences[:, dims:] -= values[:, :-dims]
    return differences


def _head(
    images: Sequence[Image], tiles: Sequence[Tiles], stored: Stored, facts: dict[str, Any], dialect: Dialect
) -> bytes:
    """Everything before the first tile."""
    note = b"GDAL_STRUCTURAL_METADATA_SIZE=%06d bytes\n" % len(LAYOUT) + LAYOUT
    begin = len(dialect.begin) + struct.calcsize(dialect.offset)
    first = begin + len(note) + len(note + bytes(begin)) % 2
    head = (dialect.begin + struct.pack(f"<{dialect.offset}", first) + note).ljust(first, b"\0")
    for number, (image, places) in enumerate(zip(images, tiles, strict=True)):
        reduced = Field(254, "I", (1,))
        about = [reduced] if number else [*_place_fields(image.grid), _metadata(stored, facts)]
        fields = sorted([*_image_fields(image.grid, places, stored, dialect), *about])
        head += _directory(fields, len(head), number == len(images) - 1, dialect)
    return head


def _directory(fields: Sequence[Field], at: int, last: bool, dialect: Dialect) -> bytes:
    """A directory that lies at an offset, and behind it the values for which its entries have no room."""
    room = struct.calcsize(dialect.offset)
    end = at + struct.calcsize(dialect.fields) + len(fields) * (4 + 2 * room) + room
    entries, behind = [], b""
    for tag, kind, values in fields:
        packed = values if kind == "s" else struct.pack(f"<{len(values)}{kind}", *values)
        if len(packed) > room:
            place = struct.pack(f"<{dialect.offset}", end + len(behind))
            behind += packed + bytes(len(packed) % 2)
            packed = place
        entries.append(struct.pack(f"<HH{dialect.offset}", tag, KINDS[kind], len(values)) + packed.ljust(room, b"\0"))
    following = struct.pack(f"<{dialect.offset}", 0 if last else end + len(behind))
    return struct.pack(f"<{dialect.fields}", len(fields)) + b"".join(entries) + following + behind


def _image_fields(grid: RasterGrid, tiles: Tiles, stored: Stored, dialect: Dialect) -> list[Field]:
    """Size, type and packing of an image, where its tiles are, and what stands for no value."""
    whole = stored.dtype == "int8"
    offsets, sizes = zip(*tiles, strict=True)
    return [
        Field(256, "I", (grid.columns,)),
        Field(257, "I", (grid.rows,)),
        Field(258, "H", (8 * np.dtype(stored.dtype).itemsize,) * stored.dims),  # bits of each band
        Field(259, "H", (8,)),  # Deflate
        Field(262, "H", (1,)),  # larger is brighter
        Field(277, "H", (stored.dims,)),
        Field(284, "H", (1,)),  # interleaved by pixel
        Field(317, "H", (DIFFERENCES if whole else FLOAT_DIFFERENCES,)),
        Field(322, "H", (WINDOW_SIDE,)),
        Field(323, "H", (WINDOW_SIDE,)),
        Field(324, dialect.offset, offsets),
        Field(325, "I", sizes),
        *([Field(338, "H", (0,) * (stored.dims - 1))] if stored.dims > 1 else []),  # bands beyond the first
        Field(339, "H", (SIGNED if whole else FLOAT,) * stored.dims),
        Field(42113, "s", f"{stored.nodata:g}".encode() + b"\0"),
    ]


def _place_fields(grid: RasterGrid) -> list[Field]:
    """Where the map lies: degrees of WGS 84 (EPSG:4326), cells as areas, the north-west corner at west and north."""
    name = b"WGS 84|"
    keys = (
        *(1, 1, 0, 5),  # version, and how many keys follow: key, where its value is (0: here), how many, value
        *(1024, 0, 1, 2),  # geographic
        *(1025, 0, 1, 1),  # cells are areas
        *(2048, 0, 1, 4326),
        *(2049, 34737, len(name), 0),
        *(2054, 0, 1, 9102),  # degrees
    )
    return [
        Field(33550, "d", (grid.resolution, grid.resolution, 0.0)),
        Field(33922, "d", (0.0, 0.0, 0.0, grid.west, grid.north, 0.0)),
        Field(34735, "H", keys),
        Field(34737, "s", name + b"\0"),
    ]


def _metadata(stored: Stored, facts: dict[str, Any]) -> Field:
    """Facts about the file, and the name, scale and offset of every band, as GDAL writes them: a little XML."""
    # GDAL takes text for XML once more after it has read it as XML, so it is escaped twice.
    items = [f"<Item name={quoteattr(name)}>{escape(escape(str(value)))}</Item>" for name, value in facts.items()]
    for band in range(stored.dims):
        band_items = {"description": f"dim_{band:03d}"}
        if stored.scale:
            band_items |= {"offset": repr(stored.offset[band]), "scale": repr(stored.scale[band])}
        items += [
            f'<Item name="{role.upper()}" sample="{band}" role="{role}">{value}</Item>'
            for role, value in band_items.items()
        ]
    text = "<GDALMetadata>\n  " + "\n  ".join(items) + "\n</GDALMetadata>\n"
    return Field(42112, "s", text.encode() + b"\0")
