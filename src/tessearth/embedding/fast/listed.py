"""Levels of sharp sites: a place mixes the few sites that are listed for its cell; all others weigh epsilon together.

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

from tessearth.embedding.fast.bounds import EPSILON, bound_weights, keep_sites, read_logits
from tessearth.encoder import SiteGeometry, SoftVoronoi, list_sites
from tessearth.sphere import DEPTH, CellLists, CubeCells

Floats = npt.NDArray[np.float32]

SITES_PER_REGION = 4096
"""The sphere is cut into regions whose lists are made together, as many as have about these sites each."""
STEP = 2
"""The sites of a region are sought among those of the region that holds it this many quarterings before."""
NEAR_SHARE = 1 / 16
"""The share of epsilon that each search, of which there are two at most, may leave out."""
SHARP = 256.0
"""The sharpness above which affine logits lose more than 1e-5 in float32."""
MOST_LISTED = 192
"""Where a place feels more sites than this, series are shorter than lists."""
SAMPLED_SITES = 24
CROWD = 96
"""Places in a cell from which on a product with its sites' rows is faster than a bag of rows for each place."""
OUTSIDE = 1e30
"""Taken off the logits of padding."""


class Nearby(NamedTuple):
    """The sites that matter at places, padded to one length."""

    sites: Tensor
    """(N, L) in int32; any site where the weight is padding."""
    weights: Tensor
    """(N, L); 0 in the padding."""


class ListedSites:
    """A tessellation with chord logits, and the sites that matter in each cell of the sphere.

    Lists are made region by region, when the first place of a region comes; they do not depend on the order.
    """

    def __init__(self, voronoi: SoftVoronoi) -> None:
        self.logits, self.geometry, self.rows = read_logits(voronoi), read_sites(voronoi), voronoi.embeddings.detach()
        positions, sharpness, territory, self.background = self.geometry
        self.axes = tuple(axis.float().contiguous() for axis in positions.unbind(1))
        self.half, self.territory = (sharpness / 2).float(), territory.float()
        self.depth = min(max(0, math.ceil(math.log(len(self.half) / SITES_PER_REGION / 6, 4))), 2 * STEP)
        """How often a face of the cube is quartered into regions."""
        self._shift = 2 * (DEPTH - self.depth)
        self._regions: dict[int, CellLists] = {}
        self._wide: dict[tuple[int, int], Tensor] = {}
        self._lists: CellLists | None = None
        self._numbers: tuple[npt.NDArray[Any], ...] = ()
        """The same as arrays."""
        self._joined, self._joining = 0, threading.Lock()

    def missing(self, keys: Tensor) -> list[int]:
        """The regions of places, by the keys of their cells, that have no lists yet."""
        regions = torch.unique(keys >> self._shift).tolist()
        return [region for region in regions if region not in self._regions]

    def make(self, region: int) -> None:
        """Make the lists of a region."""
        near = self._near(self.depth, region)
        positions, sharpness, territory, background = self.geometry
        some = SiteGeometry(positions[near], sharpness[near], territory[near], background)
        found = list_sites(some, epsilon=(1 - 2 * NEAR_SHARE) * EPSILON, within=(self.depth, region))
        self._regions[region] = found._replace(sites=near.int()[found.sites])

    def _near(self, depth: int, region: int) -> Tensor:
        """The sites that can matter in a region, chosen among those of a region sixteen times as large."""
        if (depth, region) in self._wide:
            return self._wide[depth, region]
        logits, among = self.logits, torch.arange(len(self.half))
        if depth > STEP:
            among = self._near(depth - STEP, region >> 2 * STEP)
            logits = logits.of(
                among if self.background is None else torch.nn.functional.pad(among, (0, 1), value=len(self.half))
            )
        cells = CubeCells(2**depth)
        bounds = bound_weights(logits, *cells.caps(cells.of_keys(torch.tensor([region]))))
        near = among[keep_sites(bounds, NEAR_SHARE * EPSILON)[0, : len(among)]]
        if depth < self.depth:
            self._wide[depth, region] = near
        return near

    def lists(self) -> CellLists:
        """The lists of all regions that have any, with zeros behind the last list for as long as one may be."""
        with self._joining:
            if self._lists is None or self._joined < len(self._regions):
                made = dict(sorted(self._regions.items()))
                lengths = torch.cat([part.lengths for part in made.values()])
                behind = torch.zeros(int(lengths.max()) + 1, dtype=torch.int32)
                starts = torch.nn.functional.pad(lengths.cumsum(0), (1, 0))
                sites = torch.cat([*(part.sites for part in made.values()), behind])
                self._lists = CellLists(torch.cat([part.keys for part in made.values()]), starts, sites)
                self._numbers = tuple(part.numpy() for part in self._lists)
                self._joined = len(made)
            return self._lists

    def weigh(self, xyz: Tensor, keys: Tensor) -> Nearby:
        """The sites listed for each direction, (N, 3) in float32, by the keys of their cells, with their weights.

        The regions of all places have lists.
        """
        lists = self.lists()
        cell = lists.at(keys)
        start = lists.starts.index_select(0, cell)
        length = lists.starts.index_select(0, cell + 1).sub_(start)
        step = torch.arange(max(1, int(length.max())) if len(length) else 1)
        which = start.int()[:, None] + step.int() if len(lists.sites) < 2**31 else start[:, None] + step
        sites = lists.sites.index_select(0, which.view(-1))
        logits = self._logits(xyz, sites, which.shape)
        beyond = (step + 1.0).sub(length[:, None]).clamp_(min=0)
        return Nearby(sites.view_as(which), self._share(logits.sub_(beyond, alpha=OUTSIDE)))

    def mix(self, xyz: Tensor, keys: Tensor) -> Tensor:
        """Mixtures of site embeddings, (N, 3) -> (N, S)."""
        cells, counts = torch.unique_consecutive(self.lists().at(keys), return_counts=True)
        if len(xyz) >= CROWD * len(cells):
            return self._mix_crowds(xyz, cells.tolist(), counts.tolist())
        sites, weights = self.weigh(xyz, keys)
        starts = torch.arange(0, sites.numel(), sites.shape[1], dtype=sites.dtype)
        return torch.embedding_bag(self.rows, sites.view(-1), starts, False, 0, False, weights.view(-1))[0]

    def _mix_crowds(self, xyz: Tensor, cells: list[int], counts: list[int]) -> Tensor:
        """The same cell by cell, (N, 3) -> (N, S)."""
        lists, mixture, first = self.lists(), torch.empty(len(xyz), self.rows.shape[1]), 0
        for cell, count in zip(cells, counts, strict=True):
            here, first = slice(first, first + count), first + count
            sites = lists.sites[int(lists.starts[cell]) : int(lists.starts[cell + 1])]
            weights = self._share(self._logits(xyz[here], sites, torch.Size((1, len(sites)))))
            torch.mm(weights, self.rows.index_select(0, sites), out=mixture[here])
        return mixture

    def weigh_one(self, here: Floats, key: int) -> tuple[npt.NDArray[np.int32], Floats]:
        """The same for one direction, (3,), without a batch's fixed costs; lists are made if there are none."""
        if key >> self._shift not in self._regions:
            self.make(key >> self._shift)
        if self._joined < len(self._regions):
            self.lists()
        keys, starts, listed = self._numbers
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

    def _logits(self, xyz: Tensor, sites: Tensor, shape: torch.Size) -> Tensor:
        """Logits at places (N, 3) of the sites of each, or of sites that all share, of a shape (N, L) or (1, L)."""
        square = torch.empty(0)
        for i, (axis, here) in enumerate(zip(self.axes, xyz.unbind(1), strict=True)):
            away = axis.index_select(0, sites).view(shape) - here[:, None]
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

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {
            "_regions": {},
            "_wide": {},
            "_lists": None,
            "_numbers": (),
            "_joined": 0,
            "_joining": None,
        }

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _joining=threading.Lock())


class ListedMixture:
    """onwards (sum_k w_k(x) row_k), as `mixture.TessellationMixture`, by lists alone."""

    def __init__(self, sites: ListedSites, onwards: Tensor) -> None:
        self.sites, self.onwards = sites, onwards
        edges = torch.nn.functional.pad(onwards.any(dim=1).int(), (1, 1)).diff()
        starts, ends = ((edges == way).nonzero()[:, 0].tolist() for way in (1, -1))
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
    """Whether a tessellation is mixed by lists: its logits are chords, and sites are sharp or few matter at once."""
    if voronoi.config.logits != "chord" or not voronoi.config.on_sphere:
        return False
    if float(voronoi.log_sharpness.detach().max()) > math.log(SHARP):
        return True
    logits = read_logits(voronoi)
    sample = torch.linspace(0, voronoi.config.num_sites - 1, SAMPLED_SITES, dtype=torch.float64).long()
    there = torch.nn.functional.normalize(voronoi.directions.detach().double(), dim=-1)[sample]
    weights = torch.softmax(logits.at(there), dim=-1).sort(dim=-1).values
    return float((weights.cumsum(-1) > EPSILON).sum(-1).double().mean()) <= MOST_LISTED
