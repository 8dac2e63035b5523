"""The residual head that turns the blend of sites and tokens into the embedding."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn


class ResidualBlock(nn.Module):
    """x + ReLU(L2(Dropout(ReLU(L1 x))))."""

    def __init__(self, width: int, dropout: float) -> None:
        super().__init__()
        self.first = nn.Linear(width, width)
        self.second = nn.Linear(width, width)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Tensor) -> Tensor:
        """(N, width) -> (N, width)."""
        return x + F.relu(self.second(self.dropout(F.relu(self.first(x)))))


class ResidualHead(nn.Module):
    """Linear + ReLU, residual blocks, then Linear without bias: (N, input) -> (N, output)."""

    def __init__(self, input_dim: int, hidden_dim: int, output_dim: int, num_blocks: int, dropout: float) -> None:
        super().__init__()
        self.entry = nn.Linear(input_dim, hidden_dim)
        self.blocks = nn.ModuleList(ResidualBlock(hidden_dim, dropout) for _ in range(num_blocks))
        self.exit = nn.Linear(hidden_dim, output_dim, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """(N, input) -> (N, output)."""
        x = F.relu(self.entry(x))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.exit(x)
        return out


def reset_linear(layer: nn.Linear, generator: torch.Generator | None = None) -> None:
    """Draw a linear layer anew as PyTorch does by default, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from a generator."""
    bound = 1 / math.sqrt(layer.in_features)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)
