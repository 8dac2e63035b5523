# mypy: disable-error-code="untyped-decorator, no-untyped-def"
"""GPU kernels of `encoder.sparse`: one program a place, which reads the sites of its cell's list and nothing else.

Chords are differences of coordinates, never products of them, so that float32 holds however sharp the sites are.
Gradients of a site are added up by atomics, in an order that differs from run to run. Sums of float32 then differ in
their last digits; sums of whole numbers, into which shares are scaled where runs are to repeat, do not.
"""

import torch
from torch import Tensor

from tessearth.encoder.sparse import Table

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

NUMBERS_AT_ONCE = 2048
"""Numbers of sites' rows that a program holds; more take so many registers that fewer programs run side by side."""
LIGHTEST = 1e-12
"""Gradients of sites with less weight than this are left out: they vanish in the sums of float32."""
LOGITS_BELOW = 32.0
"""More than -log(LIGHTEST), by which the logits that count are below a place's largest at most."""


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
        first = length * 0
        while first < length:  # no `for`: the interpreter cannot count up to a tensor
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
            first += many
        tl.store(mixture + n * width + column, summed / total, mask=column < width)
        tl.store(tops + 2 * n, top)  # not its sum with log(total), which float32 would swallow far from all sites
        tl.store(tops + 2 * n + 1, total)

    @triton.jit
    def _add(where, share, unit, used, whole: tl.constexpr):
        """Add shares, as whole numbers of a unit on request."""
        if whole:
            tl.atomic_add(where, (share * unit).to(tl.int64), mask=used, sem="relaxed")
        else:
            tl.atomic_add(where, share, mask=used, sem="relaxed")

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
        units,
        lightest,
        width: tl.constexpr,
        columns: tl.constexpr,
        many: tl.constexpr,
        whole: tl.constexpr,
    ):
        n = tl.program_id(0).to(tl.int64)
        x, y, z = tl.load(xyz + 3 * n), tl.load(xyz + 3 * n + 1), tl.load(xyz + 3 * n + 2)
        begin, length = tl.load(begins + n), tl.load(lengths + n)
        column = tl.arange(0, columns)
        unit_p, unit_t, unit_b, unit_r = tl.load(units), tl.load(units + 1), tl.load(units + 2), tl.load(units + 3)
        gradient = tl.load(gradients + n * width + column, mask=column < width, other=0.0)
        slope, top, total = tl.load(slopes + n), tl.load(tops + 2 * n), tl.load(tops + 2 * n + 1)
        first = length * 0
        while first < length:
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
            root = tl.sqrt(tau)  # shares of one size for sites of any sharpness; `backward` scales their sums
            _add(to_rows + where, weight[:, None] * gradient[None, :], unit_r, both, whole)
            _add(to_territory + site, change, unit_b, used, whole)
            _add(to_sharpness + site, -change * tau * square / 2, unit_t, used, whole)
            _add(to_positions + 3 * site, change * root * dx, unit_p, used, whole)
            _add(to_positions + 3 * site + 1, change * root * dy, unit_p, used, whole)
            _add(to_positions + 3 * site + 2, change * root * dz, unit_p, used, whole)
            first += many


def forward(xyz: Tensor, begin: Tensor, length: Tensor, table: Table, background: float) -> tuple[Tensor, Tensor]:
    """The mixture (N, S) at places (N, 3), and their largest logits with the sums below their weights, (N, 2)."""
    width = table.rows.shape[1]
    mixture, tops = table.rows.new_empty(len(xyz), width), xyz.new_empty(len(xyz), 2)
    _forward[(len(xyz),)](
        *_contiguous(xyz, begin, length, table.sites, *table[:4]),
        mixture,
        tops,
        background,
        torch.finfo(torch.float32).min,
        width=width,
        **_shape(width, NUMBERS_AT_ONCE),
    )
    return mixture, tops


def backward(gradient: Tensor, mixed: list[Tensor], xyz: Tensor, table: Table, repeatable: bool) -> list[Tensor]:
    """The gradients of positions, sharpness, territory and rows, from the mixture's (N, S) and what `forward` gave."""
    (mixture, tops), width = mixed, table.rows.shape[1]
    slope, repeatable = (gradient * mixture).sum(-1), repeatable and len(xyz) > 0
    units = _units(gradient, tops, table) if repeatable else gradient.new_ones(4)
    found = [torch.zeros_like(part, dtype=torch.int64 if repeatable else part.dtype) for part in table[:4]]
    _backward[(len(xyz),)](
        *_contiguous(gradient, slope, tops, xyz, *table.find(xyz), table.sites, *table[:4]),
        *found,
        units,
        LIGHTEST,
        width=width,
        **_shape(width, NUMBERS_AT_ONCE // 2 if repeatable else NUMBERS_AT_ONCE),
        whole=repeatable,
    )
    if repeatable:
        found = [(part / unit.double()).float() for part, unit in zip(found, units, strict=True)]
    return [found[0] * table.sharpness.sqrt()[:, None], found[1] / table.sharpness, *found[2:]]


def _units(gradient: Tensor, tops: Tensor, table: Table) -> Tensor:
    """Powers of two that scale shares of each gradient to whole numbers whose sums over places fit into 62 bits, (4,).

    A logit's gradient is at most 2 |g| |row|; tau |x - s|^2 / 2 at most what logits and territories of sites that
    count span. A gradient that is not a number makes units, and so gradients, that are none either.
    """
    pull, row = (torch.linalg.vector_norm(part, dim=-1).amax() for part in (gradient, table.rows))
    span = tops[:, 0].abs().amax() + table.territory.nan_to_num(neginf=0.0).abs().amax() + LOGITS_BELOW
    most = torch.stack(((2 * span).sqrt(), span, torch.ones_like(span))) * (2 * pull * row)
    most = torch.cat((most, gradient.abs().amax()[None])) * len(gradient)
    return torch.exp2((61 - most.log2()).floor().clamp(max=96))


def _shape(width: int, numbers: int) -> dict[str, int]:
    """How wide a tile of rows is and how many it holds."""
    columns = max(16, triton.next_power_of_2(width))
    return {"columns": columns, "many": min(32, max(8, numbers // columns))}


def _contiguous(*tensors: Tensor) -> list[Tensor]:
    return [tensor.contiguous() for tensor in tensors]
