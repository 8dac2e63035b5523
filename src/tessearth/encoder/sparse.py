"""Mixtures of site embeddings by the few sites that matter at each place, with exact gradients of what is kept.

Nothing of the size places x sites is ever written: forward keeps each place's largest logit and the sum below its
weights, and backward computes the weights again. On a GPU either is one kernel (`sparse_kernels`); elsewhere pairs of
place and site are gathered in blocks, and summed in an order that does not depend on the number of threads.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder import sparse_kernels as kernels
from tessearth.encoder.sparse_kernels import Given
from tessearth.sphere import CellLists, expand

PAIRS_AT_ONCE = 2**20
"""Pairs of place and site held at once, where no kernel does the work."""
NUMBERS_AT_ONCE = 2**20
"""Numbers of their sites' embeddings held at once."""


def sparse_mixture(
    xyz: Tensor,
    positions: Tensor,
    log_sharpness: Tensor,
    territory: Tensor,
    embeddings: Tensor,
    lists: CellLists,
    background: float | None = None,
    deterministic: bool = True,
) -> Tensor:
    """The mixture of site embeddings (K, S) at each place, (N, 3) -> (N, S), by the sites in the list of its cell.

    w = softmax_k(-tau_k / 2 |x - s_k|^2 + b_k) over the list, with the background below. It has gradients for
    positions (K, 3), log_sharpness, territory (K,) and embeddings, not for places; `deterministic` ones are the same
    bits on every run of a GPU too, and take a little longer.
    """
    xyz = xyz.detach().to(positions.dtype)
    least = -math.inf if background is None else background
    sites = (positions, log_sharpness.exp(), territory, embeddings)
    mixture: Tensor = _mix(xyz, *sites, lists.find(xyz), lists.starts, lists.sites, least, deterministic)[0]
    return mixture


@torch.library.custom_op("tessearth::sparse_mixture", mutates_args=())
def _mix(
    xyz: Tensor, positions: Tensor, sharpness: Tensor, territory: Tensor, embeddings: Tensor,
    cell: Tensor, starts: Tensor, sites: Tensor, background: float, deterministic: bool,
) -> tuple[Tensor, Tensor]:  # fmt: skip
    """Mixtures, (N, S), and each place's largest logit and the sum below its weights, (N, 2)."""
    given = Given(xyz, positions, sharpness, territory, embeddings, cell, starts, sites, background)
    return kernels.mix(given) if kernels.are_for(embeddings) else mix(given)


@_mix.register_fake
def _(xyz, positions, sharpness, territory, embeddings, *rest):  # type: ignore[no-untyped-def]
    return embeddings.new_empty(len(xyz), embeddings.shape[1]), xyz.new_empty(len(xyz), 2)


@torch.library.custom_op("tessearth::sparse_mixture_backward", mutates_args=())
def _mix_backward(
    gradient: Tensor, mixture: Tensor, sums: Tensor,
    xyz: Tensor, positions: Tensor, sharpness: Tensor, territory: Tensor, embeddings: Tensor,
    cell: Tensor, starts: Tensor, sites: Tensor, background: float, deterministic: bool,
) -> tuple[Tensor, Tensor, Tensor, Tensor]:  # fmt: skip
    """Gradients of positions, sharpness, territory and embeddings, from that of the mixtures."""
    given = Given(xyz, positions, sharpness, territory, embeddings, cell, starts, sites, background)
    if kernels.are_for(embeddings):
        return kernels.mix_backward(gradient, mixture, sums, given, deterministic)
    return mix_backward(gradient, mixture, sums, given)


@_mix_backward.register_fake
def _(gradient, mixture, sums, xyz, positions, sharpness, territory, embeddings, *rest):  # type: ignore[no-untyped-def]
    return tuple(map(torch.empty_like, (positions, sharpness, territory, embeddings)))


def _save(ctx: Any, inputs: tuple[Any, ...], output: tuple[Tensor, Tensor]) -> None:
    ctx.settings = inputs[-2:]
    ctx.save_for_backward(*output, *inputs[:-2])


def _differentiate(ctx: Any, gradient: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return None, *_mix_backward(gradient, *ctx.saved_tensors, *ctx.settings), *[None] * 5


_mix.register_autograd(_differentiate, setup_context=_save)


Gradients = tuple[Tensor, Tensor, Tensor, Tensor]
"""Of positions, sharpness, territory and embeddings."""


class _Pairs(NamedTuple):
    """Some places with the sites in their lists, one place after another."""

    places: slice
    lengths: Tensor
    """The length of each place's list."""
    place: Tensor
    """Of each pair, counted from the first of `places`."""
    site: Tensor
    gap: list[Tensor]
    """From the site to the place, 3 times (P,)."""
    square: Tensor
    """|x - s|^2."""
    logit: Tensor


def mix(given: Given) -> tuple[Tensor, Tensor]:
    """Mixtures, (N, S), and each place's largest logit and the sum below its weights, (N, 2)."""
    mixtures, sums = [], []
    for pairs in _pairs(given):
        top = torch.segment_reduce(
            pairs.logit, "max", lengths=pairs.lengths, unsafe=True, initial=max(given.background, -1e30)
        )
        share = (pairs.logit - top[pairs.place]).exp()
        total = torch.segment_reduce(share, "sum", lengths=pairs.lengths, unsafe=True, initial=0)
        total = total + (given.background - top).exp()
        starts = pairs.lengths.cumsum(0) - pairs.lengths
        weights = share / total[pairs.place]
        mixtures.append(_bags(pairs.site, given.embeddings, starts, weights))
        sums.append(torch.stack((top, total), dim=-1))
    return torch.cat(mixtures), torch.cat(sums)


def mix_backward(gradient: Tensor, mixture: Tensor, sums: Tensor, given: Given) -> Gradients:
    """Gradients of positions, sharpness, territory and embeddings: dl_k = w_k <g, e_k - f>, de_k = w_k g."""
    columns = [torch.zeros_like(given.sharpness) for _ in range(5)]
    embeddings = torch.zeros_like(given.embeddings)
    for pairs in _pairs(given):
        pull, (top, total) = gradient[pairs.places], sums[pairs.places].unbind(-1)
        weights = (pairs.logit - top[pairs.place]).exp() / total[pairs.place]
        mean = (pull * mixture[pairs.places]).sum(-1)
        logit = weights * (_products(pull, pairs, given.embeddings) - mean[pairs.place])
        by_distance = logit * given.sharpness.index_select(0, pairs.site)
        for column, part in zip(
            columns, (*(by_distance * gap for gap in pairs.gap), logit * pairs.square / -2, logit), strict=True
        ):
            column.index_add_(0, pairs.site, part)
        site, order = pairs.site.sort(stable=True)
        starts = torch.searchsorted(site, torch.arange(len(embeddings), device=site.device))
        embeddings += _bags(pairs.place[order], pull, starts, weights[order])
    return torch.stack(columns[:3], dim=-1), columns[3], columns[4], embeddings


def _pairs(given: Given) -> Iterator[_Pairs]:
    """Every place with the sites in its list, in blocks of bounded size."""
    every, axes = given.starts.diff()[given.cell], given.positions.T.contiguous()
    marks = torch.searchsorted(
        every.cumsum(0), torch.arange(0, int(every.sum()) + PAIRS_AT_ONCE, PAIRS_AT_ONCE, device=every.device)
    )
    bounds = sorted({0, *marks.tolist(), len(every)})
    for first, last in zip(bounds, bounds[1:] or [0], strict=False):
        places = slice(first, last)
        lengths = every[places]
        place = torch.repeat_interleave(lengths)
        site = given.sites[expand(given.starts[given.cell[places]], lengths)].long()
        gap = [x[places][place] - s.index_select(0, site) for x, s in zip(given.xyz.T, axes, strict=True)]
        square = gap[0].square() + gap[1].square() + gap[2].square()
        logit = given.territory.index_select(0, site) - given.sharpness.index_select(0, site) / 2 * square
        yield _Pairs(places, lengths, place, site, gap, square, logit)


def _bags(rows: Tensor, table: Tensor, starts: Tensor, weights: Tensor) -> Tensor:
    """Weighted sums of rows of a table, each from its start to the next."""
    return F.embedding_bag(rows, table.contiguous(), starts, mode="sum", per_sample_weights=weights)


def _products(pull: Tensor, pairs: _Pairs, embeddings: Tensor) -> Tensor:
    """<g, e_k> of every pair, (P,)."""
    most = max(1, NUMBERS_AT_ONCE // embeddings.shape[1])
    parts = zip(torch.split(pairs.place, most), torch.split(pairs.site, most), strict=True)
    return torch.cat(
        [pull.index_select(0, place).mul_(embeddings.index_select(0, site)).sum(-1) for place, site in parts]
    )
