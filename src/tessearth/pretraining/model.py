"""Everything that is trained together: the encoder, the image head, the logit scale and the distillation's decoder.

The image side. A store holds frozen features of its own width F, the objective wants unit vectors of the encoder's
width D. Features are centred and divided by one number, so that their mean square is 1 while their spectrum stays as it
is (whitening hurts). Then v = unit(W x + b) with a linear head where F != D; where F == D, which is so when the store
keeps D principal components, v = unit(x) and nothing on the image side is learned but the tokens' view of it.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.head import reset_linear
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.errors import ConfigError
from tessearth.geometry import latlon_to_xyz
from tessearth.objective.total import ObjectiveConfig, Sides, Terms, total_loss
from tessearth.pretraining.recipe import TrainingRecipe

MAX_LOGIT_SCALE = math.log(100.0)


class Moments(NamedTuple):
    """What features look like over the training places."""

    mean: Tensor
    """(F,)."""
    variance: Tensor
    """The total over the F dimensions, ()."""


class PretrainingModel(nn.Module):
    """Pairs of places and frozen image features in, the terms of the objective out."""

    feature_mean: Tensor
    feature_scale: Tensor

    def __init__(
        self,
        encoder: SphericalVoronoiEncoder,
        moments: Moments,
        objective: ObjectiveConfig,
        training: TrainingRecipe,
        generator: torch.Generator | None = None,
    ) -> None:
        super().__init__()
        width, output = len(moments.mean), encoder.config.output_dim
        self.encoder, self.objective = encoder, objective
        self.mixed = training.precision == "bf16"
        self.image_head = nn.Linear(width, output) if _wants_head(training, width, output) else None
        self.decoder = nn.Linear(output, width) if objective.distillation > 0 else None
        self.logit_scale = nn.Parameter(torch.tensor(-math.log(training.contrastive_temperature)))
        self.register_buffer("feature_mean", moments.mean.float().clone())
        self.register_buffer("feature_scale", (width / moments.variance.clamp_min(1e-30)).sqrt().float().clone())
        for layer in (self.image_head, self.decoder):
            if layer is not None:
                reset_linear(layer, generator)

    def forward(self, latlon: Tensor, features: Tensor) -> Terms:
        """The objective over pairs: degrees (N, 2) and raw features (N, F)."""
        return total_loss(self.sides(latlon, features), self.objective)

    def sides(self, latlon: Tensor, features: Tensor) -> Sides:
        """What both sides of the pairs say of themselves."""
        xyz = latlon_to_xyz(latlon)
        feature = (features.to(self.feature_mean.dtype) - self.feature_mean) * self.feature_scale
        weights = [site_weights(voronoi, xyz) for voronoi in self.encoder.voronois()]
        with torch.autocast(xyz.device.type, torch.bfloat16, enabled=self.mixed and xyz.is_cuda):
            blend, attention = self.encoder.blend(xyz, weights)
            raw = self.encoder.head(blend)
            projected = feature if self.image_head is None else self.image_head(feature)
        location, image = (F.normalize(side.to(feature.dtype), dim=-1) for side in (raw, projected))
        image_attention = reconstructed = None
        if self.encoder.tokens is not None:
            image_attention = self.encoder.tokens.image_attention(image.detach())
            reconstructed = self.encoder.tokens.attend(image_attention)
        return Sides(
            location=location,
            image=image,
            scale=self.logit_scale.exp(),
            location_attention=attention,
            image_attention=image_attention,
            reconstructed=reconstructed,
            decoded=self._decoded(raw.to(feature.dtype), location),
            feature=feature,
            variance=feature.new_full((), feature.shape[-1]),
        )

    @torch.no_grad()
    def constrain_(self) -> None:
        """Bring everything back within its constraints; called after every optimiser step."""
        self.encoder.constrain_()
        self.logit_scale.clamp_(max=MAX_LOGIT_SCALE)

    def set_progress_(self, progress: float) -> None:
        """Move the location side's temperature along its way, 0 at the beginning and 1 at the end of training."""
        if self.encoder.tokens is not None:
            self.encoder.tokens.temperature_progress.fill_(progress)

    def _decoded(self, raw: Tensor, unit: Tensor) -> Tensor | None:
        if self.decoder is None:
            return None
        with torch.autocast(raw.device.type, torch.bfloat16, enabled=self.mixed and raw.is_cuda):
            decoded: Tensor = self.decoder(raw if self.objective.distil_from == "raw" else unit)
        return decoded.to(raw.dtype)


def site_weights(voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
    """Each point's share in every site, (N, 3) -> (N, K), never through a GPU's matrix units.

    Those would round positions to ten bits, which is three kilometres; three products and two sums per site are exact
    to float32 and, compiled, cost no more than the softmax they are fused with.
    """
    return torch.softmax(written_out_logits(voronoi, xyz), dim=-1) if xyz.is_cuda else voronoi.weights(xyz)


def written_out_logits(voronoi: SoftVoronoi, xyz: Tensor) -> Tensor:
    """`SoftVoronoi.logits` without a matrix product, (N, 3) -> (N, K)."""
    sharpness = voronoi.sharpness()
    slope = voronoi.positions() * sharpness[:, None]
    x, y, z = (axis[:, None] for axis in xyz.unbind(-1))
    logits = x * slope[:, 0] + y * slope[:, 1] + z * slope[:, 2]
    return logits + (voronoi.territory - sharpness) if voronoi.config.logits == "decoupled" else logits


def _wants_head(training: TrainingRecipe, width: int, output: int) -> bool:
    if training.image_head == "none" and width != output:
        raise ConfigError(
            f"training.image_head is 'none', but features are {width} wide and the encoder's output is {output}"
        )
    return training.image_head == "linear" or width != output
