# mypy: disable-error-code="untyped-decorator, no-untyped-def, no-untyped-call"
# ruff: noqa: N803
"""The rule of `encoder.lists` on a GPU: one program walks a cell's candidates twice, all in float64.

The first walk adds up the log-sum at the cell's centre and its slope; the second bounds each site's weight, marks it
with its bin, and counts bins, from which the cell's own list follows.
"""

import torch
from torch import Tensor

from tessearth.encoder.lists import BINS, MARGIN, SHARE_ABOVE, SHARP, STEP, SiteRule
from tessearth.sphere import Candidates, CellLists, Marks, refine_by_kernels

try:
    import triton  # type: ignore[import-not-found, unused-ignore]
    import triton.language as tl  # type: ignore[import-not-found, unused-ignore]
except ImportError:
    triton = None

CANDIDATES_AT_ONCE = 256
WARPS = 4
SLOTS = 64
"""Of the histograms: the bins, and one for what is no candidate."""


if triton is not None:

    @triton.jit
    def _candidates(items, table, base, first, length, x, y, z, radius, CHUNK: tl.constexpr):
        number = first + tl.arange(0, CHUNK)
        listed = number < length
        row = table + 8 * tl.load(items + base + number, mask=listed, other=0).to(tl.int64)
        a = tl.load(row, mask=listed, other=0.0)
        b = tl.load(row + 1, mask=listed, other=0.0)
        c = tl.load(row + 2, mask=listed, other=0.0)
        sharp = tl.load(row + 3, mask=listed, other=0.0)
        cosine = a * x + b * y + c * z
        square = tl.maximum(tl.load(row + 7, mask=listed, other=2.0) - 2 * cosine, 0.0)
        reach = tl.load(row + 6, mask=listed, other=0.0) * (tl.sqrt(square) + radius)
        return number, listed, row, a, b, c, sharp, sharp * cosine, square, reach

    @triton.jit
    def _log_sum(items, table, base, length, x, y, z, radius, background, CHUNK: tl.constexpr):
        """The log-sum of the lowest logits at the cell's centre, and its slope there."""
        tops, totals = tl.full((CHUNK,), -1e300, tl.float64), tl.zeros((CHUNK,), tl.float64)
        u, v, w = tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64), tl.zeros((CHUNK,), tl.float64)
        first = length * 0
        while first < length:  # no `for`: the interpreter cannot count up to a tensor
            _, listed, row, a, b, c, sharp, pull, _, reach = _candidates(
                items, table, base, first, length, x, y, z, radius, CHUNK
            )
            low = tl.load(row + 4, mask=listed, other=-float("inf")) + pull - reach
            higher = tl.maximum(tops, low)
            before, share = tl.exp(tops - higher), tl.exp(low - higher)
            totals = totals * before + share
            u = u * before + share * sharp * a
            v = v * before + share * sharp * b
            w = w * before + share * sharp * c
            tops = higher
            first += CHUNK
        top = tl.maximum(tl.max(tops, axis=0), background)
        lanes = tl.exp(tops - top)
        total = tl.sum(totals * lanes, axis=0) + tl.exp(background - top)
        p, q = tl.sum(u * lanes, axis=0) / total, tl.sum(v * lanes, axis=0) / total
        return top + tl.log(total), p, q, tl.sum(w * lanes, axis=0) / total

    @triton.jit
    def _highest(d, e, f, x, y, z, sine, cosine):
        """The maximum over the cap of <slope, place - centre>."""
        along = d * x + e * y + f * z
        d, e, f = d - along * x, e - along * y, f - along * z
        across = tl.sqrt(d * d + e * e + f * f)
        length = tl.sqrt(across * across + along * along) + along
        inside = across * across / tl.where(length > 0, length, 1.0)
        return tl.where(along * sine > across * cosine, inside, across * sine - along * (1 - cosine))

    @triton.jit
    def _cut(counts, edges, share, at, length, BINS: tl.constexpr, SLOTS: tl.constexpr):
        """Store the first bin that stays when the bins before fit into a share, and how many candidates then stay."""
        slot = tl.arange(0, SLOTS)
        dropped = tl.cumsum(counts.to(tl.float64) * tl.load(edges + slot), axis=0)
        first = tl.sum(((dropped <= share) & (slot < BINS)).to(tl.int64), axis=0)
        tl.store(at, first)
        tl.store(at + 1, length - tl.sum(tl.where(slot < first, counts, 0).to(tl.int64), axis=0))

    @triton.jit
    def _judge(
        items, starts, lengths, marked, table, centres, radii, edges, settings, marks, found,
        BINS: tl.constexpr, SLOTS: tl.constexpr, CHUNK: tl.constexpr,
    ):  # fmt: skip
        cell = tl.program_id(0).to(tl.int64)
        base, length, own = tl.load(starts + cell), tl.load(lengths + cell), tl.load(marked + cell)
        x, y, z = tl.load(centres + 3 * cell), tl.load(centres + 3 * cell + 1), tl.load(centres + 3 * cell + 2)
        radius = tl.load(radii + 3 * cell)
        sine, cosine = tl.load(radii + 3 * cell + 1), tl.load(radii + 3 * cell + 2)
        background, log_epsilon = tl.load(settings), tl.load(settings + 1)  # numbers given to a kernel are float32
        blunting, margin, step = tl.load(settings + 2), tl.load(settings + 3), tl.load(settings + 4)
        sharpest, kept_share, passed_share = tl.load(settings + 5), tl.load(settings + 6), tl.load(settings + 7)
        log_sum, p, q, r = _log_sum(items, table, base, length, x, y, z, radius, background, CHUNK)
        least = log_sum + log_epsilon - margin
        counts, at_centre = tl.zeros((SLOTS,), tl.int32), tl.zeros((SLOTS,), tl.int32)
        inside = tl.zeros((CHUNK,), tl.int64)
        first = length * 0
        while first < length:
            number, listed, row, a, b, c, sharp, pull, square, reach = _candidates(
                items, table, base, first, length, x, y, z, radius, CHUNK
            )
            blunt = blunting * sharp
            high = tl.load(row + 5, mask=listed, other=0.0) + blunting * (pull + reach) - least
            most = high + _highest(blunt * a - p, blunt * b - q, blunt * c - r, x, y, z, sine, cosine)
            mark = tl.minimum(tl.maximum(most / step + BINS, 0.0), BINS).to(tl.int32)
            tl.store(marks + own + number, mark.to(tl.int8), mask=listed)
            counts += tl.histogram(tl.where(listed, mark, SLOTS - 1), SLOTS)
            mark = tl.minimum(tl.maximum(high / step + BINS, 0.0), BINS).to(tl.int32)
            at_centre += tl.histogram(tl.where(listed, mark, SLOTS - 1), SLOTS)
            inside += (listed & (square < radius * radius) & (sharp * radius * radius > sharpest)).to(tl.int64)
            first += CHUNK
        at = found + 7 * cell
        _cut(counts, edges, kept_share, at, length, BINS, SLOTS)
        _cut(counts, edges, passed_share, at + 2, length, BINS, SLOTS)
        _cut(at_centre, edges, kept_share, at + 4, length, BINS, SLOTS)
        tl.store(at + 6, tl.sum(inside, axis=0))


def list_by_kernels(present: Tensor, rule: SiteRule, within: tuple[int, int] | None) -> CellLists:
    """The lists of a rule for sites, (K,) numbers of those that take part."""
    columns = (*rule.axes, rule.sharp, rule.low, rule.high, rule.pull, rule.square)
    table = torch.stack(columns, dim=-1)  # (K, 8): a site is one line of memory
    shares = (rule.background, rule.log_epsilon, rule.blunting, MARGIN, STEP, SHARP, 0.5, SHARE_ABOVE)
    settings = torch.tensor(shares, dtype=torch.float64, device=table.device)
    edges = torch.nn.functional.pad(rule.edges, (0, SLOTS - BINS))

    def judge(level: Candidates, marks: Tensor) -> Marks:
        count = len(level.keys)
        radii = torch.stack((level.radii, level.radii.sin(), level.radii.cos()), dim=-1)
        found = level.lengths.new_empty(count, 7)
        _judge[(count,)](
            level.items, level.starts, level.lengths, level.marked, table, level.centres.contiguous(), radii, edges,
            settings, marks, found, BINS=BINS, SLOTS=SLOTS, CHUNK=CANDIDATES_AT_ONCE, num_warps=WARPS,
        )  # fmt: skip
        asked, kept, asked_above, passed_on, _, needed, inside = found.T.contiguous()
        done = (kept <= rule.longest) | rule.is_stuck(kept, level.lengths, needed, inside)
        return Marks(marks, (asked, kept), (asked_above, passed_on), done)

    return refine_by_kernels(present, judge, within=within)
