"""An exported model runs where torch cannot be imported."""

import json
import subprocess
import sys
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
import torch

from tessearth import Embedder
from tessearth.embedding.onnx import OnnxEmbedder
from tessearth.errors import ConfigError, CoordinateError, WeightsError
from tests.conftest import tiny_encoder
from tests.embedding.test_export import exported

WITHOUT_TORCH = """
import sys
class Absent:
    def find_spec(self, name, path=None, target=None):
        if name.partition(".")[0] in ("torch", "safetensors"):
            raise ModuleNotFoundError(f"No module named {name!r}", name=name)
sys.meta_path.insert(0, Absent())
sys.argv = ["tessearth", *sys.argv[1:]]
from tessearth.cli.app import main
main()
"""


@pytest.fixture
def model() -> Path:
    return exported()


def run_without_torch(*arguments: object) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-c", WITHOUT_TORCH, *map(str, arguments)]
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)


def test_a_place_is_encoded_without_torch(model: Path) -> None:
    done = run_without_torch("encode", "--model", model, -33.9, 18.4, "--json")
    assert (done.returncode, done.stderr) == (0, "")
    wanted = Embedder(tiny_encoder(dtype=torch.float32))((-33.9, 18.4))
    np.testing.assert_allclose(json.loads(done.stdout)["embedding"], wanted, atol=1e-5)


@pytest.mark.parametrize("workers", [(), ("--workers", "2")])
def test_a_table_is_encoded_without_torch(model: Path, tmp_path: Path, workers: tuple[str, ...]) -> None:
    latlon = np.random.default_rng(0).uniform(-80, 80, (500, 2))
    np.savetxt(tmp_path / "p.csv", latlon, delimiter=",", header="lat,lon", comments="")

    done = run_without_torch(
        "encode", "--model", model, "--input", tmp_path / "p.csv", "--out", tmp_path / "o.parquet", *workers
    )
    assert (done.returncode, done.stderr) == (0, "")
    got = np.stack(pq.read_table(tmp_path / "o.parquet")["embedding"].to_numpy())
    np.testing.assert_allclose(got, Embedder(tiny_encoder(dtype=torch.float32))(latlon), atol=1e-5)


def test_a_worker_process_imports_no_torch() -> None:
    code = "import sys, tessearth.bulk.tables; print('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True).stdout == "False\n"


def test_leading_shapes_and_one_place_are_kept(model: Path) -> None:
    embed = OnnxEmbedder(model)
    assert embed((10.0, 20.0)).shape == (18,)
    assert embed(np.full((2, 3, 2), 20.0)).shape == (2, 3, 18)
    assert embed(np.empty((0, 2))).shape == (0, 18)


def test_the_first_numbers_and_rows_without_a_place(model: Path) -> None:
    embed = OnnxEmbedder(model, dims=5)
    given = [(10.0, 20.0), (95.0, 0.0), (30.0, 40.0)]
    found = embed(given, on_bad="null")
    expected = Embedder(tiny_encoder(dtype=torch.float32), dims=5)(given[::2])
    np.testing.assert_allclose(found[::2], expected, atol=1e-5)
    assert np.isnan(found[1]).all()
    np.testing.assert_array_equal(embed(given, on_bad="skip"), found[::2])
    assert embed.dim == 5
    assert embed.fingerprint() != OnnxEmbedder(model).fingerprint()
    with pytest.raises(ConfigError, match="dims is 19"):
        OnnxEmbedder(model, dims=19)


def test_batches_change_nothing(model: Path) -> None:
    embed = OnnxEmbedder(model, threads=1)
    latlon = np.random.default_rng(1).uniform(-80, 80, (100, 2))
    whole = embed(latlon)
    embed.batch_size = 13
    np.testing.assert_allclose(embed(latlon), whole, atol=1e-6)


def test_mistakes_are_named(model: Path, tmp_path: Path) -> None:
    with pytest.raises(CoordinateError, match="this looks like"):
        OnnxEmbedder(model)([(139.7, 35.7)])
    with pytest.raises(WeightsError, match="there is no ONNX file"):
        OnnxEmbedder(tmp_path / "nothing.onnx")
    (tmp_path / "cut.onnx").write_bytes(model.read_bytes()[:1000])
    with pytest.raises(WeightsError, match="is damaged or no ONNX model"):
        OnnxEmbedder(tmp_path / "cut.onnx")
