"""The spacing of points on the sphere: how far each is from its nearest neighbours."""

import torch
from torch import Tensor

PAIRS_AT_ONCE = 2**24
"""Distances held at once."""


@torch.no_grad()
def mean_chord(points: Tensor, neighbours: int) -> Tensor:
    """The mean chord from each unit vector to its nearest others, (K, 3) -> (K,)."""
    rows = torch.split(points, max(1, PAIRS_AT_ONCE // len(points)))
    nearest = [
        torch.cdist(part, points, compute_mode="donot_use_mm_for_euclid_dist")
        .topk(neighbours + 1, dim=-1, largest=False)
        .values
        for part in rows
    ]  # itself first
    return torch.cat(nearest)[:, 1:].mean(-1)
