"""The configuration of an encoder: everything but its weights."""

import dataclasses
import math
from dataclasses import dataclass
from typing import Any, Literal, get_args

from tessearth.errors import ConfigError
from tessearth.settings import check_at_least, check_share

LogitForm = Literal["paper", "decoupled", "chord"]
MOST_HARMONICS = 5


@dataclass(frozen=True, slots=True, kw_only=True)
class TessellationConfig:
    """One set of Voronoi sites on the sphere."""

    num_sites: int = 4096
    """The number of sites (K)."""
    site_dim: int = 384
    """The width of a site's embedding (S)."""
    sharpness: float | Literal["spacing"] = 45.0
    """The sharpness of every site before training (tau), or "spacing": tau = c / d^2, with d the site's own spacing."""
    sharpness_range: tuple[float, float] = (0.5, 500.0)
    """The bounds of the sharpness in training; of tau d^2 where it is tied to the spacing."""
    spacing_factor: float = 2.0
    """c, the sharpness before training of sites that are one unit of length apart."""
    neighbours: int = 6
    """The number of nearest sites whose mean chord is a site's spacing (d)."""
    logits: LogitForm = "paper"
    """A site's logit at a place: "paper" is tau <x, s>, where a sharper site also wins more territory; "decoupled" is
    tau (<x, s> - 1) + b, where sharpness and territory are separate; "chord" is -tau / 2 |x - s|^2 + b, the same for
    unit vectors, exact in float32 however sharp the site is."""
    background: float | None = None
    """The logit of no site at all, for chords: far from every site the weights sum to less than 1 and the mixture goes
    to zero, instead of being that of the bluntest site. None leaves it out."""
    harmonics: int = 0
    """The harmonics of each site's cycle over the year (H); 0 knows no season."""
    on_sphere: bool = True
    """Whether sites are unit vectors; False gives them a radial degree of freedom."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "num_sites", "site_dim", "neighbours")
        if not 0 <= self.harmonics <= MOST_HARMONICS:
            raise ConfigError(
                f"harmonics is {self.harmonics}; it lies between 0 and {MOST_HARMONICS}: twelve months tell no more"
            )
        if self.logits not in get_args(LogitForm):
            raise ConfigError(
                f"logits is {self.logits!r}; it must be one of {', '.join(map(repr, get_args(LogitForm)))}"
            )
        low, high = self.sharpness_range
        start = self.spacing_factor if self.is_spaced else self.sharpness
        if isinstance(start, str) or not 0 < low <= start <= high < math.inf:
            name = "spacing_factor" if self.is_spaced else "sharpness"
            raise ConfigError(f"{name} {start} does not lie in sharpness_range {self.sharpness_range}")
        self._check_chord()

    @property
    def is_spaced(self) -> bool:
        """Whether sharpness is tied to the sites' spacing."""
        return self.sharpness == "spacing"

    @property
    def row_dim(self) -> int:
        """The numbers of a site: its embedding, then a cosine and a sine of the year for each harmonic, S each."""
        return self.site_dim * (1 + 2 * self.harmonics)

    def _check_chord(self) -> None:
        """Refuse what only chords between sites on the sphere can do."""
        if self.is_spaced and (self.logits != "chord" or not self.on_sphere):
            raise ConfigError("sharpness = 'spacing' needs logits = 'chord' and sites on the sphere (on_sphere = true)")
        if self.is_spaced and self.num_sites <= self.neighbours:
            raise ConfigError(f"{self.num_sites} sites have no {self.neighbours} neighbours to measure spacing by")
        if self.background is not None and self.logits != "chord":
            raise ConfigError(f"background is for logits = 'chord', not {self.logits!r}")


@dataclass(frozen=True, slots=True, kw_only=True)
class EncoderConfig:
    """Everything needed to rebuild an encoder before its weights are loaded. The defaults are the paper's model."""

    tessellations: tuple[TessellationConfig, ...] = (TessellationConfig(),)
    """The tessellations: each mixes its own site embeddings, and the mixtures are concatenated."""
    num_tokens: int = 64
    """The number of semantic tokens that places and images share (T); 0 leaves the tokens out."""
    output_dim: int = 512
    """The width of the embedding (D); image features have the same width."""
    hidden_dim: int = 512
    """The width of the head's residual blocks."""
    num_blocks: int = 2
    """The number of residual blocks in the head."""
    exit: Literal["linear", "units"] = "linear"
    """What the head ends with: a linear map, or the units of a last layer, centred, as the embedding itself. Without
    blocks, and with hidden_dim = output_dim, the head is that layer alone."""
    leak: float = 0.0
    """The slope of those units below zero; 0 leaves units that are zero at nearly all places."""
    dropout: float = 0.5
    """The share of units dropped inside each residual block in training."""
    token_dropout: float = 0.1
    """The share of tokens hidden from the location side in training, one draw per batch."""
    token_gate: float = 0.5
    """The share of the tokens in the blend (alpha); the rest is the projected site mixture."""
    location_temperature: float = 0.5
    """The initial temperature of the location side's token attention (T_loc); it is learned."""
    final_temperature: float = 0.2
    """The temperature that T_loc is annealed to in training."""
    image_temperature: float = 0.05
    """The fixed temperature of the image side's token attention."""
    cosine_attention: bool = False
    """Whether the location side compares directions (unit mixture, unit rows, no bias) instead of a linear map."""
    coordinate_octaves: int = 0
    """Coordinate conditioning: sines and cosines of the position at this many octaves join the head's input; 0 is none.
    They are those of x, y, z, not of the angles, so the poles and the antimeridian are ordinary points."""
    normalize: bool = True
    """Whether embeddings have unit length."""

    def __post_init__(self) -> None:
        if not self.tessellations:
            raise ConfigError("an encoder needs at least one tessellation")
        check_at_least(self, 1, "output_dim", "hidden_dim")
        check_at_least(self, 0, "num_tokens", "num_blocks", "coordinate_octaves")
        check_share(self, "dropout", "token_dropout")
        check_share(self, "token_gate", may_be_one=True)
        check_share(self, "leak")
        if self.leak and not self.ends_in_units:
            raise ConfigError(f"leak is {self.leak:g}, which is for exit = 'units', not {self.exit!r}")
        for name in ("location_temperature", "final_temperature", "image_temperature"):
            if not 0 < getattr(self, name) < math.inf:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")

    @property
    def knows_seasons(self) -> bool:
        """Whether embeddings change over the year."""
        return any(tessellation.harmonics for tessellation in self.tessellations)

    @property
    def ends_in_units(self) -> bool:
        """Whether the units of the head's last layer are the embedding."""
        return self.exit == "units"

    @property
    def has_trunk(self) -> bool:
        """Whether layers come before the head's last one."""
        return not self.ends_in_units or self.num_blocks > 0 or self.hidden_dim != self.output_dim

    @property
    def num_sites(self) -> int:
        """The number of sites in all tessellations."""
        return sum(tessellation.num_sites for tessellation in self.tessellations)

    @property
    def mixture_dim(self) -> int:
        """The width of the concatenated site mixtures."""
        return sum(tessellation.site_dim for tessellation in self.tessellations)

    def to_dict(self) -> dict[str, Any]:
        """Plain values, ready for JSON or TOML, without the settings of forms that a tessellation does not have.

        What describes an encoder in its file is so the same as before those forms existed.
        """
        plain = dataclasses.asdict(self)
        for values, tessellation in zip(plain["tessellations"], self.tessellations, strict=True):
            unused = [] if tessellation.is_spaced else ["spacing_factor", "neighbours"]
            unused += [] if tessellation.logits == "chord" else ["background"]
            for name in unused if tessellation.harmonics else [*unused, "harmonics"]:
                del values[name]
        if not self.ends_in_units:
            del plain["exit"], plain["leak"]
        return plain
