"""Retrieval and token statistics on cases whose answer is known."""

import json
import math
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from tessearth.encoder.contract import measure_token_use
from tessearth.errors import DataError
from tessearth.imagery import FeatureStore
from tessearth.sphere import is_inhabited_land
from tessearth.training import validation
from tessearth.training.data import TrainingData
from tessearth.training.loop import pretrain
from tessearth.training.model import PretrainingModel
from tessearth.training.recipe import TrainingRecipe
from tessearth.training.start import build_encoder
from tessearth.training.validation import retrieval, unexplained
from tests.training.fabricate import toy_recipe


def test_equal_sides_are_found_at_once() -> None:
    rows = F.normalize(torch.randn(50, 8, generator=torch.Generator().manual_seed(0)), dim=-1)
    found = retrieval(rows, rows)
    assert found == {f"{way}_top{k}": 1.0 for way in ("image_to_place", "place_to_image") for k in (1, 5, 10)}


def test_one_embedding_for_everything_finds_nothing() -> None:
    same = torch.ones(50, 4) / 2
    assert set(retrieval(same, same).values()) == {0.0}


def test_ranks_are_those_of_a_sort(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(validation, "ROWS_AT_ONCE", 7)
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
        monkeypatch.setattr(validation, "ROWS_AT_ONCE", rows)
        assert retrieval(place, image) == whole


def test_one_token_alone_has_no_entropy_and_is_no_more_used_than_evenly() -> None:
    assert measure_token_use(torch.ones(6, 1))[1:] == (0.0, 1.0, 1.0, 0)


def test_entropy_is_that_of_each_place_and_use_that_of_all_together() -> None:
    """Every place looks at one token alone, each at another: none is sure of all, yet together they use all alike."""
    found = measure_token_use(torch.eye(4))
    assert found[1:] == (0.0, 1.0, 1.0, 0)
    uneven = measure_token_use(torch.eye(4)[[0, 0, 1, 2]])
    assert uneven.above_uniform == 1


def test_unexplained_is_the_share_of_the_features_variance_over_land(store: Path) -> None:
    data = TrainingData(FeatureStore(store), TrainingRecipe(), output_dim=16, device=torch.device("cpu"))
    recipe, generator = toy_recipe(), torch.Generator().manual_seed(0)
    model = PretrainingModel(
        build_encoder(recipe, generator), data.moments, recipe.objective, recipe.training, generator
    ).eval()
    batch = data.some_training(10_000)
    with torch.no_grad():
        sides = model.sides(*batch)
        found = unexplained(model, sides, batch.latlon)["unexplained"]
    assert sides.decoded is not None
    land = is_inhabited_land(batch.latlon.numpy())
    assert 0 < land.sum() < len(land)
    scale = float(model.feature_scale)
    feature, decoded = batch.features.double().numpy()[land], sides.decoded.double().numpy()[land] / scale
    error = np.square(decoded + model.feature_mean.numpy() - feature).sum()
    assert found == pytest.approx(error / np.square(feature - feature.mean(0)).sum(), rel=1e-4)
    perfect = sides._replace(decoded=sides.feature)
    assert unexplained(model, perfect, batch.latlon) == {"unexplained": 0.0}
    assert unexplained(model, sides, torch.zeros_like(batch.latlon)) == {}  # all at sea
    assert unexplained(model, sides._replace(decoded=None), batch.latlon) == {}


def test_waves_of_the_position_do_not_count_as_explained(store: Path, tmp_path: Path) -> None:
    recipe = toy_recipe(objective={"position": 1.0, "position_degrees": 3}, steps=2, evaluate_every=1)
    pretrain(recipe, tmp_path / "run", store=store, device="cpu")
    lines = [json.loads(line) for line in (tmp_path / "run" / "metrics.jsonl").read_text().splitlines()]
    assert all(0.5 < line["validation"]["unexplained"] < 5 for line in lines if "validation" in line)
