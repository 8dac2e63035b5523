"""Training recipes: features, encoder or baseline, where sites start, objective, training; and their TOML files.

A recipe may begin from another one, `base = "paper"`: tables are laid over the base's, any other value replaces it.
`--set training.batch_size=512` does the same for one value; `--set features=none` removes a table. An [encoder] and a
[baseline] replace each other: the one laid on top is trained.
"""

import dataclasses
import json
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal

from tessearth.encoder import EncoderConfig, LocationEncoder
from tessearth.errors import ConfigError
from tessearth.imagery import FeatureRecipe, lay_over, read_layers
from tessearth.settings import check_at_least, from_plain, read_value
from tessearth.training.objective import ObjectiveConfig
from tessearth.training.sites_recipe import SitesRecipe, check_sites
from tessearth.zoo import BASELINES

Precision = Literal["float32", "tf32", "bf16", "float64"]


@dataclass(frozen=True, slots=True, kw_only=True)
class BaselineRecipe:
    """A published encoder that is trained instead of ours, on the same features under the same objective.

    Terms of the objective about tokens are left out, because a baseline has none.
    """

    name: str
    """A name of `baselines.BASELINES`, such as "harmonics-siren"."""

    settings: dict[str, Any] = field(default_factory=dict)
    """Its settings; what is left out is filled in with its defaults, and an encoding without a network is given the
    residual one, because positional features alone leave nothing to train."""

    def __post_init__(self) -> None:
        kind = BASELINES[self.name].settings
        given = {key: value for key, value in self.settings.items() if key != "network" or value is not None}
        chosen = from_plain(kind, given, "baseline.settings.")
        if getattr(chosen, "network", chosen) is None:
            chosen = from_plain(kind, {**given, "network": {}}, "baseline.settings.")
        object.__setattr__(self, "settings", dataclasses.asdict(chosen))


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupRecipe:
    """How one group of parameters is optimised."""

    learning_rate: float
    """The peak rate, after the warm-up; 0 leaves the group as it starts."""

    weight_decay: float = 0.0

    def __post_init__(self) -> None:
        check_at_least(self, 0, "learning_rate", "weight_decay")


@dataclass(frozen=True, slots=True, kw_only=True)
class GroupsRecipe:
    """The optimiser's groups; `step.GROUP_OF` gives the group of every parameter."""

    sites: GroupRecipe = GroupRecipe(learning_rate=1e-3)
    """The positions of the sites."""
    sharpness: GroupRecipe = GroupRecipe(learning_rate=5e-4)
    """Their sharpness, and their territory where it is separate."""
    head: GroupRecipe = GroupRecipe(learning_rate=5e-4, weight_decay=0.01)
    """Site embeddings and the residual head; all of any other encoder."""
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
    """Passes over the training places."""

    steps: int | None = None
    """Optimiser steps, instead of epochs."""

    batch_size: int = 6384
    """Pairs in a step, over all processes together."""

    share: float = 1.0
    """The share of the training places in use, chosen by the seed."""

    places: Literal["fixed", "endless"] = "fixed"
    """Whether every epoch has the same training places, or draws others; "endless" makes features without a store."""

    groups: GroupsRecipe = GroupsRecipe()

    warmup_epochs: float = 5.0
    """How long the learning rates rise linearly, at most half of the run."""

    final_learning_rate: float = 1e-6
    """The rate at the end of the cosine, for every group."""

    clip_norm: float = 1.0
    """The largest norm of the gradient; 0 clips nothing."""

    jitter_degrees: float = 0.01
    """The largest uniform random shift of a coordinate, drawn anew in every step."""

    contrastive_temperature: float = 0.07
    """The logit scale starts at one over this; it is learned, and stays at most 100."""

    anneal_temperature: bool = True
    """Whether the location side's token temperature goes linearly to its final value over the run."""

    image_head: Literal["auto", "linear", "none"] = "auto"
    """The map of features to the embedding's width; "auto" is linear where the widths differ, else none."""

    precision: Precision = "tf32"
    """Of matrix products on a GPU; sums, norms and site weights are float32 in all but float64. On a CPU tf32 and bf16
    mean float32."""

    compiled: bool = True
    """On a GPU: fuse the step's kernels (torch.compile) and replay it as one CUDA graph; several processes do not."""

    keep_features: Literal["auto", "device", "disk"] = "auto"
    """Whether features are kept in the device's memory or read from disk batch by batch; "auto" goes by what fits."""

    seed: int = 0
    """The seed of everything random: initial weights, the order of places, dropout, jitter."""

    log_every: int = 50
    """Steps between lines of the log, at which non-finite losses are found."""

    evaluate_every: int = 500
    """Steps between evaluations on the validation places."""

    evaluate_places: int = 4096
    """The largest number of validation places in use."""

    record_every: int = 50
    """Steps between records of the sites."""

    checkpoint_every: int = 1000
    """Steps between checkpoints."""

    def __post_init__(self) -> None:
        counts = ("batch_size", "log_every", "evaluate_every", "evaluate_places", "record_every", "checkpoint_every")
        check_at_least(self, 1, *counts, where="training.")
        if (self.steps is not None and self.steps < 1) or not self.epochs > 0:
            raise ConfigError("training must last: give training.steps of at least 1, or training.epochs above 0")
        if not 0 < self.share <= 1:
            raise ConfigError(f"training.share is {self.share}; it must be above 0 and at most 1")
        check_at_least(self, 0.01, "contrastive_temperature", where="training.")
        sizes = ("warmup_epochs", "final_learning_rate", "clip_norm", "jitter_degrees", "seed")
        check_at_least(self, 0, *sizes, where="training.")


@dataclass(frozen=True, slots=True, kw_only=True)
class Recipe:
    """Everything that a run's weights depend on."""

    features: FeatureRecipe | None = None
    """The store to train on; None takes any store."""

    encoder: EncoderConfig = field(default_factory=EncoderConfig)
    sites: SitesRecipe = field(default_factory=SitesRecipe)

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
        if self.baseline is None:
            check_sites(self.sites, self.encoder, from_weights=self.start_from is not None)
        if self.sites.growth is not None:
            self._check_growth()
        places = self.features.places if self.features else None
        if self.training.places == "endless" and (places is None or places.table or places.where == "source"):
            raise ConfigError(
                "endless places are drawn by [features.places] from land, the sphere, a box or a region, "
                "not from a store, a table or a source; set training.places = 'fixed', or features.places.where"
            )

    def _check_growth(self) -> None:
        """Refuse growth without what it goes by."""
        if self.training.groups.sites.learning_rate == 0:
            raise ConfigError("sites.growth moves sites, and training.groups.sites.learning_rate is 0: leave one out")
        if self.objective.distillation == 0:
            raise ConfigError(
                "sites.growth goes by the residual of the distillation; set objective.distillation above 0"
            )

    def to_dict(self) -> dict[str, Any]:
        """Plain values as JSON gives them back, without the tables of the encoder that is not trained."""
        plain: dict[str, Any] = json.loads(json.dumps({**dataclasses.asdict(self), "encoder": self.encoder.to_dict()}))
        for name in ("encoder", "sites") if self.baseline is not None else ("baseline",):
            del plain[name]
        return plain


ENCODERS = ("encoder", "baseline")
REPLACED_BY = {"baseline": ("encoder", "sites"), "encoder": ("baseline",)}
"""A table to those of a base that it replaces."""


def read_recipe(name_or_path: str, changes: Sequence[str] = ()) -> Recipe:
    """A recipe by name or file, over its base, with changes such as "training.batch_size=512" on top."""
    own: dict[str, Any] = {}
    for layer in read_layers(name_or_path):
        own = lay_over(_without_replaced(own, layer), layer)
    if any(change.strip().startswith("baseline.") for change in changes):
        own = _without_replaced(own, ["baseline"])
    values = lay_over(Recipe().to_dict(), own)
    for change in changes:
        _apply(values, change)
    try:
        _check_levels(values)
        return from_plain(Recipe, _with_sizes(values, own, changes))
    except ConfigError as error:
        raise ConfigError(f"{name_or_path}: {error}") from None


def _check_levels(values: Mapping[str, Any]) -> None:
    """Refuse several tessellations of which none says its sharpness: they would all be the same level."""
    encoder = values.get("encoder")
    levels = encoder.get("tessellations") if isinstance(encoder, Mapping) else None
    if isinstance(levels, list) and len(levels) > 1 and not any("sharpness" in level for level in levels):
        raise ConfigError(f'{len(levels)} tessellations, and none says its sharpness: give each a number or "spacing"')


def to_toml(values: Mapping[str, Any]) -> str:
    """Plain values as TOML that reads back as the same; None is left out."""
    return "\n".join(_toml_lines(values, ())).lstrip("\n") + "\n"


def first_difference(old: object, new: object, where: str = "") -> str | None:
    """A sentence on the first difference of two plain values; None when they are the same."""
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        keys = [*old, *(key for key in new if key not in old)]
        pairs: list[tuple[str, object, object]] = [(str(key), old.get(key), new.get(key)) for key in keys]
    elif isinstance(old, list) and isinstance(new, list) and len(old) == len(new):
        pairs = [(str(i), *both) for i, both in enumerate(zip(old, new, strict=True))]
    else:
        return None if old == new else f"{where} is {json.dumps(new)}, there it is {json.dumps(old)}"
    deeper = (first_difference(a, b, f"{where}.{key}" if where else key) for key, a, b in pairs)
    return next((difference for difference in deeper if difference), None)


def _without_replaced(below: Mapping[str, Any], above: Collection[str]) -> dict[str, Any]:
    """The tables below without those that a table above replaces."""
    replaced = {name for table in above for name in REPLACED_BY.get(table, ()) if name not in above}
    return {name: table for name, table in below.items() if name not in replaced}


def _with_sizes(values: dict[str, Any], own: Mapping[str, Any], changes: Sequence[str]) -> dict[str, Any]:
    """The values with the sizes of the weights to start from, where neither recipe nor changes describe an encoder."""
    described = any(name in own or any(change.startswith(f"{name}.") for change in changes) for name in ENCODERS)
    taken_away = [name for name in ENCODERS if name in values and values[name] is None]
    kept = {name: table for name, table in values.items() if name not in taken_away}
    if not isinstance(values.get("start_from"), str) or (described and not taken_away):
        return kept
    from tessearth.zoo import load_base

    others = {name: table for name, table in kept.items() if name not in ENCODERS}
    return others | describe_encoder(load_base(values["start_from"]))


def describe_encoder(encoder: LocationEncoder) -> dict[str, Any]:
    """The table of a recipe that describes an encoder: its [encoder] or its [baseline]."""
    described: dict[str, Any] = json.loads(json.dumps(encoder.describe()))
    return {"encoder": described["config"]} if described.pop("kind") == "voronoi" else {"baseline": described}


def _apply(values: dict[str, Any], change: str) -> None:
    """Set one value by its dotted path; whole numbers on the path are positions in lists."""
    path, equals, text = change.partition("=")
    *parents, last = path.strip().split(".")
    if not equals or not last:
        raise ConfigError(f"--set {change!r} is not of the form a.b=value")
    table: Any = values
    for name in parents:
        table = table.setdefault(name, {}) if isinstance(table, dict) else _item(table, name, change)
        if table is None or not isinstance(table, dict | list):
            raise ConfigError(f"--set {change!r}: {name} is no table")
    if isinstance(table, list):
        _item(table, last, change)
        table[int(last)] = read_value(text)
    else:
        table[last] = read_value(text)


def _item(table: list[Any], name: str, change: str) -> Any:
    if not name.isdecimal() or int(name) >= len(table):
        raise ConfigError(f"--set {change!r}: {name!r} is no place in a list of {len(table)}")
    return table[int(name)]


def _toml_lines(table: Mapping[str, Any], path: tuple[str, ...]) -> Iterator[str]:
    """A table's own values first, then its tables under their headings, as TOML requires."""
    for key, value in table.items():
        if value is not None and not _is_tables(value):
            yield f"{_key(key)} = {json.dumps(value, ensure_ascii=False)}"  # but for tables, TOML writes as JSON does
    for key, value in table.items():
        inner = (*path, _key(key))
        if isinstance(value, Mapping):
            yield from ("", f"[{'.'.join(inner)}]", *_toml_lines(value, inner))
        elif _is_tables(value):
            for item in value:
                yield from ("", f"[[{'.'.join(inner)}]]", *_toml_lines(item, inner))


def _is_tables(value: object) -> bool:
    if isinstance(value, list):
        return bool(value) and all(isinstance(item, Mapping) for item in value)
    return isinstance(value, Mapping)


def _key(key: str) -> str:
    return key if key.replace("-", "").replace("_", "").isalnum() and key.isascii() else json.dumps(key)
