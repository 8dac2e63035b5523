"""Cloud-optimised GeoTIFF: windows go to a plain file, one after another, which becomes the GeoTIFF at the end.

Such a file begins with its smallest overview, so it can only be written as a whole. The plain file is what can be
interrupted; at the end its windows are read twice, first for the overviews, then as the tiles of the full size.
"""

import os
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from tessearth.bulk.cog_bytes import Image, write_cog
from tessearth.bulk.raster_overviews import Overviews
from tessearth.bulk.raster_values import Array, Stored
from tessearth.sphere.grids import RasterGrid
from tessearth.storage.files import reserve

WINDOWS, WHOLE = "windows.raw", "whole.tif"


class GeoTiffTarget:
    """Bands of a grid; int8 carries each band's scale and offset, which GDAL and rasterio know how to apply."""

    one_scale = False

    def __init__(self, folder: Path, grid: RasterGrid, stored: Stored) -> None:
        self.folder, self.grid, self.stored = folder, grid, stored
        self._cell_bytes = stored.dims * np.dtype(stored.dtype).itemsize

    @staticmethod
    def check_installed() -> None:
        """Writing needs nothing beside numpy; reading is for whoever reads GeoTIFF."""

    @staticmethod
    def bytes_per_value(dtype: str) -> float:
        """On disk while it is made: the plain file, the overviews (a third of it), and both again in the last one.

        That one is compressed, but numbers without any order in them grow by a thousandth.
        """
        return np.dtype(dtype).itemsize * (1 + 1 / 3) * 2.001

    def prepare(self) -> None:
        """Reserve the plain file, so that a full disk is found before the work is done."""
        path, size = self.folder / WINDOWS, self.grid.num_cells * self._cell_bytes
        if path.exists() and path.stat().st_size == size:
            return
        with open(path, "wb") as file:
            reserve(file, size)

    def put(self, number: int, numbers: Array) -> None:
        """Write a window into its place."""
        with open(self.folder / WINDOWS, "r+b") as file:
            file.seek(self._begin(number))
            file.write(np.ascontiguousarray(numbers).tobytes())

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk, (n, dims)."""
        height, width = self._shape(number)
        count = height * width * self.stored.dims
        numbers = np.fromfile(self.folder / WINDOWS, self.stored.dtype, count, offset=self._begin(number))
        return numbers.reshape(-1, self.stored.dims) if len(numbers) == count else None

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Make the overviews and the GeoTIFF inside the folder, then give it its name."""

        def tile(number: int) -> Array:
            return intact(number).reshape(*self._shape(number), self.stored.dims)

        overviews = Overviews(self.folder, self.grid, self.stored)
        overviews.prepare()
        for number in range(self.grid.num_windows):
            overviews.add(number, tile(number))
        smaller = [Image(grid, partial(overviews.tile, level)) for level, grid in enumerate(overviews.grids)]
        write_cog(self.folder / WHOLE, [Image(self.grid, tile), *smaller], self.stored, facts)
        os.replace(self.folder / WHOLE, out)

    def _shape(self, number: int) -> tuple[int, int]:
        rows, columns = self.grid.window_slices(number)
        return rows.stop - rows.start, columns.stop - columns.start

    def _begin(self, number: int) -> int:
        """The offset of a window behind those above it and those beside it in its row, all of them without gaps."""
        rows, columns = self.grid.window_slices(number)
        cells: int = rows.start * self.grid.columns + (rows.stop - rows.start) * columns.start
        return cells * self._cell_bytes
