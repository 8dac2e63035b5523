"""Values on a regular grid of latitude and longitude, read at any place."""

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.labels.places import Values


@dataclass(frozen=True, slots=True, kw_only=True)
class Grid:
    """Values (rows, columns) at latitude lat_start + row lat_step and longitude lon_start + column lon_step."""

    values: npt.NDArray[Any]
    lat_start: float
    lat_step: float
    lon_start: float
    lon_step: float

    def nearest(self, latlon: Values) -> npt.NDArray[Any]:
        """The value of the cell each place (N, 2) lies in, for grids whose columns go once around."""
        row, column = self._position(latlon)
        rows, columns = self.values.shape
        row = np.clip(np.rint(row), 0, rows - 1).astype(np.int64)
        return np.asarray(self.values[row, np.rint(column).astype(np.int64) % columns])

    def bilinear(self, latlon: Values) -> Values:
        """The value between the four nodes around each place (N, 2).

        The grid must reach both ends of longitude, as those do whose first columns are repeated after the last.
        """
        position = self._position(latlon)
        first = [
            np.clip(np.floor(at), 0, size - 2).astype(np.int64)
            for at, size in zip(position, self.values.shape, strict=True)
        ]
        south, east = (np.clip(at - start, 0.0, 1.0) for at, start in zip(position, first, strict=True))
        row, column = first
        upper = self.values[row, column] * (1 - east) + self.values[row, column + 1] * east
        lower = self.values[row + 1, column] * (1 - east) + self.values[row + 1, column + 1] * east
        return np.asarray(upper * (1 - south) + lower * south, dtype=np.float64)

    def _position(self, latlon: Values) -> tuple[Values, Values]:
        """Row and column of each place, with fractions."""
        lat, lon = latlon[:, 0], np.mod(latlon[:, 1] + 180.0, 360.0) - 180.0
        return (lat - self.lat_start) / self.lat_step, (lon - self.lon_start) / self.lon_step


def read_axes(lat_file: Path, lon_file: Path) -> dict[str, float]:
    """Start and step of a grid whose latitudes and longitudes are stored node by node, (rows, columns) each."""
    lat, lon = read_array(lat_file), read_array(lon_file)
    axes = {"lat": lat[:, 0], "lon": lon[0]}
    regular = all(np.allclose(np.diff(axis), axis[1] - axis[0], atol=1e-6) for axis in axes.values())
    if not regular or lat.shape != lon.shape or np.ptp(lat, axis=1).any() or np.ptp(lon, axis=0).any():
        raise DataError(f"{lat_file.name} and {lon_file.name} describe no regular grid of latitude and longitude")
    return {
        f"{name}_{part}": float(value)
        for name, axis in axes.items()
        for part, value in (("start", axis[0]), ("step", (axis[-1] - axis[0]) / (len(axis) - 1)))
    }


def read_array(path: Path) -> Values:
    """The one array of an npz file, which must be finite."""
    with np.load(path, allow_pickle=False) as parts:
        values = np.asarray(parts[parts.files[0]], dtype=np.float64)
    if values.ndim != 2 or not np.isfinite(values).all():
        raise DataError(f"{path.name} should hold a grid of finite numbers, not {values.shape} with gaps")
    return values
