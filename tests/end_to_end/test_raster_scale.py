"""A map of the whole Earth at 0.05 degrees is put together in bounded memory and time. Minutes: `make test-slow`."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
import rasterio

from tests.memory import PEAK

pytestmark = pytest.mark.slow

CODE = """
import json, sys, time
from pathlib import Path
import numpy as np
from tessearth.bulk.geotiff import GeoTiffTarget
from tessearth.bulk.stored import Stored
from tessearth.sphere.grids import GLOBE, build_grid

folder, dims = Path(sys.argv[1]), 64
grid, rng = build_grid(GLOBE, 0.05), np.random.default_rng(0)
target = GeoTiffTarget(folder, grid, Stored(dims=dims, dtype="int8", scale=(0.01,) * dims, offset=(0.0,) * dims))
target.prepare()
smooth = rng.integers(-100, 100, (1, dims)) + np.cumsum(rng.integers(-1, 2, (256 * 256, dims)), 0) % 27
for number in range(grid.num_windows):
    rows, columns = grid.window_slices(number)
    target.put(number, smooth[: (rows.stop - rows.start) * (columns.stop - columns.start)].astype(np.int8))
start = time.process_time()
target.finish(folder / "globe.tif", {}, target.get)
print(json.dumps({"seconds": time.process_time() - start, "peak": peak()}))
"""


def test_the_globe_at_a_twentieth_of_a_degree_is_finished_in_minutes_and_in_little_memory(tmp_path: Path) -> None:
    one_thread = {**os.environ, "OMP_NUM_THREADS": "1"}
    done = subprocess.run(
        [sys.executable, "-c", PEAK + CODE, tmp_path], env=one_thread, capture_output=True, text=True, check=True
    )
    found = json.loads(done.stdout)
    print(f"\nfinishing the globe: {found['seconds']:.0f} s of processor time, peak {found['peak'] / 1e6:,.0f} MB")
    assert found["seconds"] < 600
    assert found["peak"] < 1e9
    with rasterio.open(tmp_path / "globe.tif") as source:
        assert (source.count, source.shape, source.overviews(64)) == (64, (3600, 7200), [2, 4, 8, 16, 32])
        assert source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
    for path in tmp_path.iterdir():
        path.unlink()  # gigabytes, which pytest would keep
