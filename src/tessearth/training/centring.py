"""A start at which places differ from one another.

Site embeddings as small as the paper's, mixed by the dozens, leave a blend that is the same everywhere but for a small
part: what the norm hands to the head is mostly the projection's bias and the tokens' mean. A unit of the head then sees
nearly one and the same input, so a quarter to a half of them are off at every place and get no gradient from any.
`centre_` takes the common part away, layer by layer, before the first step; nothing else about the start changes.
"""

from typing import Any

import torch
from torch import Tensor, nn

from tessearth.encoder.head import ResidualBlock
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.sites import start_sites

PLACES = 8192
"""Places spread evenly over the sphere whose mean is taken away."""
ROUNDS = 8
"""Where the sites' embeddings are shifted, tokens see other mixtures afterwards, so the mean is taken away again."""


@torch.no_grad()
def centre_(encoder: SphericalVoronoiEncoder, places: int = PLACES) -> None:
    """Shift biases so that the blend and every ReLU of the head have mean 0 over the sphere.

    Each layer is shifted when its output is known, and what follows sees the shifted output, so that one pass does it.
    """
    blocks = [block for block in encoder.head.blocks if isinstance(block, ResidualBlock)]
    layers = [encoder.head.entry, *(layer for block in blocks for layer in (block.first, block.second))]
    hooks = [layer.register_forward_hook(_shift_output) for layer in layers]
    hooks.append(encoder.norm.register_forward_pre_hook(lambda _, inputs: (_shift_blend(encoder, inputs[0]),)))
    training = encoder.training
    spread_over_earth = start_sites("full", places)
    try:
        for _ in range(1 if isinstance(encoder.projection, nn.Linear) else ROUNDS):
            encoder.eval().embed_xyz(spread_over_earth)
    finally:
        encoder.train(training)
        for hook in hooks:
            hook.remove()


def _shift_output(layer: nn.Module, _: Any, output: Tensor) -> Tensor:
    mean = output.mean(dim=0)
    assert isinstance(layer.bias, Tensor)
    layer.bias.sub_(mean)
    return output - mean


def _shift_blend(encoder: SphericalVoronoiEncoder, blend: Tensor) -> Tensor:
    """Through the projection's bias, or, where mixtures are as wide as the blend, through every site's embedding."""
    share = 1 - encoder.config.token_gate if encoder.tokens is not None else 1.0
    if share == 0:
        return blend  # nothing of the sites is in it
    mean = blend.mean(dim=0)
    if isinstance(encoder.projection, nn.Linear):
        encoder.projection.bias.sub_(mean / share)
        return blend - mean
    widths = [voronoi.embeddings.shape[1] for voronoi in encoder.voronois()]
    for voronoi, part in zip(encoder.voronois(), torch.split(mean, widths), strict=True):
        voronoi.embeddings.sub_(part / share)  # a place's weights sum to 1
    return blend - mean
