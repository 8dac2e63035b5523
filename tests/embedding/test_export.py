"""Exported models say what torch says, and carry who they are."""

import atexit
import functools
import json
import shutil
import tempfile
from pathlib import Path

import numpy as np
import onnx
import pytest
import torch

from tessearth import Embedder
from tessearth.embedding import exporting
from tessearth.embedding.exporting import export
from tessearth.embedding.onnx import OnnxEmbedder
from tessearth.errors import ConfigError, WeightsError
from tessearth.zoo import build_baseline
from tests.conftest import tiny_config, tiny_encoder

SHAPES: dict[str, dict[str, object]] = {
    "paper": {},
    "cosine and raw": {"cosine_attention": True, "normalize": False, "coordinate_octaves": 2},
    "two decoupled tessellations": {
        "tessellations": (
            tiny_config().tessellations[0],
            type(tiny_config().tessellations[0])(num_sites=9, site_dim=3, logits="decoupled", on_sphere=False),
        )
    },
}
EDGES = np.array([[90.0, 0.0], [90.0, 77.0], [-90.0, 3.0], [10.0, 180.0], [10.0, -180.0], [5.0, 359.5], [5.0, -0.5]])


def places(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([np.rad2deg(np.arcsin(rng.uniform(-1, 1, count))), rng.uniform(-180, 180, count)], axis=-1)


@functools.cache
def exported(shape: str = "paper") -> Path:
    """An encoder as ONNX, written once: exporting takes seconds."""
    folder = Path(tempfile.mkdtemp())
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    assert export(tiny_encoder(dtype=torch.float32, **SHAPES[shape]), folder / "m.onnx").difference <= 1e-5
    return folder / "m.onnx"


@pytest.mark.parametrize("shape", SHAPES)
def test_onnx_is_torch_for_every_kind_of_encoder(shape: str) -> None:
    embed, torch_embed = OnnxEmbedder(exported(shape)), Embedder(tiny_encoder(dtype=torch.float32, **SHAPES[shape]))
    for latlon in (places(1), places(7), places(4096), EDGES):
        wanted = torch_embed(latlon)
        np.testing.assert_allclose(embed(latlon), wanted, rtol=0, atol=1e-5 * max(1, np.abs(wanted).max()))


def test_onnx_wraps_longitude_and_forgets_it_at_the_poles() -> None:
    north, again, _, east, west, turned, here = OnnxEmbedder(exported())(EDGES)
    for one, other in ((north, again), (east, west), (turned, here)):
        np.testing.assert_allclose(one, other, atol=1e-6)


def test_onnx_needs_the_digits_of_float64_where_features_are_sharp(tmp_path: Path) -> None:
    """A hundred metres are a phase of a sphereC feature that float32 constants would lose."""
    encoder = build_baseline("sphereC")
    assert export(encoder, tmp_path / "m.onnx").difference <= 1e-6


@pytest.mark.filterwarnings("ignore:The given buffer is not writable:UserWarning")  # torch 2.11 about its own bytes
def test_torch_export_is_torch_and_describes_itself(tmp_path: Path) -> None:
    encoder = tiny_encoder(dtype=torch.float32)
    written = export(encoder, tmp_path / "m.pt2")
    extra = {exporting.DESCRIPTION_NAME: ""}
    program = torch.export.load(tmp_path / "m.pt2", extra_files=extra).module()
    for count in (1, 7, 4096):
        got = program(torch.from_numpy(places(count))).numpy()
        np.testing.assert_allclose(got, Embedder(encoder)(places(count)), atol=1e-5)
    assert json.loads(extra[exporting.DESCRIPTION_NAME]) == written.metadata


@pytest.mark.parametrize("name", ["voronoi", "harmonics"])
def test_safetensors_is_the_model_again(tmp_path: Path, name: str) -> None:
    encoder = tiny_encoder(dtype=torch.float32) if name == "voronoi" else build_baseline("harmonics", {"degrees": 4})
    export(encoder, tmp_path / "m.safetensors")
    assert Embedder(tmp_path / "m.safetensors").fingerprint() == Embedder(encoder).fingerprint()


def test_the_file_says_what_it_is() -> None:
    encoder = tiny_encoder(dtype=torch.float32)
    model = onnx.load(exported())
    onnx.checker.check_model(model)
    held = {entry.key: entry.value for entry in model.metadata_props}
    assert held["fingerprint"] == Embedder(encoder, device="cpu").fingerprint()
    assert json.loads(held["config"])["output_dim"] == 18
    assert "licence" in held["licence"]
    assert model.graph.input[0].type.tensor_type.elem_type == onnx.TensorProto.DOUBLE
    assert model.graph.input[0].type.tensor_type.shape.dim[0].dim_param  # any number of places


def test_a_model_that_comes_back_different_is_not_written(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    form, write = exporting.FORMATS[".pt2"]
    for wrong in (
        lambda embed: lambda places: embed(places) + 2e-5,
        lambda embed: lambda places: embed(places) * np.nan,
    ):
        monkeypatch.setitem(exporting.FORMATS, ".pt2", (form, lambda *a, wrong=wrong: wrong(write(*a))))
        with pytest.raises(WeightsError, match=r"lies (2\.0e-05|nan) from torch, more than 1e-05: nothing was written"):
            export(tiny_encoder(dtype=torch.float32), tmp_path / "m.pt2")
    assert list(tmp_path.iterdir()) == []


def test_what_cannot_be_exported_says_so_in_one_line(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"^fourier has no onnx form: onnxruntime cannot run it: .*Asin.*$"):
        export("fourier", tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match="from a database, which no exported file holds: export untrained alone"):
        export("untrained+range=x.npz", tmp_path / "m.onnx")
    with pytest.raises(ConfigError, match="names no format"):
        export("direct", tmp_path / "m.tflite")
    assert list(tmp_path.iterdir()) == []
