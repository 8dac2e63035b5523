"""Cloud-optimised GeoTIFF: windows go to a plain file, one after another, which becomes the GeoTIFF at the end.

Such a file begins with its smallest overview, so it can only be written as a whole. The plain file is what can be
interrupted; at the end its windows are read twice, first for the overviews, then as the tiles of the full size.
"""

import dataclasses
import os
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tessearth.bulk.cog_bytes import Image, write_cog
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
