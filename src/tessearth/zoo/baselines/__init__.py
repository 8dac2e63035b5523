"""Every published location encoder of the comparison, by name and under one contract.

encoder = build_baseline("sphereM+")                          # untrained positional features
encoder = build_baseline("grid", {"network": {"output_dim": 512}}, seed=0)   # the same behind a trainable network
encoder = load_published("geoclip", "location_encoder_weights.pth")
encoder(latlon)                                               # degrees, latitude first, (N, 2) -> (N, output_dim)
"""

from tessearth.zoo.baselines.base import Network, PositionalEncoder, PositionalEncoding
from tessearth.zoo.cards import BASELINES, BaselineCard, build_baseline, positional
from tessearth.zoo.published import PUBLISHED, PublishedCard, load_published
from tessearth.zoo.saved import load_baseline

__all__ = [
    "BASELINES",
    "PUBLISHED",
    "BaselineCard",
    "Network",
    "PositionalEncoder",
    "PositionalEncoding",
    "PublishedCard",
    "build_baseline",
    "load_baseline",
    "load_published",
    "positional",
]
