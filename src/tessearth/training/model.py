"""Everything that is trained together: the encoder, the image head, the logit scale and the distillation's decoders.

An encoder whose embedding are its head's units is trained through a bridge, a linear map from the units to the images'
space, where both sides meet. It stays behind with the decoders: what it could say is a linear map of the embedding, and
units that meet images themselves learn far less. The encoder's units are centred where its weights are written.

The image side. A store holds frozen features of width F; the objective needs unit vectors of the encoder's width D.
Features are centred and divided by one number, so that their mean square is 1 and their spectrum unchanged (whitening
hurts). Then v = unit(W x + b) with a linear head where F != D; where F == D, as when the store keeps D principal
components, v = unit(x) and only the tokens' attention to images is learned on the image side.
"""

import contextlib
import math
from collections.abc import Iterator
from typing import TypeGuard

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder import LocationEncoder, SphericalVoronoiEncoder, Units, reset_linear
from tessearth.errors import ConfigError
from tessearth.ridge import ridge_path
from tessearth.training.data import Batch, Moments
from tessearth.training.objective import TOKEN_TERMS, ObjectiveConfig, Sides, Terms, total_loss
from tessearth.training.recipe import TrainingRecipe
from tessearth.zoo import SphericalHarmonics


class PositionWaves(nn.Module):
    """Spherical harmonics of degrees 1 to L, those of degree l scaled by l^-decay: L (L + 2) of them.

    Over the whole sphere their total variance is `objective.position` times that of image features of mean square 1.
    """

    heights: Tensor

    def __init__(self, objective: ObjectiveConfig, feature_width: int) -> None:
        super().__init__()
        self.harmonics = SphericalHarmonics(objective.position_degrees + 1)
        degree = torch.arange(1, objective.position_degrees + 1, dtype=torch.float64)
        height = degree**-objective.position_decay
        total = ((2 * degree + 1) * height.square()).sum() / (4 * math.pi)
        height = height * (objective.position * feature_width / total).sqrt()
        self.register_buffer("heights", height.repeat_interleave((2 * degree + 1).long()).float(), persistent=False)

    @torch.no_grad()
    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) degrees -> (N, L (L + 2))."""
        waves: Tensor = self.harmonics(latlon)[:, 1:]
        return waves * self.heights.to(waves.dtype)


MAX_LOGIT_SCALE = math.log(100.0)


class PretrainingModel(nn.Module):
    """Pairs of places and frozen image features in, the terms of the objective out."""

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(
        self,
        encoder: LocationEncoder,
        moments: Moments,
        objective: ObjectiveConfig,
        training: TrainingRecipe,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        self.encoder, self.objective = check_trainable(encoder), objective
        width = len(moments.mean)
        output = meeting_width(encoder) or width
        self.bridge = nn.Linear(encoder.output_dim, output) if _uncentre_units_(encoder, objective) else None
        self.left_out = _left_out(objective, has_tokens=encoder.tokens is not None)
        """Terms of the objective that do not apply to this encoder."""
        self.mixed = training.precision == "bf16"
        self.image_head = nn.Linear(width, output) if _wants_head(training, width, output) else None
        self.waves = PositionWaves(objective, width) if objective.position > 0 else None
        target = width + (0 if self.waves is None else len(self.waves.heights))
        self.decoder = nn.Linear(output, target) if objective.distillation > 0 else None
        self.prefix_decoders = nn.ModuleList(nn.Linear(n, target) for n in _prefixes(objective, output))
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(training.contrastive_temperature)))
        self.register_buffer("feature_mean", moments.mean.float().clone())
        self.register_buffer("feature_scale", (width / moments.variance.clamp_min(1e-30)).sqrt().float().clone())
        for layer in (self.image_head, self.bridge, self.decoder, *self.prefix_decoders):
            if isinstance(layer, nn.Linear):
                reset_linear(layer, generator)

    def forward(self, latlon: Tensor, features: Tensor) -> Terms:
        """The objective over pairs: degrees (N, 2) and raw features (N, F)."""
        return total_loss(self.sides(latlon, features), self.objective)

    def sides(self, latlon: Tensor, features: Tensor) -> Sides:
        """Embeddings, attentions and decoded features of both sides of the pairs."""
        feature = (features.to(self.feature_mean.dtype) - self.feature_mean) * self.feature_scale
        exact = self.encoder.exact(latlon)
        with torch.autocast(latlon.device.type, torch.bfloat16, enabled=self.mixed and latlon.is_cuda):
            raw, attention = self.encoder.from_exact(*exact)
            raw = raw if self.bridge is None else self.bridge(raw)
            projected = feature if self.image_head is None else self.image_head(feature)
        location, image = (F.normalize(side.to(feature.dtype), dim=-1) for side in (raw, projected))
        image_attention = reconstructed = None
        tokens = self.encoder.tokens
        if tokens is not None:
            image_attention = tokens.image_attention(image.detach())
            reconstructed = tokens.attend(image_attention)
        decoded = self._decoded(raw.to(feature.dtype), location)
        target = self.distilled(latlon, feature) if decoded else feature
        return Sides(
            location=location,
            image=image,
            scale=self.logit_scale.exp(),
            location_attention=attention,
            image_attention=image_attention,
            reconstructed=reconstructed,
            decoded=decoded[0] if decoded else None,
            prefix_decoded=tuple(decoded[1:]),
            feature=target,
            variance=feature.new_full((), feature.shape[-1]),
        )

    def residual(self, sides: Sides) -> Tensor:
        """The squared error of the decoder on the image feature of each pair, as a share of its variance, (N,)."""
        assert sides.decoded is not None, "a residual needs a decoder"
        assert sides.feature is not None, "and its target"
        width = len(self.feature_mean)
        return (sides.decoded - sides.feature)[:, :width].square().sum(-1) / width

    def distilled(self, latlon: Tensor, feature: Tensor) -> Tensor:
        """The decoders' target: scaled image features (N, F), then the place's waves where they count."""
        return feature if self.waves is None else torch.cat((feature, self.waves(latlon).to(feature.dtype)), dim=-1)

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring everything back within its constraints; called after every optimiser step."""
        self.encoder.constrain_()
        self.logit_scale.clamp_(max=MAX_LOGIT_SCALE)

    def _decoded(self, raw: Tensor, unit: Tensor) -> list[Tensor]:
        """Features decoded from the whole embedding, then from each prefix, (N, F) each; none without a decoder."""
        if self.decoder is None:
            return []
        read = raw if self.objective.distil_from == "raw" else unit
        with torch.autocast(raw.device.type, torch.bfloat16, enabled=self.mixed and raw.is_cuda):
            prefixes = zip(self.prefix_decoders, self.objective.prefixes, strict=True)
            decoded = [self.decoder(read), *(decoder(read[:, :n]) for decoder, n in prefixes)]
        return [part.to(raw.dtype) for part in decoded]


def check_trainable(encoder: LocationEncoder) -> LocationEncoder:
    """The encoder, when it has parameters to train."""
    if next(encoder.parameters(), None) is None:
        raise ConfigError(f"{encoder.label} has no network, so there is nothing to train")
    return encoder


def meeting_width(encoder: LocationEncoder) -> int | None:
    """The width in which places and images are compared: the encoder's; that of images where units meet them."""
    return None if has_units(encoder) and encoder.tokens is None else encoder.output_dim


def has_units(encoder: LocationEncoder) -> TypeGuard[SphericalVoronoiEncoder]:
    """Whether the encoder's embedding are the units of its head."""
    return isinstance(encoder, SphericalVoronoiEncoder) and encoder.config.ends_in_units


def _uncentre_units_(encoder: LocationEncoder, objective: ObjectiveConfig) -> bool:
    """Whether the encoder has units, which are trained as they are, about no centre."""
    if not has_units(encoder):
        return False
    if objective.prefixes:
        raise ConfigError("objective.prefixes are not for encoder.exit = 'units', whose numbers come in no order")
    units_of(encoder).centre.zero_()
    return True


def units_of(encoder: SphericalVoronoiEncoder) -> Units:
    """The last layer of a head of units."""
    assert isinstance(encoder.head.exit, Units), "an encoder with units"
    return encoder.head.exit


def _left_out(objective: ObjectiveConfig, *, has_tokens: bool) -> tuple[str, ...]:
    """The terms about tokens for an encoder without any; an objective of nothing else is refused."""
    if has_tokens:
        return ()
    left_out = tuple(name for name in TOKEN_TERMS if getattr(objective, name) > 0)
    if objective.contrastive == 0 and objective.distillation == 0:
        raise ConfigError(
            "the objective is about tokens alone, and this encoder has none; "
            "set objective.contrastive or objective.distillation"
        )
    return left_out


def _prefixes(objective: ObjectiveConfig, output: int) -> tuple[int, ...]:
    """The widths that are distilled in addition to the whole."""
    if objective.prefixes and max(objective.prefixes) >= output:
        raise ConfigError(
            f"objective.prefixes has {max(objective.prefixes)}, but the embedding is {output} wide; "
            f"prefixes are shorter than the whole"
        )
    return objective.prefixes


def _wants_head(training: TrainingRecipe, width: int, output: int) -> bool:
    if training.image_head == "none" and width != output:
        raise ConfigError(
            f"training.image_head is 'none', but features are {width} wide and the encoder's output is {output}"
        )
    return training.image_head == "linear" or width != output


@contextlib.contextmanager
def centred(model: "PretrainingModel", encoder: LocationEncoder, latlon: Tensor) -> Iterator[LocationEncoder]:
    """The encoder, or its compact copy, with units centred over places while the block runs; others as they are."""
    if not has_units(encoder):
        yield encoder
        return
    centre = units_of(encoder).centre
    centre.copy_(_embed_raw(model, latlon).mean(0))
    try:
        yield encoder
    finally:
        centre.zero_()


FITTED_PLACES = 16_384
"""At most so many training places a trained encoder's image side is fitted to, and units are centred over."""
PLACES_AT_ONCE = 2048
PENALTY = 1e-3
"""The ridge penalty of that fit, as a share of the number of rows, for inputs of unit mean square."""


@torch.no_grad()
def fit_image_side_(model: PretrainingModel, batch: Batch) -> None:
    """Set the image head and the decoders to ridge regressions on the encoder's present embeddings.

    An encoder's file does not hold them, and random ones would first pull trained weights towards noise.
    """
    feature = (batch.features.to(model.feature_mean.dtype) - model.feature_mean) * model.feature_scale
    raw = _embed_raw(model, batch.latlon)
    if model.bridge is not None:
        _fit_(model.bridge, raw, feature if model.bridge.out_features == feature.shape[1] else raw)
        raw = model.bridge(raw)
    unit = F.normalize(raw, dim=-1)
    read = raw if model.objective.distil_from == "raw" else unit
    target = model.distilled(batch.latlon, feature)
    prefixes = [
        (layer, read[:, :n], target) for layer, n in zip(model.prefix_decoders, model.objective.prefixes, strict=True)
    ]
    for layer, x, y in [(model.image_head, feature, unit), (model.decoder, read, target), *prefixes]:
        if isinstance(layer, nn.Linear):
            _fit_(layer, x, y)


def _fit_(layer: nn.Linear, x: Tensor, y: Tensor) -> None:
    """Set a layer to the ridge regression from x to y."""
    penalty = PENALTY * len(x) * float(x.double().square().mean())
    ((slope, bias),) = ridge_path(x, y, (penalty,))
    layer.weight.copy_(slope.T)
    layer.bias.copy_(bias)


@torch.no_grad()
def _embed_raw(model: PretrainingModel, latlon: Tensor) -> Tensor:
    """Raw embeddings without dropout, (N, 2) degrees -> (N, D)."""
    model.eval()
    try:
        parts = torch.split(latlon, PLACES_AT_ONCE)
        return torch.cat([model.encoder.from_exact(*model.encoder.exact(part))[0] for part in parts])
    finally:
        model.train()
