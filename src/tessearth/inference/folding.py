"""Every linear map between the site mixture and the head's first activation, multiplied out once.

With f the mixture, a the token attention, C the subtraction of the mean and gamma, beta, eps the LayerNorm's own,

    entry(LayerNorm(b)) = W gamma C b / sqrt(mean (C b)^2 + eps) + W beta + bias,  b = (1 - alpha)(P f + p) + alpha z(a)

is linear in f and a but for one number per place. So one product gives the token logits, C b and W gamma C b together,
and the head's first layer is never computed by itself. Columns are places throughout: (rows, N).
"""

from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.model import SphericalVoronoiEncoder


class Folded(NamedTuple):
    """The maps in float32. Rows come in this order: token logits (T), C b (D), W gamma C b (H), f itself (S or 0)."""

    mixture: Tensor
    """From the mixture, (rows, S)."""
    offset: Tensor
    """(rows,)."""
    tokens: Tensor
    """From the token attention to C b and W gamma C b, (D + H, T)."""
    bias: Tensor
    """Of the first activation, (H,)."""
    coordinates: Tensor | None
    """From the coordinates' own features to the first activation, (H, 6 octaves)."""
    num_tokens: int
    blend_dim: int
    hidden_dim: int
    eps: float
    compares_directions: bool
    """Whether token logits are divided by the mixture's length, which the rows of f are there for."""

    def to(self, device: torch.device) -> "Folded":
        """The same on a device."""
        moved: dict[str, Any] = {
            name: part.to(device) for name, part in self._asdict().items() if isinstance(part, Tensor)
        }
        return self._replace(**moved)

    def activate(self, mixed: Tensor, features: Tensor | None) -> Tensor:
        """The head's first activation, (H, N), from mixed rows, (rows, N), which are used up.

        `features` are the coordinates' own, (N, 6 octaves).
        """
        both = mixed[self.num_tokens : self.num_tokens + self.blend_dim + self.hidden_dim]
        if self.num_tokens:
            logits = mixed[: self.num_tokens]
            if self.compares_directions:
                length = mixed[-self.mixture.shape[1] :].square().sum(0).sqrt_()
                logits = logits / length.clamp_(min=1e-12)
            both = both.addmm_(self.tokens, torch.softmax(logits, dim=0))
        blend, entry = both[: self.blend_dim], both[self.blend_dim :]
        variance = blend.square().sum(0).div_(self.blend_dim)
        entry = entry.mul_(variance.add_(self.eps).rsqrt_()).add_(self.bias[:, None])
        if self.coordinates is not None and features is not None:
            entry = entry.addmm_(self.coordinates, features.T)
        return entry.relu_()


def fold(encoder: SphericalVoronoiEncoder) -> Folded:
    """Multiply out an encoder's maps, in float64 until the last step."""
    config, norm, entry = encoder.config, encoder.norm, encoder.head.entry
    width = config.output_dim
    weight = _wide(entry.weight)
    onwards = torch.cat((torch.eye(width, dtype=torch.float64), weight[:, :width] * _wide(norm.weight)))
    onwards = onwards - onwards.mean(-1, keepdim=True)  # C on the right; C C = C
    onwards[:width] = torch.eye(width, dtype=torch.float64) - 1 / width
    matrix, shift = _projection(encoder)
    share = 1.0 if encoder.tokens is None else 1 - config.token_gate
    logits, logit_shift = _token_logits(encoder)
    itself = torch.eye(config.mixture_dim if config.cosine_attention and config.num_tokens else 0).double()
    itself = itself.reshape(-1, config.mixture_dim)
    tokens = torch.zeros(0, width) if encoder.tokens is None else encoder.tokens.tokens * config.token_gate
    offset = torch.cat((logit_shift, onwards @ shift * share, torch.zeros(len(itself), dtype=torch.float64)))
    return Folded(
        mixture=_narrow(torch.cat((logits, onwards @ matrix * share, itself))),
        offset=_narrow(offset),
        tokens=_narrow(onwards @ _wide(tokens).T),
        bias=_narrow(weight[:, :width] @ _wide(norm.bias) + _wide(entry.bias)),
        coordinates=_narrow(weight[:, width:]) if config.coordinate_octaves else None,
        num_tokens=config.num_tokens,
        blend_dim=width,
        hidden_dim=config.hidden_dim,
        eps=norm.eps,
        compares_directions=len(itself) > 0,
    )


def _projection(encoder: SphericalVoronoiEncoder) -> tuple[Tensor, Tensor]:
    """P and p, (D, S) and (D,)."""
    if isinstance(encoder.projection, nn.Linear):
        return _wide(encoder.projection.weight), _wide(encoder.projection.bias)
    width = encoder.config.output_dim
    return torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)


def _token_logits(encoder: SphericalVoronoiEncoder) -> tuple[Tensor, Tensor]:
    """The map to the token logits and its shift, (T, S) and (T,), the temperature taken in."""
    tokens = encoder.tokens
    if tokens is None:
        return torch.zeros(0, encoder.config.mixture_dim).double(), torch.zeros(0).double()
    sharpened = 1 / _wide(tokens.temperature())
    weight = _wide(tokens.location_logits.weight)
    if encoder.config.cosine_attention:
        return F.normalize(weight, dim=-1) * sharpened, torch.zeros(len(weight), dtype=torch.float64)
    return weight * sharpened, _wide(tokens.location_logits.bias) * sharpened


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


def _narrow(tensor: Tensor) -> Tensor:
    return tensor.float().contiguous()
