"""An encoder's embedding turned, after training, so that its first dimensions are a summary of all.

Users who cannot afford the whole embedding keep its first 64 numbers. Training leaves its directions in
no order; this puts the leading principal ones in front and behind them a rotation of everything, so that the dimensions
behind still hold what those in front do, each with a like share of every direction. Ordering all directions by their
variance instead would hurt: probes bring every dimension to [0, 1], which blows up those that hardly vary.
"""

import numpy as np
import torch
from torch import Tensor

from tessearth.embedding.embedder import Embedder
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.sphere.sampling import sample_land

PLACES = 50_000
"""Places over land whose embeddings say which directions lead."""


@torch.no_grad()
def put_summary_in_front_(encoder: SphericalVoronoiEncoder, count: int, *, places: int = PLACES, seed: int = 0) -> None:
    """Fold the map into the head's last layer: e -> unit(e [P_count R, P_rest R']), P the principal directions.

    R and R' are rotations drawn from the seed; the `rest` = D - count leading directions keep their natural spectrum,
    so the last `count` ones, which hardly vary, are given up.
    """
    width = encoder.config.output_dim
    if not 1 <= count < width:
        raise ConfigError(f"the summary is {count} dimensions; it must be at least 1 and below the embedding's {width}")
    embeddings = Embedder(encoder).embed(sample_land(places, seed))
    directions = principal_directions(torch.from_numpy(np.asarray(embeddings)))
    generator = torch.Generator().manual_seed(seed)
    front = directions[:, :count] @ _rotation(count, generator)
    behind = directions[:, : width - count] @ _rotation(width - count, generator)
    exit_layer = encoder.head.exit
    exit_layer.weight.copy_(torch.cat((front, behind), dim=1).T.to(exit_layer.weight) @ exit_layer.weight)


def principal_directions(embeddings: Tensor) -> Tensor:
    """Directions (D, D) as columns, by falling variance of the embeddings (N, D), in float64.

    Each one's largest entry is positive: a decomposition leaves the sign open, a shipped file must not.
    """
    centred = embeddings.double() - embeddings.double().mean(0)
    _, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    directions = directions.flip(1)
    largest = directions.abs().argmax(dim=0)
    oriented: Tensor = directions * directions.gather(0, largest[None]).sign()
    return oriented


def _rotation(width: int, generator: torch.Generator) -> Tensor:
    rotation: Tensor = torch.linalg.qr(torch.randn(width, width, generator=generator, dtype=torch.float64))[0]
    return rotation
