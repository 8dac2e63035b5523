"""Maps of embeddings: every cell is the embedding of its centre, read back by the libraries of the field."""

import json
import os
import shutil
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pytest
import rasterio
import torch
import xarray

import tessearth
from tessearth import Embedder, save
from tessearth.bulk.raster_reading import read_raster
from tessearth.bulk.rasters import Written, write_raster
from tessearth.errors import ConfigError, DataError, OutputError, UnknownNameError
from tessearth.sphere import find_region
from tessearth.sphere.land import is_inhabited_land
from tessearth.storage.jobs import Job
from tessearth.storage.sealed import checksum_of_plain
from tests.conftest import tiny_encoder

EUROPE = (-10.0, 35.0, 30.0, 60.0)
FIJI = (170.0, -25.0, -170.0, -10.0)
BOXES = {
    "inland": EUROPE,
    "antimeridian": FIJI,
    "north pole": (-30.0, 80.0, 30.0, 90.0),
    "south pole": (-180.0, -90.0, 180.0, -60.0),
    "around the origin": (-1.0, -1.0, 1.0, 1.0),
}
PRECISION = {"int8": None, "float16": 2**-11, "float32": 1e-6}
"""Largest difference allowed: what half of the last digit comes to, for int8 half a step."""

Array = npt.NDArray[Any]


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("model") / "tiny.safetensors"
    save(tiny_encoder(dtype=torch.float32), path, provenance={})
    return path


@pytest.fixture(scope="module")
def embedder(model: Path) -> Embedder:
    return Embedder(model, device="cpu")


def random_cells(rows: int, columns: int, count: int = 100) -> tuple[Array, Array]:
    rng = np.random.default_rng(7)
    return rng.integers(0, rows, count), rng.integers(0, columns, count)


def read_tif(path: Path) -> tuple[Array, Array, Array]:
    """Values (100, dims) at random cells with the latitudes and longitudes rasterio gives them."""
    with rasterio.open(path) as source:
        row, column = random_cells(source.height, source.width)
        lon, lat = map(np.array, source.xy(row, column))
        numbers = source.read()[:, row, column].T.astype(np.float64)
        return numbers * source.scales + source.offsets, lat, lon


def read_zarr(path: Path) -> tuple[Array, Array, Array]:
    with xarray.open_zarr(path) as source:
        row, column = random_cells(source.sizes["lat"], source.sizes["lon"])
        lat, lon = source["lat"].values[row], source["lon"].values[column]
        points = xarray.DataArray(lat, dims="place"), xarray.DataArray(lon, dims="place")
        values = source["embedding"].sel(lat=points[0], lon=points[1]).transpose("place", "dim")
        return values.values.astype(np.float64), lat, lon


READERS = {".tif": read_tif, ".zarr": read_zarr}


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("dtype", PRECISION)
@pytest.mark.parametrize("box", BOXES)
def test_every_cell_is_the_embedding_of_its_centre(
    embedder: Embedder, tmp_path: Path, suffix: str, dtype: Any, box: str
) -> None:
    out = tmp_path / f"map{suffix}"
    sides = BOXES[box]
    resolution = (sides[3] - sides[1]) / 30
    written = write_raster(embedder, out, bbox=sides, resolution=resolution, dims=7, dtype=dtype)
    values, lat, lon = READERS[suffix](out)
    allowed = PRECISION[dtype] or max(written.stored.scale) / 2 * (1 + 1e-5)
    expected = at_unit_length(embedder.embed(xyz=directions(lat, lon))[:, :7])
    np.testing.assert_allclose(values, expected, atol=allowed + 1e-6, rtol=0)
    assert written.largest_error <= allowed + 1e-7
    assert written.clipped == 0
    assert list(tmp_path.iterdir()) == [out]


def at_unit_length(values: Array) -> Array:
    return values / np.linalg.norm(values, axis=1, keepdims=True)


def directions(lat: Array, lon: Array) -> Array:
    lat, lon = np.deg2rad(lat), np.deg2rad(lon)
    return np.stack([np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)], axis=-1)


def test_a_geotiff_is_cloud_optimised_and_says_where_and_what_it_is(embedder: Embedder, tmp_path: Path) -> None:
    out = tmp_path / "map.tif"
    write_raster(embedder, out, bbox=EUROPE, resolution=0.05, dims=3)
    with rasterio.open(out) as source:
        assert source.tags(ns="IMAGE_STRUCTURE")["LAYOUT"] == "COG"
        assert (source.crs.to_epsg(), source.shape, source.count) == (4326, (500, 800), 3)
        assert tuple(round(side, 9) for side in source.bounds) == EUROPE
        assert source.block_shapes == [(256, 256)] * 3
        assert source.overviews(1)[0] == 2
        assert source.compression.value == "DEFLATE"
        assert source.descriptions == ("dim_000", "dim_001", "dim_002")
        assert set(source.dtypes) == {"int8"}
        assert len(set(source.scales)) == 3
        assert source.tags()["model_fingerprint"] == embedder.fingerprint()
        assert source.tags()["stored_dims"] == "the first 3, at unit length"
        whole, half = source.read().astype(float), source.read(out_shape=(3, 250, 400)).astype(float)
    # GDAL reads half the size off the overview, which holds means of four cells.
    np.testing.assert_allclose(half, whole.reshape(3, 250, 2, 400, 2).mean((2, 4)), atol=0.51)


def test_a_geotiff_is_written_without_the_libraries_that_read_it(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as without:
        for name in [name for name in sys.modules if name.partition(".")[0] == "rasterio"] + ["rasterio"]:
            without.setitem(sys.modules, name, None)
        write_raster(embedder, tmp_path / "map.tif", bbox=EUROPE, resolution=5.0, dims=2)
    assert len(read_tif(tmp_path / "map.tif")[0]) == 100


def test_half_floats_take_two_bytes_in_a_geotiff(embedder: Embedder, tmp_path: Path) -> None:
    sizes = {}
    for dtype in ("float16", "float32"):
        written = write_raster(embedder, tmp_path / f"{dtype}.tif", bbox=EUROPE, resolution=0.1, dims=4, dtype=dtype)  # type: ignore[arg-type]
        sizes[dtype] = written.bytes
    with rasterio.open(tmp_path / "float16.tif") as source:
        assert source.tags(1, ns="IMAGE_STRUCTURE")["NBITS"] == "16"
        values = source.read()
    np.testing.assert_array_equal(values, values.astype(np.float16))
    assert sizes["float16"] < 0.7 * sizes["float32"]


def test_zarr_carries_cf_coordinates(embedder: Embedder, tmp_path: Path) -> None:
    write_raster(embedder, tmp_path / "map.zarr", bbox=FIJI, resolution=0.05, dims=3)
    with xarray.open_dataset(tmp_path / "map.zarr", engine="zarr", chunks={}) as source:
        assert source["embedding"].dims == ("dim", "lat", "lon")
        assert source["embedding"].data.chunksize == (3, 256, 256)
        assert source["lat"].attrs["units"] == "degrees_north"
        assert source["lon"].attrs["standard_name"] == "longitude"
        assert source["lon"].values[[0, -1]] == pytest.approx([170.025, 189.975])
        assert source["lat"].values[[0, -1]] == pytest.approx([-10.025, -24.975])
        assert source["spatial_ref"].attrs["grid_mapping_name"] == "latitude_longitude"
        assert source["embedding"].attrs["grid_mapping"] == "spatial_ref"
        assert source["embedding"].encoding.keys() >= {"scale_factor", "add_offset", "_FillValue"}
        assert source.attrs["Conventions"].startswith("CF-")
    about = json.loads((tmp_path / "map.zarr" / "zarr.json").read_text())
    assert about["zarr_format"] == 3


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("dtype", PRECISION)
def test_only_land_has_values_where_only_land_is_asked_for(
    embedder: Embedder, tmp_path: Path, suffix: str, dtype: Any
) -> None:
    out = tmp_path / f"map{suffix}"
    write_raster(embedder, out, bbox=(5, 35, 25, 47), resolution=0.25, dims=2, dtype=dtype, land=True)
    if suffix == ".tif":
        with rasterio.open(out) as source:
            there = ~source.read(1, masked=True).mask
            assert np.array_equal(source.dataset_mask() > 0, there)
    else:
        with xarray.open_zarr(out) as dataset:
            there = dataset["embedding"].isel(dim=0).notnull().values
    lat, lon = 47 - 0.25 * (np.arange(48) + 0.5), 5 + 0.25 * (np.arange(80) + 0.5)
    land = is_inhabited_land(np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1))
    assert 0.2 < land.mean() < 0.8
    np.testing.assert_array_equal(there, land)


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("region", ["kenya", "fj"])
def test_a_region_has_values_within_its_outline_alone(
    embedder: Embedder, tmp_path: Path, region: str, suffix: str
) -> None:
    out = tmp_path / f"map{suffix}"
    write_raster(embedder, out, region=region, resolution=0.25, dims=2)
    found, raster = find_region(region), read_raster(out)
    places = np.stack(np.meshgrid(raster.lat, raster.lon, indexing="ij"), axis=-1)
    np.testing.assert_array_equal(np.isfinite(raster.values[0]), found.contains(places))
    assert 0 < np.isfinite(raster.values).mean() < 1
    # Grids of all regions have the same lines, and no empty rows or columns around the outline.
    edges = np.array([raster.lat[-1], raster.lon[0], raster.lat[0], raster.lon[-1]])
    edges += [-0.125, -0.125, 0.125, 0.125]
    np.testing.assert_allclose(edges / 0.25, np.rint(edges / 0.25), atol=1e-6)
    west, south, east, north = found.box
    assert (np.abs(edges - [south, west, north, east]) < 0.25).all()


@pytest.mark.parametrize("suffix", READERS)
@pytest.mark.parametrize("dtype", PRECISION)
def test_a_map_is_read_back(embedder: Embedder, tmp_path: Path, suffix: str, dtype: Any) -> None:
    out = tmp_path / f"map{suffix}"
    written = write_raster(embedder, out, bbox=FIJI, resolution=0.5, dims=4, dtype=dtype, land=True)
    raster = tessearth.read_raster(out)
    assert (raster.values.shape, raster.values.dtype) == ((4, 30, 40), np.float32)
    assert (raster.lat[0], raster.lon[-1]) == pytest.approx((-10.25, 189.75))
    places = np.stack(np.meshgrid(raster.lat, raster.lon, indexing="ij"), axis=-1)
    land = is_inhabited_land(places)
    assert np.isnan(raster.values[:, ~land]).all()
    expected = at_unit_length(embedder.embed(places[land])[:, :4])
    np.testing.assert_allclose(raster.values[:, land].T, expected, atol=written.largest_error + 1e-6)


@pytest.mark.parametrize("suffix", READERS)
def test_a_part_of_a_map_is_read_across_its_seam(embedder: Embedder, tmp_path: Path, suffix: str) -> None:
    out = tmp_path / f"map{suffix}"
    write_raster(embedder, out, resolution=5.0, dims=3, dtype="float32")
    whole, part = read_raster(out), read_raster(out, bbox=(170, -20, -170, 0))
    np.testing.assert_allclose(part.lon, [172.5, 177.5, 182.5, 187.5])
    np.testing.assert_allclose(part.lat, [-2.5, -7.5, -12.5, -17.5])
    np.testing.assert_array_equal(part.values, whole.values[:, 18:22][:, :, [70, 71, 0, 1]])


def test_what_cannot_be_read_is_one_line(embedder: Embedder, tmp_path: Path) -> None:
    write_raster(embedder, tmp_path / "map.tif", bbox=EUROPE, resolution=5.0, dims=2)
    (tmp_path / "text.tif").write_text("no picture")
    (tmp_path / "empty.zarr").mkdir()
    wrong = {
        "cells.parquet": "a table of plain numbers: read it with pandas",
        "map.nc": "names no raster; use one of .tif",
        "none.tif": "there is no raster",
        "text.tif": "cannot be read",
        "empty.zarr": "holds no map of embeddings",
    }
    for name, words in wrong.items():
        with pytest.raises((ConfigError, DataError), match=words):
            read_raster(tmp_path / name)
    with pytest.raises(DataError, match=r"no cell of .* in the bbox 100,0,101,1"):
        read_raster(tmp_path / "map.tif", bbox=(100, 0, 101, 1))


def test_values_beyond_the_sampled_range_are_counted_and_part_of_the_error(
    embedder: Embedder, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessearth.bulk.stored.SAMPLED_PLACES", 4)
    written = write_raster(embedder, tmp_path / "map.tif", bbox=EUROPE, resolution=0.5, dims=5)
    assert written.clipped > 0
    assert written.largest_error > max(written.stored.scale)
    with rasterio.open(tmp_path / "map.tif") as source:
        values = source.read().astype(float) * np.reshape(source.scales, (5, 1, 1)) + np.reshape(
            source.offsets, (5, 1, 1)
        )
        lon, lat = source.xy(np.zeros(source.width, int), np.arange(source.width))
        assert float(source.tags()["largest_error"]) == written.largest_error
    error = np.abs(values[:, 0].T - at_unit_length(embedder.embed(lat=lat, lon=lon)[:, :5])).max()
    assert error <= written.largest_error + 1e-6


KILLED = """
import os, signal, sys, torch
torch.set_num_threads(1)
from tessearth.bulk.rasters import write_raster
def progress(done, total):
    if done == 2:
        os.kill(os.getpid(), signal.SIGKILL)
model, folder = sys.argv[1:]
for name, options in {options!r}.items():
    child = os.fork()
    if child == 0:
        write_raster(model, folder + "/" + name, device="cpu", progress=progress, **options)
        os._exit(0)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == -signal.SIGKILL
"""
GRID = {"bbox": (0, 20, 40, 60), "resolution": 0.1, "dims": 3}
FORMS: dict[str, dict[str, Any]] = {
    "map.tif": GRID,
    "map.zarr": {**GRID, "dtype": "float16"},
    "map.parquet": {"bbox": (-180, 50, 180, 90), "h3": 3, "dims": 3, "dtype": "float32"},
}


def contents(path: Path) -> dict[str, bytes]:
    files = [path] if path.is_file() else sorted(file for file in path.rglob("*") if file.is_file())
    return {str(file.relative_to(path)): file.read_bytes() for file in files}


@pytest.fixture(scope="module")
def whole(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("whole")
    for name, options in FORMS.items():
        write_raster(model, folder / name, device="cpu", **options)
    return folder


@pytest.fixture(scope="module")
def killed(model: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("killed")
    subprocess.run([sys.executable, "-c", KILLED.format(options=FORMS), model, folder], check=True)
    return folder


@pytest.fixture
def unfinished(killed: Path, tmp_path: Path) -> Path:
    shutil.copytree(killed, tmp_path / "unfinished")
    return tmp_path / "unfinished"


@pytest.mark.parametrize("name", FORMS)
def test_a_killed_run_goes_on_and_gives_the_same_bytes(model: Path, whole: Path, unfinished: Path, name: str) -> None:
    assert not (unfinished / name).exists()
    seen: list[int] = []
    write_raster(model, unfinished / name, device="cpu", progress=lambda done, total: seen.append(done), **FORMS[name])
    assert seen[0] == 2
    assert contents(unfinished / name) == contents(whole / name)
    assert not (unfinished / f"{name}.part").exists()


DAMAGED = {"map.tif": "windows.raw", "map.zarr": "store.zarr/embedding/c/0/0/0", "map.parquet": "window-*.raw"}


@pytest.mark.parametrize("name", FORMS)
def test_a_damaged_window_is_computed_again(model: Path, whole: Path, unfinished: Path, name: str) -> None:
    path = next(path for path in sorted((unfinished / f"{name}.part").glob(DAMAGED[name])) if path.stat().st_size > 16)
    path.write_bytes(bytes(16) + path.read_bytes()[16:])
    seen: list[int] = []
    write_raster(model, unfinished / name, device="cpu", progress=lambda done, total: seen.append(done), **FORMS[name])
    assert seen[0] == 1
    assert contents(unfinished / name) == contents(whole / name)


KILLED_AT_THE_END = """
import os, signal, sys, torch
torch.set_num_threads(1)
from tessearth.bulk import geotiff as raster_cog
from tessearth.bulk.rasters import write_raster
real, calls = raster_cog.encode_tile, []
def encode_tile(*arguments):
    calls.append(arguments)
    if len(calls) == 4:
        os.kill(os.getpid(), signal.SIGKILL)
    return real(*arguments)
raster_cog.encode_tile = encode_tile
write_raster(sys.argv[1], sys.argv[2], device="cpu", **{options!r})
"""


def test_killed_while_the_geotiff_is_put_together_it_computes_nothing_again(
    model: Path, whole: Path, tmp_path: Path
) -> None:
    out = tmp_path / "map.tif"
    dying = subprocess.run([sys.executable, "-c", KILLED_AT_THE_END.format(options=GRID), model, out], check=False)
    assert dying.returncode == -signal.SIGKILL
    assert (tmp_path / "map.tif.part" / "whole.tif").exists()
    assert not out.exists()
    seen: list[int] = []
    write_raster(model, out, device="cpu", progress=lambda done, total: seen.append(done), **GRID)  # type: ignore[arg-type]
    assert seen == [4]
    assert contents(out) == contents(whole / "map.tif")
    assert list(tmp_path.iterdir()) == [out]


def test_a_journal_line_cut_short_does_not_count(unfinished: Path) -> None:
    folder = unfinished / "map.tif.part"
    journal = folder / "journal.jsonl"
    journal.write_bytes(journal.read_bytes().rstrip()[:-10])
    assert sorted(Job(folder).entries) == [0]


def test_an_unfinished_raster_of_other_settings_is_left_alone(model: Path, unfinished: Path) -> None:
    before = contents(unfinished / "map.tif.part")
    before.pop(".lock")
    with pytest.raises(DataError, match=r"unfinished work of other settings \(dims was 3 and is 4\); remove it"):
        write_raster(model, unfinished / "map.tif", device="cpu", **{**GRID, "dims": 4})
    assert contents(unfinished / "map.tif.part") == before


def test_a_finished_raster_is_replaced_in_one_step_where_that_is_asked_for(embedder: Embedder, tmp_path: Path) -> None:
    for suffix, read in READERS.items():
        options: dict[str, Any] = {"bbox": EUROPE, "resolution": 5}
        write_raster(embedder, tmp_path / f"map{suffix}", dims=2, **options)
        with pytest.raises(OutputError, match="exists already: add --overwrite"):
            write_raster(embedder, tmp_path / f"map{suffix}", dims=3, **options)
        assert read(tmp_path / f"map{suffix}")[0].shape[1] == 2
        write_raster(embedder, tmp_path / f"map{suffix}", dims=3, overwrite=True, **options)
        values, _, _ = read(tmp_path / f"map{suffix}")
        assert values.shape[1] == 3
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.tif", "map.zarr"]


BAD: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "bbox upside down": ({"bbox": (0, 60, 10, 35)}, ConfigError, r"south \(60\) is not below north \(35\); give west,"),
    "latitude first": ({"bbox": (35, -100, 60, 120)}, ConfigError, "south and north lie between -90 and 90; give west"),
    "longitude": ({"bbox": (-200, 0, 10, 10)}, ConfigError, "west and east lie between -180 and 180"),
    "no width": ({"bbox": (5, 0, 5, 10)}, ConfigError, "it is 0 degrees wide"),
    "three sides": ({"bbox": (5, 0, 5)}, ConfigError, "bbox is 5,0,5; give west, south, east, north"),
    "not a number": ({"bbox": (5, 0, float("nan"), 5)}, ConfigError, "bbox is 5,0,nan,5; give west"),
    "no resolution": ({"resolution": None}, ConfigError, "is a grid: give --resolution DEGREES"),
    "resolution": ({"resolution": 0.0}, ConfigError, "resolution is 0.0 degrees; it must be above 0"),
    "past the pole": ({"bbox": (0, -90, 10, 90), "resolution": 7.0}, ConfigError, "reach past the south pole"),
    "too fine": (
        {"resolution": 1e-5},
        OutputError,
        r"36,000,000,000,000 cells x 18 dims of int8 take 1,728,864.0 GB .* are free in",
    ),
    "too many dims": ({"dims": 19}, ConfigError, "dims is 19; .* has 1 to 18"),
    "no dims": ({"dims": 0}, ConfigError, "dims is 0"),
    "dtype": ({"dtype": "int4"}, ConfigError, "dtype is 'int4'; it must be one of int8, float16, float32"),
    "two places": ({"region": "kenya"}, ConfigError, "bbox and region both say where"),
    "unknown region": ({"bbox": None, "region": "kenia"}, UnknownNameError, "did you mean 'kenya'"),
    "h3 of a grid": ({"h3": 3}, ConfigError, "is a grid: .* no --h3"),
    "cluster of an object": ({"cluster": "local"}, ConfigError, "the model must have a name or a path"),
}


@pytest.mark.parametrize("wrong", BAD)
def test_bad_input_is_one_clear_line_and_leaves_nothing(embedder: Embedder, tmp_path: Path, wrong: str) -> None:
    options, kind, words = BAD[wrong]
    with pytest.raises(kind, match=words) as raised:
        write_raster(embedder, tmp_path / "map.tif", **{"bbox": (0, 0, 60, 60), "resolution": 1.0, **options})
    assert "\n" not in str(raised.value)
    assert list(tmp_path.iterdir()) == []


def test_a_name_that_cannot_be_written_is_refused(embedder: Embedder, tmp_path: Path) -> None:
    for name, words in (("map.png", "names no raster"), ("no/map.tif", "there is no folder"), ("full.tif", "a folder")):
        (tmp_path / "full.tif").mkdir(exist_ok=True)
        with pytest.raises((ConfigError, OutputError), match=words):
            write_raster(embedder, tmp_path / name, resolution=10.0)


@pytest.fixture(scope="module")
def scheduler() -> Iterator[Any]:
    distributed = pytest.importorskip("distributed")
    with distributed.LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address="127.0.0.1:0") as cluster:
        yield cluster


def test_a_cluster_gives_the_same_bytes_though_a_worker_dies(
    model: Path, whole: Path, tmp_path: Path, scheduler: Any
) -> None:
    dead: list[int] = []

    def progress(done: int, total: int) -> None:
        working = {address for address, worker in scheduler.scheduler.workers.items() if worker.processing}
        busy = [nanny.pid for nanny in scheduler.workers.values() if nanny.worker_address in working]
        if 1 <= done < total and busy and not dead:
            dead.append(busy[0])
            os.kill(dead[0], signal.SIGKILL)

    name, address = "map.zarr", scheduler.scheduler_address
    written: Written = write_raster(
        model, tmp_path / name, cluster=address, device="cpu", progress=progress, **FORMS[name]
    )
    assert len(dead) == 1
    assert written.shape == (3, 400, 400)
    assert contents(tmp_path / name) == contents(whole / name)


def test_a_cluster_that_is_not_there_is_one_line(model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessearth.storage.workers.SECONDS_TO_CONNECT", 1)
    dask = pytest.importorskip("dask.base")
    for address in ("tcp://127.0.0.1:1", "nonsense://x"):
        with pytest.raises(ConfigError, match=f"no Dask scheduler answers at '{address}' .*give its address"):
            write_raster(model, tmp_path / "map.tif", cluster=address, device="cpu", **GRID)
        assert dask.get_scheduler() is None  # or all that the process asks of Dask from now on waits for ever


def test_unfinished_work_of_version_0_1_is_refused_and_kept(model: Path, unfinished: Path) -> None:
    folder = unfinished / "map.tif.part"
    plan = json.loads((folder / "plan.json").read_text())
    plan["plan"]["format_version"] = 1
    plan["sha256"] = checksum_of_plain([plan["plan"], plan["fitted"]])
    (folder / "plan.json").write_text(json.dumps(plan))
    (folder / "journal.jsonl").write_text('{"window": 0, "sha256": "ab", "largest_error": 0.1, "clipped": 0}\n')
    with pytest.raises(DataError, match=r"\(format_version was 1 and is 2\); remove it, or choose another output"):
        write_raster(model, unfinished / "map.tif", device="cpu", **GRID)  # type: ignore[arg-type]
    assert (folder / "windows.raw").is_file()
