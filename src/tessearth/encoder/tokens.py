"""Semantic tokens: a small vocabulary that places and images both attend to."""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.config import EncoderConfig
from tessearth.errors import DataError


class SemanticTokens(nn.Module):
    """Attention over T learned tokens of width D: from the site mixture f and, in training, from the image feature v.

    a_loc = softmax((W_loc f + b_loc) / T_loc),  a_img = softmax((W_img v + b_img) / T_img),  z = a @ tokens.
    """

    temperature_progress: Tensor
    image_temperature: Tensor

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        self.config = config
        biased = not config.cosine_attention
        self.tokens = nn.Parameter(torch.empty(config.num_tokens, config.output_dim))  # (T, D)
        self.location_logits = nn.Linear(config.mixture_dim, config.num_tokens, bias=biased)
        self.image_logits = nn.Linear(config.output_dim, config.num_tokens, bias=biased)
        self.log_temperature = nn.Parameter(torch.tensor(math.log(config.location_temperature)))
        # A buffer, so that a saved encoder keeps the temperature it was annealed to.
        self.register_buffer("temperature_progress", torch.tensor(0.0))
        self.register_buffer("image_temperature", torch.tensor(config.image_temperature))

    def reset_parameters(self, generator: torch.Generator | None = None) -> None:
        """Draw the tokens as orthogonal unit rows and both projections from N(0, 0.1^2) with zero bias."""
        with torch.no_grad():
            nn.init.orthogonal_(self.tokens, generator=generator)
            self.tokens.copy_(F.normalize(self.tokens, dim=-1))
        for projection in (self.location_logits, self.image_logits):
            nn.init.normal_(projection.weight, std=0.1, generator=generator)
            if projection.bias is not None:
                nn.init.zeros_(projection.bias)

    def temperature(self) -> Tensor:
        """The location side's effective temperature: exp(theta) (1 - p) + final p, with p the annealing's progress."""
        progress = self.temperature_progress
        return self.log_temperature.exp() * (1 - progress) + self.config.final_temperature * progress

    def location_attention(self, mixture: Tensor) -> Tensor:
        """Each place's attention to each token, from site mixtures, (N, S) -> (N, T)."""
        if self.config.cosine_attention:
            logits = F.linear(F.normalize(mixture, dim=-1), F.normalize(self.location_logits.weight, dim=-1))
        else:
            logits = self.location_logits(mixture)
        logits = logits / self.temperature()
        if self.training and self.config.token_dropout > 0:
            draw = torch.rand(self.config.num_tokens, device=logits.device)
            hidden = (draw < self.config.token_dropout) & (draw < draw.max())  # at least one token stays visible
            logits = logits.masked_fill(hidden, -math.inf)
        return torch.softmax(logits, dim=-1)

    def image_attention(self, image_features: Tensor) -> Tensor:
        """Each image's attention to each token, from unit features, (N, D) -> (N, T)."""
        return torch.softmax(self.image_logits(image_features) / self.image_temperature, dim=-1)

    def attend(self, attention: Tensor) -> Tensor:
        """The tokens mixed by an attention, (N, T) -> (N, D)."""
        return attention @ self.tokens


class TokenUse(NamedTuple):
    """How places share their attention among T tokens."""

    mean: Tensor
    """Mean attention of each token, (T,)."""
    entropy_share: float
    """Mean entropy of a place's attention, as a share of ln T."""
    effective: float
    """The effective number of tokens of a place: the mean over places of exp(entropy)."""
    effective_at_mean: float
    """The same of the mean entropy, exp(mean entropy), which is never more."""
    above_uniform: int
    """Tokens whose mean attention is above 1 / T."""


@torch.no_grad()
def measure_token_use(attention: Tensor) -> TokenUse:
    """The use of tokens in the attention (N, T) of places, computed in its precision."""
    if attention.ndim != 2 or 0 in attention.shape:
        raise DataError(f"attention has shape {tuple(attention.shape)}, not (places, tokens)")
    tokens, mean = attention.shape[1], attention.mean(0)
    entropy = torch.special.entr(attention).sum(-1)
    nats = float(entropy.mean())
    share = nats / math.log(max(2, tokens))
    return TokenUse(mean, share, float(entropy.exp().mean()), math.exp(nats), int((mean > 1 / tokens).sum()))
