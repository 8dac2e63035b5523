"""The spacing of points on the sphere: how far each is from its nearest neighbours."""

import torch
from torch import Tensor

from tessearth.sphere.cube_cells import CubeCells

SIDE = 2**14
"""Cells per edge of a cube's face, along whose curve points are sorted."""
ON_CPU, ON_GPU = 512, 4096
"""Points at once."""
PAIRS_AT_ONCE = 2**24
ROUNDING = 1e-6


@torch.no_grad()
def mean_chord(points: Tensor, neighbours: int) -> Tensor:
    """The mean chord from each unit vector to its nearest others, (K, 3) -> (K,).

    Points that follow one another along a curve through the sphere's cells lie in a small ball. The farthest of the
    neighbours that they have among themselves bounds the distance of the true ones, so only points near the ball are
    looked at.
    """
    cells = CubeCells(SIDE)
    order = cells.keys(cells.find(points)).argsort(stable=True)
    found = points.new_empty(len(points))
    for rows in torch.split(order, max(ON_GPU if points.is_cuda else ON_CPU, neighbours + 1)):
        found[rows] = _nearest(points[rows], _near(points, points[rows], neighbours), neighbours).mean(-1)
    return found


def _near(points: Tensor, some: Tensor, neighbours: int) -> Tensor:
    """All points that may be among the nearest of some of them."""
    if len(some) <= neighbours:
        return points
    reach = _nearest(some, some, neighbours).max()
    centre = some.mean(0)
    radius = (some - centre).norm(dim=-1).max() + reach
    return points[(points - centre).norm(dim=-1) <= radius * (1 + ROUNDING) + ROUNDING]


def _nearest(some: Tensor, among: Tensor, neighbours: int) -> Tensor:
    """Distances from points (n, 3) to the nearest others of many (m, 3), themselves among these: (n, neighbours)."""
    parts = []
    for part in torch.split(some, max(1, PAIRS_AT_ONCE // len(among))):
        # By differences of coordinates: products would round chords of kilometres away, and cdist is slow on a GPU.
        square = sum(
            ((a[:, None] - b).square() for a, b in zip(part.T, among.T, strict=True)), start=part.new_zeros(())
        )
        distance = square.sqrt()
        parts.append(distance.topk(neighbours + 1, dim=-1, largest=False).values[:, 1:])
    return torch.cat(parts)
