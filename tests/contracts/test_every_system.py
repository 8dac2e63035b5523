"""The main jobs on a system that lacks what only Linux has: simulated, in processes that start without it.

`fcntl`, `/proc`, `fork`, `posix_fallocate` and `sched_getaffinity` are taken away from every process of the run, also
from its workers, which are spawned. Slow paths of other systems cannot be shown this way; missing names can.
"""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import tessearth
from tessearth.encoder.weights import save
from tests.conftest import tiny_encoder

MISSING = ("fork", "posix_fallocate", "sched_getaffinity")
START = f"""
import builtins, io, os, sys

class Absent:
    def find_spec(self, name, path=None, target=None):
        if name == "fcntl":
            raise ModuleNotFoundError("No module named 'fcntl'", name=name)

def without_proc(function):
    def guarded(path, *args, **options):
        if isinstance(path, (str, os.PathLike)) and os.fspath(path).startswith("/proc"):
            raise FileNotFoundError(2, "No such file or directory", os.fspath(path))
        return function(path, *args, **options)
    return guarded

sys.modules.pop("fcntl", None)
sys.meta_path.insert(0, Absent())
for name in {MISSING!r}:
    delattr(os, name)
builtins.open = io.open = without_proc(io.open)
for name in ("open", "stat", "listdir", "scandir"):
    setattr(os, name, without_proc(getattr(os, name)))
import multiprocessing
multiprocessing.set_start_method("spawn")
"""
JOBS = """
import os, sys
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

import tessearth
from tessearth.bulk.rasters import write_raster
from tessearth.cli.app import main


def run(*arguments):
    sys.argv = ["tessearth", *map(str, arguments)]
    try:
        main()
    except SystemExit as ended:
        assert not ended.code, arguments


def stop(*_):
    raise KeyboardInterrupt


if __name__ == "__main__":
    try:
        import fcntl
    except ModuleNotFoundError:
        pass
    else:
        raise AssertionError("the simulation did not take hold")
    assert not hasattr(os, "fork") and not os.path.exists("/proc/self/stat")
    assert tessearth.load("m").output_dim == 18
    lat, lon = np.random.default_rng(0).uniform((-80, -180), (80, 180), (ROWS, 2)).T
    pq.write_table(pa.table({"lat": lat, "lon": lon}), "places.parquet", row_group_size=ROWS // 4)
    for name, workers in (("spawned.npy", 2), ("alone.npy", 1)):
        run("encode", "--model", "m", "--input", "places.parquet", "--out", name, "--workers", workers)
    assert open("spawned.npy", "rb").read() == open("alone.npy", "rb").read()
    run("features", "recipe.toml", "--out", "store", "--processes", 1)
    try:
        tessearth.pretrain("recipe.toml", "run", store="store", progress=stop)
    except KeyboardInterrupt:
        pass
    run("pretrain", "--resume", "run")
    for suffix in ("tif", "zarr"):
        run("raster", "--model", "m", "--bbox", "0,0,20,10", "--resolution", 1, "--out", f"map.{suffix}")
    print("every job ended")
"""
RECIPE = """
[features]
[features.places]
where = "sphere"
count = 60
[[features.sources]]
kind = "global-raster"
options = { path = "earth.png", size = 6, km_per_pixel = 50.0 }
encoder = "rcf"
encoder_options = { num_filters = 4, num_patches = 50 }
[encoder]
num_tokens = 4
output_dim = 8
hidden_dim = 8
[[encoder.tessellations]]
num_sites = 8
site_dim = 4
[training]
steps = 4
batch_size = 16
evaluate_every = 2
checkpoint_every = 2
"""
ROWS = 70_000
ALONE = {"OMP_NUM_THREADS": "1", "CUDA_VISIBLE_DEVICES": ""}


def test_the_main_jobs_need_nothing_that_only_linux_has(tmp_path: Path) -> None:
    for module in ("PIL", "rasterio", "zarr", "scipy"):
        pytest.importorskip(module)
    from PIL import Image

    save(tiny_encoder(dtype=torch.float32), tmp_path / "m")
    Image.effect_noise((360, 180), 60).convert("RGB").save(tmp_path / "earth.png")
    (tmp_path / "recipe.toml").write_text(RECIPE)
    (tmp_path / "sitecustomize.py").write_text(START)
    (tmp_path / "jobs.py").write_text(f"ROWS = {ROWS}\n{JOBS}")
    paths = os.pathsep.join((str(tmp_path), str(Path(tessearth.__file__).parents[1])))
    done = subprocess.run(
        [sys.executable, "jobs.py"],
        cwd=tmp_path,
        env={**os.environ, "PYTHONPATH": paths, "TESSEARTH_CACHE": str(tmp_path / "cache"), **ALONE},
        capture_output=True,
        text=True,
        check=False,
        timeout=300,
    )
    assert done.returncode == 0, f"{done.stdout[-500:]}\n{done.stderr[-4000:]}"
    assert done.stdout.endswith("every job ended\n")
