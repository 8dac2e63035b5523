"""Retrieval and token statistics on cases whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F

from tessearth.training import metrics
from tessearth.training.metrics import retrieval, token_statistics


def test_equal_sides_are_found_at_once() -> None:
    rows = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    found = retrieval(rows, rows)
    assert found.image_to_place == found.place_to_image == {1: 1.0, 5: 1.0, 10: 1.0}


def test_one_embedding_for_everything_finds_nothing() -> None:
    same = torch.ones(50, 4) / 2
    assert retrieval(same, same).image_to_place == {1: 0.0, 5: 0.0, 10: 0.0}


def test_ranks_are_those_of_a_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(metrics, "ROWS_AT_ONCE", 7)
    generator = torch.Generator().manual_seed(1)
    image = F.normalize(torch.randn(40, 6, generator=generator), dim=-1)
    place = F.normalize(image + 0.8 * torch.randn(40, 6, generator=generator), dim=-1)
    found = retrieval(place, image)
    for queries, answers, shares in ((image, place, found.image_to_place), (place, image, found.place_to_image)):
        order = (queries @ answers.T).argsort(-1, descending=True)
        rank = (order == torch.arange(40)[:, None]).float().argmax(-1)
        for k in (1, 5, 10):
            assert shares[k] == pytest.approx(float((rank < k).double().mean()))
    assert found.image_to_place != found.place_to_image


def test_tokens_used_alike_and_tokens_used_alone() -> None:
    even = token_statistics(torch.full((10, 8), 1 / 8))
    assert even == (pytest.approx(1), pytest.approx(8), 0.0)
    alone = token_statistics(torch.eye(8)[torch.zeros(10, dtype=torch.long)])
    assert alone == (0.0, 1.0, 1 / 8)
    halves = token_statistics(torch.tensor([[0.5, 0.5, 0.0, 0.0]]))
    assert halves.entropy == pytest.approx(math.log(2) / math.log(4))
    assert halves.effective_tokens == pytest.approx(2)
    assert halves.share_above_uniform == 0.5


def test_the_same_is_found_a_block_of_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    place, image = F.normalize(torch.randn(2, 30, 4, generator=generator), dim=-1)
    whole = retrieval(place, image)
    for rows in (1, 4, 29, 30, 31):
        monkeypatch.setattr(metrics, "ROWS_AT_ONCE", rows)
        assert retrieval(place, image) == whole


def test_one_token_alone_has_no_entropy_and_is_no_more_used_than_evenly() -> None:
    assert token_statistics(torch.ones(6, 1)) == (0.0, 1.0, 0.0)


def test_entropy_is_that_of_each_place_and_use_that_of_all_together() -> None:
    """Every place looks at one token alone, each at another: none is sure of all, yet together they use all alike."""
    found = token_statistics(torch.eye(4))
    assert (found.entropy, found.effective_tokens, found.share_above_uniform) == (0.0, 1.0, 0.0)
    uneven = token_statistics(torch.eye(4)[[0, 0, 1, 2]])
    assert uneven.share_above_uniform == 0.25
