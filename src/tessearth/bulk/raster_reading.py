"""Maps of embeddings read back as numbers: GeoTIFF and Zarr, with codes decoded and nodata as NaN."""

from collections.abc import Callable, Sequence
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.bulk.zarr import EMBEDDING, WHAT
from tessearth.errors import ConfigError, DataError, first_line
from tessearth.packages import require
from tessearth.sphere import Box, Floats, check_box

Read = Callable[[slice, slice], npt.NDArray[np.float32]]
"""Reads some rows and columns of a map, (dims, rows, columns)."""


class Raster(NamedTuple):
    """A map in memory."""

    values: npt.NDArray[np.float32]
    """(dims, rows, columns), NaN where a cell has no value."""
    lat: Floats
    """The latitude of each row's centre, from north to south, (rows,)."""
    lon: Floats
    """The longitude of each column's centre, from west to east, beyond 180 past the antimeridian, (columns,)."""


def read_raster(path: str | PathLike[str], bbox: Sequence[float] | None = None) -> Raster:
    """Read a GeoTIFF or Zarr store that `write_raster` wrote, or the part whose cells have their centre in a box.

    The values are what was embedded, to within the error that `write_raster` reports, whatever type they are stored as.
    `bbox` is west, south, east, north in degrees; west of a larger number than east crosses the antimeridian.
    """
    path = Path(path)
    box = None if bbox is None else check_box(bbox)
    if path.suffix.lower() == ".parquet":
        raise ConfigError(f"{path} is a table of plain numbers: read it with pandas.read_parquet or pyarrow")
    if path.suffix.lower() not in (".tif", ".tiff", ".zarr"):
        raise ConfigError(f"the suffix of {path} names no raster; use one of .tif, .tiff, .zarr")
    if not path.exists():
        raise DataError(f"there is no raster {path}")
    return _read_zarr(path, box) if path.suffix.lower() == ".zarr" else _read_geotiff(path, box)


def _read_geotiff(path: Path, box: Box | None) -> Raster:
    rasterio = require("rasterio", extra="geo", what="reading GeoTIFF")
    try:
        with rasterio.open(path) as source:
            if source.crs is None or not source.crs.is_geographic:
                raise DataError(f"{path} is no map of latitude and longitude in degrees")
            scale, offset = (np.array(of)[:, None, None] for of in (source.scales, source.offsets))
            place = source.transform

            def read(rows: slice, columns: slice) -> npt.NDArray[np.float32]:
                window = ((rows.start, rows.stop), (columns.start, columns.stop))
                return _decode(source.read(window=window), scale, offset, source.nodata)

            lat = place.f + (np.arange(source.height) + 0.5) * place.e
            lon = place.c + (np.arange(source.width) + 0.5) * place.a
            return _cut_out(path, lat, lon, box, read)
    except rasterio.errors.RasterioError as error:
        raise DataError(f"{path} cannot be read: {first_line(error)}") from None


def _read_zarr(path: Path, box: Box | None) -> Raster:
    zarr = require("zarr", extra="geo", what=WHAT)
    try:
        group = zarr.open_group(str(path), mode="r")
        array, lat, lon = group[EMBEDDING], group["lat"][:], group["lon"][:]
    except (KeyError, OSError, ValueError) as error:
        raise DataError(f"{path} holds no map of embeddings: {first_line(error)}") from None
    about = array.attrs

    def read(rows: slice, columns: slice) -> npt.NDArray[np.float32]:
        scale, offset = about.get("scale_factor", 1.0), about.get("add_offset", 0.0)
        return _decode(array[:, rows, columns], scale, offset, about.get("_FillValue"))

    return _cut_out(path, lat, lon, box, read)


def _decode(numbers: npt.NDArray[Any], scale: Any, offset: Any, nodata: float | None) -> npt.NDArray[np.float32]:
    """Stored numbers as values."""
    if np.issubdtype(numbers.dtype, np.floating):
        return numbers.astype(np.float32)
    values = (numbers * scale + offset).astype(np.float32)
    return values if nodata is None else np.where(numbers == nodata, np.float32(np.nan), values)


def _cut_out(path: Path, lat: Floats, lon: Floats, box: Box | None, read: Read) -> Raster:
    """The rows and columns of a box; columns on both sides of the map's seam are put side by side."""
    if box is None:
        return Raster(read(slice(0, len(lat)), slice(0, len(lon))), lat, lon)
    below = (lat < box.north) | (box.north >= 90)
    rows = np.flatnonzero((lat >= box.south) & below)
    east = np.mod(lon - box.west, 360.0)
    columns = np.flatnonzero(east < box.width)
    columns = columns[np.argsort(east[columns])]
    if not len(rows) or not len(columns):
        raise DataError(f"no cell of {path} has its centre in the bbox {','.join(f'{side:g}' for side in box)}")
    runs = np.split(columns, np.flatnonzero(np.diff(columns) != 1) + 1)
    down = slice(rows[0], rows[-1] + 1)
    values = np.concatenate([read(down, slice(run[0], run[-1] + 1)) for run in runs], axis=2)
    return Raster(values, lat[rows], box.west + east[columns])
