"""Soft Voronoi cells: every point of the sphere has a weight for each site, larger for nearer ones."""

import math

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.config import TessellationConfig

EMBEDDING_SPREAD = 0.02
"""The standard deviation of site embeddings before training, drawn from a normal distribution."""


class SoftVoronoi(nn.Module):
    """Mixes site embeddings by the nearness of each site: w = softmax_k(tau_k <x, s_k>), f = sum_k w_k e_k.

    With decoupled logits, w = softmax_k(tau_k (<x, s_k> - 1) + b_k): at its own position a site's logit is b_k for any
    sharpness, so b sets its territory and tau its sharpness.
    """

    def __init__(self, config: TessellationConfig, sites: Tensor) -> None:
        super().__init__()
        self.config = config
        self.directions = nn.Parameter(sites.to(torch.get_default_dtype()))  # (K, 3)
        self.log_sharpness = nn.Parameter(torch.full((config.num_sites,), math.log(config.sharpness)))  # (K,)
        self.embeddings = nn.Parameter(torch.empty(config.num_sites, config.site_dim))  # (K, S)
        if config.logits == "decoupled":
            self.territory = nn.Parameter(torch.zeros(config.num_sites))  # (K,), b

    def positions(self) -> Tensor:
        """Positions of the sites, (K, 3), unit vectors where `config.on_sphere` is set."""
        return F.normalize(self.directions, dim=-1) if self.config.on_sphere else self.directions

    def sharpness(self) -> Tensor:
        """tau, (K,)."""
        return self.log_sharpness.exp()

    def logits(self, xyz: Tensor) -> Tensor:
        """The logits of the site weights, (N, 3) -> (N, K): an affine map of the position."""
        sharpness = self.sharpness()
        slope = self.positions() * sharpness[:, None]
        if self.config.logits == "decoupled":
            return F.linear(xyz, slope, self.territory - sharpness)
        return F.linear(xyz, slope)

    def weights(self, xyz: Tensor, top_k: int | None = None) -> Tensor:
        """The weight of every site at each point, (N, 3) -> (N, K), rows summing to 1.

        With `top_k` only the largest logits count: 1 gives the hard Voronoi cell, K the full softmax.
        """
        logits = self.logits(xyz)
        if top_k is not None and top_k < logits.shape[-1]:
            kept = logits.topk(top_k, dim=-1)
            logits = torch.full_like(logits, -math.inf).scatter(-1, kept.indices, kept.values)
        return torch.softmax(logits, dim=-1)

    def exact_weights(self, xyz: Tensor) -> Tensor:
        """`weights`, (N, 3) -> (N, K), never through a GPU's matrix units.

        Those would round positions to ten bits, which is three kilometres; three products and two sums per site are
        exact to float32 and, compiled, cost no more than the softmax they are fused with.
        """
        return torch.softmax(self.written_out_logits(xyz), dim=-1) if xyz.is_cuda else self.weights(xyz)

    def written_out_logits(self, xyz: Tensor) -> Tensor:
        """`logits` without a matrix product, (N, 3) -> (N, K)."""
        sharpness = self.sharpness()
        slope = self.positions() * sharpness[:, None]
        x, y, z = (axis[:, None] for axis in xyz.unbind(-1))
        logits = x * slope[:, 0] + y * slope[:, 1] + z * slope[:, 2]
        return logits + (self.territory - sharpness) if self.config.logits == "decoupled" else logits

    @torch.no_grad()
    def constrain_(self) -> None:
        """Project sites to the sphere and clamp sharpness to its range; called after every optimiser step."""
        if self.config.on_sphere:
            self.directions.copy_(F.normalize(self.directions, dim=-1))
        low, high = self.config.sharpness_range
        self.log_sharpness.clamp_(math.log(low), math.log(high))
