"""Schedule, optimiser groups, the order of places, the image side, clusters: each by its law."""

import math
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.encoder.weights import save
from tessearth.errors import ConfigError, DataError
from tessearth.training.data import BatchOrder, TrainingData
from tessearth.training.model import PretrainingModel
from tessearth.training.recipe import TrainingRecipe
from tessearth.training.sites_recipe import SitesRecipe
from tessearth.training.start import cluster_sites, k_means
from tessearth.training.step import (
    GROUP_OF,
    GROUPS,
    build_optimiser,
    count_steps,
    group_of,
    learning_rate,
)
from tests.conftest import tiny_encoder
from tests.training.fabricate import fabricate_store, toy_recipe
from tests.training.growing import BROAD, SPACED

CPU = torch.device("cpu")


def read(path: Path, **changes: object) -> TrainingData:
    from tessearth.imagery.store import FeatureStore

    output_dim = int(changes.pop("output_dim", 16))  # type: ignore[call-overload]
    recipe = TrainingRecipe(**changes)  # type: ignore[arg-type]
    return TrainingData(FeatureStore(path), recipe, output_dim=output_dim, device=CPU)


def build_model(data: TrainingData, **changes: object) -> PretrainingModel:
    recipe = toy_recipe(**changes)  # type: ignore[arg-type]
    from tessearth.training.start import build_encoder

    generator = torch.Generator().manual_seed(0)
    return PretrainingModel(
        build_encoder(recipe, generator), data.moments, recipe.objective, recipe.training, generator
    )


def test_learning_rates_rise_in_a_line_and_fall_along_a_cosine() -> None:
    rates = [learning_rate(1e-3, 1e-6, step, 10, 101) for step in range(101)]
    assert rates[:10] == pytest.approx([1e-3 * (step + 1) / 10 for step in range(10)])
    assert rates[10] == pytest.approx(1e-3)
    assert rates[55] == pytest.approx((1e-3 + 1e-6) / 2)
    assert rates[100] == pytest.approx(1e-6)
    assert rates[10:] == sorted(rates[10:], reverse=True)


def test_steps_follow_from_epochs_and_whole_batches() -> None:
    training = TrainingRecipe(epochs=300, batch_size=6384, warmup_epochs=5)
    assert count_steps(training, 100_000) == (15, 4500, 75)
    assert count_steps(replace(training, steps=20), 100_000) == (15, 20, 10)
    with pytest.raises(DataError, match=r"50 training places, fewer than the batch of 6384.*batch_size=50"):
        count_steps(training, 50)


def test_every_parameter_is_in_the_group_the_table_says(store: Path) -> None:
    encoder = {"tessellations": (toy_recipe().encoder.tessellations[0],)}
    model = build_model(read(store), encoder=encoder)
    recipe = TrainingRecipe().groups
    optimiser = build_optimiser(model, recipe, torch.zeros(len(GROUPS)))
    placed = {id(p): group for group in optimiser.param_groups for p in group["params"]}
    for name, parameter in model.named_parameters():
        group = placed[id(parameter)]
        assert group["name"] == group_of(name)
        assert group["weight_decay"] == getattr(recipe, group["name"]).weight_decay
    assert {group["name"] for group in optimiser.param_groups} == set(GROUP_OF.values())
    with pytest.raises(ConfigError, match="belongs to no optimiser group"):
        group_of("something_new")


def test_an_epoch_sees_every_place_once_and_the_order_needs_no_memory() -> None:
    rows = np.arange(100, 160)
    order = BatchOrder(rows, views=3, batch_size=20, seed=5)
    batches = [order(step) for step in range(9)]
    for epoch in range(3):
        seen = np.concatenate(batches[3 * epoch : 3 * epoch + 3])
        assert sorted(seen // 3) == list(rows)
        assert len(set(seen % 3)) == 3
    assert not np.array_equal(np.concatenate(batches[:3]), np.concatenate(batches[3:6]))
    fresh = BatchOrder(rows, views=3, batch_size=20, seed=5)
    for step in (7, 2, 8, 0):
        assert np.array_equal(fresh(step), batches[step])
    assert not np.array_equal(BatchOrder(rows, views=3, batch_size=20, seed=6)(0), batches[0])


def test_streamed_batches_are_the_resident_ones(store: Path) -> None:
    resident, streamed = read(store, keep_features="device"), read(store, keep_features="disk")
    order = BatchOrder(resident.training, resident.views, 32, 0)
    for step in range(8):
        batches = [data.empty_batch(32) for data in (resident, streamed)]
        resident.fill(batches[0], order(step))
        streamed.fill(batches[1], order(step), order(step + 1))
        assert torch.equal(batches[0].features, batches[1].features)
        assert torch.equal(batches[0].latlon, batches[1].latlon)
        expected = np.asarray(resident.array).reshape(-1, resident.width)[order(step)]
        assert np.array_equal(batches[0].features.numpy(), expected)
    streamed.close()


def test_features_are_centred_and_scaled_but_not_whitened(store: Path) -> None:
    data = read(store)
    model = build_model(data)
    rows = torch.from_numpy(np.array(data.array[data.training]).reshape(-1, data.width))
    feature = (rows.float() - model.feature_mean) * model.feature_scale
    assert feature.mean(0).abs().max() < 1e-3
    assert float(feature.square().mean()) == pytest.approx(1, abs=1e-3)
    deviation = feature.std(0)
    assert float(deviation.max() / deviation.min()) > 3


def test_components_as_wide_as_the_embedding_are_taken_and_need_no_head(tmp_path: Path) -> None:
    fabricate_store(tmp_path / "store", pca=16)
    data = read(tmp_path / "store")
    assert (data.kind, data.width) == ("components", 16)
    assert build_model(data).image_head is None
    other = read(tmp_path / "store", output_dim=20)
    assert (other.kind, other.width) == ("features", 24)
    assert build_model(other).image_head is not None
    with pytest.raises(ConfigError, match="features are 24 wide and the encoder's output is 16"):
        build_model(other, image_head="none")


def test_spoiled_features_are_found_before_training(tmp_path: Path, store: Path) -> None:
    spoiled = int(read(store).training[70])
    fabricate_store(tmp_path / "store", spoil=spoiled)
    with pytest.raises(DataError, match=f"place {spoiled} are not finite"):
        read(tmp_path / "store")


def test_half_the_data_is_half_the_places(store: Path) -> None:
    whole, half = read(store).training, read(store, share=0.5).training
    assert len(half) == round(len(whole) / 2)
    assert set(half) < set(whole)


@pytest.mark.parametrize("logits", ["paper", "decoupled"])
def test_written_out_logits_are_the_encoders(logits: str) -> None:
    from tessearth.encoder.config import TessellationConfig

    encoder = tiny_encoder(tessellations=(TessellationConfig(num_sites=30, site_dim=7, logits=logits),))  # type: ignore[arg-type]
    xyz = torch.nn.functional.normalize(torch.randn(50, 3, dtype=torch.float64), dim=-1)
    voronoi = encoder.voronois()[0]
    torch.testing.assert_close(voronoi.written_out_logits(xyz), voronoi.logits(xyz), rtol=1e-12, atol=1e-12)


def test_the_training_forward_is_the_encoders_own(store: Path) -> None:
    data = read(store)
    model = build_model(data).eval()
    batch = data.held_out(20)
    assert batch is not None
    sides, encoding = model.sides(*batch), model.encoder.encode(batch.latlon)
    torch.testing.assert_close(sides.location, encoding.embedding)
    torch.testing.assert_close(sides.location_attention, encoding.token_attention)


def test_no_term_but_the_contrastive_one_moves_the_image_head(store: Path) -> None:
    data = read(store)
    batch = data.held_out(20)
    assert batch is not None
    model = build_model(data, objective={"contrastive": 0.0})
    model(*batch).total.backward()
    assert model.image_head is not None
    assert model.image_head.weight.grad is None
    assert model.encoder.tokens is not None
    assert model.encoder.tokens.image_logits.weight.grad is not None
    model = build_model(data)
    model(*batch).total.backward()
    assert model.image_head is not None
    assert model.image_head.weight.grad is not None


def test_constraints_bring_sites_sharpness_and_scale_back(store: Path) -> None:
    model = build_model(read(store))
    with torch.no_grad():
        model.encoder.voronois()[0].directions.mul_(3)
        model.encoder.voronois()[0].log_sharpness.fill_(9)
        model.logit_scale.fill_(9)
    model.constrain_()
    torch.testing.assert_close(model.encoder.voronois()[0].directions.norm(dim=-1), torch.ones(24))
    assert float(model.encoder.sites().sharpness.max()) == pytest.approx(500)
    assert float(model.logit_scale) == pytest.approx(math.log(100))


def test_the_step_traces_whole_for_the_compiler(store: Path) -> None:
    data = read(store)
    levels = (*toy_recipe().encoder.tessellations, BROAD, SPACED)
    model = build_model(data, encoder={"tessellations": levels, "dropout": 0.0, "token_dropout": 0.0})
    batch = data.held_out(20)
    assert batch is not None
    torch._dynamo.reset()
    compiled = torch.compile(model, backend="aot_eager", fullgraph=True, dynamic=False)
    torch.testing.assert_close(compiled(*batch).total, model(*batch).total)


def test_k_means_finds_clusters_that_are_there_and_leaves_none_empty() -> None:
    generator = torch.Generator().manual_seed(0)
    centres = 20 * torch.randn(5, 3, generator=generator)
    points = (centres[:, None] + torch.randn(5, 30, 3, generator=generator)).reshape(-1, 3)
    found = k_means(points, 5, 20, seed=1).reshape(5, 30)
    assert len(set(found.flatten().tolist())) == 5
    many = k_means(torch.randn(60, 2, generator=generator), 50, 8, seed=0)
    assert len(set(many.tolist())) == 50


def test_clusters_of_another_encoder_lie_on_the_sphere(tmp_path: Path) -> None:
    save(tiny_encoder(dtype=torch.float32), tmp_path / "other.safetensors")
    recipe = SitesRecipe(start="clusters", model=str(tmp_path / "other.safetensors"), places=400, rounds=5)
    sites = cluster_sites(recipe, [24, 7], seed=0)
    assert [tuple(part.shape) for part in sites] == [(24, 3), (7, 3)]
    torch.testing.assert_close(sites[0].norm(dim=-1), torch.ones(24, dtype=torch.float64))
    assert len({tuple(row) for row in sites[0].tolist()}) == 24
    with pytest.raises(ConfigError, match="fewer than the 500 sites"):
        cluster_sites(recipe, [500], seed=0)
