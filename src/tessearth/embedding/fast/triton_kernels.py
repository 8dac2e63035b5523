# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803
"""Fused steps for a GPU, in Triton: what lies between places and the head's first activation stays in registers.

`first_activations` evaluates each place's series, multiplies its cell's table, attends the tokens and normalises;
`linear` is a layer of a float32 head; `finish` normalises and sorts back. Triton comes with CUDA builds of PyTorch;
without it `is_available` is False and callers do without kernels.
"""

import os
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.head import Folded

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None


class Shape(NamedTuple):
    """How a kernel's work is cut; benchmarks/speed.py measures which is fastest."""

    places: int = 128
    tile: int = 128
    warps: int = 8
    stages: int = 2


LINEAR_SHAPE = Shape(places=128, tile=128, warps=8, stages=3)
"""How `linear` is cut."""
MOST_TERMS = 128
"""Terms of a series that one tile holds: degree 14."""


class Tables(NamedTuple):
    """The series of every cell, padded to one length."""

    rows: Tensor
    """(L, MOST_TERMS, T + D + H)."""
    total: Tensor
    """(L, MOST_TERMS)."""
    degrees: Tensor
    """Of the terms, (MOST_TERMS, 2)."""


def is_available(device: torch.device) -> bool:
    """Whether kernels run there: on a GPU, or anywhere under Triton's interpreter."""
    return triton is not None and (device.type == "cuda" or os.environ.get("TRITON_INTERPRET") == "1")


def are_tiles(tile: int, *widths: int) -> bool:
    """Whether widths can be cut into tiles without a rest."""
    return all(width % tile == 0 for width in widths)


if triton is not None:

    @triton.jit
    def _first_activations(
        angles, leaves, table, total, degrees, offset, tokens, bias, out, eps,
        PLACES: tl.constexpr, TERMS: tl.constexpr, TOKENS: tl.constexpr, BLEND: tl.constexpr, HIDDEN: tl.constexpr,
        TILE: tl.constexpr, RECTIFY: tl.constexpr, PRECISION: tl.constexpr,
    ):  # fmt: skip
        block = tl.program_id(0)
        leaf = tl.load(leaves + block).to(tl.int64)
        place = block * PLACES + tl.arange(0, PLACES)
        term = tl.arange(0, TERMS)
        column = tl.arange(0, TILE)
        width: tl.constexpr = TOKENS + BLEND + HIDDEN
        rows = table + leaf * TERMS * width
        first = tl.load(degrees + 2 * term).to(tl.float32)
        second = tl.load(degrees + 2 * term + 1).to(tl.float32)
        across = tl.load(angles + 2 * place)
        along = tl.load(angles + 2 * place + 1)
        terms = tl.cos(across[:, None] * first[None, :]) * tl.cos(along[:, None] * second[None, :])
        below = tl.sum(terms * tl.load(total + leaf * TERMS + term)[None, :], axis=1)
        terms = (terms / below[:, None]).to(table.dtype.element_ty)
        token = tl.arange(0, TOKENS)
        logits = tl.dot(terms, tl.load(rows + term[:, None] * width + token[None, :]), input_precision=PRECISION)
        logits += tl.load(offset + token)[None, :]
        shares = tl.exp(logits - tl.max(logits, axis=1)[:, None])
        shares = (shares / tl.sum(shares, axis=1)[:, None]).to(table.dtype.element_ty)
        square = tl.zeros((PLACES,), dtype=tl.float32)
        for start in range(0, BLEND, TILE):
            here = start + column
            part = tl.dot(
                terms, tl.load(rows + term[:, None] * width + (TOKENS + here)[None, :]), input_precision=PRECISION
            )
            drawn = tl.load(tokens + token[:, None] * (BLEND + HIDDEN) + here[None, :])
            part = tl.dot(shares, drawn, acc=part, input_precision=PRECISION)
            part += tl.load(offset + TOKENS + here)[None, :]
            square += tl.sum(part * part, axis=1)
        scale = 1.0 / tl.sqrt(square / BLEND + eps)
        for start in range(0, HIDDEN, TILE):
            here = start + column
            behind = TOKENS + BLEND + here
            part = tl.dot(terms, tl.load(rows + term[:, None] * width + behind[None, :]), input_precision=PRECISION)
            drawn = tl.load(tokens + token[:, None] * (BLEND + HIDDEN) + (BLEND + here)[None, :])
            part = tl.dot(shares, drawn, acc=part, input_precision=PRECISION)
            part = (part + tl.load(offset + behind)[None, :]) * scale[:, None] + tl.load(bias + here)[None, :]
            if RECTIFY:
                part = tl.maximum(part, 0.0)
            part = part.to(out.dtype.element_ty)
            tl.store(out + place.to(tl.int64)[:, None] * HIDDEN + here[None, :], part)

    @triton.jit
    def _linear(
        x, high, low, bias, before, out, count,
        IN: tl.constexpr, OUT: tl.constexpr, ROWS: tl.constexpr, TILE: tl.constexpr, AT_ONCE: tl.constexpr,
        LIFT: tl.constexpr, RECTIFY: tl.constexpr, ADD: tl.constexpr,
    ):  # fmt: skip
        column = tl.program_id(0) * TILE + tl.arange(0, TILE)
        row = tl.program_id(1).to(tl.int64) * ROWS + tl.arange(0, ROWS)
        inside = (row < count)[:, None]
        total = tl.zeros((ROWS, TILE), dtype=tl.float32)
        rest = tl.zeros((ROWS, TILE), dtype=tl.float32)
        for start in range(0, IN, AT_ONCE):
            inner = start + tl.arange(0, AT_ONCE)
            left = tl.load(x + row[:, None] * IN + inner[None, :], mask=inside, other=0.0)
            left_high = left.to(tl.float16)
            left_low = ((left - left_high.to(tl.float32)) * LIFT).to(tl.float16)
            right_high = tl.load(high + inner[:, None] * OUT + column[None, :])
            right_low = tl.load(low + inner[:, None] * OUT + column[None, :])
            total = tl.dot(left_high, right_high, acc=total)
            rest = tl.dot(left_low, right_high, acc=rest)
            rest = tl.dot(left_high, right_low, acc=rest)
        total += rest / LIFT + tl.load(bias + column)[None, :]
        if RECTIFY:  # too large for float16 is no number by now, and must stay so
            total = tl.maximum(total, 0.0, propagate_nan=tl.PropagateNan.ALL)
        if ADD:
            total += tl.load(before + row[:, None] * OUT + column[None, :], mask=inside, other=0.0)
        tl.store(out + row[:, None] * OUT + column[None, :], total, mask=inside)

    @triton.jit
    def _finish(raw, slots, out, WIDTH: tl.constexpr, NORMALIZE: tl.constexpr):
        place = tl.program_id(0).to(tl.int64)
        column = tl.arange(0, WIDTH)
        slot = tl.load(slots + place).to(tl.int64)
        row = tl.load(raw + slot * WIDTH + column).to(tl.float32)
        if NORMALIZE:
            row = row / tl.maximum(tl.sqrt(tl.sum(row * row, axis=0)), 1e-12)
        tl.store(out + place * WIDTH + column, row.to(out.dtype.element_ty))


def first_activations(angles: Tensor, leaves: Tensor, tables: Tables, maps: Folded, shape: Shape, out: Tensor) -> None:
    """The head's first activation for blocks of places that share a cell, written to `out`, (blocks * places, H).

    `angles` (slots, 2) are arc cosines of the flat coordinates, `leaves` (blocks,) each block's cell. The tokens of
    `maps` are turned, (T, D + H), and in the precision of the tables. With coordinates, which come in later, nothing is
    rectified.
    """
    num_tokens, both = maps.tokens.shape
    _first_activations[(len(leaves),)](
        angles, leaves, *tables, maps.offset, maps.tokens, maps.bias, out, maps.eps,
        PLACES=shape.places, TERMS=tables.rows.shape[1], TOKENS=num_tokens, BLEND=both - maps.hidden_dim,
        HIDDEN=maps.hidden_dim, TILE=shape.tile, RECTIFY=maps.coordinates is None,
        # Float32 by three tensor-core products (about 22 bits, and faster than none); others have only one kind.
        PRECISION="tf32x3" if tables.rows.dtype == torch.float32 else "tf32",
        num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip


class Halves(NamedTuple):
    """A matrix in two float16 parts, high + low / LIFT: about 22 bits."""

    high: Tensor
    low: Tensor


LIFT = 2048.0
"""Scales what rounding to float16 leaves back to the size of the number."""


def halve(columns: Tensor) -> Halves:
    """A float32 matrix in two float16 parts."""
    high = columns.half()
    return Halves(high.contiguous(), ((columns - high.float()) * LIFT).half().contiguous())


def linear(
    x: Tensor, columns: Halves, bias: Tensor, rectify: bool, before: Tensor | None = None, shape: Shape = LINEAR_SHAPE
) -> Tensor:
    """A layer, x W + b, by three float16 products of halves: (N, OUT); rectified on request, then added to `before`.

    Only the product of both low halves is dropped, so about 22 bits remain. A row of x that holds a number too large
    for float16 becomes NaN throughout. Widths are multiples of the shape's tile.
    """
    inside, outside = columns.high.shape
    out = torch.empty(len(x), outside, dtype=torch.float32, device=x.device)
    grid = (outside // shape.tile, triton.cdiv(len(x), shape.places))
    _linear[grid](
        x, columns.high, columns.low, bias, out if before is None else before, out, len(x),
        IN=inside, OUT=outside, ROWS=shape.places, TILE=shape.tile, AT_ONCE=min(64, shape.tile), LIFT=LIFT,
        RECTIFY=rectify, ADD=before is not None, num_warps=shape.warps, num_stages=shape.stages,
    )  # fmt: skip
    return out


def finish(raw: Tensor, slots: Tensor, normalize: bool) -> Tensor:
    """Rows of `raw` in the order of `slots`, (N,), of unit length with `normalize`, (N, D) in float32."""
    out = torch.empty(len(slots), raw.shape[1], dtype=torch.float32, device=raw.device)
    if len(slots):
        _finish[(len(slots),)](raw, slots, out, WIDTH=raw.shape[1], NORMALIZE=normalize, num_warps=4)
    return out
