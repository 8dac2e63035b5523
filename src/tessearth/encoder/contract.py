"""The contract of every location encoder, ours, a published one or a user's own, with the semantic tokens it may have.

Tokens are a small vocabulary that places and images both attend to.
"""

import dataclasses
import json
import math
import os
from collections.abc import Mapping
from typing import Any, ClassVar, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.config import EncoderConfig
from tessearth.errors import ConfigError, DataError
from tessearth.sphere import latlon_to_xyz
from tessearth.storage import seal_tensors, write_bytes

BASELINE_FORMAT, BASELINE_FORMAT_VERSION = "tessearth-baseline", "1"


class Sites(NamedTuple):
    """Positions and sharpness of an encoder's sites."""

    positions: Tensor
    """(K, 3)."""
    sharpness: Tensor
    """(K,)."""


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


class LocationEncoder(nn.Module):
    """Turns places in degrees, (N, 2) latitude first, into embeddings, (N, D).

    A subclass has an `output_dim` and defines `forward`. The other methods have defaults that suit any such class;
    an encoder overrides those where it knows better.
    """

    output_dim: int
    """The width of the embedding (D)."""
    name: str = ""
    """Its registered name; `build_baseline` sets it, with the settings it was built from."""
    settings: object = None
    """The dataclass that `describe` and `save` write down."""
    takes_directions: ClassVar[bool] = False
    """Whether `embed_input` takes unit vectors, (N, 3), instead of degrees, (N, 2)."""

    def __init__(self) -> None:
        super().__init__()
        self.tokens: SemanticTokens | None = None
        """The semantic tokens that images attend to as well; None leaves out the training terms about them."""

    # For embedding.

    @property
    def label(self) -> str:
        """The name for messages."""
        return self.name or type(self).__name__

    @property
    def input_dtype(self) -> torch.dtype:
        """The precision places come in: that of the first parameter, float64 without any."""
        return next((p.dtype for p in self.parameters() if p.is_floating_point()), torch.float64)

    @property
    def widest(self) -> int:
        """The numbers per place of the widest array in memory; batches are sized by it."""
        linear = [layer.out_features for layer in self.modules() if isinstance(layer, nn.Linear)]
        return 4 * max(self.output_dim, *linear, 1)  # a few arrays as wide stand side by side

    def to_input(self, latlon: Tensor) -> Tensor:
        """What `embed_input` takes, from degrees in float64."""
        return (latlon_to_xyz(latlon) if self.takes_directions else latlon).to(self.input_dtype)

    def embed_input(self, places: Tensor) -> Tensor:
        """Embeddings (N, D) of prepared places: degrees, or directions where the encoder takes those."""
        embedding: Tensor = self(places)
        return embedding

    def set_precision_(self, dtype: torch.dtype) -> None:
        """Run in this precision from now on; refuses half precision, which is too coarse for coordinates."""
        if dtype.itemsize < 4:
            word = str(dtype).removeprefix("torch.")
            raise ConfigError(f"{self.label} does not run in {word}: use float32 or float64")
        self.to(dtype)

    # For training.

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """The part of `forward` that is computed outside half precision, from degrees (N, 2)."""
        return (self(latlon.to(self.input_dtype)),)

    def from_exact(self, *exact: Tensor) -> tuple[Tensor, Tensor | None]:
        """The rest: the raw embedding (N, D), and the token attention (N, T) of an encoder with tokens."""
        return exact[0], None

    def constrain_(self) -> None:
        """Bring parameters back within their constraints; called after every optimiser step."""

    def sites(self) -> Sites | None:
        """The sites, tessellations one after another; None for an encoder without sites."""
        return None

    # For files and lists.

    def describe(self) -> dict[str, Any]:
        """A description as plain values: its kind first, then everything that decides its shape."""
        known = dataclasses.is_dataclass(self.settings) and not isinstance(self.settings, type)
        settings = dataclasses.asdict(self.settings) if known else None  # type: ignore[call-overload]
        return {"kind": "baseline", "name": self.name, "settings": settings}

    def save(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> None:
        """Write a file whose path works wherever a model is named, with its provenance as JSON."""
        if not self.name:
            raise ConfigError("only an encoder made by build_baseline or load_published can be saved: this has no name")
        header = {
            "format": BASELINE_FORMAT,
            "format_version": BASELINE_FORMAT_VERSION,
            "baseline": self.name,
            "settings": json.dumps(self.describe()["settings"]),
            "provenance": json.dumps(dict(provenance or {})),
        }
        write_bytes(path, seal_tensors(self.state_dict(), header))
