"""Random Fourier features of an equal-area map at several scales: GeoCLIP's shape (Vivanco Cepeda et al., 2023)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tessearth.errors import ConfigError
from tessearth.settings import check_at_least
from tessearth.zoo.baselines.base import Network, PositionalEncoding, flat_degrees
from tessearth.zoo.baselines.networks import FeedForward, FeedForwardSettings

# The polynomial of the Equal Earth projection (Savric, Patterson and Jenny, 2018).
EQUAL_EARTH = (1.340264, -0.081106, 0.000893, 0.003796)
MAP_DEGREES = 66.50336
"""Brings the projection's equator to [-180, 180]; GeoCLIP's constant, in its own digits."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FourierSettings:
    """Random Fourier features and the capsules behind them; the values are those of GeoCLIP's location encoder."""

    sigmas: tuple[float, ...] = (1.0, 16.0, 256.0)
    """Standard deviations of the random frequencies, one set of features each: coarse to fine."""
    num_frequencies: int = 256
    """Random frequencies per set; each gives a cosine and a sine."""
    network: FeedForwardSettings | None = field(
        default_factory=lambda: FeedForwardSettings(hidden_dim=1024, num_hidden=3, output_dim=512)
    )
    """One such network per set, their outputs summed; None leaves the features themselves."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_frequencies")
        if not self.sigmas or min(self.sigmas) <= 0:
            raise ConfigError(f"sigmas is {self.sigmas}; it must hold at least one positive number")


class RandomFourier(PositionalEncoding):
    """cos and sin of 2 pi <b, x> for random frequencies b ~ N(0, sigma^2) and x on the Equal Earth map.

    Columns run over sigmas, then (cos, sin), then frequencies: F = 2 * frequencies * sigmas.
    """

    frequencies: Tensor

    def __init__(self, settings: FourierSettings, generator: torch.Generator) -> None:
        super().__init__(2 * settings.num_frequencies * len(settings.sigmas))
        drawn = torch.randn(len(settings.sigmas), settings.num_frequencies, 2, generator=generator)
        self.register_buffer("frequencies", drawn * torch.tensor(settings.sigmas)[:, None, None])  # (sigmas, B, 2)

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, F)."""
        # 2 pi goes to the map before the sum: phases reach thousands, where float32 shows the order of operations, and
        # in this order published weights give their package's own outputs.
        turns = 2 * math.pi * equal_earth(latlon)
        phases = turns @ self.frequencies.to(latlon.dtype).flatten(0, 1).T
        by_sigma = phases.reshape(-1, *self.frequencies.shape[:2])  # (N, sigmas, B)
        return torch.cat((by_sigma.cos(), by_sigma.sin()), dim=-1).flatten(1)


class SummedCapsules(Network):
    """One fully connected network for each set of features, their outputs summed."""

    def __init__(self, input_dim: int, num_capsules: int, settings: FeedForwardSettings) -> None:
        super().__init__(settings.output_dim)
        self.capsules = nn.ModuleList(FeedForward(input_dim // num_capsules, settings) for _ in range(num_capsules))

    def forward(self, features: Tensor) -> Tensor:
        """(N, F) -> (N, D)."""
        parts = features.chunk(len(self.capsules), dim=-1)
        return torch.stack([capsule(part) for capsule, part in zip(self.capsules, parts, strict=True)]).sum(dim=0)


def equal_earth(latlon: Tensor) -> Tensor:
    """The Equal Earth map: degrees, (N, 2), to (x, y), (N, 2), x in [-1, 1] on the equator.

    sin t = sqrt(3)/2 sin lat,  x = 2 sqrt(3) lon cos t / (3 (9 A4 t^8 + 7 A3 t^6 + 3 A2 t^2 + A1)),
    y = A4 t^9 + A3 t^7 + A2 t^3 + A1 t.
    """
    lat, lon = (angle.deg2rad() for angle in flat_degrees(latlon))
    a1, a2, a3, a4 = EQUAL_EARTH
    t = torch.asin(math.sqrt(3) / 2 * lat.sin())
    slope = 9 * a4 * t**8 + 7 * a3 * t**6 + 3 * a2 * t**2 + a1
    x = 2 * math.sqrt(3) * lon * t.cos() / (3 * slope)
    y = a4 * t**9 + a3 * t**7 + a2 * t**3 + a1 * t
    return torch.stack((x, y), dim=-1) * MAP_DEGREES / 180
