"""What can be said of a model by looking at it: sizes, sharpness, how places use its tokens, where it comes from."""

import os
from typing import Any

import numpy as np
import torch

from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.weights import build_from, read_weights
from tessearth.geometry import EARTH_RADIUS_KM, fibonacci_lattice
from tessearth.inference.embedder import Embedder
from tessearth.models import MODELS, locate

SAMPLE_PLACES = 4096
"""Token statistics are taken over this many places spread evenly over the sphere."""


def describe_model(model: str | os.PathLike[str]) -> dict[str, Any]:
    """A nested description of a model named as for `load`, ready for JSON."""
    if str(model) in MODELS:
        card = MODELS[str(model)]
        encoder = card.build()
        origin: dict[str, Any] = {"summary": card.summary, "trained": card.trained}
    else:
        weights = read_weights(locate(model))
        encoder = build_from(weights)
        origin = {"layout": weights.layout, **weights.provenance}
    return {
        "model": str(model),
        "parameters": sum(parameter.numel() for parameter in encoder.parameters()),
        "sites": encoder.config.num_sites,
        "tokens": encoder.config.num_tokens,
        "embedding_width": encoder.config.output_dim,
        "unit_length": encoder.config.normalize,
        "tessellations": {str(i): _describe_tessellation(encoder, i) for i in range(len(encoder.tessellations))},
        "token_use": describe_tokens(encoder),
        "provenance": origin,
    }


def describe_tokens(encoder: SphericalVoronoiEncoder) -> dict[str, Any]:
    """How places over the whole sphere spread their attention over the tokens; empty for an encoder without tokens."""
    if encoder.tokens is None:
        return {}
    attention = Embedder(encoder, device="cpu").explain(xyz=fibonacci_lattice(SAMPLE_PLACES).numpy()).token_attention
    assert attention is not None
    entropy = torch.special.entr(torch.from_numpy(attention)).sum(-1)
    return {
        "temperature": float(encoder.tokens.temperature().detach()),
        "effective_tokens_per_place": float(entropy.exp().mean()),
        "entropy_share_of_uniform": float(entropy.mean() / np.log(max(2, encoder.config.num_tokens))),
        "tokens_above_uniform": int((attention.mean(0) > 1 / encoder.config.num_tokens).sum()),
        "sampled_places": SAMPLE_PLACES,
    }


def _describe_tessellation(encoder: SphericalVoronoiEncoder, index: int) -> dict[str, Any]:
    voronoi = encoder.voronois()[index]
    sharpness = voronoi.sharpness().detach().double().numpy()
    low, median, high = np.quantile(sharpness, (0.0, 0.5, 1.0))
    return {
        "sites": voronoi.config.num_sites,
        "site_width": voronoi.config.site_dim,
        "logits": voronoi.config.logits,
        "sharpness_lowest": float(low),
        "sharpness_median": float(median),
        "sharpness_highest": float(high),
        # Around a site the weight falls like exp(-tau angle^2 / 2): a Gaussian of this width.
        "median_reach_km": float(EARTH_RADIUS_KM / np.sqrt(median)),
    }
