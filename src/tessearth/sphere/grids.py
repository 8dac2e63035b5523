"""Grids of latitude and longitude over a part of the Earth, and the windows in which they are processed."""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple, Protocol

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.land import is_inhabited_land

if TYPE_CHECKING:
    from tessearth.sphere.regions import Region

WINDOW_SIDE = 256
"""Cells along a side of a window: also a chunk of a Zarr store and a tile of a GeoTIFF."""
SLACK = 1e-6
"""A share of a cell, so that degrees such as 0.05, which are not exact in binary, add no row to a grid."""

DECIMALS = 9
"""Of degrees at the edges of a grid: a tenth of a millimetre."""


class Box(NamedTuple):
    """A box of degrees; `east` is larger than `west`, beyond 180 where the box crosses the antimeridian."""

    west: float
    south: float
    east: float
    north: float

    @property
    def width(self) -> float:
        """Degrees of longitude, above 0 and at most 360."""
        return self.east - self.west

    def middle(self) -> tuple[float, float]:
        """Latitude and longitude of the centre."""
        return (self.south + self.north) / 2, (self.west + self.width / 2 + 180) % 360 - 180

    def edge(self) -> Floats:
        """Points around the box, (M, 2): 60 along each side."""
        lat, lon = np.linspace(self.south, self.north, 60), np.linspace(self.west, self.east, 60)
        sides = [(lat, lon[0]), (lat, lon[-1]), (lat[0], lon), (lat[-1], lon)]
        return np.concatenate([np.stack(np.broadcast_arrays(*side), axis=-1) for side in sides])

    def contains(self, latlon: Floats) -> npt.NDArray[np.bool_]:
        """Which places (N, 2) lie inside; the western and southern edge belong to the box, the others do not."""
        lat, lon = latlon.T
        below = (lat < self.north) | (self.north >= 90)
        return np.asarray((lat >= self.south) & below & (np.mod(lon - self.west, 360.0) < self.width))


GLOBE = Box(-180.0, -90.0, 180.0, 90.0)


class WindowPlaces(NamedTuple):
    """The places of one window, in the order their values are stored in."""

    latlon: Floats
    """Centres of cells in degrees, (n, 2)."""
    wanted: npt.NDArray[np.bool_]
    """Which of them get a value, (n,)."""


class Layout(Protocol):
    """Places divided into windows, each of which follows from its number alone."""

    @property
    def num_windows(self) -> int:
        """The number of windows."""

    @property
    def num_cells(self) -> int:
        """The number of cells, at least roughly."""

    def window(self, number: int) -> WindowPlaces:
        """The places of one window."""

    def sample(self, count: int) -> tuple[WindowPlaces, bool]:
        """About `count` places from the whole layout, and whether they are all of it."""


def check_box(sides: Sequence[float]) -> Box:
    """West, south, east, north in degrees as a box; west of a larger number than east crosses the antimeridian."""
    given, order = ",".join(f"{side:g}" for side in sides), "give west, south, east, north in degrees"
    if len(sides) != 4 or not all(math.isfinite(side) for side in sides):
        raise ConfigError(f"bbox is {given}; {order}")
    west, south, east, north = map(float, sides)
    if not (abs(south) <= 90 and abs(north) <= 90):
        raise ConfigError(f"bbox is {given}: south and north lie between -90 and 90; {order}")
    if not (-180 <= west <= 360 and -180 <= east <= 360):
        raise ConfigError(f"bbox is {given}: west and east lie between -180 and 180 (or 0 and 360); {order}")
    if south >= north:
        raise ConfigError(f"bbox is {given}: south ({south:g}) is not below north ({north:g}); {order}")
    if west >= 180 and east >= 180:
        west, east = west - 360, east - 360
    east += 360.0 if west > east else 0.0
    if west == east or east - west > 360:
        raise ConfigError(f"bbox is {given}: it is {east - west:g} degrees wide, not above 0 and at most 360")
    return Box(west, south, east, north)


@dataclass(frozen=True, slots=True, kw_only=True)
class RasterGrid:
    """Square cells of degrees, the north-west corner first; the value of a cell belongs to its centre."""

    west: float
    """The western edge of the first column."""
    north: float
    """The northern edge of the first row."""
    resolution: float
    """The side of a cell in degrees."""
    rows: int
    columns: int
    land: bool = False
    """Whether only cells whose centre lies on land north of 60 S get a value."""
    region: "Region | None" = None
    """Only cells whose centre lies in it get a value."""

    @property
    def num_windows(self) -> int:
        """The number of windows: squares of `WINDOW_SIDE`, smaller at the southern and eastern edge."""
        return math.ceil(self.rows / WINDOW_SIDE) * math.ceil(self.columns / WINDOW_SIDE)

    @property
    def num_cells(self) -> int:
        """The number of cells."""
        return self.rows * self.columns

    def latitudes(self) -> Floats:
        """Latitudes of the rows' centres, from north to south, (rows,)."""
        return self.north - (np.arange(self.rows, dtype=np.float64) + 0.5) * self.resolution

    def longitudes(self) -> Floats:
        """Longitudes of the columns' centres, from west to east, beyond 180 past the antimeridian, (columns,)."""
        return self.west + (np.arange(self.columns, dtype=np.float64) + 0.5) * self.resolution

    def window_slices(self, number: int) -> tuple[slice, slice]:
        """The rows and columns of a window."""
        down, across = divmod(number, math.ceil(self.columns / WINDOW_SIDE))
        top, left = down * WINDOW_SIDE, across * WINDOW_SIDE
        return slice(top, min(top + WINDOW_SIDE, self.rows)), slice(left, min(left + WINDOW_SIDE, self.columns))

    def window(self, number: int) -> WindowPlaces:
        """The places of one window, row by row."""
        rows, columns = self.window_slices(number)
        return self._places(self.latitudes()[rows], self.longitudes()[columns])

    def sample(self, count: int) -> tuple[WindowPlaces, bool]:
        """Evenly spaced rows and columns, about `count` cells, and whether that is every cell."""
        step = max(1, math.ceil(math.sqrt(self.num_cells / count)))
        first = slice(step // 2, None, step)
        rows, columns = (first if length > step // 2 else slice(None) for length in (self.rows, self.columns))
        return self._places(self.latitudes()[rows], self.longitudes()[columns]), step == 1

    def _places(self, lat: Floats, lon: Floats) -> WindowPlaces:
        around = np.where(lon >= 180, lon - 360, lon)
        latlon = np.stack(np.meshgrid(lat, around, indexing="ij"), axis=-1).reshape(-1, 2)
        return WindowPlaces(latlon, wanted_places(latlon, land=self.land, region=self.region))


def wanted_places(latlon: Floats, *, land: bool, region: "Region | None") -> npt.NDArray[np.bool_]:
    """Which places (N, 2) get a value: those on inhabited land, in a region, in both, or all."""
    wanted = is_inhabited_land(latlon) if land else np.ones(len(latlon), np.bool_)
    return wanted if region is None else wanted & region.contains(latlon)


def build_grid(box: Box, resolution: float, *, land: bool = False, region: "Region | None" = None) -> RasterGrid:
    """The grid that covers a box from its north-west corner; its last row and column may reach a little beyond.

    Around a region, lines of the grid are multiples of the resolution, so that grids of several regions fit together.
    """
    if not (math.isfinite(resolution) and resolution > 0):
        raise ConfigError(f"resolution is {resolution} degrees; it must be above 0")
    if region is not None:
        (west, south), (east, north) = (
            [round(ends(side / resolution + slack) * resolution, DECIMALS) for side in sides]
            for ends, slack, sides in ((math.floor, SLACK, box[:2]), (math.ceil, -SLACK, box[2:]))
        )
        box = Box(west, max(south, -90.0), min(east, west + 360.0), min(north, 90.0))
    rows = math.ceil((box.north - box.south) / resolution - SLACK)
    columns = math.ceil((box.east - box.west) / resolution - SLACK)
    past_the_pole = box.north - rows * resolution < -90 - SLACK * resolution
    if past_the_pole or columns * resolution > 360 + SLACK * resolution:
        end = "past the south pole" if past_the_pole else "more than once around the Earth"
        raise ConfigError(
            f"{rows} x {columns} cells of {resolution:g} degrees would reach {end}: choose a resolution that divides "
            f"{box.north - box.south:g} and {box.east - box.west:g} degrees, or a smaller bbox"
        )
    return RasterGrid(
        west=box.west, north=box.north, resolution=resolution, rows=rows, columns=columns, land=land, region=region
    )


def world_grid(step_degrees: float) -> Floats:
    """The centres of equal cells of latitude and longitude, (rows, columns, 2), the north-west corner first."""
    rows = round(180 / step_degrees)
    if not 0 < step_degrees <= 30 or abs(rows * step_degrees - 180) > 1e-9:
        raise ConfigError(f"step is {step_degrees} degrees; it must divide 180 and be at most 30")
    grid = RasterGrid(west=-180.0, north=90.0, resolution=step_degrees, rows=rows, columns=2 * rows)
    return np.stack(np.meshgrid(grid.latitudes(), grid.longitudes(), indexing="ij"), axis=-1)
