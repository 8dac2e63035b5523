"""Room for sites that are born while training, and encoders without it: a slot whose territory is -inf is empty."""

import dataclasses
import math

import torch
from torch import Tensor

from tessearth.encoder.model import SphericalVoronoiEncoder


def add_slots(encoder: SphericalVoronoiEncoder, counts: tuple[int, ...]) -> SphericalVoronoiEncoder:
    """The same encoder with `counts` sites per tessellation; those it did not have take no part.

    An empty slot repeats the place and the sharpness of a site, so that all numbers but its territory are finite.
    """
    kept = [torch.arange(count) % v.config.num_sites for count, v in zip(counts, encoder.voronois(), strict=True)]
    wider = _choose(encoder, kept)
    with torch.no_grad():
        for before, voronoi in zip(encoder.voronois(), wider.voronois(), strict=True):
            alive = before.config.num_sites
            if voronoi.config.num_sites > alive:
                voronoi.territory[alive:] = -math.inf
                voronoi.embeddings[alive:] = 0
    return wider


def compact(encoder: SphericalVoronoiEncoder) -> SphericalVoronoiEncoder:
    """The same encoder without sites that take no part."""
    return _choose(encoder, [voronoi.takes_part().nonzero().flatten() for voronoi in encoder.voronois()])


def _choose(encoder: SphericalVoronoiEncoder, kept: list[Tensor]) -> SphericalVoronoiEncoder:
    """An encoder of the sites with these numbers in each tessellation; the same one where these are all."""
    config = encoder.config
    if all(
        torch.equal(rows.cpu(), torch.arange(t.num_sites)) for rows, t in zip(kept, config.tessellations, strict=True)
    ):
        return encoder
    sizes = [dataclasses.replace(t, num_sites=len(rows)) for rows, t in zip(kept, config.tessellations, strict=True)]
    state: dict[str, Tensor] = dict(encoder.state_dict())
    for i, (voronoi, rows) in enumerate(zip(encoder.voronois(), kept, strict=True)):
        for name, tensor in voronoi.state_dict().items():
            state[f"tessellations.{i}.{name}"] = tensor[rows.to(tensor.device)]
    chosen = SphericalVoronoiEncoder.allocate(dataclasses.replace(config, tessellations=tuple(sizes)))
    chosen.load_state_dict(state, strict=True, assign=True)
    return chosen.train(encoder.training)
