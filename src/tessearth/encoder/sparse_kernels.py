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
NUMBERS_AT_ONCE = 4096
"""Numbers of their embeddings that a program holds at once: 32 registers a thread."""
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
        for start in range(first, last, SCANNED):
            _, _, _, _, _, _, logit = _logits(positions, sharpness, territory, sites, start, last, x, y, z, SCANNED)
            higher = tl.maximum(tops, logit)
            totals = totals * tl.exp(tops - higher) + tl.exp(logit - higher)
            tops = higher
        top = tl.maximum(tl.max(tops, axis=0), background)
        total = tl.sum(totals * tl.exp(tops - top), axis=0) + tl.exp(background - top)
        column = tl.arange(0, PADDED)
        mixture = tl.zeros((AT_ONCE, PADDED), tl.float32)
        for start in range(first, last, AT_ONCE):
            site, _, _, _, _, _, logit = _logits(positions, sharpness, territory, sites, start, last, x, y, z, AT_ONCE)
            weight = tl.exp(logit - top) / total
            here = (weight > NEGLIGIBLE)[:, None] & (column < WIDTH)[None, :]
            rows = tl.load(embeddings + site[:, None] * WIDTH + column[None, :], mask=here, other=0.0)
            mixture += rows * weight[:, None]
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
        narrow, wide = tl.load(scales), tl.load(scales + 1)
        column = tl.arange(0, PADDED)
        inside = column < WIDTH
        pull = tl.load(gradient + place * WIDTH + column, mask=inside, other=0.0)
        mean = tl.sum(pull * tl.load(mixture + place * WIDTH + column, mask=inside, other=0.0), axis=0)
        for start in range(first, last, AT_ONCE):
            site, a, b, c, tau, square, logit = _logits(
                positions, sharpness, territory, sites, start, last, x, y, z, AT_ONCE
            )
            weight = tl.exp(logit - top) / total
            counts = weight > NEGLIGIBLE
            here = counts[:, None] & inside[None, :]
            at = site[:, None] * WIDTH + column[None, :]
            rows = tl.load(embeddings + at, mask=here, other=0.0)
            _add(to_embeddings + at, weight[:, None] * pull[None, :], narrow, here, FIXED)
            by_logit = weight * (tl.sum(rows * pull[None, :], axis=1) - mean)
            root = tl.sqrt(tau)  # positions in units of 1 / sqrt(tau), sharpness in units of itself: all of one size
            _add(to_positions + 3 * site, by_logit * root * a, wide, counts, FIXED)
            _add(to_positions + 3 * site + 1, by_logit * root * b, wide, counts, FIXED)
            _add(to_positions + 3 * site + 2, by_logit * root * c, wide, counts, FIXED)
            _add(to_sharpness + site, -0.5 * by_logit * tau * square, wide, counts, FIXED)
            _add(to_territory + site, by_logit, wide, counts, FIXED)


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
    sums_of = [torch.zeros_like(part, dtype=dtype) for part in given[1:5]]
    scales = _units(gradient, sums, given) if deterministic else gradient.new_ones(2)
    if len(gradient):
        _mix_backward[(len(gradient),)](
            gradient, mixture, sums, *given[:-1], *sums_of, scales,
            NEGLIGIBLE=NEGLIGIBLE, FIXED=deterministic, **_shape(gradient.shape[1]),
        )  # fmt: skip
    units = (scales[1], scales[1], scales[1], scales[0])
    positions, sharpness, territory, embeddings = (
        (part.double() / unit.double()).float() if deterministic else part
        for part, unit in zip(sums_of, units, strict=True)
    )
    return positions * given.sharpness.sqrt()[:, None], sharpness / given.sharpness, territory, embeddings


def _units(gradient: Tensor, sums: Tensor, given: Given) -> Tensor:
    """Powers of two that scale shares of embeddings, and of all else, to whole numbers whose sums fit into 62 bits."""
    pull, row = (part.square().sum(-1).amax().sqrt() for part in (gradient, given.embeddings))
    territory = given.territory.nan_to_num(neginf=0.0).abs().amax()
    logit = 2 * pull * row * (sums[:, 0].abs().amax() + territory + LOGITS_BELOW)
    most = torch.stack((gradient.abs().amax(), logit)) * len(gradient)
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
