"""Encoders by name: shipped models, baselines, published weights and saved files.

encoder = build_baseline("sphereM+")                          # untrained positional features
encoder = build_baseline("grid", {"network": {"output_dim": 512}}, seed=0)   # the same behind a trainable network
encoder = load_published("geoclip", "location_encoder_weights.pth")
encoder(latlon)                                               # degrees, latitude first, (N, 2) -> (N, output_dim)
"""

from tessearth.packages import open_front

__getattr__, __dir__, __all__ = open_front(__name__)
