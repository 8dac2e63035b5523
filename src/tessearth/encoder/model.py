"""The whole location encoder, coordinates in and embeddings out, with the residual head at its end."""

import dataclasses
import math
import os
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple, Self

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.config import EncoderConfig
from tessearth.encoder.contract import LocationEncoder, SemanticTokens, Sites
from tessearth.encoder.sites import SiteStart, start_sites
from tessearth.encoder.voronoi import EMBEDDING_SPREAD, SoftVoronoi
from tessearth.errors import ConfigError
from tessearth.sphere import latlon_to_xyz


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


class Units(nn.Module):
    """Leaky units of a last layer, max(y, leak y) - centre with y = W x + b."""

    centre: Tensor
    """What is taken off, (width,): the mean over some places, so that inner products tell places apart."""

    def __init__(self, inputs: int, width: int, leak: float) -> None:
        super().__init__()
        self.layer, self.leak = nn.Linear(inputs, width), leak
        self.register_buffer("centre", torch.zeros(width))

    def forward(self, x: Tensor) -> Tensor:
        """(N, inputs) -> (N, width)."""
        return F.leaky_relu(self.layer(x), self.leak) - self.centre


class ResidualHead(nn.Module):
    """Linear + ReLU, residual blocks, then Linear without bias, or units: (N, input) -> (N, output)."""

    def __init__(self, config: EncoderConfig) -> None:
        super().__init__()
        hidden, inputs = config.hidden_dim, config.output_dim + 6 * config.coordinate_octaves
        self.entry = nn.Linear(inputs, hidden) if config.has_trunk else None
        self.blocks = nn.ModuleList(ResidualBlock(hidden, config.dropout) for _ in range(config.num_blocks))
        last = hidden if config.has_trunk else inputs
        self.exit = (
            Units(last, config.output_dim, config.leak)
            if config.ends_in_units
            else nn.Linear(last, config.output_dim, bias=False)
        )

    def forward(self, x: Tensor) -> Tensor:
        """(N, input) -> (N, output)."""
        x = x if self.entry is None else F.relu(self.entry(x))
        for block in self.blocks:
            x = block(x)
        out: Tensor = self.exit(x)
        return out


class Encoding(NamedTuple):
    """An embedding with its parts, for each place."""

    embedding: Tensor
    """The result for users, (N, D): of unit length where `config.normalize` is set."""
    raw: Tensor
    """The head's output before it is brought to unit length, (N, D)."""
    token_attention: Tensor | None
    """Each place's attention to each semantic token, (N, T); None without tokens."""
    site_weights: Tensor
    """The weights of the sites at each place, (N, K), tessellations one after another; each sums to 1."""


class SphericalVoronoiEncoder(LocationEncoder):
    """Turns places into embeddings by learned Voronoi sites on the sphere and shared semantic tokens.

    x -> mixture f of site embeddings (SoftVoronoi) -> blend LayerNorm((1 - alpha) (W f + b) + alpha z) with the
    attended tokens z (SemanticTokens) -> ResidualHead -> unit length.
    """

    takes_directions = True

    def __init__(
        self,
        config: EncoderConfig | None = None,
        *,
        sites: SiteStart | Sequence[Tensor] = "land",
        generator: torch.Generator | None = None,
    ) -> None:
        """Build an untrained encoder; `sites` names where they start or gives (K, 3) positions per tessellation."""
        super().__init__()
        self.config = config = config or EncoderConfig()
        self.output_dim = config.output_dim
        self.tessellations = nn.ModuleList(
            SoftVoronoi(tessellation, positions)
            for tessellation, positions in zip(config.tessellations, _start_positions(config, sites), strict=True)
        )
        self.tokens = SemanticTokens(config) if config.num_tokens else None
        same_width = config.mixture_dim == config.output_dim
        self.projection = nn.Identity() if same_width else nn.Linear(config.mixture_dim, config.output_dim)
        self.norm = nn.LayerNorm(config.output_dim)
        self.head = ResidualHead(config)
        if self.norm.weight.is_meta:
            return
        for voronoi in self.voronois():
            drawn = torch.empty(voronoi.config.num_sites, voronoi.config.site_dim)
            nn.init.normal_(drawn, std=EMBEDDING_SPREAD, generator=generator)
            cycles = torch.zeros(len(drawn), voronoi.config.row_dim - voronoi.config.site_dim)
            voronoi.embeddings.data = torch.cat((drawn, cycles), dim=1)
        if self.tokens is not None:
            self.tokens.reset_parameters(generator)
        for module in (*self.projection.modules(), *self.head.modules()):
            if isinstance(module, nn.Linear):
                reset_linear(module, generator)

    @classmethod
    def allocate(cls, config: EncoderConfig) -> Self:
        """An encoder whose tensors have shapes but no memory yet, for weights that are about to be assigned."""
        with torch.device("meta"):
            return cls(config, sites=[torch.empty(t.num_sites, 3) for t in config.tessellations])

    def forward(self, latlon: Tensor, season: Tensor | None = None) -> Tensor:
        """Embed places given in degrees, latitude first, (N, 2) -> (N, D): over the year, or at shares of it, (N,)."""
        return self.embed_xyz(latlon_to_xyz(latlon), season=season)

    def embed_xyz(self, xyz: Tensor, top_k: int | None = None, season: Tensor | None = None) -> Tensor:
        """Embed directions on the sphere, (N, 3) -> (N, D); with `top_k`, by that many sites per tessellation."""
        return self.from_mixtures(xyz, self.mix(self._weights(xyz, top_k)), season)[0]

    def from_mixtures(
        self, xyz: Tensor, mixtures: Sequence[Tensor], season: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """Embeddings (N, D) and token attention (N, T) from the tessellations' mixtures at directions."""
        blend, attention = self.blend(xyz, mixtures, season)
        return self._finish(self.head(blend)), attention

    def encode(self, latlon: Tensor, top_k: int | None = None, season: Tensor | None = None) -> Encoding:
        """Embed places and keep the parts: (N, 2) degrees to an Encoding."""
        return self.encode_xyz(latlon_to_xyz(latlon), top_k, season)

    def encode_xyz(self, xyz: Tensor, top_k: int | None = None, season: Tensor | None = None) -> Encoding:
        """Embed directions on the sphere and keep the parts: (N, 3) to an Encoding."""
        weights = self._weights(xyz, top_k)
        blend, attention = self.blend(xyz, self.mix(weights), season)
        raw = self.head(blend)
        return Encoding(self._finish(raw), raw, attention, torch.cat(weights, dim=-1))

    def mix(self, weights: Sequence[Tensor]) -> list[Tensor]:
        """Each tessellation's mixture of the numbers of its sites, (N, S (1 + 2 H)), by its site weights (N, K)."""
        return [voronoi.mix(part) for voronoi, part in zip(self.voronois(), weights, strict=True)]

    def blend(
        self, xyz: Tensor, mixtures: Sequence[Tensor], season: Tensor | None = None
    ) -> tuple[Tensor, Tensor | None]:
        """The head's input and the token attention in it, from the tessellations' mixtures, f at the season.

        LayerNorm((1 - alpha) (W f + b) + alpha z), (N, D), then the coordinates' own features where there are any.
        """
        parts = [voronoi.at_season(part, season) for voronoi, part in zip(self.voronois(), mixtures, strict=True)]
        mixture = torch.cat(parts, dim=-1).to(self.norm.weight.dtype)
        blend, attention = self.projection(mixture), None
        if self.tokens is not None:
            attention = self.tokens.location_attention(mixture)
            gate = self.config.token_gate
            blend = (1 - gate) * blend + gate * self.tokens.attend(attention)
        blend = self.norm(blend)
        if self.config.coordinate_octaves:
            blend = torch.cat((blend, self.coordinate_features(xyz).to(blend.dtype)), dim=-1)
        return blend, attention

    @property
    def input_dtype(self) -> torch.dtype:
        """The precision of the sites, which may be wider than the head's."""
        return self.voronois()[0].directions.dtype

    @property
    def widest(self) -> int:
        """A place has a weight for every site."""
        return self.config.num_sites

    def embed_input(self, places: Tensor) -> Tensor:
        """Embeddings (N, D) of directions (N, 3) in the sites' precision."""
        return self.embed_xyz(places)

    def set_precision_(self, dtype: torch.dtype) -> None:
        """Everything after the site mixture; sites keep at least float32, because sharp ones need its digits."""
        for child in self.children():
            child.to(torch.promote_types(dtype, torch.float32) if child is self.tessellations else dtype)

    def exact(self, latlon: Tensor) -> tuple[Tensor, ...]:
        """Directions (N, 3), then each tessellation's site weights (N, K), or its mixture (N, S) by a mixer."""
        xyz = latlon_to_xyz(latlon)
        return xyz, *(v.exact_weights(xyz) if v.mixer is None else v.mixer(v, xyz) for v in self.voronois())

    def from_exact(self, *exact: Tensor, season: Tensor | None = None) -> tuple[Tensor, Tensor | None]:
        """The head's output and the places' attention over the tokens."""
        xyz, *parts = exact
        mixed = [part if v.mixer else v.mix(part) for v, part in zip(self.voronois(), parts, strict=True)]
        blend, attention = self.blend(xyz, mixed, season)
        return self.head(blend), attention

    @torch.no_grad()
    def at(self, season: float | None) -> "SphericalVoronoiEncoder":
        """An encoder without cycles that embeds as this one at a share of the year, or over the year."""
        config = self.config
        levels = tuple(dataclasses.replace(t, harmonics=0) for t in config.tessellations)
        state = dict(self.state_dict())
        when = None if season is None else torch.tensor(season, dtype=torch.float64)
        for i, voronoi in enumerate(self.voronois()):
            state[f"tessellations.{i}.embeddings"] = voronoi.at_season(voronoi.embeddings, when).clone()
        still = SphericalVoronoiEncoder.allocate(dataclasses.replace(config, tessellations=levels))
        still.load_state_dict(state, strict=True, assign=True)
        return still.train(self.training)

    def sites(self) -> Sites:
        """Positions (K, 3) and sharpness (K,), tessellations one after another."""
        voronois = self.voronois()
        return Sites(torch.cat([v.positions() for v in voronois]), torch.cat([v.sharpness() for v in voronois]))

    def describe(self) -> dict[str, Any]:
        """The kind and the configuration."""
        return {"kind": "voronoi", "config": self.config.to_dict()}

    def save(self, path: str | os.PathLike[str], *, provenance: Mapping[str, Any] | None = None) -> None:
        """Write one file or a folder, as `encoder.weights.save` does."""
        from tessearth.encoder.weights import save

        save(self, path, provenance=provenance)

    def voronois(self) -> list[SoftVoronoi]:
        """The tessellations, typed."""
        return [module for module in self.tessellations if isinstance(module, SoftVoronoi)]

    def constrain_(self) -> None:
        """Constrain every tessellation; called after every optimiser step."""
        for tessellation in self.voronois():
            tessellation.constrain_()

    def _weights(self, xyz: Tensor, top_k: int | None) -> list[Tensor]:
        """Site weights per tessellation, in the sites' precision."""
        voronois = self.voronois()
        xyz = xyz.to(voronois[0].directions.dtype)
        return [tessellation.weights(xyz, top_k) for tessellation in voronois]

    def coordinate_features(self, xyz: Tensor) -> Tensor:
        """Sines and cosines of pi 2^j (x, y, z) for every octave j, (N, 3) -> (N, 6 octaves)."""
        octaves = math.pi * 2 ** torch.arange(self.config.coordinate_octaves, dtype=xyz.dtype, device=xyz.device)
        angles = (xyz[:, None, :] * octaves[:, None]).flatten(1)
        return torch.cat((angles.sin(), angles.cos()), dim=-1)

    def _finish(self, raw: Tensor) -> Tensor:
        """Normalize in at least float32: bfloat16's eight bits do not hold unit length."""
        wide = raw.float() if raw.dtype.itemsize < 4 else raw
        return F.normalize(wide, dim=-1) if self.config.normalize else wide


def reset_linear(layer: nn.Linear, generator: torch.Generator | None = None) -> None:
    """Draw a linear layer anew as PyTorch does by default, U(-1/sqrt(fan_in), 1/sqrt(fan_in)), from a generator."""
    bound = 1 / math.sqrt(layer.in_features)
    nn.init.uniform_(layer.weight, -bound, bound, generator=generator)
    if layer.bias is not None:
        nn.init.uniform_(layer.bias, -bound, bound, generator=generator)


def _start_positions(config: EncoderConfig, sites: SiteStart | Sequence[Tensor]) -> list[Tensor]:
    """Initial positions for every tessellation, checked against the configuration."""
    if isinstance(sites, str):
        return [start_sites(sites, tessellation.num_sites) for tessellation in config.tessellations]
    if len(sites) != len(config.tessellations):
        raise ConfigError(f"{len(sites)} sets of sites were given for {len(config.tessellations)} tessellations")
    for i, (positions, tessellation) in enumerate(zip(sites, config.tessellations, strict=True)):
        if tuple(positions.shape) != (tessellation.num_sites, 3):
            raise ConfigError(f"sites[{i}] has shape {tuple(positions.shape)}, not ({tessellation.num_sites}, 3)")
    return list(sites)
