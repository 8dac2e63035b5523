"""Sinusoidal networks (Sitzmann et al., 2020) behind spherical harmonics: SatCLIP's shape (Klemmer et al., 2025)."""

import math
from dataclasses import dataclass, field

import torch
from torch import Tensor, nn

from tessearth.zoo.baselines.base import Network, check_at_least
from tessearth.zoo.baselines.harmonics import check_degrees


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
        check_at_least(1, hidden_dim=self.hidden_dim, num_hidden=self.num_hidden, output_dim=self.output_dim)
        check_at_least(1e-6, first_frequency=self.first_frequency, hidden_frequency=self.hidden_frequency)


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
        hidden = settings.hidden_dim
        self.layers = nn.ModuleList(
            nn.Linear(input_dim if i == 0 else hidden, hidden) for i in range(settings.num_hidden)
        )
        self.exit = nn.Linear(hidden, settings.output_dim)
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
