"""Small encoders and property-testing settings that every suite shares."""

from collections.abc import Iterator

import hypothesis
import pytest
import torch

from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder

hypothesis.settings.register_profile("tessearth", deadline=None, derandomize=True, max_examples=60, print_blob=False)
hypothesis.settings.load_profile("tessearth")


torch.set_num_threads(1)  # tests run side by side; threads on top of that would only wait for each other


def tiny_config(**changes: object) -> EncoderConfig:
    """An encoder whose widths all differ, so that no two can be taken for each other."""
    values: dict[str, object] = {
        "tessellations": (TessellationConfig(num_sites=40, site_dim=12, sharpness=20.0),),
        "num_tokens": 5,
        "output_dim": 18,
        "hidden_dim": 22,
        **changes,
    }
    return EncoderConfig(**values)  # type: ignore[arg-type]


def tiny_encoder(seed: int = 0, dtype: torch.dtype = torch.float64, **changes: object) -> SphericalVoronoiEncoder:
    """A small encoder in evaluation mode whose weights are all random, also those that start as constants."""
    generator = torch.Generator().manual_seed(seed)
    encoder = SphericalVoronoiEncoder(tiny_config(**changes), sites="full", generator=generator).to(dtype)
    with torch.no_grad():
        for name, parameter in encoder.named_parameters():
            noise = torch.randn(parameter.shape, generator=generator, dtype=dtype)
            parameter.add_(noise * (1.0 if "embeddings" in name else 0.2))
    return encoder.eval()


@pytest.fixture(autouse=True)
def threads_stay_as_they_are() -> Iterator[None]:
    """Sums depend on how many threads share them, so a test that leaves another number behind breaks later ones."""
    yield
    assert torch.get_num_threads() == 1
