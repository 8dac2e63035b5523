"""The [sites] table of a recipe: where sites start, how they are mixed in training, and how their number grows."""

import math
from dataclasses import dataclass
from typing import Literal

from tessearth.encoder import EMBEDDING_SPREAD, EncoderConfig, TessellationConfig
from tessearth.errors import ConfigError
from tessearth.settings import check_at_least, check_share

Start = Literal["land", "full", "clusters", "error", "density"]

NEEDS = {"clusters": ("model", "the encoder"), "error": ("model", "the run"), "density": ("density", "the file")}
"""A start to the setting that it needs, and what that names."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GrowthRecipe:
    """Sites are born where the residual gathers and die where nothing passes; `num_sites` is the budget.

    Tessellations whose sharpness is tied to spacing grow; others keep their sites.
    """

    start: tuple[int, ...] | None = None
    """The sites of each tessellation at the beginning; with start_from those of the weights."""

    every: int = 500
    """Steps between events, and from an event to the end of what it began: a multiple of sites.refresh_every."""

    first: float = 0.1
    """The share of the run after which the first event may come."""

    until: float = 0.7
    """The share of the run at which the last event comes, by which the budget is reached."""

    die_below: float = 0.05
    """A site is taken away when places give it less than this share of the mean weight of a site."""

    accumulate_every: int = 10
    """Steps between those whose residuals are added up."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "every", "accumulate_every", where="sites.growth.")
        check_share(self, "first", "until", "die_below", where="sites.growth.", may_be_one=True)
        if not self.first < self.until:
            raise ConfigError(f"sites.growth.first is {self.first}; it must lie before until, {self.until}")
        if self.accumulate_every > self.every:
            raise ConfigError(
                f"sites.growth.accumulate_every is {self.accumulate_every}, longer than the {self.every} steps to an "
                f"event"
            )

    def events(self, steps: int) -> range:
        """The steps before which an event comes, in a run of so many."""
        first = max(1, math.ceil(self.first * steps / self.every))
        return range(first * self.every, min(math.floor(self.until * steps), steps - 1) + 1, self.every)


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesRecipe:
    """Where the sites start, and their embeddings then; how training mixes them, and how their number grows."""

    start: Start | tuple[Start, ...] = "land"
    """The Fibonacci lattice on land, the whole lattice, the clusters of another encoder's embeddings, places where a
    finished run errs, or places of a density; one for all tessellations, or one each."""

    model: str | None = None
    """For clusters: the other encoder, by name, path or hub id. For error: the finished run's folder."""

    density: str | None = None
    """For density: a raster or a table of places, as `features.places.density`."""

    density_above: float = 0.0
    """For density: of its pixels only what they have above this counts."""

    density_km: float = 50.0
    """For density: how wide the cells are over which the rows of a table are spread."""

    places: int = 100_000
    """For clusters, error and density: the number of places that are embedded or drawn."""

    rounds: int = 20
    """For clusters: the rounds of k-means."""

    spread: float = EMBEDDING_SPREAD
    """The standard deviation of the site embeddings; mixing dozens of broad sites averages most of it out."""

    centred: bool = False
    """Whether the mean over all places is subtracted in the blend and in the head before the first step; at the
    paper's start a quarter to a half of the head's units are off at every place."""

    refresh_every: int = 50
    """Steps between measurements of the spacing that sharpness is tied to, and between lists of near sites."""

    sparse_from: int = 16_384
    """Tessellations of chords with more sites than this are mixed by lists of near sites in training."""

    left_out: float = 1e-6
    """The largest share of the weight that such lists leave out at any place."""

    growth: GrowthRecipe | None = None
    """How the number of sites grows; None keeps them all from the start."""

    def __post_init__(self) -> None:
        for start in self.starts(1):
            name, what = NEEDS.get(start, (None, None))
            if name is not None and getattr(self, name) is None:
                raise ConfigError(f"sites.start is {start!r}; name {what}: sites.{name} = NAME or PATH")
        check_at_least(self, 1, "places", "rounds", "refresh_every", "sparse_from", where="sites.")
        if not 0 < self.spread < math.inf:
            raise ConfigError(f"sites.spread is {self.spread}; it must be positive")
        if not 0 < self.left_out < 1:
            raise ConfigError(f"sites.left_out is {self.left_out}; it must lie between 0 and 1")
        if self.growth is not None and self.growth.every % self.refresh_every:
            raise ConfigError(
                f"sites.growth.every is {self.growth.every}; it must be a multiple of sites.refresh_every, "
                f"{self.refresh_every}"
            )

    def starts(self, count: int) -> tuple[Start, ...]:
        """The start of each of so many tessellations."""
        return self.start if isinstance(self.start, tuple) else (self.start,) * count


def check_sites(sites: SitesRecipe, encoder: EncoderConfig, *, from_weights: bool) -> None:
    """Refuse starts and growth that do not fit the tessellations."""
    tessellations = encoder.tessellations
    if len(sites.starts(len(tessellations))) != len(tessellations):
        raise ConfigError(f"sites.start has {len(sites.start)} names for {len(tessellations)} tessellations")
    if sites.growth is None:
        return
    if not any(t.is_spaced for t in tessellations):
        raise ConfigError('sites.growth is for tessellations with sharpness = "spacing", and there is none')
    if sites.growth.start is None:
        if not from_weights:
            raise ConfigError("sites.growth.start is missing: the sites of each tessellation at the beginning")
        return
    if len(sites.growth.start) != len(tessellations):
        raise ConfigError(
            f"sites.growth.start has {len(sites.growth.start)} numbers for {len(tessellations)} tessellations"
        )
    for i, (start, tessellation) in enumerate(zip(sites.growth.start, tessellations, strict=True)):
        _check_start(i, start, tessellation)


def _check_start(i: int, start: int, tessellation: TessellationConfig) -> None:
    """Refuse a number of sites to begin with that the tessellation cannot have."""
    budget = tessellation.num_sites
    if start > budget:
        raise ConfigError(
            f"sites.growth.start[{i}] is {start}, more than the budget, encoder.tessellations.{i}.num_sites = {budget}"
        )
    if start < budget and not tessellation.is_spaced:
        raise ConfigError(
            f'sites.growth.start[{i}] is {start} of {budget}: only sharpness = "spacing" grows; start with all {budget}'
        )
    if tessellation.is_spaced and start <= tessellation.neighbours:
        raise ConfigError(
            f"sites.growth.start[{i}] is {start}; spacing is measured by {tessellation.neighbours} neighbours, "
            f"so start with more"
        )
