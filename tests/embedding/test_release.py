"""The first dimensions as a summary of the embedding."""

import copy

import numpy as np
import pytest
import torch
from tools.release import principal_directions, put_summary_in_front_

from tessearth import Embedder, SphericalVoronoiEncoder
from tessearth.errors import ConfigError
from tessearth.sphere.sampling import sample_land
from tests.conftest import tiny_encoder

COUNT, PLACES = 3, 2000


@pytest.fixture(name="plain")
def plain_encoder() -> SphericalVoronoiEncoder:
    return tiny_encoder(dtype=torch.float32)


@pytest.fixture
def turned(plain: SphericalVoronoiEncoder) -> SphericalVoronoiEncoder:
    encoder = copy.deepcopy(plain)
    put_summary_in_front_(encoder, COUNT, places=PLACES)
    return encoder


def embed(encoder: SphericalVoronoiEncoder, seed: int = 0) -> torch.Tensor:
    return torch.from_numpy(np.asarray(Embedder(encoder).embed(sample_land(PLACES, seed)))).double()


def test_the_first_dimensions_hold_the_leading_directions(
    plain: SphericalVoronoiEncoder, turned: SphericalVoronoiEncoder
) -> None:
    before, after = embed(plain), embed(turned)
    leading = before @ principal_directions(before)[:, :COUNT]
    front = after[:, :COUNT] * (leading.norm(dim=1) / after[:, :COUNT].norm(dim=1))[:, None]
    torch.testing.assert_close(front @ front.T, leading @ leading.T, atol=1e-5, rtol=1e-4)


def test_embeddings_stay_of_unit_length(turned: SphericalVoronoiEncoder) -> None:
    torch.testing.assert_close(embed(turned, 1).norm(dim=1), torch.ones(PLACES).double(), atol=1e-5, rtol=0)


def test_the_dimensions_behind_vary_alike(turned: SphericalVoronoiEncoder) -> None:
    """What min-max scaling needs: no dimension that hardly varies."""
    deviation = embed(turned)[:, COUNT:].std(dim=0)
    assert float(deviation.max() / deviation.min()) < 10


def test_the_map_is_the_same_every_time(plain: SphericalVoronoiEncoder, turned: SphericalVoronoiEncoder) -> None:
    again = copy.deepcopy(plain)
    put_summary_in_front_(again, COUNT, places=PLACES)
    assert torch.equal(again.head.exit.weight, turned.head.exit.weight)


@pytest.mark.parametrize("count", [0, 10_000])
def test_a_summary_is_shorter_than_the_embedding(plain: SphericalVoronoiEncoder, count: int) -> None:
    with pytest.raises(ConfigError, match="below the embedding's"):
        put_summary_in_front_(plain, count)
