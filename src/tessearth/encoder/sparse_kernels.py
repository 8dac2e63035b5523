# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803
"""Sparse mixtures on a GPU, in Triton: one program per place walks the list of its cell, forward and backward.

Logits come from differences of coordinates, never from products of matrices, so a tau of 10^8 keeps float32's digits.
Triton comes with CUDA builds of PyTorch; `are_for` says where it can be used.
"""

import os
from typing import NamedTuple

import torch
from torch import Tensor

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

SITES_AT_ONCE = 64
"""Sites whose logits a program computes at once, at most."""
NUMBERS_AT_ONCE = 2048
"""Numbers of their embeddings that a program holds at once: 16 registers a thread."""
WARPS = 4
NEGLIGIBLE = 1e-9
"""Embeddings of sites with less weight than this are not read: it is below the last digit of float32."""
LOGITS_BELOW = 32.0
"""At least what the logits of all others are below a place's largest: -log(NEGLIGIBLE) is 21."""


class Given(NamedTuple):
    """What mixtures are made of."""

    xyz: Tensor
    """(N, 3)."""
    positions: Tensor
    """(K, 3)."""
    sharpness: Tensor
    """tau, (K,)."""
    territory: Tensor
    """b, (K,)."""
    embeddings: Tensor
    """(K, S)."""
    cell: Tensor
    """The list of each place, (N,)."""
    starts: Tensor
    """As in `CellLists`."""
    sites: Tensor
    """As in `CellLists`."""
    background: float
    """The logit of no site, or -inf."""

    def contiguous(self) -> "Given":
        """The same with rows one after another in memory, as kernels read them."""
        return Given._make((*(part.contiguous() for part in self[:-1]), self.background))


def are_for(embeddings: Tensor) -> bool:
    """Whether kernels can mix these: in float32 on a GPU, or anywhere under Triton's interpreter."""
    interpreted = os.environ.get("TRITON_INTERPRET") == "1"
    return triton is not None and embeddings.dtype == torch.float32 and (embeddings.is_cuda or interpreted)


if triton is not None:

    @triton.jit
    def _logits(
        positions, sharpness, territory, sites, start, last, x, y, z, AT_ONCE: tl.constexpr
    ):  # fmt: skip
        entry = start + tl.arange(0, AT_ONCE)
        listed = entry < last
        site = tl.load(sites + entry, mask=listed, other=0).to(tl.int64)
        a = x - tl.load(positions + 3 * site, mask=listed, other=0.0)
        b = y - tl.load(positions + 3 * site + 1, mask=listed, other=0.0)
        c = z - tl.load(positions + 3 * site + 2, mask=listed, other=0.0)
        tau = tl.load(sharpness + site, mask=listed, other=0.0)
        square = a * a + b * b + c * c
        logit = tl.load(territory + site, mask=listed, other=float("-inf")) - 0.5 * tau * square
        return site, a, b, c, tau, square, logit

    @triton.jit
    def _mix(
        xyz, positions, sharpness, territory, embeddings, cell, starts, sites, background, out, sums,
        WIDTH: tl.constexpr, PADDED: tl.constexpr, SCANNED: tl.constexpr, AT_ONCE: tl.constexpr,
        NEGLIGIBLE: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64)
        leaf = tl.load(cell + place)
        first, last = tl.load(starts + leaf), tl.load(starts + leaf + 1)
        x, y, z = tl.load(xyz + 3 * place), tl.load(xyz + 3 * place + 1), tl.load(xyz + 3 * place + 2)
        tops = tl.full((SCANNED,), -1e30, tl.float32)
        totals = tl.zeros((SCANNED,), tl.float32)
        start = first  # no `for`: Triton's interpreter cannot count from one tensor to another
        while start < last:
            _, _, _, _, _, _, logit = _logits(positions, sharpness, territory, sites, start, last, x, y, z, SCANNED)
            higher = tl.maximum(tops, logit)
            totals = totals * tl.exp(tops - higher) + tl.exp(logit - higher)
            tops = higher
            start += SCANNED
        top = tl.maximum(tl.max(tops, axis=0), background)
        total = tl.sum(totals * tl.exp(tops - top), axis=0) + tl.exp(background - top)
        column = tl.arange(0, PADDED)
        mixture = tl.zeros((AT_ONCE, PADDED), tl.float32)
        start = first
        while start < last:
            site, _, _, _, _, _, logit = _logits(positions, sharpness, territory, sites, start, last, x, y, z, AT_ONCE)
            weight = tl.exp(logit - top) / total
            here = (weight > NEGLIGIBLE)[:, None] & (column < WIDTH)[None, :]
            rows = tl.load(embeddings + site[:, None] * WIDTH + column[None, :], mask=here, other=0.0)
            mixture += rows * weight[:, None]
            start += AT_ONCE
        tl.store(out + place * WIDTH + column, tl.sum(mixture, axis=0), mask=column < WIDTH)
        tl.store(sums + 2 * place, top)
        tl.store(sums + 2 * place + 1, total)

    @triton.jit
    def _add(target, value, scale, here, FIXED: tl.constexpr):
        if FIXED:
            tl.atomic_add(target, (value * scale).to(tl.int64), mask=here, sem="relaxed")
        else:
            tl.atomic_add(target, value, mask=here, sem="relaxed")

    @triton.jit
    def _mix_backward(
        gradient, mixture, sums, xyz, positions, sharpness, territory, embeddings, cell, starts, sites,
        to_positions, to_sharpness, to_territory, to_embeddings, scales,
        WIDTH: tl.constexpr, PADDED: tl.constexpr, AT_ONCE: tl.constexpr, NEGLIGIBLE: tl.constexpr,
        FIXED: tl.constexpr,
    ):  # fmt: skip
        place = tl.program_id(0).to(tl.int64)
        leaf = tl.load(cell + place)
        first, last = tl.load(starts + leaf), tl.load(starts + leaf + 1)
        x, y, z = tl.load(xyz + 3 * place), tl.load(xyz + 3 * place + 1), tl.load(xyz + 3 * place + 2)
        top, total = tl.load(sums + 2 * place), tl.load(sums + 2 * place + 1)
        unit_p, unit_t = tl.load(scales), tl.load(scales + 1)  # of positions, sharpness, territory, embeddings
        unit_b, unit_e = tl.load(scales + 2), tl.load(scales + 3)
        column = tl.arange(0, PADDED)
        inside = column < WIDTH
        pull = tl.load(gradient + place * WIDTH + column, mask=inside, other=0.0)
        mean = tl.sum(pull * tl.load(mixture + place * WIDTH + column, mask=inside, other=0.0), axis=0)
        start = first
        while start < last:
            site, a, b, c, tau, square, logit = _logits(
                positions, sharpness, territory, sites, start, last, x, y, z, AT_ONCE
            )
            weight = tl.exp(logit - top) / total
            counts = weight > NEGLIGIBLE
            here = counts[:, None] & inside[None, :]
            at = site[:, None] * WIDTH + column[None, :]
            rows = tl.load(embeddings + at, mask=here, other=0.0)
            _add(to_embeddings + at, weight[:, None] * pull[None, :], unit_e, here, FIXED)
            by_logit = weight * (tl.sum(rows * pull[None, :], axis=1) - mean)
            root = tl.sqrt(tau)  # positions in units of 1 / sqrt(tau), sharpness in units of itself: all of one size
            _add(to_positions + 3 * site, by_logit * root * a, unit_p, counts, FIXED)
            _add(to_positions + 3 * site + 1, by_logit * root * b, unit_p, counts, FIXED)
            _add(to_positions + 3 * site + 2, by_logit * root * c, unit_p, counts, FIXED)
            _add(to_sharpness + site, -0.5 * by_logit * tau * square, unit_t, counts, FIXED)
            _add(to_territory + site, by_logit, unit_b, counts, FIXED)
            start += AT_ONCE


def mix(given: Given) -> tuple[Tensor, Tensor]:
    """Mixtures, (N, S), and each place's largest logit and the sum below its weights, (N, 2)."""
    given = given.contiguous()
    count, width = len(given.xyz), given.embeddings.shape[1]
    out, sums = given.embeddings.new_empty(count, width), given.xyz.new_empty(count, 2)
    if count:
        shape = _shape(width)
        _mix[(count,)](*given, out, sums, SCANNED=SITES_AT_ONCE, NEGLIGIBLE=NEGLIGIBLE, **shape)
    return out, sums


def mix_backward(
    gradient: Tensor, mixture: Tensor, sums: Tensor, given: Given, deterministic: bool
) -> tuple[Tensor, Tensor, Tensor, Tensor]:
    """Gradients of positions, sharpness, territory and embeddings.

    Sums of a site's shares over places run in any order; where they must be the same bits on every run, they are
    whole numbers, in units so small that float32 loses nothing and so large that no sum overflows.
    """
    given = given.contiguous()
    gradient = gradient.contiguous()
    dtype = torch.int64 if deterministic else torch.float32
    totals = [torch.zeros_like(part, dtype=dtype) for part in given[1:5]]
    if len(gradient):
        scales = _scales(gradient, sums, given) if deterministic else gradient.new_ones(4)
        _mix_backward[(len(gradient),)](
            gradient, mixture, sums, *given[:-1], *totals, scales,
            NEGLIGIBLE=NEGLIGIBLE, FIXED=deterministic, **_shape(gradient.shape[1]),
        )  # fmt: skip
        if deterministic:
            totals = [(total / scale.double()).float() for total, scale in zip(totals, scales, strict=True)]
    positions, sharpness, territory, embeddings = (total.float() for total in totals)
    return positions * given.sharpness.sqrt()[:, None], sharpness / given.sharpness, territory, embeddings


def _scales(gradient: Tensor, sums: Tensor, given: Given) -> Tensor:
    """Powers of two that turn shares of each gradient into whole numbers whose sums over places fit into 62 bits.

    |dl| is at most 2 |g| |e|, and tau |x - s|^2 / 2 of a site that counts is at most what the logits and territories
    span.
    """
    pull, row = (torch.linalg.vector_norm(part, dim=-1).amax() for part in (gradient, given.embeddings))
    span = sums[:, 0].abs().amax() + given.territory.nan_to_num(neginf=0.0).abs().amax() + LOGITS_BELOW
    logit = 2 * pull * row
    most = torch.stack((logit * (2 * span).sqrt(), logit * span, logit, gradient.abs().amax())) * len(gradient)
    return torch.exp2((61 - most.log2()).floor().clamp(max=96))


def _shape(width: int) -> dict[str, int]:
    """How a kernel's work is cut for embeddings of this width."""
    padded = triton.next_power_of_2(width)
    return {
        "WIDTH": width,
        "PADDED": padded,
        "AT_ONCE": min(SITES_AT_ONCE, max(8, NUMBERS_AT_ONCE // padded)),
        "num_warps": WARPS,
    }
