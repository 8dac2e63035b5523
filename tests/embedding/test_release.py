"""The first dimensions as a summary of the embedding."""

import copy

import numpy as np
import pytest
import torch
from tools.release import principal_directions, put_summary_in_front_, sort_front_

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


FRONT, PREFIX = 8, 3


@pytest.fixture
def ordered(plain: SphericalVoronoiEncoder) -> SphericalVoronoiEncoder:
    encoder = copy.deepcopy(plain)
    sort_front_(encoder, FRONT, places=PLACES)
    return encoder


def explained(embeddings: torch.Tensor) -> float:
    """The share of the front's variance that lies in its first numbers."""
    variance = embeddings[:, :FRONT].var(dim=0)
    return float(variance[:PREFIX].sum() / variance.sum())


def test_the_front_is_in_principal_order(plain: SphericalVoronoiEncoder, ordered: SphericalVoronoiEncoder) -> None:
    before, after = embed(plain), embed(ordered)
    variance = after[:, :FRONT].var(dim=0)
    assert (variance.diff() <= 1e-6).all()
    covariance = torch.cov(after[:, :FRONT].T)
    torch.testing.assert_close(covariance, covariance.diag().diag(), atol=1e-5, rtol=0)
    assert explained(after) > explained(before) + 0.05


def test_only_the_front_is_turned(plain: SphericalVoronoiEncoder, ordered: SphericalVoronoiEncoder) -> None:
    before, after = embed(plain, 1), embed(ordered, 1)
    torch.testing.assert_close(after[:, FRONT:], before[:, FRONT:], atol=1e-6, rtol=0)
    one, other = before[:200, :FRONT], after[:200, :FRONT]
    torch.testing.assert_close(other @ other.T, one @ one.T, atol=1e-5, rtol=0)
    torch.testing.assert_close(after.norm(dim=1), before.norm(dim=1), atol=1e-5, rtol=0)


def test_signs_do_not_depend_on_the_turn_before(
    plain: SphericalVoronoiEncoder, ordered: SphericalVoronoiEncoder
) -> None:
    again = copy.deepcopy(ordered)
    sort_front_(again, FRONT, places=PLACES)
    torch.testing.assert_close(again.head.exit.weight, ordered.head.exit.weight, atol=1e-4, rtol=0)
    with pytest.raises(ConfigError, match="at most the embedding's"):
        sort_front_(plain, 10_000)
