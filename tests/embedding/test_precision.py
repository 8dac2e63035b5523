"""Precisions by name, each with the error it may make; and what int8 layers promise."""

import pickle

import numpy as np
import pytest
import torch
from torch import nn

from tessearth import Embedder
from tessearth.embedding.fast.precision import Int8Linear, Precision
from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.encoder.head import reset_linear
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError

LEAST_COSINE: dict[Precision, float] = {"float32": 0.999999, "bfloat16": 0.9999, "float16": 0.99999, "int8": 0.9998}
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


def test_an_int8_layer_is_not_spoilt_by_loud_inputs_or_loud_places() -> None:
    generator = torch.Generator().manual_seed(0)
    layer = nn.Linear(64, 32)
    reset_linear(layer, generator)
    x = torch.randn(200, 64, generator=generator)
    x[:, 3] *= 100  # one loud input, and its weights quiet as training makes them
    x[7] *= 1000  # one loud place
    with torch.no_grad():
        layer.weight[:, 3] /= 100
        expected = layer(x)
        got = Int8Linear(
            layer, torch.randn(200, 64, generator=generator) * torch.tensor([1.0] * 3 + [100.0] + [1.0] * 60)
        )(x)
    error = (got - expected).norm(dim=-1) / expected.norm(dim=-1)
    assert error.max() < 0.03


def test_an_int8_layer_survives_pickling() -> None:
    layer, x = nn.Linear(16, 8), torch.randn(5, 16)
    packed = Int8Linear(layer, x)
    torch.testing.assert_close(pickle.loads(pickle.dumps(packed))(x), packed(x), rtol=0, atol=0)


def test_baselines_have_no_int8() -> None:
    with pytest.raises(ConfigError, match="int8 is for Voronoi encoders, and sphereM\\+ is none"):
        Embedder("sphereM+", precision="int8")
