"""What a training run is made of: features, encoder or baseline, where sites start, objective, training."""

import dataclasses
import json
import math
from dataclasses import dataclass, field
from typing import Any, Literal

from tessearth.encoder.config import EncoderConfig
from tessearth.encoder.voronoi import EMBEDDING_SPREAD
from tessearth.errors import ConfigError
from tessearth.imagery.recipe import FeatureRecipe
from tessearth.settings import from_plain
from tessearth.training.objective import ObjectiveConfig
from tessearth.zoo.baselines import BASELINES

COUNTS = ("batch_size", "log_every", "evaluate_every", "evaluate_places", "record_every", "checkpoint_every")
Precision = Literal["float32", "tf32", "bf16", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class SitesRecipe:
    """Where the sites start, and what they hold then."""

    start: Literal["land", "full", "clusters"] = "land"
    """The Fibonacci lattice on land, the whole lattice, or the clusters of another encoder's embeddings."""

    model: str | None = None
    """For clusters: the other encoder, by name, path or hub id."""

    places: int = 100_000
    """For clusters: how many places over land are embedded and clustered."""

    rounds: int = 20
    """For clusters: how many rounds of k-means."""

    spread: float = EMBEDDING_SPREAD
    """The standard deviation of the site embeddings. Broad sites are mixed by the dozens, which leaves little of it."""

    centred: bool = False
    """Whether what all places have in common is taken out of the blend and of the head before the first step; at
    the paper's start a quarter to a half of the head's units are off at every place."""

    def __post_init__(self) -> None:
        if self.start == "clusters" and self.model is None:
            raise ConfigError("sites.start is 'clusters'; name the encoder: sites.model = NAME or PATH")
        if self.places < 1 or self.rounds < 1:
            raise ConfigError("sites.places and sites.rounds must be at least 1")
        if not 0 < self.spread < math.inf:
            raise ConfigError(f"sites.spread is {self.spread}; it must be positive")


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecipe:
    """A published encoder that is trained instead of ours, on the same features under the same objective.

    Terms of the objective about tokens are left out, because a baseline has none.
    """

    name: str
    """A name of `baselines.BASELINES`, such as "harmonics-siren"."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Its settings; what is left out is filled in with its defaults, and an encoding without a network is given the
    residual one, because features nobody trained leave nothing to train."""

    def __post_init__(self) -> None:
        kind = BASELINES[self.name].settings
        given = {key: value for key, value in self.settings.items() if key != "network" or value is not None}
        chosen = from_plain(kind, given, "baseline.settings.")
        if chosen.network is None:
            chosen = from_plain(kind, {**given, "network": {}}, "baseline.settings.")
        object.__setattr__(self, "settings", dataclasses.asdict(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecipe:
    """How one group of parameters is optimised."""

    learning_rate: float
    """At its peak, after the warm-up; 0 leaves the group as it starts."""

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        for name in ("learning_rate", "weight_decay"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsRecipe:
    """The optimiser's groups; `optimiser.GROUP_OF` says which parameter belongs to which."""

    sites: GroupRecipe = GroupRecipe(learning_rate=1e-3)
    """Where the sites lie."""
    sharpness: GroupRecipe = GroupRecipe(learning_rate=5e-4)
    """How sharp they are, and their territory where it is separate."""
    head: GroupRecipe = GroupRecipe(learning_rate=5e-4, weight_decay=0.01)
    """Site embeddings and the residual head; of a baseline, its network."""
    tokens: GroupRecipe = GroupRecipe(learning_rate=2e-4, weight_decay=0.01)
    """Tokens, their projections and temperature, the mixture's projection and its norm."""
    image: GroupRecipe = GroupRecipe(learning_rate=5e-5)
    """The image head and the logit scale."""
    decoder: GroupRecipe = GroupRecipe(learning_rate=1e-3)
    """The decoder of the distillation term."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TrainingRecipe:
    """How the encoder is trained. The defaults are the paper's, warm-up and cosine taken per step."""

    epochs: float = 300.0
    """How many times every training place is seen."""

    steps: int | None = None
    """How many optimiser steps to take, instead of counting epochs."""

    batch_size: int = 6384
    """Pairs in a step, over all processes together."""

    share: float = 1.0
    """The share of the training places that is used, chosen by the seed."""

    groups: GroupsRecipe = GroupsRecipe()

    warmup_epochs: float = 5.0
    """The learning rates rise linearly for so long, at most half of the run."""

    final_learning_rate: float = 1e-6
    """Where the cosine ends, for every group."""

    clip_norm: float = 1.0
    """The largest length of the gradient; 0 clips nothing."""

    jitter_degrees: float = 0.01
    """Coordinates are moved by up to so much, evenly, each time they are seen."""

    contrastive_temperature: float = 0.07
    """The logit scale starts at one over this; it is learned, and at most 100."""

    anneal_temperature: bool = True
    """Whether the location side's token temperature goes linearly to its final value over the run."""

    image_head: Literal["auto", "linear", "none"] = "auto"
    """What brings features to the embedding's width; "auto" is linear where the widths differ and none where not."""

    precision: Precision = "tf32"
    """Of matrix products on a GPU; sums, norms and where a place lies among the sites are float32 in all but float64.
    On a processor tf32 and bf16 mean float32."""

    compiled: bool = True
    """On a GPU: fuse the step's kernels (torch.compile) and replay it as one CUDA graph; several processes do not."""

    keep_features: Literal["auto", "device", "disk"] = "auto"
    """Whether features lie in the device's memory or are read from disk batch by batch; "auto" asks what fits."""

    seed: int = 0
    """Of everything random: initial weights, the order of places, dropout, jitter."""

    log_every: int = 50
    """Steps between lines of the log; non-finite losses are found then."""

    evaluate_every: int = 500
    """Steps between evaluations on the validation places."""

    evaluate_places: int = 4096
    """At most so many validation places are used."""

    record_every: int = 50
    """Steps between records of where the sites are."""

    checkpoint_every: int = 1000
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        for name in COUNTS:
            if getattr(self, name) < 1:
                raise ConfigError(f"training.{name} is {getattr(self, name)}; it must be at least 1")
        if (self.steps is not None and self.steps < 1) or not self.epochs > 0:
            raise ConfigError("training must last: give training.steps of at least 1, or training.epochs above 0")
        if not 0 < self.share <= 1:
            raise ConfigError(f"training.share is {self.share}; it must be above 0 and at most 1")
        if not self.contrastive_temperature >= 0.01:
            raise ConfigError(f"training.contrastive_temperature is {self.contrastive_temperature}; at least 0.01")
        for name in ("warmup_epochs", "final_learning_rate", "clip_norm", "jitter_degrees", "seed"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"training.{name} is {getattr(self, name)}; it must be 0 or more")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that decides a run's weights."""

    features: FeatureRecipe | None = None
    """The store to train on; None takes whatever store is given."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    sites: SitesRecipe = SitesRecipe()

    baseline: BaselineRecipe | None = None
    """A published encoder to train instead of the one above."""

    start_from: str | None = None
    """Weights to begin with instead of random ones; they must be of the same sizes. A recipe file without an [encoder]
    takes its sizes from them."""

    objective: ObjectiveConfig = field(default_factory=ObjectiveConfig)
    training: TrainingRecipe = TrainingRecipe()

    def __post_init__(self) -> None:
        for name, default in (("encoder", EncoderConfig()), ("sites", SitesRecipe())):
            if self.baseline is not None and getattr(self, name) != default:
                raise ConfigError(f"the recipe has both a [baseline] and [{name}], which is ours alone; leave one out")

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON gives them back, without the tables of the encoder that is not trained."""
        plain: dict[str, Any] = json.loads(json.dumps(dataclasses.asdict(self)))
        for name in ("encoder", "sites") if self.baseline is not None else ("baseline",):
            del plain[name]
        return plain
