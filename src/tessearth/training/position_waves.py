"""Smooth waves of a place's position, to be distilled beside the image features."""

import math

import torch
from torch import Tensor, nn

from tessearth.training.objective import ObjectiveConfig
from tessearth.zoo.baselines.harmonics import SphericalHarmonics


class PositionWaves(nn.Module):
    """Spherical harmonics of degrees 1 to L, those of degree l scaled by l^-decay: L (L + 2) of them.

    Over the whole sphere their total variance is `objective.position` times that of image features of mean square 1.
    """

    heights: Tensor

    def __init__(self, objective: ObjectiveConfig, feature_width: int) -> None:
        super().__init__()
        self.harmonics = SphericalHarmonics(objective.position_degrees + 1)
        degree = torch.arange(1, objective.position_degrees + 1, dtype=torch.float64)
        height = degree**-objective.position_decay
        total = ((2 * degree + 1) * height.square()).sum() / (4 * math.pi)
        height = height * (objective.position * feature_width / total).sqrt()
        self.register_buffer("heights", height.repeat_interleave((2 * degree + 1).long()).float(), persistent=False)

    @property
    def width(self) -> int:
        """How many waves there are."""
        return len(self.heights)

    @torch.no_grad()
    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, width)."""
        waves: Tensor = self.harmonics(latlon)[:, 1:]
        return waves * self.heights.to(waves.dtype)
