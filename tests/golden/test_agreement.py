"""One golden file, and every way to an embedding there is: all within the tolerance of their precision."""

import json
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet
import pytest
import torch

from tessearth import Embedder
from tests.cli.conftest import Command, tessearth
from tests.golden.conftest import LARGEST_ERROR, MODEL, Golden
from tests.golden.make_golden import SPECIAL, STEP, embed, golden_places

__all__ = ["tessearth"]

pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

DEVICES = ["cpu", *(["cuda"] if torch.cuda.is_available() else [])]
OPTIONS: dict[str, dict[str, Any]] = {
    "fast": {},
    "plain": {"strategy": "plain"},
    "every site by rank": {"top_k": 512},
    "float64": {"precision": "float64"},
    "float16": {"precision": "float16"},
    "bfloat16": {"precision": "bfloat16"},
    "plain float16": {"precision": "float16", "strategy": "plain"},
    "plain bfloat16": {"precision": "bfloat16", "strategy": "plain"},
}


def test_the_golden_file_is_what_the_equations_say(golden: Golden) -> None:
    np.testing.assert_array_equal(golden.latlon, golden_places())
    np.testing.assert_allclose(golden.embedding, embed(golden.latlon), rtol=0, atol=LARGEST_ERROR["float64"])


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_library_agrees_in_every_precision(golden: Golden, name: str, device: str) -> None:
    options = OPTIONS[name]
    embedder = Embedder(MODEL, device=device, **options)
    golden.check(embedder(golden.latlon), options.get("precision", "float32"))


@pytest.mark.parametrize("name", ["fast", "plain"])
def test_one_by_one_agrees(golden: Golden, name: str) -> None:
    embedder = Embedder(MODEL, device="cpu", **OPTIONS[name])
    golden.check(np.stack([embedder(place) for place in golden.latlon]))


@pytest.mark.parametrize("name", ["fast", "bfloat16"])
@pytest.mark.parametrize("count", [1, 5, 513])
def test_using_an_embedder_changes_nothing_in_it(golden: Golden, name: str, count: int) -> None:
    """A block of a single place once shared its memory with the model."""
    options = OPTIONS[name]
    embedder = Embedder(MODEL, device="cpu", **options)
    rng = np.random.default_rng(0)
    for _ in range(2):
        embedder(np.stack((rng.uniform(-80, 80, count), rng.uniform(-180, 180, count)), axis=-1))
    golden.check(embedder(golden.latlon), options.get("precision", "float32"))


def test_directions_agree(golden: Golden) -> None:
    lat, lon = np.deg2rad(golden.latlon).T
    xyz = np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=-1)
    golden.check(Embedder(MODEL, device="cpu")(xyz=7.5 * xyz))


def test_a_frame_two_columns_and_a_pipeline_agree(golden: Golden) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("sklearn")
    from tessearth import LocationFeatures

    frame = pandas.DataFrame({"Latitude": golden.latlon[:, 0], "Longitude": golden.latlon[:, 1]})
    embedder = Embedder(MODEL, device="cpu")
    golden.check(embedder(frame))
    golden.check(embedder(lat=golden.latlon[:, 0], lon=list(golden.latlon[:, 1])))
    golden.check(LocationFeatures(MODEL, device="cpu").fit_transform(frame))


def write_csv(path: Path, golden: Golden) -> Path:
    path.write_text("lat,lon\n" + "".join(f"{lat!r},{lon!r}\n" for lat, lon in golden.latlon.tolist()))
    return path


def write_parquet(path: Path, golden: Golden) -> Path:
    pa.parquet.write_table(pa.table({"lat": golden.latlon[:, 0], "lon": golden.latlon[:, 1]}), path)
    return path


READERS: dict[str, Callable[[Path], Any]] = {
    "npy": np.load,
    "npz": lambda path: np.load(path)["embedding"],
    "parquet": lambda path: np.stack(pa.parquet.read_table(path)["embedding"].to_numpy()),
    "jsonl": lambda path: [json.loads(line)["embedding"] for line in path.read_text().splitlines()],
}


@pytest.mark.parametrize("write", [write_csv, write_parquet])
@pytest.mark.parametrize("form", READERS)
def test_tables_agree(golden: Golden, tessearth: Command, tmp_path: Path, write: Any, form: str) -> None:
    table, out = write(tmp_path / "places", golden), tmp_path / f"out.{form}"
    done = tessearth("encode", "--model", MODEL, "--device", "cpu", "--input", table, "--out", out)
    assert done.status == 0, done.err
    golden.check(READERS[form](out))


@pytest.mark.parametrize("suffix", [".tif", pytest.param(".zarr", marks=pytest.mark.slow)])
def test_rasters_agree(golden: Golden, tmp_path: Path, suffix: str) -> None:
    pytest.importorskip("rasterio" if suffix == ".tif" else "zarr")
    from tessearth.bulk.rasters import write_raster

    out = tmp_path / f"map{suffix}"
    write_raster(MODEL, out, resolution=STEP, dims=golden.embedding.shape[1], dtype="float32", device="cpu")
    cells = _read_zarr(out) if suffix == ".zarr" else _read_tiff(out)
    golden.check(cells.reshape(len(cells), -1).T, rows=slice(len(SPECIAL), None))


def _read_zarr(path: Path) -> Any:
    import xarray

    with xarray.open_zarr(path) as source:
        return source["embedding"].transpose("dim", "lat", "lon").to_numpy()


def _read_tiff(path: Path) -> Any:
    import rasterio

    with rasterio.open(path) as source:
        return source.read()


@pytest.fixture(scope="module")
def client() -> Iterator[Any]:
    pytest.importorskip("fastapi")
    from tessearth.explorer.limits import ServeSettings
    from tessearth.explorer.session import Served
    from tests.explorer.serving import serving

    with serving(Served(Embedder(MODEL, device="cpu"), ServeSettings(rate=0))) as client:
        yield client


def test_the_server_agrees_in_json_and_in_bytes(golden: Golden, client: Any) -> None:
    shape = golden.embedding.shape
    golden.check(client.ask("/embed", {"points": golden.latlon.tolist()}).json()["embedding"])
    binary = client.ask("/embed", {"points": golden.latlon.tolist(), "format": "binary"}).body
    golden.check(np.frombuffer(binary, "<f4").reshape(shape))
    golden.check(
        np.frombuffer(client.ask("/embed/binary", golden.latlon.astype("<f8").tobytes()).body, "<f4").reshape(shape)
    )
    addresses = [f"/embed?lat={lat!r}&lon={lon!r}" for lat, lon in golden.latlon.tolist()]
    golden.check([client.ask(address).json()["embedding"] for address in addresses])


@pytest.mark.slow  # exporting a model of real size takes half a minute
def test_onnx_agrees(golden: Golden, tmp_path: Path) -> None:
    for module in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(module)
    from tessearth.embedding.exporting import export
    from tessearth.embedding.onnx import OnnxEmbedder

    export(MODEL, tmp_path / "m.onnx")
    golden.check(OnnxEmbedder(tmp_path / "m.onnx")(golden.latlon))
