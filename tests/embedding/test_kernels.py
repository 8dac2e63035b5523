"""The GPU's path: the plain path's embeddings, by kernels on a GPU or under Triton's interpreter, and without."""

import os

import pytest
import torch

from tessearth.embedding.fast import gpu
from tessearth.embedding.fast import triton_kernels as kernels
from tessearth.embedding.fast.bounds import FINEST, CubeCells
from tessearth.embedding.fast.gpu import GpuVoronoi, prepare_on_gpu
from tessearth.embedding.fast.triton_kernels import Shape
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tests.conftest import tiny_encoder

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
LEAST_COSINE = {torch.float32: 0.9999999, torch.bfloat16: 0.9999, torch.float16: 0.99999}
PLACES = torch.nn.functional.normalize(torch.randn(70, 3, generator=torch.Generator().manual_seed(0)))
needs_kernels = pytest.mark.skipif(
    not kernels.is_available(DEVICE),
    reason="kernels need a GPU, or Triton and TRITON_INTERPRET=1",
)


@pytest.fixture(autouse=True)
def large_cells(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(gpu, "SIDE", 4)


def build(model: SphericalVoronoiEncoder, dtype: torch.dtype = torch.float32, tile: int = 32) -> GpuVoronoi:
    """The fast path with kernels that are cut small enough for the interpreter."""
    made = prepare_on_gpu(model, DEVICE, dtype)
    assert made is not None
    made.shape = made.linear_shape = Shape(16, tile, 4, 1)
    return made


def encoder(**changes: object) -> SphericalVoronoiEncoder:
    tessellation = TessellationConfig(num_sites=64, site_dim=32, sharpness=3.0)
    values = {"tessellations": (tessellation,), "num_tokens": 16, "output_dim": 32, "hidden_dim": 64, **changes}
    return tiny_encoder(dtype=torch.float64, **values).requires_grad_(False)


def check(made: GpuVoronoi, model: SphericalVoronoiEncoder, dtype: torch.dtype) -> None:
    exact = model.embed_xyz(PLACES.double())
    got = made.embed(PLACES.to(DEVICE)).cpu()
    assert got.dtype == torch.float32
    assert torch.nn.functional.cosine_similarity(got.double(), exact).min() >= LEAST_COSINE[dtype]
    if dtype == torch.float32:
        assert (got - exact).abs().max() < 1e-5 * exact.abs().max().clamp(min=1)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
@pytest.mark.parametrize(
    "changes",
    [{}, {"coordinate_octaves": 2}, {"num_tokens": 0}, {"cosine_attention": True}, {"normalize": False}],
    ids=["plain", "octaves", "bare", "cosine", "raw"],
)
def test_series_without_kernels_equal_the_plain_path(
    changes: dict[str, object], dtype: torch.dtype, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(kernels, "triton", None)
    model = encoder(**changes)
    check(build(model, dtype), model, dtype)


@needs_kernels
@pytest.mark.parametrize("octaves", [0, 2])
@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16], ids=["float32", "bfloat16"])
def test_the_kernel_for_series_equals_the_plain_path(dtype: torch.dtype, octaves: int) -> None:
    model = encoder(coordinate_octaves=octaves)
    check(build(model, dtype), model, dtype)


@needs_kernels
def test_a_head_by_halves_equals_the_plain_one() -> None:
    model = encoder(coordinate_octaves=2)
    made = build(model)
    assert made.halves is not None
    first = torch.rand(37, 64, generator=torch.Generator().manual_seed(3)).to(DEVICE)
    halved = made._head_by_halves(first, made.halves)
    made.halves = None
    torch.testing.assert_close(halved, made._head(first), rtol=1e-5, atol=1e-5)
    check(build(model), model, torch.float32)


@needs_kernels
@pytest.mark.filterwarnings("ignore:overflow encountered:RuntimeWarning", "ignore:invalid value:RuntimeWarning")
def test_an_activation_too_large_for_float16_leaves_the_head_to_the_library() -> None:
    model = encoder()
    with torch.no_grad():
        model.head.entry.bias += 1e5
    made = build(model)
    assert made.halves is not None
    assert made._head_by_halves(torch.full((1, 64), 1e5).to(DEVICE), made.halves).isnan().all()
    check(made, model, torch.float32)


@needs_kernels
def test_weights_too_large_for_float16_are_not_halved() -> None:
    model = encoder()
    with torch.no_grad():
        model.head.blocks[0].first.weight[0, 0] = 1e5
    assert build(model).halves is None


@needs_kernels
@pytest.mark.parametrize("rectify", [False, True])
def test_a_layer_by_halves_keeps_float32_digits_whatever_the_number_of_rows(rectify: bool) -> None:
    generator = torch.Generator().manual_seed(2)
    x, columns = torch.randn(75, 64, generator=generator), torch.randn(64, 32, generator=generator)
    bias, before = torch.randn(32, generator=generator), torch.randn(75, 32, generator=generator)
    product = x.double() @ columns.double() + bias.double()
    expected = before.double() + (product.relu() if rectify else product)
    x, bias, before = (part.to(DEVICE) for part in (x, bias, before))
    halves = kernels.halve(columns.to(DEVICE))
    got = kernels.linear(x, halves, bias, rectify, before=before, shape=Shape(16, 16, 4, 1)).cpu()
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-5)


def test_every_place_gets_a_slot_of_its_own_in_a_block_of_its_cell() -> None:
    made = build(encoder())
    blocks = made.series.sort(PLACES.to(DEVICE), 16)
    assert len(blocks.slots.unique()) == len(PLACES)
    assert blocks.slots.max() < 16 * len(blocks.leaves)
    cells = made.series.by_cell[CubeCells(FINEST).find(PLACES.to(DEVICE))]
    assert blocks.leaves[blocks.slots // 16].equal(cells.long())


def test_an_encoder_without_series_has_no_fast_form(monkeypatch: pytest.MonkeyPatch) -> None:
    tessellation = TessellationConfig(num_sites=64, site_dim=16, sharpness=3.0)
    model = encoder(tessellations=(tessellation, tessellation))
    assert prepare_on_gpu(model, DEVICE, torch.float32) is None
    monkeypatch.setattr(gpu, "MOST_LEAVES", 3)
    assert prepare_on_gpu(encoder(), DEVICE, torch.float32) is None


def test_kernels_are_not_promised_where_triton_is_missing(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kernels, "triton", None)
    assert not kernels.is_available(torch.device("cuda"))
    assert os.environ.get("TRITON_INTERPRET") != "1" or not kernels.is_available(torch.device("cpu"))
