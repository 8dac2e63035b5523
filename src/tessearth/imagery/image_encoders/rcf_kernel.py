# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803
"""One scale of random convolutions in Triton: rectified means of responses, without a response in memory."""

from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.imagery.kernels import launching, tl, triton


class Shape(NamedTuple):
    """How the work is cut; `benchmarks/rcf_kernel.py` measures which is fastest."""

    positions: int = 64
    filters: int = 64
    inner: int = 32
    warps: int = 4
    stages: int = 2


SHAPE = Shape()


if triton is not None:
    # Sizes are no constants, so that tiles of all sources meet the same few compiled kernels.
    @triton.jit(do_not_specialize=("bands", "height", "width", "patch", "number", "out_stride"))
    def _rectified_means(
        pixels, bank, out, threshold, bands, height, width, patch, number, out_stride,
        POSITIONS: tl.constexpr, FILTERS: tl.constexpr, INNER: tl.constexpr, STEPS: tl.constexpr,
    ):  # fmt: skip
        tile = tl.program_id(0).to(tl.int64)
        column = tl.program_id(1) * FILTERS + tl.arange(0, FILTERS)
        across = width - patch + 1
        count = across * (height - patch + 1)
        wanted = patch * patch * bands
        first = pixels + tile * (bands * height * width)
        above = tl.zeros((POSITIONS, FILTERS), dtype=tl.float32)
        below = tl.zeros((POSITIONS, FILTERS), dtype=tl.float32)
        start = 0
        while start < count:
            position = start + tl.arange(0, POSITIONS)
            corner = position // across * width + position % across
            response = tl.zeros((POSITIONS, FILTERS), dtype=tl.float32)
            for begin in range(0, STEPS * INNER, INNER):
                inner = begin + tl.arange(0, INNER)
                square = inner // bands
                step = inner % bands * (height * width) + square // patch * width + square % patch
                there = (position < count)[:, None] & (inner < wanted)[None, :]
                patches = tl.load(first + corner[:, None] + step[None, :], mask=there, other=0.0)
                held = (inner < wanted)[:, None] & (column < number)[None, :]
                drawn = tl.load(bank + inner[:, None] * number + column[None, :], mask=held, other=0.0)
                # Float32 by three tensor-core products: about 22 bits, and faster than none.
                response = tl.dot(patches, drawn, acc=response, input_precision="tf32x3")
            # A position past the end has the response 0, which exceeds nothing.
            above += tl.maximum(response - threshold, 0.0)
            below += tl.maximum(-response - threshold, 0.0)
            start += POSITIONS
        target = out + tile * out_stride + column
        tl.store(target, tl.sum(above, axis=0) / count, mask=column < number)
        tl.store(target + number, tl.sum(below, axis=0) / count, mask=column < number)


def rectified_means(pixels: Tensor, patch: int, bank: Tensor, threshold: float, out: Tensor) -> None:
    """Means of relu(r - b) and of relu(-r - b) over a tile's positions, written to `out` (n, 2 * filters).

    Pixels are (n, C, H, W) in float32, `bank` (filters, patch * patch * C); rows of `out` may lie apart.
    """
    count, bands, height, width = pixels.shape
    grid, inner = (count, triton.cdiv(len(bank), SHAPE.filters)), bank.shape[1]
    pixels, bank = pixels.contiguous(), bank.T.contiguous()
    with launching, torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        _rectified_means[grid](
            pixels, bank, out, threshold, bands, height, width, patch, bank.shape[1], out.stride(0),
            POSITIONS=SHAPE.positions, FILTERS=SHAPE.filters, INNER=SHAPE.inner, STEPS=triton.cdiv(inner, SHAPE.inner),
            num_warps=SHAPE.warps, num_stages=SHAPE.stages,
        )  # fmt: skip
