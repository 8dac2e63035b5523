"""The two networks that most baselines put behind their positional features."""

import functools
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder import ResidualBlock
from tessearth.settings import check_at_least, check_share
from tessearth.zoo.baselines.base import Network

Activation = Literal["relu", "gelu", "leakyrelu", "tanh", "sigmoid"]

ACTIVATIONS: dict[str, Callable[[], nn.Module]] = {
    "relu": nn.ReLU,
    "gelu": nn.GELU,
    "leakyrelu": functools.partial(nn.LeakyReLU, 0.2),
    "tanh": nn.Tanh,
    "sigmoid": nn.Sigmoid,
}


@dataclass(frozen=True, slots=True, kw_only=True)
class ResidualSettings:
    """A residual network: by default the one SINR and the geographic prior of Mac Aodha et al. share."""

    hidden_dim: int = 256
    num_blocks: int = 4
    dropout: float = 0.5
    output_dim: int | None = None
    """Width of a last linear map without bias; None leaves the blocks' own output as the embedding."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "hidden_dim", "output_dim")
        check_at_least(self, 0, "num_blocks")
        check_share(self, "dropout")


@dataclass(frozen=True, slots=True, kw_only=True)
class FeedForwardSettings:
    """Fully connected layers of one width, then one of the output's."""

    hidden_dim: int = 512
    num_hidden: int = 1
    output_dim: int = 256
    activation: Activation = "relu"
    layer_norm: bool = False
    """Whether each hidden layer ends in a LayerNorm."""
    skip: bool = False
    """Whether a hidden layer adds its input to its output where the widths allow it."""
    activate_output: bool = False
    """Whether the last layer has an activation (and dropout) too."""
    dropout: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "hidden_dim", "num_hidden", "output_dim")
        check_share(self, "dropout")


class ResidualNetwork(Network):
    """ReLU(L x), residual blocks x + ReLU(L2(Dropout(ReLU(L1 x)))), and a last linear map where `output_dim` is set."""

    def __init__(self, input_dim: int, settings: ResidualSettings) -> None:
        super().__init__(settings.output_dim or settings.hidden_dim)
        self.entry = nn.Linear(input_dim, settings.hidden_dim)
        blocks = (ResidualBlock(settings.hidden_dim, settings.dropout) for _ in range(settings.num_blocks))
        self.blocks = nn.ModuleList(blocks)
        self.exit = nn.Linear(settings.hidden_dim, settings.output_dim, bias=False) if settings.output_dim else None

    def forward(self, features: Tensor) -> Tensor:
        """(N, F) -> (N, D)."""
        x = F.relu(self.entry(features))
        for block in self.blocks:
            x = block(x)
        return x if self.exit is None else self.exit(x)


class FeedForward(Network):
    """Hidden layers LayerNorm(x + Dropout(act(L x))), norm and skip where set, then the output layer."""

    def __init__(self, input_dim: int, settings: FeedForwardSettings) -> None:
        super().__init__(settings.output_dim)
        hidden = settings.hidden_dim
        self.layers = hidden_layers(input_dim, hidden, settings.num_hidden)
        norms = (nn.LayerNorm(hidden) for _ in range(settings.num_hidden))
        self.norms = nn.ModuleList(norms if settings.layer_norm else ())
        self.exit = nn.Linear(hidden, settings.output_dim)
        self.activation = ACTIVATIONS[settings.activation]()
        self.dropout = nn.Dropout(settings.dropout)
        self.skip = settings.skip
        self.activate_output = settings.activate_output

    def forward(self, features: Tensor) -> Tensor:
        """(N, F) -> (N, D)."""
        x = features
        for i, layer in enumerate(self.layers):
            y: Tensor = self.dropout(self.activation(layer(x)))
            x = y + x if self.skip and y.shape == x.shape else y
            x = self.norms[i](x) if len(self.norms) else x
        out: Tensor = self.exit(x)
        return self.dropout(self.activation(out)) if self.activate_output else out


def hidden_layers(input_dim: int, hidden_dim: int, count: int) -> nn.ModuleList:
    """Linear layers of one width, the first of which takes the features."""
    return nn.ModuleList(nn.Linear(hidden_dim if i else input_dim, hidden_dim) for i in range(count))
