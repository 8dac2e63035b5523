"""Precisions by name, each with the error it may make."""

import numpy as np
import pytest
import torch

from tessearth import Embedder
from tessearth.embedding.fast.head import Precision
from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError

LEAST_COSINE: dict[Precision, float] = {"float32": 0.999999, "bfloat16": 0.9999, "float16": 0.99999}
RNG = np.random.default_rng(0)
LATLON = np.stack([RNG.uniform(-90, 90, 600), RNG.uniform(-180, 180, 600)], axis=1)


def shaped_like_the_paper() -> SphericalVoronoiEncoder:
    """The paper's widths behind a quarter of its sites, random weights."""
    config = EncoderConfig(tessellations=(TessellationConfig(num_sites=1024, sharpness=45.0),))
    return SphericalVoronoiEncoder(config, sites="full", generator=torch.Generator().manual_seed(0)).eval()


@pytest.mark.parametrize("precision", LEAST_COSINE)
def test_each_precision_keeps_its_cosine(precision: Precision) -> None:
    encoder = shaped_like_the_paper()
    exact = Embedder(encoder, device="cpu", precision="float64")(LATLON)
    got = Embedder(encoder, device="cpu", precision=precision)(LATLON)
    assert got.dtype == np.float32
    assert float((got * exact).sum(axis=1).min()) >= LEAST_COSINE[precision]
    if precision == "float32":
        assert np.abs(got - exact).max() < 1e-5
    else:
        assert np.abs(got - exact).max() > 1e-5  # it is another precision


@pytest.mark.parametrize("model", ["untrained", "sphereM+"])
def test_other_precisions_are_refused_by_the_names_there_are(model: str) -> None:
    with pytest.raises(ConfigError, match="'int8'; it must be one of float32, float64, bfloat16, float16"):
        Embedder(model, device="cpu", precision="int8")  # type: ignore[arg-type]
