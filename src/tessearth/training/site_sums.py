"""What sites add up over places: weight, residual, and how the residual is spread about them.

Of a site k: sum_i w_ik, sum_i w_ik r_i, and the six numbers of sum_i w_ik r_i y_i y_i^T with y_i = (x_i - s_k) / d_k,
the offset in units of the site's spacing.
"""

import math

import torch
from torch import Tensor

from tessearth.encoder import SoftVoronoi, SparseMixer
from tessearth.sphere import CellLists

PLACES_AT_ONCE = 1024
SUMS = 8
"""A site's weight, its residual, and the second moment's xx, yy, zz, xy, xz, yz."""
ROWS, COLUMNS = (0, 1, 2, 0, 0, 1), (0, 1, 2, 1, 2, 2)


def add_up(voronoi: SoftVoronoi, xyz: Tensor, residual: Tensor) -> Tensor:
    """What every site adds up, (K, SUMS), by lists where it is mixed by lists."""
    mixer = voronoi.mixer
    if isinstance(mixer, SparseMixer):
        return listed_sums(voronoi, mixer.lists, xyz, residual)
    return site_sums(voronoi, xyz, residual)


@torch.no_grad()
def site_sums(voronoi: SoftVoronoi, xyz: Tensor, residual: Tensor) -> Tensor:
    """What every site adds up over places (N, 3) with their residual (N,), in float64, (K, SUMS)."""
    total = voronoi.spacing.new_zeros(voronoi.config.num_sites, 2 + 3 + 6, dtype=torch.float64)
    for places, values in zip(torch.split(xyz, PLACES_AT_ONCE), torch.split(residual, PLACES_AT_ONCE), strict=True):
        r, x = values.double()[:, None], places.double()
        terms = torch.cat((torch.ones_like(r), r, r * x, r * x[:, ROWS] * x[:, COLUMNS]), dim=-1)
        total += voronoi.exact_weights(places).double().T @ terms
    site, first, second = voronoi.positions().double(), total[:, 2:5], total[:, 5:]
    mixed = site[:, ROWS] * first[:, COLUMNS] + first[:, ROWS] * site[:, COLUMNS]
    about = second - mixed + total[:, 1:2] * site[:, ROWS] * site[:, COLUMNS]
    sums: Tensor = torch.cat((total[:, :2], about / voronoi.spacing.double().square()[:, None]), dim=-1)
    return sums


@torch.no_grad()
def listed_sums(voronoi: SoftVoronoi, lists: CellLists, xyz: Tensor, residual: Tensor) -> Tensor:
    """`site_sums` over the sites in the lists of the places' cells alone."""
    total = voronoi.spacing.new_zeros(SUMS, voronoi.config.num_sites, dtype=torch.float64)
    sharpness, positions = voronoi.sharpness().double(), voronoi.positions().double()
    for places, values in zip(
        torch.split(xyz.double(), PLACES_AT_ONCE), torch.split(residual, PLACES_AT_ONCE), strict=True
    ):
        leaf = lists.find(places)
        slots = torch.arange(int(lists.lengths[leaf].max()), device=leaf.device)
        listed = slots < lists.lengths[leaf][:, None]
        sites = lists.sites[(lists.starts[leaf][:, None] + slots).clamp_max(len(lists.sites) - 1)].long()
        offset = places[:, None] - positions[sites]
        logits = voronoi.territory[sites] - sharpness[sites] / 2 * offset.square().sum(-1)
        weights = voronoi.share(logits.masked_fill(~listed, -math.inf))
        share, offset = weights * values.double()[:, None], offset / voronoi.spacing[sites, None]
        moments = (share * offset[..., a] * offset[..., b] for a, b in zip(ROWS, COLUMNS, strict=True))
        for row, part in zip(total, (weights, share, *moments), strict=True):
            row.index_add_(0, sites.flatten(), part.flatten())
    return total.T.contiguous()
