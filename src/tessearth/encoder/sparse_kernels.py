# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""GPU kernels of `encoder.sparse`: one program a place, which reads the sites of its cell's list and nothing else.

Chords are differences of coordinates, never products of them, so that float32 holds however sharp the sites are.
Gradients of a site are added up by atomics in an order that differs from run to run, so their last digits do too.
"""

import torch
from torch import Tensor

from tessearth.encoder.sparse import Table

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

SITES_AT_ONCE = 32
LIGHTEST = 1e-12
"""Gradients of sites with less weight than this are left out: they vanish in the sums of float32."""


if triton is not None:

    @triton.jit
    def _logits(k, inside, x, y, z, sites, positions, sharpness, territory):
        """Sites, their logits at a place, and what parts them from it."""
        site = tl.load(sites + k, mask=inside, other=0).to(tl.int64)
        dx = x - tl.load(positions + 3 * site, mask=inside, other=0.0)
        dy = y - tl.load(positions + 3 * site + 1, mask=inside, other=0.0)
        dz = z - tl.load(positions + 3 * site + 2, mask=inside, other=0.0)
        tau = tl.load(sharpness + site, mask=inside, other=1.0)
        b = tl.load(territory + site, mask=inside, other=0.0)
        square = dx * dx + dy * dy + dz * dz
        return site, tl.where(inside, b - tau / 2 * square, -float("inf")), dx, dy, dz, tau, square

    @triton.jit
    def _forward(
        xyz,
        begins,
        lengths,
        sites,
        positions,
        sharpness,
        territory,
        rows,
        mixture,
        tops,
        background,
        least,
        width: tl.constexpr,
        columns: tl.constexpr,
        many: tl.constexpr,
    ):
        n = tl.program_id(0).to(tl.int64)
        x, y, z = tl.load(xyz + 3 * n), tl.load(xyz + 3 * n + 1), tl.load(xyz + 3 * n + 2)
        begin, length = tl.load(begins + n), tl.load(lengths + n)
        column = tl.arange(0, columns)
        # Without a background the sum begins with nothing, at a logit below every other.
        top, total = tl.maximum(background, least), tl.exp(background - tl.maximum(background, least))
        summed = tl.zeros([columns], dtype=tl.float32)
        for first in range(0, length, many):
            number = first + tl.arange(0, many)
            inside = number < length
            site, logit, _, _, _, _, _ = _logits(
                begin + number, inside, x, y, z, sites, positions, sharpness, territory
            )
            higher = tl.maximum(top, tl.max(logit, axis=0))
            weight, before = tl.exp(logit - higher), tl.exp(top - higher)
            used = inside & (weight > 0)
            tile = tl.load(
                rows + site[:, None] * width + column[None, :],
                mask=used[:, None] & (column < width)[None, :],
                other=0.0,
            )
            summed = summed * before + tl.sum(weight[:, None] * tile, axis=0)
            total = total * before + tl.sum(weight, axis=0)
            top = higher
        tl.store(mixture + n * width + column, summed / total, mask=column < width)
        tl.store(tops + 2 * n, top)  # not its sum with log(total), which float32 would swallow far from all sites
        tl.store(tops + 2 * n + 1, total)

    @triton.jit
    def _backward(
        gradients,
        slopes,
        tops,
        xyz,
        begins,
        lengths,
        sites,
        positions,
        sharpness,
        territory,
        rows,
        to_positions,
        to_sharpness,
        to_territory,
        to_rows,
        lightest,
        width: tl.constexpr,
        columns: tl.constexpr,
        many: tl.constexpr,
    ):
        n = tl.program_id(0).to(tl.int64)
        x, y, z = tl.load(xyz + 3 * n), tl.load(xyz + 3 * n + 1), tl.load(xyz + 3 * n + 2)
        begin, length = tl.load(begins + n), tl.load(lengths + n)
        column = tl.arange(0, columns)
        gradient = tl.load(gradients + n * width + column, mask=column < width, other=0.0)
        slope, top, total = tl.load(slopes + n), tl.load(tops + 2 * n), tl.load(tops + 2 * n + 1)
        for first in range(0, length, many):
            number = first + tl.arange(0, many)
            inside = number < length
            site, logit, dx, dy, dz, tau, square = _logits(
                begin + number, inside, x, y, z, sites, positions, sharpness, territory
            )
            weight = tl.exp(logit - top) / total
            used = inside & (weight > lightest)
            both = used[:, None] & (column < width)[None, :]
            where = site[:, None] * width + column[None, :]
            tile = tl.load(rows + where, mask=both, other=0.0)
            along = tl.sum(tile * gradient[None, :], axis=1)
            change = tl.where(used, weight * (along - slope), 0.0)
            tl.atomic_add(to_rows + where, weight[:, None] * gradient[None, :], mask=both, sem="relaxed")
            tl.atomic_add(to_territory + site, change, mask=used, sem="relaxed")
            tl.atomic_add(to_sharpness + site, -change * square / 2, mask=used, sem="relaxed")
            tl.atomic_add(to_positions + 3 * site, change * tau * dx, mask=used, sem="relaxed")
            tl.atomic_add(to_positions + 3 * site + 1, change * tau * dy, mask=used, sem="relaxed")
            tl.atomic_add(to_positions + 3 * site + 2, change * tau * dz, mask=used, sem="relaxed")


def forward(xyz: Tensor, begin: Tensor, length: Tensor, table: Table, background: float) -> tuple[Tensor, Tensor]:
    """The mixture (N, S) at places (N, 3); their largest logits and the sums of shares of these, (N, 2)."""
    width = table.rows.shape[1]
    mixture, tops = table.rows.new_empty(len(xyz), width), xyz.new_empty(len(xyz), 2)
    _forward[(len(xyz),)](
        *_contiguous(xyz, begin, length, table.sites, *table[:4]),
        mixture,
        tops,
        background,
        torch.finfo(torch.float32).min,
        width=width,
        columns=max(16, triton.next_power_of_2(width)),
        many=SITES_AT_ONCE,
    )
    return mixture, tops


def backward(
    gradient: Tensor, slope: Tensor, tops: Tensor, xyz: Tensor, begin: Tensor, length: Tensor, table: Table
) -> list[Tensor]:
    """The gradients of positions, sharpness, territory and rows, from the mixture's (N, S) and <g, f> (N,)."""
    width, found = table.rows.shape[1], [torch.zeros_like(part) for part in table[:4]]
    _backward[(len(xyz),)](
        *_contiguous(gradient, slope, tops, xyz, begin, length, table.sites, *table[:4]),
        *found,
        LIGHTEST,
        width=width,
        columns=max(16, triton.next_power_of_2(width)),
        many=SITES_AT_ONCE,
    )
    return found


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]
