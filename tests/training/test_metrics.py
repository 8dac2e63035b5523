"""Retrieval and token statistics on cases whose answer is known."""

import math

import pytest
import torch
import torch.nn.functional as F

from tessearth.encoder.tokens import measure_token_use
from tessearth.errors import DataError
from tessearth.training import loop
from tessearth.training.validation import retrieval


def test_equal_sides_are_found_at_once() -> None:
    rows = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    found = retrieval(rows, rows)
    assert found == {f"{way}_top{k}": 1.0 for way in ("image_to_place", "place_to_image") for k in (1, 5, 10)}


def test_one_embedding_for_everything_finds_nothing() -> None:
    same = torch.ones(50, 4) / 2
    assert set(retrieval(same, same).values()) == {0.0}


def test_ranks_are_those_of_a_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "ROWS_AT_ONCE", 7)
    generator = torch.Generator().manual_seed(1)
    image = F.normalize(torch.randn(40, 6, generator=generator), dim=-1)
    place = F.normalize(image + 0.8 * torch.randn(40, 6, generator=generator), dim=-1)
    found = retrieval(place, image)
    for queries, answers, way in ((image, place, "image_to_place"), (place, image, "place_to_image")):
        order = (queries @ answers.T).argsort(-1, descending=True)
        rank = (order == torch.arange(40)[:, None]).float().argmax(-1)
        for k in (1, 5, 10):
            assert found[f"{way}_top{k}"] == pytest.approx(float((rank < k).double().mean()))
    assert found["image_to_place_top1"] != found["place_to_image_top1"]


def test_tokens_used_alike_and_tokens_used_alone() -> None:
    even = measure_token_use(torch.full((10, 8), 1 / 8))
    assert even[1:] == (pytest.approx(1), pytest.approx(8), pytest.approx(8), 0)
    alone = measure_token_use(torch.eye(8)[torch.zeros(10, dtype=torch.long)])
    assert alone[1:] == (0.0, 1.0, 1.0, 1)
    halves = measure_token_use(torch.tensor([[0.5, 0.5, 0.0, 0.0]]))
    assert halves[1:] == (pytest.approx(math.log(2) / math.log(4)), pytest.approx(2), pytest.approx(2), 2)
    uneven = measure_token_use(torch.tensor([[1.0, 0.0, 0.0, 0.0], [0.25, 0.25, 0.25, 0.25]]))
    assert (uneven.effective, uneven.effective_at_mean) == (pytest.approx(2.5), pytest.approx(2))
    with pytest.raises(DataError, match=r"attention has shape \(3,\), not \(places, tokens\)"):
        measure_token_use(torch.ones(3))


def test_the_same_is_found_a_block_of_queries_at_a_time(monkeypatch: pytest.MonkeyPatch) -> None:
    generator = torch.Generator().manual_seed(2)
    place, image = F.normalize(torch.randn(2, 30, 4, generator=generator), dim=-1)
    whole = retrieval(place, image)
    for rows in (1, 4, 29, 30, 31):
        monkeypatch.setattr(loop, "ROWS_AT_ONCE", rows)
        assert retrieval(place, image) == whole


def test_one_token_alone_has_no_entropy_and_is_no_more_used_than_evenly() -> None:
    assert measure_token_use(torch.ones(6, 1))[1:] == (0.0, 1.0, 1.0, 0)


def test_entropy_is_that_of_each_place_and_use_that_of_all_together() -> None:
    """Every place looks at one token alone, each at another: none is sure of all, yet together they use all alike."""
    found = measure_token_use(torch.eye(4))
    assert found[1:] == (0.0, 1.0, 1.0, 0)
    uneven = measure_token_use(torch.eye(4)[[0, 0, 1, 2]])
    assert uneven.above_uniform == 1
