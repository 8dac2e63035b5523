"""Levels of sharp sites: a place mixes the few sites that are listed for its cell, whose others weigh epsilon together.

Logits come from differences, -tau / 2 |x - s|^2 + b, which float32 holds however sharp the sites are. Lists of a block
of places are padded to one length, so that every step is one operation on (N, L) numbers.
"""

import functools
import math
import threading
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import EPSILON, SortedPlaces, read_logits
from tessearth.embedding.fast.mixture import Way
from tessearth.encoder import CellLists, SiteGeometry, SoftVoronoi, list_sites

Floats = npt.NDArray[np.float32]

SHARP = 256.0
"""The sharpness above which affine logits lose more than 1e-5 in float32."""
MOST_LISTED = 192
"""Where a place feels more sites than this, series are shorter than lists."""
SAMPLED_SITES = 24


class Nearby(NamedTuple):
    """The sites that matter at places, padded to one length."""

    sites: Tensor
    """(N, L) in int32; any site where the weight is padding."""
    weights: Tensor
    """(N, L); 0 in the padding."""


class ListedSites:
    """A tessellation with chord logits, and the sites that matter in each cell of the sphere.

    Lists are made when they are first needed, and are the same for everybody who makes them.
    """

    def __init__(self, voronoi: SoftVoronoi) -> None:
        self.geometry = read_sites(voronoi)
        self.rows = voronoi.embeddings.detach()
        positions, sharpness, territory, background = self.geometry
        self.axes = tuple(axis.float().contiguous() for axis in positions.unbind(1))
        self.half, self.territory = (sharpness / 2).float(), territory.float()
        self.background = background
        self._lists: CellLists | None = None
        self._making = threading.Lock()

    @property
    def lists(self) -> CellLists:
        """The lists of all cells."""
        with self._making:
            if self._lists is None:
                self._lists = list_sites(self.geometry, epsilon=EPSILON)
            return self._lists

    def weigh(self, xyz: Tensor, keys: Tensor | None = None) -> Nearby:
        """The sites listed for each direction with their weights, (N, 3) in float32, by the keys of their cells."""
        lists = self.lists
        cell = lists.find(xyz) if keys is None else lists.at(keys)
        start = lists.starts.index_select(0, cell)
        length = lists.starts.index_select(0, cell + 1).sub_(start)
        step = torch.arange(max(1, int(length.max()) if len(cell) else 1), device=xyz.device)
        which = (start[:, None] + step).clamp_(max=len(lists.items) - 1)
        sites = lists.items.index_select(0, which.view(-1))
        logits = self._logits(xyz, sites, which.shape)
        logits.masked_fill_(step >= length[:, None], -torch.inf)
        return Nearby(sites.view_as(which), self._share(logits))

    def mix(self, xyz: Tensor, keys: Tensor | None = None) -> Tensor:
        """Mixtures of site embeddings, (N, 3) -> (N, S)."""
        sites, weights = self.weigh(xyz, keys)
        starts = torch.arange(0, sites.numel(), sites.shape[1], dtype=sites.dtype, device=sites.device)
        flat = sites.view(-1), starts, False, 0, False, weights.view(-1)
        return torch.embedding_bag(self.rows, *flat)[0]

    def weigh_one(self, here: Floats) -> tuple[npt.NDArray[np.int32], Floats]:
        """The same for one direction, (3,), without a batch's fixed costs."""
        starts, items = self.lists.starts, self.lists.items
        cell = int(self.lists.find(torch.from_numpy(here[None])))
        sites = items[int(starts[cell]) : int(starts[cell + 1])].numpy()
        table = self._table[sites]
        logits = table[:, 4] - table[:, 3] * np.square(table[:, :3] - here).sum(axis=1)
        highest = max(float(logits.max(initial=-np.inf)), -math.inf if self.background is None else self.background)
        weights = np.exp(logits - np.float32(highest))
        behind = 0.0 if self.background is None else math.exp(self.background - highest)
        return sites, weights / np.float32(float(weights.sum()) + behind)

    @functools.cached_property
    def _table(self) -> Floats:
        """What a site's logit needs, (K, 5), a site's numbers next to each other."""
        return torch.stack((*self.axes, self.half, self.territory), dim=1).numpy()

    def _logits(self, xyz: Tensor, sites: Tensor, shape: torch.Size) -> Tensor:
        square = None
        for axis, here in zip(self.axes, xyz.unbind(1), strict=True):
            away = axis.index_select(0, sites).view(shape).sub_(here[:, None])
            square = away.square_() if square is None else square.addcmul_(away, away)
        half, territory = (part.index_select(0, sites).view(shape) for part in (self.half, self.territory))
        return territory.addcmul_(half, square, value=-1)

    def _share(self, logits: Tensor) -> Tensor:
        """The softmax of logits (N, L), which are overwritten, lowered by the background."""
        if self.background is None:
            return torch.softmax(logits, dim=-1)
        highest = logits.amax(dim=-1, keepdim=True).clamp_(min=self.background)
        weights = logits.sub_(highest).exp_()
        return weights.div_(weights.sum(dim=-1, keepdim=True).add_((self.background - highest).exp_()))

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name not in ("_lists", "_making", "_table")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _lists=None, _making=threading.Lock())


class ListedMixture:
    """onwards (sum_k w_k(x) row_k), as `mixture.TessellationMixture`, by lists alone."""

    def __init__(self, sites: ListedSites, onwards: Tensor) -> None:
        self.sites, self.onwards = sites, onwards
        used = torch.nn.functional.pad(onwards.any(dim=1).int(), (1, 1)).diff()
        starts, ends = ((used == way).nonzero()[:, 0].tolist() for way in (1, -1))
        self.parts = [(slice(*run), onwards[slice(*run)]) for run in zip(starts, ends, strict=True)]
        """The rows of the map that are not zero, in runs."""

    def add_to(self, mixed: Tensor, xyz: Tensor, keys: Tensor) -> None:
        """Add the mixture at each direction, (N, 3) in cells with these keys, to `mixed`, (W, N)."""
        mixture = self.sites.mix(xyz, keys).T
        for rows, part in self.parts:
            mixed[rows].addmm_(part, mixture)


def read_sites(voronoi: SoftVoronoi) -> SiteGeometry:
    """The sites behind a tessellation's chord logits, in float64."""
    positions = torch.nn.functional.normalize(voronoi.directions.detach().double(), dim=-1)
    sharpness, territory = voronoi.log_sharpness.detach().double().exp(), voronoi.territory.detach().double()
    return SiteGeometry(positions, sharpness, territory, voronoi.config.background)


def takes_lists(voronoi: SoftVoronoi) -> bool:
    """Whether a tessellation is mixed by lists: its logits are chords, and its sites are sharp or few matter at once."""
    if voronoi.config.logits != "chord" or not voronoi.config.on_sphere:
        return False
    if float(voronoi.log_sharpness.detach().max()) > math.log(SHARP):
        return True
    logits = read_logits(voronoi)
    sample = torch.linspace(0, voronoi.config.num_sites - 1, SAMPLED_SITES, dtype=torch.float64).long()
    there = torch.nn.functional.normalize(voronoi.directions.detach().double(), dim=-1)[sample]
    weights = torch.softmax(logits.at(there), dim=-1).sort(dim=-1).values
    return float((weights.cumsum(-1) > EPSILON).sum(-1).double().mean()) <= MOST_LISTED
