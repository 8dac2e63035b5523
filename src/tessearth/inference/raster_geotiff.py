"""Cloud-optimised GeoTIFF: windows go to a plain file, one after another, which becomes the GeoTIFF at the end.

GDAL writes such files only as a whole. The plain file is what can be interrupted; at the end it is laid out as an
ordinary tiled GeoTIFF, tile by tile, from which GDAL makes overviews and compression with a bounded cache.
"""

import os
from collections.abc import Callable
from pathlib import Path
from shutil import disk_usage
from typing import Any

import numpy as np

from tessearth.errors import OutputError
from tessearth.inference.raster_values import Array, Stored
from tessearth.inference.windows import WINDOW_SIDE, RasterGrid
from tessearth.packages import require

WINDOWS, TILED, WHOLE = "windows.raw", "tiled.tif", "whole.tif"
CACHE_MB = 256
OVERVIEW_BYTES = 400_000_000
"""What GDAL takes at once for overviews; with its own 10 MB, many bands make it rewrite a scratch file without end."""
ON_THE_WAY = {"int8": "int8", "float16": "float32", "float32": "float32"}
"""Types of the tiled file: GDAL narrows float32 to 16 bits while it writes the final one."""
NEARLY_FULL = 2**20
WHAT = "a GeoTIFF"


class GeoTiffTarget:
    """Bands of a grid; int8 carries each band's scale and offset, which GDAL and rasterio know how to apply."""

    one_scale = False

    def __init__(self, folder: Path, grid: RasterGrid, stored: Stored) -> None:
        self.folder, self.grid, self.stored = folder, grid, stored
        self._slot = WINDOW_SIDE**2 * stored.dims * np.dtype(stored.dtype).itemsize

    @staticmethod
    def check_installed() -> None:
        """GeoTIFF is GDAL's work, through rasterio."""
        require("rasterio", extra="geo", what=WHAT)

    @staticmethod
    def bytes_per_value(dtype: str) -> float:
        """On disk while it is made: the plain file, the tiled one, and the last with its overviews (a third more)."""
        size = np.dtype(dtype).itemsize
        return size + np.dtype(ON_THE_WAY[dtype]).itemsize + size * 4 / 3

    def prepare(self) -> None:
        """Reserve the plain file, so that a full disk is found before the work is done."""
        path, size = self.folder / WINDOWS, self.grid.num_windows * self._slot
        if path.exists() and path.stat().st_size == size:
            return
        with open(path, "wb") as file:
            try:
                os.posix_fallocate(file.fileno(), 0, size)
            except OSError as error:
                reason = (error.strerror or str(error)).lower()
                raise OutputError(f"cannot reserve room for {path}: {reason}") from error

    def put(self, number: int, numbers: Array) -> None:
        """Write a window into its slot."""
        with open(self.folder / WINDOWS, "r+b") as file:
            file.seek(number * self._slot)
            file.write(np.ascontiguousarray(numbers).tobytes())

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk, (n, dims)."""
        rows, columns = self.grid.window_slices(number)
        count = (rows.stop - rows.start) * (columns.stop - columns.start) * self.stored.dims
        numbers = np.fromfile(self.folder / WINDOWS, self.stored.dtype, count, offset=number * self._slot)
        return numbers.reshape(-1, self.stored.dims) if len(numbers) == count else None

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Let GDAL make the GeoTIFF inside the folder, then give it its name."""
        rasterio = require("rasterio", extra="geo", what=WHAT)
        shutil = require("rasterio.shutil", extra="geo", what=WHAT)
        tiled, whole = self.folder / TILED, self.folder / WHOLE
        options = {
            "compress": "DEFLATE",
            "predictor": "YES",
            "blocksize": WINDOW_SIDE,
            "overview_resampling": "AVERAGE",
            "bigtiff": "IF_SAFER",
            "num_threads": "ALL_CPUS",
            **({"nbits": 16} if self.stored.dtype == "float16" else {}),
        }
        try:
            with rasterio.Env(GDAL_CACHEMAX=CACHE_MB, GDAL_OVR_CHUNK_MAX_SIZE=OVERVIEW_BYTES):
                self._write_tiled(rasterio, tiled, facts, intact)
                shutil.copy(str(tiled), str(whole), driver="COG", **options)
        except rasterio.errors.RasterioError as error:
            reason = (str(error.__cause__ or error).splitlines() or [""])[0]
            if disk_usage(self.folder).free < NEARLY_FULL:  # which GDAL only tells standard error
                reason = "no space left on device"
            raise OutputError(f"cannot write {out}: {reason}; run it again to go on") from error
        with open(whole, "rb") as file:
            os.fsync(file.fileno())
        os.replace(whole, out)

    def _write_tiled(self, rasterio: Any, path: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Windows as the tiles of an ordinary GeoTIFF, with everything the last one is to say of itself."""
        grid, stored = self.grid, self.stored
        profile = {
            "driver": "GTiff",
            "width": grid.columns,
            "height": grid.rows,
            "count": stored.dims,
            "dtype": ON_THE_WAY[stored.dtype],
            "crs": "EPSG:4326",
            "transform": rasterio.Affine(grid.resolution, 0.0, grid.west, 0.0, -grid.resolution, grid.north),
            "nodata": stored.nodata,
            "tiled": True,
            "blockxsize": WINDOW_SIDE,
            "blockysize": WINDOW_SIDE,
            "interleave": "pixel",
            "bigtiff": "YES",
        }
        with rasterio.open(path, "w", **profile) as file:
            file.update_tags(**facts)
            file.descriptions = [f"dim_{band:03d}" for band in range(stored.dims)]
            if stored.scale:
                file.scales, file.offsets = stored.scale, stored.offset
            for number in range(grid.num_windows):
                rows, columns = grid.window_slices(number)
                bands = intact(number).T.reshape(stored.dims, rows.stop - rows.start, -1).astype(profile["dtype"])
                file.write(bands, window=rasterio.windows.Window.from_slices(rows, columns))
