"""A small encoder with levels: every way to its embeddings gives what the equations say."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tessearth import Embedder, load
from tests.cli.conftest import Command, tessearth
from tests.golden.conftest import LARGEST_ERROR, Golden
from tests.golden.make_golden import SPECIAL, STEP, golden_places
from tests.golden.make_levels import CONFIG, GOLDEN, WEIGHTS, build, embed, places
from tests.golden.test_agreement import DEVICES, READERS, write_parquet

__all__ = ["tessearth"]

pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

OPTIONS: dict[str, dict[str, Any]] = {
    "fast": {},
    "plain": {"strategy": "plain"},
    "every site by rank": {"top_k": CONFIG.num_sites},
    "float64": {"precision": "float64"},
    "float16": {"precision": "float16"},
    "plain bfloat16": {"precision": "bfloat16", "strategy": "plain"},
}


@pytest.fixture(scope="module")
def levels() -> Golden:
    with np.load(GOLDEN, allow_pickle=False) as file:
        return Golden(file["latlon"], file["embedding"])


def test_the_golden_file_is_what_the_equations_say(levels: Golden) -> None:
    np.testing.assert_array_equal(levels.latlon, places())
    np.testing.assert_allclose(levels.embedding, embed(levels.latlon), rtol=0, atol=LARGEST_ERROR["float64"])


def test_the_file_of_weights_is_read_as_it_was_made() -> None:
    made, read = build().state_dict(), load(WEIGHTS).state_dict()
    for name, tensor in made.items():
        np.testing.assert_allclose(read[name], tensor, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("device", DEVICES)
@pytest.mark.parametrize("name", OPTIONS)
def test_the_library_agrees_in_every_precision(levels: Golden, name: str, device: str) -> None:
    options = OPTIONS[name]
    embedder = Embedder(WEIGHTS, device=device, **options)
    levels.check(embedder(levels.latlon), options.get("precision", "float32"))


def test_one_by_one_and_explanations_agree(levels: Golden) -> None:
    embedder = Embedder(WEIGHTS, device="cpu")
    levels.check(np.stack([embedder(place) for place in levels.latlon]))
    levels.check(embedder.explain(levels.latlon).embedding)


def test_a_table_agrees(levels: Golden, tessearth: Command, tmp_path: Path) -> None:
    table, out = write_parquet(tmp_path / "places", levels), tmp_path / "out.parquet"
    done = tessearth("encode", "--model", WEIGHTS, "--device", "cpu", "--input", table, "--out", out)
    assert done.status == 0, done.err
    levels.check(READERS["parquet"](out))


def test_a_raster_agrees(levels: Golden, tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    from tessearth.bulk.rasters import write_raster

    out = tmp_path / "map.tif"
    write_raster(WEIGHTS, out, resolution=STEP, dims=CONFIG.output_dim, dtype="float32", device="cpu")
    with rasterio.open(out) as source:
        cells = source.read()
    levels.check(cells.reshape(len(cells), -1).T, rows=slice(len(SPECIAL), len(golden_places())))


@pytest.mark.slow  # exporting takes ten seconds
def test_onnx_agrees(levels: Golden, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("onnx", "onnxruntime", "onnxscript"):
        pytest.importorskip(module)
    from tessearth.embedding import listed_graph
    from tessearth.embedding.exporting import export
    from tessearth.embedding.onnx import OnnxEmbedder

    monkeypatch.setattr(listed_graph, "MOST_DENSE", 100)
    export(str(WEIGHTS), tmp_path / "m.onnx")
    levels.check(OnnxEmbedder(tmp_path / "m.onnx")(levels.latlon))
