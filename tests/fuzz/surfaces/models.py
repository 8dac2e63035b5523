"""The encoder that surfaces embed with: small enough for thousands of cases a second."""

from typing import Any


def small_encoder() -> Any:
    """A Voronoi encoder of 40 sites in float32."""
    import torch

    from tests.conftest import tiny_encoder

    return tiny_encoder(dtype=torch.float32)
