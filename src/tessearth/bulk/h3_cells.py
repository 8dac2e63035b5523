"""H3 cells of one resolution whose centres lie in a box, found by descending from the coarsest cells; and their table.

A window is one coarser cell with all its descendants, so that its cells follow from its number alone.
"""

import functools
import json
import math
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet

from tessearth.bulk.stored import Array, Stored
from tessearth.errors import ConfigError
from tessearth.packages import require
from tessearth.sphere import EARTH_RADIUS_KM, Box, Floats, Region, WindowPlaces, wanted_places
from tessearth.storage import atomic_write

WHAT = "an H3 table"
FINEST = 15
SAMPLED_PLACES = 4096
"""Of a box, to find the share of it that lies in a region."""
LEVELS_PER_WINDOW = 5
"""At most 7^5 = 16,807 cells in a window."""
REACH = 2.5
"""Descendants lie within this many mean edge lengths of a cell's centre.

A hexagon's corners are one edge away. Edges are up to 1.3 times their mean, and descendants reach out of their ancestor
by the rotation of each finer level, together less than another third; the rest is to spare.
"""


@dataclass(frozen=True, kw_only=True)
class H3Cells:
    """Cells of a box in the order of their index, divided by their ancestors."""

    bbox: Box
    resolution: int
    """0 to 15."""
    land: bool = False
    region: Region | None = None
    """Only cells whose centre lies in it are listed."""

    def __post_init__(self) -> None:
        if not 0 <= self.resolution <= FINEST:
            raise ConfigError(f"h3 is {self.resolution}; H3 resolutions go from 0 (4.4 million km2) to {FINEST} (1 m2)")

    @functools.cached_property
    def parents(self) -> tuple[int, ...]:
        """The coarser cells that may hold some, one a window."""
        level = max(0, self.resolution - LEVELS_PER_WINDOW)
        cells = np.sort(np.asarray(_h3().get_res0_cells(), dtype=np.uint64))
        for finer in range(level + 1):
            cells = cells[_near(self.bbox, _centres(cells), finer)]
            if finer < level:
                cells = np.concatenate([np.asarray(_h3().cell_to_children(int(cell), finer + 1)) for cell in cells])
        return tuple(map(int, np.sort(cells)))

    @property
    def num_windows(self) -> int:
        """How many windows there are; some at the edge may turn out to be empty."""
        return len(self.parents)

    @property
    def num_cells(self) -> int:
        """About how many cells there are: the area of the box over a cell's, by the share of it in the region."""
        south, north = math.radians(self.bbox.south), math.radians(self.bbox.north)
        area = math.radians(self.bbox.width) * (math.sin(north) - math.sin(south)) * EARTH_RADIUS_KM**2
        share = 1.0 if self.region is None else float(self.sample(SAMPLED_PLACES)[0].wanted.mean())
        return math.ceil(share * area / float(_h3().average_hexagon_area(self.resolution, unit="km^2")))

    def cells(self, number: int) -> tuple[npt.NDArray[np.uint64], Floats]:
        """Indices (n,) and centres (n, 2) of the cells of one window."""
        cells = np.sort(np.asarray(_h3().cell_to_children(self.parents[number], self.resolution), dtype=np.uint64))
        latlon = _centres(cells)
        inside = self.bbox.contains(latlon) & wanted_places(latlon, land=self.land, region=self.region)
        return cells[inside], latlon[inside]

    def window(self, number: int) -> WindowPlaces:
        """The centres of the cells of one window, all of them wanted."""
        latlon = self.cells(number)[1]
        return WindowPlaces(latlon, np.ones(len(latlon), np.bool_))

    def sample(self, count: int) -> tuple[WindowPlaces, bool]:
        """Places of a coarse grid over the box; never every cell."""
        west, south, east, north = self.bbox
        rows = min(count, max(1, round(math.sqrt(count * (north - south) / (east - west)))))
        columns = max(1, count // rows)
        lat = south + (np.arange(rows) + 0.5) * ((north - south) / rows)
        lon = west + (np.arange(columns) + 0.5) * ((east - west) / columns)
        around = np.where(lon >= 180, lon - 360, lon)
        latlon = np.stack(np.meshgrid(lat, around, indexing="ij"), axis=-1).reshape(-1, 2)
        return WindowPlaces(latlon, wanted_places(latlon, land=self.land, region=self.region)), False


def _centres(cells: npt.NDArray[np.uint64]) -> Floats:
    centre = _h3().cell_to_latlng
    return np.array([centre(cell) for cell in cells.tolist()], dtype=np.float64).reshape(-1, 2)


def _near(bbox: Box, latlon: Floats, level: int) -> npt.NDArray[np.bool_]:
    """Which cells of a level may have descendants in a box, by how far these can lie from the cell's centre."""
    lat, lon = latlon.T
    reach = math.degrees(REACH * _h3().average_hexagon_edge_length(level, unit="km") / EARTH_RADIUS_KM)
    reaches_lat = (lat + reach >= bbox.south) & (lat - reach <= bbox.north)
    # The widest longitude a cap of this radius spans; one that holds a pole spans all of them.
    sine = np.sin(np.deg2rad(min(reach, 90.0))) / np.cos(np.deg2rad(np.minimum(np.abs(lat), 89.999)))
    span = np.where(np.abs(lat) + reach >= 90, 360.0, np.rad2deg(np.arcsin(np.minimum(sine, 1.0))))
    from_west = np.mod(lon - bbox.west + span, 360.0)
    reaches_lon = (span >= 180) | (from_west <= bbox.east - bbox.west + 2 * span)
    return np.asarray(reaches_lat & reaches_lon)


@functools.cache
def _h3() -> Any:
    return require("h3.api.numpy_int", extra="geo", what=WHAT)


class ParquetTarget:
    """Columns h3 (text), h3_index (uint64), lat, lon, and embedding as a fixed-size list.

    The schema's metadata holds the facts as JSON under `tessearth`. Numbers are floats, never codes: readers of tables
    know no scale.
    """

    one_scale = False
    types = ("float16", "float32")
    needs = ("h3",)
    what = WHAT
    room = 2.0
    """On disk while it is made: the windows, then also the table."""

    def __init__(self, folder: Path, layout: H3Cells, stored: Stored) -> None:
        self.folder, self.layout, self.stored = folder, layout, stored

    def prepare(self) -> None:
        """Nothing is needed before the first window."""

    def put(self, number: int, numbers: Array) -> None:
        """Write a window as a file of its own."""
        self._path(number).write_bytes(np.ascontiguousarray(numbers).tobytes())

    def get(self, number: int) -> Array | None:
        """A window as it lies on disk, (n, dims)."""
        try:
            content = self._path(number).read_bytes()
        except OSError:
            return None
        row_bytes = self.stored.dims * np.dtype(self.stored.dtype).itemsize
        numbers = np.frombuffer(content[: len(content) - len(content) % row_bytes], dtype=self.stored.dtype)
        return numbers.reshape(-1, self.stored.dims)

    def finish(self, out: Path, facts: dict[str, Any], intact: Callable[[int], Array]) -> None:
        """Join the windows, a row group each."""
        values = pa.list_(pa.from_numpy_dtype(self.stored.dtype), self.stored.dims)
        fields = {"h3": pa.string(), "h3_index": pa.uint64(), "lat": pa.float64(), "lon": pa.float64()}
        about = json.dumps(facts, sort_keys=True)
        schema = pa.schema(list((fields | {"embedding": values}).items()), metadata={"tessearth": about})
        with atomic_write(out) as file, pa.parquet.ParquetWriter(file, schema, compression="zstd") as writer:
            for number in range(self.layout.num_windows):
                cells, latlon = self.layout.cells(number)
                numbers = intact(number)
                if len(cells):
                    lists = pa.FixedSizeListArray.from_arrays(pa.array(numbers.reshape(-1)), self.stored.dims)
                    names = [f"{cell:x}" for cell in cells.tolist()]  # as H3 writes them
                    columns = [pa.array(names), pa.array(cells), *map(pa.array, latlon.T), lists]
                    writer.write_batch(pa.RecordBatch.from_arrays(columns, schema=schema))

    def _path(self, number: int) -> Path:
        return self.folder / f"window-{number:07d}.raw"
