"""Mixtures of many sites by lists of those that are near: the plain form of `SoftVoronoi`, but for a certified rest.

A place looks at the list of its cell alone (`encoder.lists`), and what is kept has its exact gradient; neither way
writes N x K numbers. On a CPU the lists of a block of places are padded to one length; on a GPU a kernel reads each
place's own.
"""

import math
from collections.abc import Iterator
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.encoder.lists import EPSILON, SiteGeometry, Slack, list_sites
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.sphere import CellLists

NUMBERS_AT_ONCE = 2**22
"""Of the rows gathered for a block of places on a CPU."""


class Table(NamedTuple):
    """Sites, the rows that are mixed, and the lists, as tensors that an operation takes one by one."""

    positions: Tensor
    """(K, 3)."""
    sharpness: Tensor
    """(K,)."""
    territory: Tensor
    """(K,)."""
    rows: Tensor
    """(K, S)."""
    keys: Tensor
    """The lists', as in `CellLists`; so are the others."""
    starts: Tensor
    sites: Tensor

    def find(self, xyz: Tensor) -> tuple[Tensor, Tensor]:
        """Where each place's list begins and how long it is, (N, 3) -> (N,) both."""
        cell = CellLists(self.keys, self.starts, self.sites).find(xyz)
        begin = self.starts[cell]
        return begin, self.starts[cell + 1] - begin

    def blocks(self, xyz: Tensor) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """Places, where their lists begin and how long they are, in blocks of lists of similar length."""
        begin, length = self.find(xyz)
        longest = max(1, int(length.max())) if len(length) else 1
        size = max(1, NUMBERS_AT_ONCE // (longest * max(self.rows.shape[1], 8)))
        for rows in torch.split(length.argsort(stable=True), size):
            yield rows, begin[rows], length[rows]


class Block(NamedTuple):
    """The sites of a block of places, padded to one length with weights of zero."""

    site: Tensor
    """(n, L)."""
    weight: Tensor
    """(n, L)."""
    apart: Tensor
    """From each site to the place, (n, L, 3)."""


def _weigh(xyz: Tensor, begin: Tensor, length: Tensor, table: Table, background: float) -> Block:
    """The weights of the sites in the lists of places (n, 3)."""
    number = torch.arange(max(1, int(length.max())))
    inside = number < length[:, None]
    site = table.sites[torch.where(inside, begin[:, None] + number, 0)].long()
    apart = xyz[:, None, :] - table.positions[site]
    logits = table.territory[site] - table.sharpness[site] / 2 * apart.square().sum(-1)
    whole = F.pad(logits.masked_fill(~inside, -math.inf), (0, 1), value=background)
    return Block(site, torch.softmax(whole, dim=-1)[:, :-1], apart)


class _ListedOnCpu(torch.autograd.Function):
    """The mixture of rows at places by chord logits, on a CPU."""

    @staticmethod
    def forward(ctx: Any, xyz: Tensor, background: float, *tensors: Tensor) -> Tensor:
        """(N, 3) -> (N, S)."""
        table = Table(*tensors)
        mixture = table.rows.new_empty(len(xyz), table.rows.shape[1])
        for part, begin, length in table.blocks(xyz):
            block = _weigh(xyz[part], begin, length, table, background)
            mixture[part] = F.embedding_bag(block.site, table.rows, mode="sum", per_sample_weights=block.weight)
        ctx.background = background
        ctx.save_for_backward(xyz, mixture, *tensors)
        return mixture

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        """Of positions, sharpness, territory and rows."""
        xyz, mixture, *tensors = ctx.saved_tensors
        table, (gradient,) = Table(*tensors), gradients
        positions, sharpness, territory, rows = (torch.zeros_like(part) for part in table[:4])
        slope = (gradient * mixture).sum(-1)
        for part, begin, length in table.blocks(xyz):
            block = _weigh(xyz[part], begin, length, table, ctx.background)
            along = torch.einsum("ns,nls->nl", gradient[part], table.rows[block.site])
            logit = (block.weight * (along - slope[part, None])).flatten()  # the gradient of the logits
            site, apart = block.site.flatten(), block.apart.flatten(0, 1)
            positions.index_add_(0, site, (logit * table.sharpness[site])[:, None] * apart)
            sharpness.index_add_(0, site, logit * apart.square().sum(-1) / -2)
            territory.index_add_(0, site, logit)
            rows.index_add_(0, site, (block.weight[..., None] * gradient[part, None]).flatten(0, 1))
        return None, None, positions, sharpness, territory, rows, None, None, None


@torch.library.custom_op("tessearth::mix_listed", mutates_args=())
def mix_listed(xyz: Tensor, background: float, tensors: list[Tensor], repeatable: bool) -> tuple[Tensor, Tensor]:
    """The same on a GPU, with largest logits and sums, (N, 2): an operation that a compiler leaves alone."""
    from tessearth.encoder.sparse_kernels import forward

    table = Table(*tensors)
    return forward(xyz, *table.find(xyz), table, background)


@mix_listed.register_fake
def _(xyz: Tensor, background: float, tensors: list[Tensor], repeatable: bool) -> tuple[Tensor, Tensor]:
    rows = tensors[3]
    return rows.new_empty(len(xyz), rows.shape[1]), xyz.new_empty(len(xyz), 2)


@torch.library.custom_op("tessearth::mix_listed_backward", mutates_args=())
def mix_listed_backward(
    gradient: Tensor, mixed: list[Tensor], xyz: Tensor, repeatable: bool, tensors: list[Tensor]
) -> list[Tensor]:
    """The gradients of positions, sharpness, territory and rows, from that of the mixture (N, S)."""
    from tessearth.encoder.sparse_kernels import backward

    return backward(gradient, mixed, xyz, Table(*tensors), repeatable)


@mix_listed_backward.register_fake
def _(gradient: Tensor, mixed: list[Tensor], xyz: Tensor, repeatable: bool, tensors: list[Tensor]) -> list[Tensor]:
    return [torch.empty_like(part) for part in tensors[:4]]


def _keep_context(ctx: Any, inputs: Any, output: Any) -> None:
    xyz, _, tensors, ctx.repeatable = inputs
    ctx.save_for_backward(*output, xyz, *tensors)


def _backward(ctx: Any, gradient: Tensor, _: Tensor) -> Any:
    mixture, tops, xyz, *tensors = ctx.saved_tensors
    found = mix_listed_backward(gradient.contiguous(), [mixture, tops], xyz, ctx.repeatable, tensors)
    return None, None, [*found, None, None, None], None


mix_listed.register_autograd(_backward, setup_context=_keep_context)


class SparseMixer:
    """Mixes a tessellation's sites by lists, which are made anew now and then while the sites move.

    Between two refreshes `hold_` keeps every site within the slack that the lists allow for, so that at most epsilon of
    the weight is left out at every step. The lists stay in the same memory, which a captured graph keeps reading, until
    they outgrow it.
    """

    def __init__(
        self, epsilon: float = EPSILON, slack: Slack | None = None, room: float = 2.0, repeatable: bool = False
    ) -> None:
        """`room` is how many times the first lists fit into the memory that is set aside.

        Gradients differ in their last digits from run to run of a GPU, unless they are to be `repeatable`, which takes
        more time and memory.
        """
        self.epsilon, self.room, self.repeatable = epsilon, room, repeatable
        self.slack = slack or Slack(shift=0.2, log_sharpness=0.15, territory=0.1)
        self.anchor: list[Tensor] = []
        """Positions, log sharpness and territory at the last refresh: with them `rebuild_` makes the same lists."""
        self._lists: CellLists | None = None

    def __call__(self, voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
        """Mixtures of site embeddings at directions, (N, 3) -> (N, S), with gradients."""
        sites = (voronoi.positions(), voronoi.sharpness(), voronoi.territory, voronoi.embeddings)
        background = -math.inf if voronoi.config.background is None else voronoi.config.background
        xyz, tensors = xyz.to(voronoi.directions.dtype), [*sites, *self.lists]
        mixture: Tensor
        if xyz.is_cuda:
            mixture, _ = mix_listed(xyz, background, tensors, self.repeatable)
        else:
            mixture = _ListedOnCpu.apply(xyz, background, *tensors)  # type: ignore[no-untyped-call]
        return mixture

    @property
    def lists(self) -> CellLists:
        """The lists as they lie in memory, padded."""
        assert self._lists is not None, "refresh_ makes the lists"
        return self._lists

    @torch.no_grad()
    def refresh_(self, voronoi: SoftVoronoi) -> bool:
        """Make the lists anew from the present sites; whether they now lie elsewhere in memory."""
        now = [voronoi.positions().detach(), voronoi.log_sharpness.detach(), voronoi.territory.detach()]
        if self.anchor:
            for kept, part in zip(self.anchor, now, strict=True):
                kept.copy_(part)
        else:
            self.anchor = [part.clone() for part in now]
        return self.rebuild_(voronoi.config.background)

    @torch.no_grad()
    def rebuild_(self, background: float | None) -> bool:
        """Make the lists of the anchor; whether they now lie elsewhere in memory."""
        positions, log_sharpness, territory = (part.double() for part in self.anchor)
        geometry = SiteGeometry(positions, log_sharpness.exp(), territory, background)
        made = list_sites(geometry, epsilon=self.epsilon, slack=self.slack)
        fits = self._lists is not None and all(
            len(part) <= len(kept) for part, kept in zip(made, self._lists, strict=True)
        )
        if not fits:
            sizes = [int(self.room * len(part)) + 2 for part in made]
            self._lists = CellLists(*(part.new_empty(size) for part, size in zip(made, sizes, strict=True)))
        # Cells behind the last have the largest key, which no place has, and empty lists.
        for kept, part, rest in zip(self.lists, made, (2**62, int(made.starts[-1]), 0), strict=True):
            kept[: len(part)] = part
            kept[len(part) :] = rest
        return not fits

    @torch.no_grad()
    def hold_(self, voronoi: SoftVoronoi) -> None:
        """Bring the sites back to within the slack of where they were when the lists were made."""
        positions, log_sharpness, territory = self.anchor
        step, reach = voronoi.directions - positions, self.slack.shift * (log_sharpness / -2).exp()
        shorter = (0.99 * reach / step.norm(dim=-1).clamp_min(1e-30)).clamp_max(1.0)
        voronoi.directions.copy_(F.normalize(positions + shorter[:, None] * step, dim=-1))
        _hold_(voronoi.log_sharpness, log_sharpness, self.slack.log_sharpness)
        _hold_(voronoi.territory, territory, self.slack.territory)


def _hold_(values: Tensor, middle: Tensor, reach: float | Tensor) -> None:
    """Clamp values to within reach of the middle; those of sites that take no part stay as they are."""
    values.copy_(torch.where(middle.isinf(), values, torch.clamp(values, middle - reach, middle + reach)))
