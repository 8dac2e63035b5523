"""Lists of the sites that matter in each cell of the sphere, made region by region when a place comes."""

import math
import threading
from typing import Any

import numpy.typing as npt
import torch
from torch import Tensor
from torch.nn.functional import pad

from tessearth.embedding.fast.bounds import EPSILON, bound_weights, keep_sites, read_logits
from tessearth.encoder import SiteGeometry, SoftVoronoi, list_sites
from tessearth.sphere import DEPTH, CellLists, CubeCells, cell_keys

SITES_PER_REGION = 4096
"""The sphere is cut into regions whose lists are made together, as many as have about these sites each."""
STEP = 2
"""The sites of a region are sought among those of the region that holds it this many quarterings before."""
LONGEST = 48
"""Cells with longer lists are quartered: shorter lists than those of training, which are made anew again and again."""
NEAR_SHARE = 1 / 16
"""The share of epsilon that each search, of which there are two at most, may leave out."""


class RegionLists:
    """The lists of a tessellation with chord logits. They do not depend on the order in which they are made.

    Sites are numbered along the curve through the sphere's cells, so that those of a list lie together in memory.
    """

    def __init__(self, voronoi: SoftVoronoi) -> None:
        positions, sharpness, territory, background = read_sites(voronoi)
        self.order = cell_keys(positions).argsort(stable=True)
        """The number that each site has in the encoder, (K,)."""
        self.geometry = SiteGeometry(positions[self.order], sharpness[self.order], territory[self.order], background)
        self.device, count = positions.device, voronoi.config.num_sites
        behind = self.order.new_full((int(background is not None),), count)
        self.logits = read_logits(voronoi).of(torch.cat((self.order, behind)))
        wanted = 0 if self.device.type == "cuda" else math.ceil(math.log(count / SITES_PER_REGION / 6, 4))
        self.depth = min(max(0, wanted), 2 * STEP)
        """How often a face of the cube is quartered into regions."""
        self.shift = 2 * (DEPTH - self.depth)
        """A key of `cell_keys` shifted by this many bits is its region."""
        self.made: dict[int, CellLists] = {}
        self._wide: dict[tuple[int, int], Tensor] = {}
        self._joined: tuple[int, CellLists, tuple[npt.NDArray[Any], ...]] | None = None
        self._joining = threading.Lock()

    def missing(self, keys: Tensor) -> list[int]:
        """The regions of places, by the keys of their cells, that have no lists yet."""
        if len(self.made) == 6 * 4**self.depth:
            return []  # a GPU need not wait for the host
        return [region for region in torch.unique(keys >> self.shift).tolist() if region not in self.made]

    def make(self, region: int) -> None:
        """Make the lists of a region."""
        near = self._near(self.depth, region)
        positions, sharpness, territory, background = self.geometry
        some = SiteGeometry(positions[near], sharpness[near], territory[near], background)
        epsilon = (1 - 2 * NEAR_SHARE) * EPSILON
        found = list_sites(some, epsilon=epsilon, longest=LONGEST, within=(self.depth, region))
        self.made[region] = found._replace(sites=near.int()[found.sites])

    def joined(self) -> CellLists:
        """The lists of all regions that have any, with zeros behind the last list for as long as one may be."""
        return self._join()[1]

    def arrays(self) -> tuple[npt.NDArray[Any], ...]:
        """The same as arrays, on a CPU."""
        return self._join()[2]

    def _near(self, depth: int, region: int) -> Tensor:
        """The sites that can matter in a region, chosen among those of a region sixteen times as large."""
        if (depth, region) in self._wide:
            return self._wide[depth, region]
        count = len(self.geometry.sharpness)
        logits, among = self.logits, torch.arange(count, device=self.device)
        if depth > STEP:
            among = self._near(depth - STEP, region >> 2 * STEP)
            logits = logits.of(among if self.geometry.background is None else pad(among, (0, 1), value=count))
        cells = CubeCells(2**depth)
        bounds = bound_weights(logits, *cells.caps(cells.of_keys(torch.tensor([region], device=self.device))))
        near = among[keep_sites(bounds, NEAR_SHARE * EPSILON)[0, : len(among)]]
        if depth < self.depth:
            self._wide[depth, region] = near
        return near

    def _join(self) -> tuple[int, CellLists, tuple[npt.NDArray[Any], ...]]:
        joined = self._joined
        if joined is not None and joined[0] == len(self.made):
            return joined
        with self._joining:
            made = dict(sorted(self.made.items()))
            lengths = torch.cat([part.lengths for part in made.values()])
            behind = torch.zeros(int(lengths.max()) + 1, dtype=torch.int32, device=self.device)
            sites = torch.cat([*(part.sites for part in made.values()), behind])
            lists = CellLists(torch.cat([part.keys for part in made.values()]), pad(lengths.cumsum(0), (1, 0)), sites)
            arrays = tuple(part.numpy() for part in lists) if self.device.type == "cpu" else ()
            self._joined = len(made), lists, arrays
            return self._joined

    def __getstate__(self) -> dict[str, Any]:
        return self.__dict__ | {"made": {}, "_wide": {}, "_joined": None, "_joining": None}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _joining=threading.Lock())


def read_sites(voronoi: SoftVoronoi) -> SiteGeometry:
    """The sites behind a tessellation's chord logits, in float64."""
    positions = torch.nn.functional.normalize(voronoi.directions.detach().double(), dim=-1)
    sharpness, territory = voronoi.log_sharpness.detach().double().exp(), voronoi.territory.detach().double()
    return SiteGeometry(positions, sharpness, territory, voronoi.config.background)
