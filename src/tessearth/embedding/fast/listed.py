"""Levels of sharp sites: a place mixes the few sites that are listed for its cell; all others weigh epsilon together.

Logits come from differences, -tau / 2 |x - s|^2 + b, which float32 holds however sharp the sites are. Lists of a block
of places are padded to one length, so that every step is one operation on (N, L) numbers.
"""

import functools
import math
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON, read_logits
from tessearth.embedding.fast.regions import RegionLists
from tessearth.encoder import SoftVoronoi, mix_season

Floats = npt.NDArray[np.float32]

SHARP = 256.0
"""The sharpness above which affine logits lose more than 1e-5 in float32."""
MOST_LISTED = 192
"""Where a place feels more sites than this, series are shorter than lists."""
SAMPLED_SITES = 24
CROWD = 96
"""Places in a cell from which on a product with its sites' rows is faster than a bag of rows for each place."""
BOUNDED = 60.0
"""How far the largest logit may lie from the background: e^60 is held by float32, with room for sums."""
OUTSIDE = 1e30
"""Taken off the logits of padding."""


class Nearby(NamedTuple):
    """The sites that matter at places, padded to one length."""

    sites: Tensor
    """(N, L); any site where the weight is padding."""
    weights: Tensor
    """(N, L); 0 in the padding."""


class ListedSites:
    """A tessellation with chord logits, mixed by lists, on the device and in the precision of its sites."""

    def __init__(self, voronoi: SoftVoronoi) -> None:
        self.regions = RegionLists(voronoi)
        self.config = voronoi.config
        self.numbers = voronoi.embeddings.detach()[self.regions.order]
        """(K, S (1 + 2 H)), with the cycles of the sites."""
        self.rows = self.numbers[:, : self.config.site_dim].contiguous()
        """(K, S), those of the year; the same tensor without cycles."""
        positions, sharpness, territory, self.background = self.regions.geometry
        self.axes = tuple(axis.to(self.rows.dtype).contiguous() for axis in positions.unbind(1))
        self.half, self.territory = (sharpness / 2).to(self.rows.dtype), territory.to(self.rows.dtype)

    def prepare(self, keys: Tensor) -> None:
        """Make the lists of places, by the keys of their cells."""
        for region in self.regions.missing(keys):
            self.regions.make(region)

    def weigh(self, xyz: Tensor, keys: Tensor, top_k: int | None = None) -> Nearby:
        """The sites listed for each direction, (N, 3), by the keys of prepared cells, with their weights.

        Sites have the numbers of `regions`. With `top_k` only those with the largest logits count.
        """
        lists = self.regions.joined()
        cell = lists.at(keys)
        start = lists.starts.index_select(0, cell)
        length = lists.starts.index_select(0, cell + 1).sub_(start)
        step = torch.arange(max(1, int(length.max())) if len(length) else 1, device=xyz.device)
        which = start.int()[:, None] + step.int() if len(lists.sites) < 2**31 else start[:, None] + step
        sites = lists.sites.index_select(0, which.view(-1))
        logits = self._logits(xyz, sites, which.shape)
        logits.sub_((step + 1.0).sub(length[:, None]).clamp_(min=0), alpha=OUTSIDE)
        sites = sites.view_as(which)
        if top_k is not None and top_k < len(step):
            logits, chosen = logits.topk(top_k, dim=-1)
            sites = sites.gather(-1, chosen)
        return Nearby(sites, self._share(logits))

    def mix(self, xyz: Tensor, keys: Tensor, season: Tensor | None = None) -> Tensor:
        """Mixtures of site embeddings over the year, or at shares of it, (N,): (N, 3) -> (N, S)."""
        mixture = self._mix(xyz, keys, self.rows_for(season))
        return mix_season(mixture, self.config.site_dim, season)

    def rows_for(self, season: Tensor | None) -> Tensor:
        """The numbers of sites that are mixed."""
        return self.rows if season is None else self.numbers

    def _mix(self, xyz: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        cells, counts = torch.unique_consecutive(self.regions.joined().at(keys), return_counts=True)
        if len(xyz) >= CROWD * len(cells):
            return self._mix_crowds(xyz, cells.tolist(), counts.tolist(), rows)
        return self._mix_in_a_row(xyz, keys, rows) if self.is_bounded else self.add_up(self.weigh(xyz, keys), rows)

    @functools.cached_property
    def is_bounded(self) -> bool:
        """Whether exponentials of logits over the background neither overflow nor are lost beside one another."""
        return self.background is not None and abs(float(self.territory.amax()) - self.background) < BOUNDED

    def add_up(self, nearby: Nearby, rows: Tensor) -> Tensor:
        """The mixture of rows (K, S) by the weights of `weigh`, (N, L) -> (N, S)."""
        sites, weights = nearby
        starts = torch.arange(0, sites.numel(), sites.shape[1], dtype=sites.dtype, device=sites.device)
        return torch.embedding_bag(rows, sites.reshape(-1), starts, False, 0, False, weights.reshape(-1))[0]

    def _mix_in_a_row(self, xyz: Tensor, keys: Tensor, rows: Tensor) -> Tensor:
        """The same with the lists of all places one behind another, without padding or a largest logit."""
        assert self.background is not None, "bounded below by it"
        lists = self.regions.joined()
        cell = lists.at(keys)
        start = lists.starts.index_select(0, cell)
        length = lists.starts.index_select(0, cell + 1).sub_(start)
        first = length.cumsum(0).sub_(length)
        which = torch.repeat_interleave(start - first, length)
        sites = lists.sites.index_select(0, which.add_(torch.arange(len(which))))
        square = torch.empty(0)
        for i, (axis, here) in enumerate(zip(self.axes, xyz.unbind(1), strict=True)):
            away = axis.index_select(0, sites).sub_(torch.repeat_interleave(here, length))
            square = square.addcmul_(away, away) if i else away.square_()
        half, territory = (part.index_select(0, sites) for part in (self.half, self.territory))
        shares = territory.addcmul_(half, square, value=-1).sub_(self.background).exp_()
        mixture = torch.embedding_bag(rows, sites, first.to(sites.dtype), False, 0, False, shares)[0]
        return mixture.div_(torch.segment_reduce(shares, "sum", lengths=length, unsafe=True).add_(1)[:, None])

    def _mix_crowds(self, xyz: Tensor, cells: list[int], counts: list[int], rows: Tensor) -> Tensor:
        """Mixtures cell by cell, (N, 3) -> (N, S)."""
        lists, first = self.regions.joined(), 0
        mixture = rows.new_empty(len(xyz), rows.shape[1])
        for cell, count in zip(cells, counts, strict=True):
            here, first = slice(first, first + count), first + count
            sites = lists.sites[int(lists.starts[cell]) : int(lists.starts[cell + 1])]
            weights = self._share(self._logits(xyz[here], sites, torch.Size((1, len(sites)))))
            torch.mm(weights, rows.index_select(0, sites), out=mixture[here])
        return mixture

    def weigh_one(self, here: Floats, key: int) -> tuple[npt.NDArray[np.int32], Floats]:
        """`weigh` for one direction, (3,), without a batch's fixed costs; lists are made if there are none."""
        if key >> self.regions.shift not in self.regions.made:
            self.regions.make(key >> self.regions.shift)
        keys, starts, listed = self.regions.arrays()
        cell = keys.searchsorted(key, side="right") - 1
        sites = listed[starts[cell] : starts[cell + 1]]
        table = self._table[sites]
        away = table[:, :3] - here
        logits = table[:, 4] - table[:, 3] * np.einsum("ka,ka->k", away, away)
        least = -math.inf if self.background is None else self.background
        highest = float(logits.max(initial=least))
        weights = np.exp(logits - np.float32(highest))
        behind = 0.0 if self.background is None else math.exp(self.background - highest)
        return sites, weights / np.float32(float(weights.sum()) + behind)

    @functools.cached_property
    def _table(self) -> Floats:
        """What a site's logit needs, (K, 5), a site's numbers next to each other."""
        return torch.stack((*self.axes, self.half, self.territory), dim=1).numpy()

    @functools.cached_property
    def columns(self) -> list[Tensor]:
        """What `encoder.mix_listed` takes before the rows and the lists: positions (K, 3), sharpness, territory."""
        return [torch.stack(self.axes, dim=1), 2 * self.half, self.territory]

    def _logits(self, xyz: Tensor, sites: Tensor, shape: torch.Size) -> Tensor:
        """Logits at places (N, 3) of the sites of each, or of sites that all share, of a shape (N, L) or (1, L)."""
        square = torch.empty(0)
        for i, (axis, here) in enumerate(zip(self.axes, xyz.unbind(1), strict=True)):
            away = axis.index_select(0, sites).view(shape)
            away = away.sub_(here[:, None]) if shape[0] == len(here) else away - here[:, None]
            square = square.addcmul_(away, away) if i else away.square_()
        half, territory = (part.index_select(0, sites).view(shape) for part in (self.half, self.territory))
        return torch.addcmul(territory, half, square.neg_(), out=square)

    def _share(self, logits: Tensor) -> Tensor:
        """The softmax of logits (N, L), which are overwritten, lowered by the background."""
        if self.background is None:
            return torch.softmax(logits, dim=-1)
        highest = logits.amax(dim=-1, keepdim=True).clamp_(min=self.background)
        weights = logits.sub_(highest).exp_()
        return weights.div_(weights.sum(dim=-1, keepdim=True).add_((self.background - highest).exp_()))


class ListedMixture:
    """onwards (sum_k w_k(x) row_k), as `mixture.TessellationMixture`, by lists alone."""

    def __init__(self, sites: ListedSites, onwards: Tensor) -> None:
        self.sites, self.onwards = sites, onwards
        edges = torch.nn.functional.pad(onwards.any(dim=1).int(), (1, 1)).diff()
        starts, ends = ((edges == way).nonzero()[:, 0].tolist() for way in (1, -1))
        self.parts = [(slice(*run), onwards[slice(*run)]) for run in zip(starts, ends, strict=True)]
        """The rows of the map that are not zero, in runs."""

    def add_to(self, mixed: Tensor, xyz: Tensor, keys: Tensor, season: Tensor | None = None) -> None:
        """Add the mixture at each direction, (N, 3) in cells with these keys, to `mixed`, (W, N)."""
        mixture = self.sites.mix(xyz, keys, season).T
        for rows, part in self.parts:
            mixed[rows].addmm_(part, mixture)


def takes_lists(voronoi: SoftVoronoi) -> bool:
    """Whether a tessellation is mixed by lists: its logits are chords, and sites are sharp or few matter at once."""
    if voronoi.config.logits != "chord" or not voronoi.config.on_sphere:
        return False
    if float(voronoi.log_sharpness.detach().max()) > math.log(SHARP):
        return True
    logits = read_logits(voronoi)
    sample = torch.linspace(0, voronoi.config.num_sites - 1, SAMPLED_SITES, dtype=torch.float64).long()
    there = torch.nn.functional.normalize(voronoi.directions.detach()[sample.to(logits.slopes.device)].double(), dim=-1)
    weights = torch.softmax(logits.at(there), dim=-1).sort(dim=-1).values
    return float((weights.cumsum(-1) > EPSILON).sum(-1).double().mean()) <= MOST_LISTED
