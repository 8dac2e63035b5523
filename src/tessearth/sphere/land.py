"""Which points of the Earth are land: the 30 arc second mask of the `global-land-mask` package (lakes count as land).

The mask holds 933 million cells but changes between land and sea only some 770,000 times along its rows. Those changes
are all that is kept: six megabytes instead of 930, and one binary search per lookup.
"""

import contextlib
import functools
import io
import zipfile
from pathlib import Path

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError, OutputError
from tessearth.packages import file_sha256, package_file
from tessearth.storage.files import cache_folder, cache_path
from tessearth.storage.sealed import read_sealed, write_sealed

ROWS, COLUMNS = 21_600, 43_200
CELLS_PER_DEGREE = 120
ANTARCTIC_LATITUDE = -60.0
"""Land south of this is left out wherever the method speaks of land."""


def is_land(latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each place (..., 2), degrees, lies on land."""
    lat, lon = np.moveaxis(np.asarray(latlon, dtype=np.float64), -1, 0)
    row = np.clip(np.floor((90.0 - lat) * CELLS_PER_DEGREE), 0, ROWS - 1).astype(np.int64)
    column = np.floor(np.mod(lon + 180.0, 360.0) * CELLS_PER_DEGREE).astype(np.int64) % COLUMNS
    changes = _land_changes()
    # The first cell is sea; every change passed on the way to a cell flips it.
    passed = np.searchsorted(changes, row * COLUMNS + column, side="right")
    return np.asarray(passed % 2 == 1)


def is_inhabited_land(latlon: npt.ArrayLike) -> npt.NDArray[np.bool_]:
    """Whether each place lies on land north of 60 S: where sites start and where training places are drawn."""
    places = np.asarray(latlon, dtype=np.float64)
    return is_land(places) & (places[..., 0] > ANTARCTIC_LATITUDE)


@functools.cache
def _land_changes() -> npt.NDArray[np.int64]:
    """Flat cell numbers, in row order, at which sea turns to land or back; prepared once into the cache."""
    source = package_file("global_land_mask", "globe_combined_mask_compressed.npz", extra="earth", what="the land mask")
    path = cache_path("land") / f"changes-{file_sha256(source)[:16]}.sealed.npy"
    prepared = _read_prepared(path)
    if prepared is not None:
        return prepared
    changes = _scan_mask(source)
    content = io.BytesIO()
    np.save(content, changes)
    with contextlib.suppress(OutputError):  # a cache that cannot be written is no reason to stop
        cache_folder("land")
        write_sealed(path, content.getvalue())
    return changes


def _read_prepared(path: Path) -> npt.NDArray[np.int64] | None:
    """The cached changes when they are whole; a missing or damaged file is made again rather than trusted."""
    try:
        changes: npt.NDArray[np.int64] = np.load(io.BytesIO(read_sealed(path)), allow_pickle=False)
    except (DataError, ValueError, EOFError):
        return None
    whole = changes.ndim == 1 and changes.dtype == np.int64 and bool((np.diff(changes) > 0).all())
    return changes if whole else None


def _scan_mask(source: Path) -> npt.NDArray[np.int64]:
    """Read the mask a few rows at a time (True is sea) and note where it changes."""
    rows_at_once = 720
    found, before, start = [], True, 0
    with zipfile.ZipFile(source) as archive, archive.open("mask.npy") as stream:
        np.lib.format.read_magic(stream)
        shape, _, dtype = np.lib.format.read_array_header_1_0(stream)
        if shape != (ROWS, COLUMNS) or dtype != np.bool_:
            raise DataError(f"the land mask in {source.name} is {shape} of {dtype}, not {ROWS} x {COLUMNS} of bool")
        while block := stream.read(rows_at_once * COLUMNS):
            sea = np.frombuffer(block, dtype=np.bool_)
            found.append(start + np.flatnonzero(np.diff(sea, prepend=before)))
            before, start = bool(sea[-1]), start + sea.size
    return np.concatenate(found).astype(np.int64)
