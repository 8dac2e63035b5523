"""Zarr 3 with CF coordinates: chunks of windows, written in place; the store gets its name when it is complete."""

import os
import shutil
import uuid
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from tessearth.bulk.stored import Array, Stored
from tessearth.packages import require
from tessearth.sphere import WINDOW_SIDE, RasterGrid
from tessearth.storage import errors_of_writing

STORE, FRESH = "store.zarr", "fresh.zarr"
EMBEDDING, CRS = "embedding", "spatial_ref"
DIMS_PER_CHUNK = 64
WHAT = "a Zarr store"


class ZarrTarget:
    """`embedding` (dim, lat, lon) with its coordinates; CF has one scale and offset for a whole variable."""

    one_scale = True
    types = ("int8", "float16", "float32")
    needs = ("zarr", "pyproj")
    what = WHAT
    room = 1.0
    """On disk while it is made, without any gain by compression."""

    def __init__(self, folder: Path, grid: RasterGrid, stored: Stored) -> None:
        self.path, self.grid, self.stored = folder / STORE, grid, stored

    def prepare(self) -> None:
        """Write everything but the values; values on disk stay, and their description is written anew."""
        zarr = require("zarr", extra="geo", what=WHAT)
        fresh = self.path.with_name(FRESH)
        shutil.rmtree(fresh, ignore_errors=True)
        self._describe(zarr, fresh)
        for file in sorted(path for path in fresh.rglob("*") if path.is_file()):
            place = self.path / file.relative_to(fresh)
            place.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, place)
        shutil.rmtree(fresh)
        for left in self.path.rglob("*.partial"):  # Zarr's own temporary files after a kill
            left.unlink()
        self._array = zarr.open_group(str(self.path), mode="r+")[EMBEDDING]

    def _describe(self, zarr: Any, path: Path) -> None:
        """A store of the whole shape that has its coordinates and no values yet."""
        group = zarr.create_group(str(path), zarr_format=3)
        for name, values, about in self._coordinates():
            coordinate = group.create_array(
                name,
                shape=values.shape,
                dtype=values.dtype,
                chunks=values.shape or "auto",
                dimension_names=[name] if values.ndim else [],
                attributes=about,
            )
            coordinate[...] = values
        named = {"long_name": "location embedding", "units": "1", "grid_mapping": CRS, "coordinates": CRS}
        scaling: dict[str, Any] = {}
        if self.stored.scale:
            scaling = {"scale_factor": self.stored.scale[0], "add_offset": self.stored.offset[0]}
            scaling["_FillValue"] = int(self.stored.nodata)
        shape = (self.stored.dims, self.grid.rows, self.grid.columns)
        chunk = (DIMS_PER_CHUNK, WINDOW_SIDE, WINDOW_SIDE)
        group.create_array(
            EMBEDDING,
            shape=shape,
            dtype=self.stored.dtype,
            chunks=tuple(map(min, shape, chunk)),
            fill_value=self.stored.nodata if self.stored.dtype != "int8" else int(self.stored.nodata),
            compressors=[zarr.codecs.ZstdCodec(level=3, checksum=True)],  # so that readers notice a changed bit
            dimension_names=["dim", "lat", "lon"],
            attributes={**named, **scaling},
        )

    def put(self, number: int, numbers: Array) -> None:
        """Write the chunks of a window; those without a value take no room."""
        rows, columns = self.grid.window_slices(number)
        shape = self.stored.dims, rows.stop - rows.start, columns.stop - columns.start
        self._array[:, rows, columns] = numbers.T.reshape(shape)

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk, (n, dims); None when a chunk cannot be read."""
        rows, columns = self.grid.window_slices(number)
        try:
            window: Array = self._array[:, rows, columns]
        except Exception:  # codecs raise errors of any kind for a damaged chunk
            return None
        return np.ascontiguousarray(window.reshape(self.stored.dims, -1).T)

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Add the facts, wait until all is on the disk, and give the store its name."""
        zarr = require("zarr", extra="geo", what=WHAT)
        for number in range(self.grid.num_windows):
            intact(number)
        group = zarr.open_group(str(self.path), mode="r+")
        group.attrs.update({"Conventions": "CF-1.11", **facts})
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", message="Consolidated metadata", category=UserWarning)
            zarr.consolidate_metadata(str(self.path), zarr_format=3)
        for file in self.path.rglob("*"):
            if file.is_file():
                with open(file, "rb") as written:
                    os.fsync(written.fileno())
        _take_place(self.path, out)

    def _coordinates(self) -> list[tuple[str, Array, dict[str, Any]]]:
        proj = require("pyproj", extra="geo", what=WHAT)
        lat = {"standard_name": "latitude", "long_name": "latitude", "units": "degrees_north", "axis": "Y"}
        lon = {"standard_name": "longitude", "long_name": "longitude", "units": "degrees_east", "axis": "X"}
        return [
            ("dim", np.arange(self.stored.dims), {"long_name": "dimension of the embedding"}),
            ("lat", self.grid.latitudes(), lat),
            ("lon", self.grid.longitudes(), lon),
            (CRS, np.array(0), proj.CRS.from_epsg(4326).to_cf()),
        ]


def _take_place(made: Path, out: Path) -> None:
    """Give a folder its name; an older store of that name steps aside first and goes when the new one stands."""
    aside = out.with_name(f".{out.name}.{uuid.uuid4().hex}.old")
    with errors_of_writing(out):
        if out.exists():
            out.rename(aside)
        made.rename(out)
    shutil.rmtree(aside, ignore_errors=True)
