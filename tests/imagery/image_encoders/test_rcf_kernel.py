"""The kernel of random convolutions gives the plain path's features, on a GPU or under Triton's interpreter."""

import sys

import pytest
import torch

from tessearth.imagery.image_encoders import RandomConvolution, RcfSettings, rcf, rcf_kernel
from tessearth.imagery.image_encoders.rcf_kernel import Shape
from tessearth.packages import has_kernels
from tests.imagery.image_encoders.test_rcf import some_tiles

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernel = pytest.mark.skipif(
    not has_kernels(DEVICE), reason="the kernel needs a GPU, or Triton and TRITON_INTERPRET=1"
)


@needs_kernel
@pytest.mark.parametrize("moments", [True, False])
@pytest.mark.parametrize(("bands", "size"), [(1, 8), (3, 9), (5, 13)])
def test_features_by_kernel_are_those_without(
    bands: int, size: int, moments: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(rcf_kernel, "SHAPE", Shape(positions=32, filters=16, inner=16))
    monkeypatch.setattr(rcf, "USUAL_PIXELS", 1)  # few tiles at once: the interpreter is slow
    tiles = some_tiles(number=5, bands=bands, size=size)
    tiles[1, 0, 2] = torch.nan
    settings = RcfSettings(num_filters=21, scales=((3, 1), (2, 2)), num_patches=400, moments=moments)
    encoder = RandomConvolution.fit(tiles, settings, seed=3)
    with monkeypatch.context() as without:
        without.setitem(sys.modules, "triton", None)
        assert not encoder.by_kernel
        expected = encoder.encode(tiles)
    encoder = encoder.to(DEVICE)
    assert encoder.by_kernel
    by_kernel = encoder.encode(tiles.to(DEVICE, memory_format=torch.channels_last)).cpu()
    torch.testing.assert_close(by_kernel, expected, atol=1e-4, rtol=0)


@needs_kernel
def test_half_precision_is_left_to_matrix_products() -> None:
    settings = RcfSettings(num_filters=7, num_patches=400, precision="float16")
    assert not RandomConvolution.fit(some_tiles(), settings, seed=3).to(DEVICE).by_kernel


def test_without_triton_there_is_no_kernel(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "triton", None)
    assert not has_kernels(torch.device("cuda"))
