"""Real spherical harmonics (Russwurm et al., 2024), by a recurrence that is stable to high degrees.

SatCLIP's shape (Klemmer et al., 2025) puts a sinusoidal network (Sitzmann et al., 2020) behind them.
"""

import math
from dataclasses import dataclass, field

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.errors import ConfigError
from tessearth.settings import check_at_least
from tessearth.zoo.baselines.base import Network, PositionalEncoding
from tessearth.zoo.baselines.networks import ResidualSettings, hidden_layers

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


@dataclass(frozen=True, slots=True, kw_only=True)
class SirenSettings:
    """A sinusoidal network; of the sizes of SatCLIP's location encoder."""

    hidden_dim: int = 512
    num_hidden: int = 2
    output_dim: int = 256
    first_frequency: float = 30.0
    """What the first layer's output is multiplied by before its sine (omega_0)."""
    hidden_frequency: float = 1.0
    """The same for the other hidden layers."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "hidden_dim", "num_hidden", "output_dim")
        check_at_least(self, 1e-6, "first_frequency", "hidden_frequency")


@dataclass(frozen=True, slots=True, kw_only=True)
class HarmonicsSirenSettings:
    """Spherical harmonics and the sinusoidal network behind them."""

    degrees: int = 40
    """How many degrees (L), l = 0 ... L - 1."""
    network: SirenSettings = field(default_factory=SirenSettings)

    def __post_init__(self) -> None:
        check_degrees(self.degrees)


class Siren(Network):
    """x -> sin(omega (W x + b)) layer by layer, then a linear map."""

    def __init__(self, input_dim: int, settings: SirenSettings) -> None:
        super().__init__(settings.output_dim)
        self.layers = hidden_layers(input_dim, settings.hidden_dim, settings.num_hidden)
        self.exit = nn.Linear(settings.hidden_dim, settings.output_dim)
        self.first_frequency = settings.first_frequency
        self.hidden_frequency = settings.hidden_frequency

    def forward(self, features: Tensor) -> Tensor:
        """(N, F) -> (N, D)."""
        x = features
        for i, layer in enumerate(self.layers):
            x = torch.sin((self.hidden_frequency if i else self.first_frequency) * layer(x))
        out: Tensor = self.exit(x)
        return out

    def reset_parameters(self, generator: torch.Generator) -> None:
        """U(-1/n, 1/n) in the first layer of n inputs, U(-sqrt(6/n)/omega, sqrt(6/n)/omega) in all others."""
        linears = [module for module in self.modules() if isinstance(module, nn.Linear)]
        for i, layer in enumerate(linears):
            inputs = layer.in_features
            bound = math.sqrt(6 / inputs) / self.hidden_frequency if i else 1 / inputs
            for parameter in (layer.weight, layer.bias):
                nn.init.uniform_(parameter, -bound, bound, generator=generator)
