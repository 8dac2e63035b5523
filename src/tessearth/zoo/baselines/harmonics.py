"""Real spherical harmonics (Russwurm et al., 2024), by a recurrence that is stable to high degrees."""

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.zoo.baselines.base import PositionalEncoding
from tessearth.zoo.baselines.networks import ResidualSettings

MAX_DEGREES = 101
"""Degrees 0 to 100: as far as float32 was shown to stay orthonormal."""


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonicsSettings:
    """How fine the harmonics are."""

    degrees: int = 40
    """How many degrees (L), l = 0 ... L - 1: L squared features, the finest wave 360 / (L - 1) degrees long."""
    network: ResidualSettings | None = None
    """The network behind the features; none by default."""

    def __post_init__(self) -> None:
        check_degrees(self.degrees)


class SphericalHarmonics(PositionalEncoding):
    """Orthonormal real harmonics, columns by degree l and, within it, by order m = -l ... l: F = L^2.

    Y_lm = sqrt(2) P_l|m|(sin lat) * (sin |m| lon for m < 0, cos m lon for m > 0), Y_l0 = P_l0(sin lat), with fully
    normalised associated Legendre functions P (integral of Y^2 over the sphere 1), without the Condon-Shortley sign.
    """

    def __init__(self, degrees: int = 40) -> None:
        super().__init__(check_degrees(degrees) ** 2)
        self.degrees = degrees

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, L^2)."""
        lat, lon = latlon.deg2rad().unbind(-1)
        waves = _azimuth(lon, self.degrees)
        middle, columns = self.degrees - 1, []
        for degree, legendre in enumerate(normalised_legendre(lat, self.degrees)):
            both_signs = torch.cat((legendre[:, 1:].flip(-1), legendre), dim=-1)  # (N, 2 l + 1), |m| = l ... 0 ... l
            columns.append(both_signs * waves[:, middle - degree : middle + degree + 1])
        return torch.cat(columns, dim=-1)


def normalised_legendre(lat: Tensor, degrees: int) -> list[Tensor]:
    """Associated Legendre functions of sin(lat) by degree: latitudes in radians, (N,), to L tensors (N, l + 1).

    Normalised so that every value stays near one, and climbing in degree at fixed order, which loses no digits:

        P_00 = sqrt(1 / (4 pi)),    P_ll = sqrt((2 l + 1) / (2 l)) cos(lat) P_{l-1,l-1}
        P_lm = a_lm (sin(lat) P_{l-1,m} - b_lm P_{l-2,m}),
        a_lm = sqrt((4 l^2 - 1) / (l^2 - m^2)),    b_lm = sqrt(((l-1)^2 - m^2) / (4 (l-1)^2 - 1))
    """
    sine, cosine = lat.sin()[:, None], lat.cos()[:, None]
    by_degree = [torch.full_like(sine, math.sqrt(1 / (4 * math.pi)))]
    for l in range(1, degrees):  # noqa: E741  (the letter everyone writes for the degree)
        m = torch.arange(l, dtype=lat.dtype, device=lat.device)
        a = ((4 * l * l - 1) / (l * l - m * m)).sqrt()
        b = (((l - 1) ** 2 - m * m) / (4 * (l - 1) ** 2 - 1)).sqrt()
        last = by_degree[-1]  # (N, l)
        before = F.pad(by_degree[-2], (0, 1)) if l > 1 else torch.zeros_like(last)
        lower = a * (sine * last - b * before)
        highest = math.sqrt((2 * l + 1) / (2 * l)) * cosine * last[:, -1:]
        by_degree.append(torch.cat((lower, highest), dim=-1))
    return by_degree


def check_degrees(degrees: int) -> int:
    """The number of degrees when the recurrence is known to hold there."""
    if not 1 <= degrees <= MAX_DEGREES:
        raise ConfigError(f"degrees is {degrees}; spherical harmonics take between 1 and {MAX_DEGREES}")
    return degrees


def _azimuth(lon: Tensor, degrees: int) -> Tensor:
    """The waves around the axis, (N,) radians to (N, 2 L - 1): sin (L-1) lon ... sin lon, 1, cos lon ... cos (L-1) lon.

    Those that vary are sqrt(2) times as high, so that each has the mean square 1.
    """
    angles = lon[:, None] * torch.arange(1, degrees, dtype=lon.dtype, device=lon.device)
    sines, cosines = math.sqrt(2) * angles.sin(), math.sqrt(2) * angles.cos()
    return torch.cat((sines.flip(-1), torch.ones_like(lon)[:, None], cosines), dim=-1)
