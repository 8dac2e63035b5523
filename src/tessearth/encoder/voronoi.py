"""Soft Voronoi cells: every point of the sphere has a weight for each site, larger for nearer ones."""

import math
from typing import Protocol

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.config import TessellationConfig
from tessearth.sphere import mean_chord

LEAST_SPACING = 1e-6
"""Radians, six metres: what coincident sites count as apart."""
EMBEDDING_SPREAD = 0.02
"""The standard deviation of site embeddings before training, drawn from a normal distribution."""


def mix_season(numbers: Tensor, width: int, season: Tensor | None) -> Tensor:
    """The embedding of a season, (N, S), from e, a_1, b_1, a_2 ... side by side and t, (N,); that of the year without.

    It is e + sum_h (a_h cos 2 pi h t + b_h sin 2 pi h t).
    """
    if season is None or numbers.shape[-1] == width:
        return numbers[..., :width]
    cycle = numbers[..., width:].reshape(*numbers.shape[:-1], -1, 2, width)  # (N, H, 2, S)
    harmonic = torch.arange(1, cycle.shape[-3] + 1, dtype=torch.float64, device=season.device)
    angle = 2 * math.pi * (season - season.floor()).double()[..., None] * harmonic  # t and t + 1 are the same
    waves = torch.stack((angle.cos(), angle.sin()), dim=-1).to(numbers.dtype)
    mixed: Tensor = numbers[..., :width] + (waves[..., None] * cycle).sum((-3, -2))
    return mixed


class Mixer(Protocol):
    """What mixes sites without looking at all of them, as the lists of `encoder.cells` do."""

    def __call__(self, voronoi: "SoftVoronoi", xyz: Tensor) -> Tensor:
        """Mixtures of site embeddings at directions, (N, 3) -> (N, S), with gradients."""


class SoftVoronoi(nn.Module):
    """Mixes site embeddings by the nearness of each site: w = softmax_k(tau_k <x, s_k>), f = sum_k w_k e_k.

    With decoupled logits, w = softmax_k(tau_k (<x, s_k> - 1) + b_k), and with chords, w = softmax_k(-tau_k / 2
    |x - s_k|^2 + b_k): at its own position a site's logit is b_k for any sharpness, so b sets its territory and tau its
    sharpness. A background adds a logit of its own to the sum below and nothing above.

    A site with a cycle is e(t) = e + sum_h (a_h cos 2 pi h t + b_h sin 2 pi h t) at the share t of the year. Weights do
    not know t, so one mixture of e, a_1, b_1, a_2 ... serves every season (`at_season`).

    Sharpness that is tied to spacing starts at c / d_k^2; training measures d_k anew as sites move. A site whose
    territory is -inf takes no part.
    """

    spacing: Tensor

    def __init__(self, config: TessellationConfig, sites: Tensor) -> None:
        super().__init__()
        self.config = config
        self.directions = nn.Parameter(sites.to(torch.get_default_dtype()))  # (K, 3)
        self.log_sharpness = nn.Parameter(torch.empty(config.num_sites))  # (K,)
        self.embeddings = nn.Parameter(torch.empty(config.num_sites, config.row_dim))  # (K, S (1 + 2 H))
        if config.logits != "paper":
            self.territory = nn.Parameter(torch.zeros(config.num_sites))  # (K,), b
        if config.is_spaced:
            self.register_buffer("spacing", torch.empty(config.num_sites))  # (K,), d
        self.mixer: Mixer | None = None
        """Mixes by a few sites a place in training; None mixes all of them."""
        if not self.directions.is_meta:
            self._start_sharpness()

    def _start_sharpness(self) -> None:
        with torch.no_grad():
            if self.config.is_spaced:
                chord = mean_chord(F.normalize(self.directions, dim=-1), self.config.neighbours)
                self.spacing.copy_(chord.clamp_min(LEAST_SPACING))
                self.log_sharpness.copy_(math.log(self.config.spacing_factor) - 2 * self.spacing.log())
            elif not isinstance(self.config.sharpness, str):
                self.log_sharpness.fill_(math.log(self.config.sharpness))

    def positions(self) -> Tensor:
        """Positions of the sites, (K, 3), unit vectors where `config.on_sphere` is set.

        In training the gradient of a spaced site is taken in units of its spacing, so that a site of a dense region
        moves, and counts in the gradient's norm, as one of a sparse region does.
        """
        positions = F.normalize(self.directions, dim=-1) if self.config.on_sphere else self.directions
        if not (self.training and self.config.is_spaced):
            return positions
        still = positions.detach()
        return still + self.spacing[:, None] * (positions - still)

    def sharpness(self) -> Tensor:
        """tau, (K,)."""
        return self.log_sharpness.exp()

    def takes_part(self) -> Tensor:
        """Which sites have a weight anywhere, (K,): those whose territory is above -inf."""
        if self.config.logits == "paper":
            return torch.ones_like(self.log_sharpness, dtype=torch.bool)
        return self.territory.detach() > -math.inf

    def logits(self, xyz: Tensor) -> Tensor:
        """The logits of the site weights, (N, 3) -> (N, K): for all but chords, an affine map of the position."""
        if self.config.logits == "chord":
            return self.written_out_logits(xyz)
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
        return self.share(logits)

    def share(self, logits: Tensor) -> Tensor:
        """Weights from logits, (N, K): their softmax, which the background lowers."""
        if self.config.background is None:
            return torch.softmax(logits, dim=-1)
        return torch.softmax(F.pad(logits, (0, 1), value=self.config.background), dim=-1)[..., :-1]

    def mix(self, weights: Tensor) -> Tensor:
        """The mixture of the numbers of sites by weights, (N, K) -> (N, S (1 + 2 H))."""
        return weights @ self.embeddings

    def at_season(self, mixture: Tensor, season: Tensor | None) -> Tensor:
        """The mixture (N, S) at shares of the year (N,), or of the whole year, from that of the sites' numbers."""
        return mix_season(mixture, self.config.site_dim, season)

    def exact_weights(self, xyz: Tensor) -> Tensor:
        """`weights`, (N, 3) -> (N, K), never through a GPU's matrix units.

        Those would round positions to ten bits, which is three kilometres; three products and two sums per site are
        exact to float32 and, compiled, cost no more than the softmax they are fused with.
        """
        return self.share(self.written_out_logits(xyz)) if xyz.is_cuda else self.weights(xyz)

    def written_out_logits(self, xyz: Tensor) -> Tensor:
        """`logits` without a matrix product, (N, 3) -> (N, K)."""
        sharpness = self.sharpness()
        x, y, z = (axis[:, None] for axis in xyz.unbind(-1))
        if self.config.logits == "chord":
            a, b, c = self.positions().unbind(-1)
            return self.territory - sharpness / 2 * ((x - a).square() + (y - b).square() + (z - c).square())
        slope = self.positions() * sharpness[:, None]
        logits = x * slope[:, 0] + y * slope[:, 1] + z * slope[:, 2]
        return logits + (self.territory - sharpness) if self.config.logits == "decoupled" else logits

    @torch.no_grad()
    def constrain_(self) -> None:
        """Project sites to the sphere and clamp sharpness to its range; called after every optimiser step."""
        if self.config.on_sphere:
            self.directions.copy_(F.normalize(self.directions, dim=-1))
        low, high = map(math.log, self.config.sharpness_range)
        if self.config.is_spaced:
            unit = -2 * self.spacing.log()
            self.log_sharpness.copy_(torch.clamp(self.log_sharpness, unit + low, unit + high))
        else:
            self.log_sharpness.clamp_(low, high)
