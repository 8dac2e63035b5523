"""Encoders with levels: what a place uses of their sites and how well they cover it, by the few sites that matter."""

import math
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from torch.nn.functional import normalize

from tessearth import Embedder
from tessearth.embedding.describe import describe_model
from tessearth.embedding.fast.bounds import EPSILON
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.sphere import EARTH_RADIUS_KM, fibonacci_lattice
from tests.conftest import tiny_config, tiny_encoder

LEVEL: dict[str, Any] = {"logits": "chord", "sharpness": "spacing", "sharpness_range": (0.5, 8.0)}
BROAD = TessellationConfig(num_sites=30, site_dim=5, sharpness=9.0, logits="chord")
COARSE = TessellationConfig(num_sites=200, site_dim=10, **LEVEL)
FINE = TessellationConfig(num_sites=1500, site_dim=6, background=-6.0, **LEVEL)
FIRST_FINE = 230
PLACES = fibonacci_lattice(150).numpy()
PATCH = torch.tensor([0.6, 0.0, 0.8], dtype=torch.float64)
"""Where the finest level is: its sites lie within a tenth of a radian."""


def build(**changes: object) -> SphericalVoronoiEncoder:
    levels = tiny_encoder(tessellations=(BROAD, COARSE, FINE), dtype=torch.float32, **changes).voronois()
    sites = [*(level.directions.detach() for level in levels[:2]), normalize(PATCH + 0.1 * fibonacci_lattice(1500))]
    config = tiny_config(tessellations=(BROAD, COARSE, FINE), **changes)
    encoder = SphericalVoronoiEncoder(config, sites=sites, generator=torch.Generator().manual_seed(0))
    for level in encoder.voronois():
        torch.nn.init.normal_(level.embeddings, generator=torch.Generator().manual_seed(1))
        torch.nn.init.normal_(level.territory, generator=torch.Generator().manual_seed(2))
    return encoder.eval().requires_grad_(False)


ENCODER = build()
NEAR = normalize(PATCH + 0.08 * fibonacci_lattice(150), dim=-1).numpy()


@pytest.mark.parametrize("here", [PLACES, NEAR], ids=["everywhere", "near"])
def test_the_shares_of_a_place_are_the_weights_of_all_sites_but_for_epsilon(here: np.ndarray[Any, Any]) -> None:
    explanation = Embedder(ENCODER, device="cpu").explain(xyz=here)
    weights = ENCODER.encode_xyz(torch.from_numpy(here).float()).site_weights.numpy()
    assert explanation.site_weights is None
    assert explanation.shares is not None
    found = np.zeros((len(here), weights.shape[1] + 1))
    for site, weight in explanation.shares:
        assert ((site >= 0) == (weight > 0)).all()
        assert (np.diff(weight, axis=1) <= 0).all()
        np.put_along_axis(found, site, weight, axis=1)  # -1 is the column behind the last
    np.testing.assert_allclose(found[:, :-1], weights, atol=2e-5)
    totals = [share.weight.sum(axis=1) for share in explanation.shares]
    sums = [part.sum(axis=1) for part in np.split(weights, [30, FIRST_FINE], axis=1)]
    np.testing.assert_allclose(np.stack(totals), np.stack(sums), atol=10 * EPSILON)


def test_an_explanation_s_embedding_is_the_embedding() -> None:
    embed = Embedder(ENCODER, device="cpu", batch_size=40)
    explanation = embed.explain(xyz=PLACES.reshape(10, 15, 3))
    np.testing.assert_allclose(explanation.embedding, embed.embed(xyz=PLACES).reshape(10, 15, -1), atol=2e-6)
    attention = ENCODER.encode_xyz(torch.from_numpy(PLACES).float()).token_attention
    assert explanation.token_attention is not None
    assert attention is not None
    np.testing.assert_allclose(explanation.token_attention.reshape(150, -1), attention, atol=1e-5)
    assert explanation.shares is not None
    assert [share.site.shape[:2] for share in explanation.shares] == [(10, 15)] * 3
    shorter = Embedder(ENCODER, device="cpu", dims=4).explain(xyz=PLACES[0])
    np.testing.assert_allclose(np.linalg.norm(shorter.embedding), 1, atol=1e-6)


@pytest.mark.parametrize("top_k", [1, 7, 1730])
def test_top_k_keeps_the_sites_that_the_plain_formula_keeps(top_k: int) -> None:
    expected = ENCODER.embed_xyz(torch.from_numpy(NEAR).float(), top_k).numpy()
    np.testing.assert_allclose(Embedder(ENCODER, device="cpu", top_k=top_k).embed(xyz=NEAR), expected, atol=2e-5)


@pytest.mark.parametrize("options", [{}, {"strategy": "plain"}, {"precision": "float64"}, {"precision": "bfloat16"}])
def test_every_strategy_gives_the_same_embeddings(options: dict[str, Any]) -> None:
    exact = build().double().embed_xyz(torch.from_numpy(NEAR)).numpy()
    got = Embedder(ENCODER, device="cpu", **options).embed(xyz=NEAR)
    assert np.abs(got - exact).max() < (2e-2 if "bfloat16" in options.values() else 2e-5)


def test_relative_distance_is_that_to_the_nearest_site_of_each_level_over_its_spacing() -> None:
    sites = ENCODER.voronois()[2].positions().double()
    support = Embedder(ENCODER, device="cpu").support(xyz=np.concatenate((sites[::100].numpy(), -PATCH[None].numpy())))
    assert support.relative is not None
    assert support.relative.shape == (16, 3)
    np.testing.assert_allclose(support.relative[:-1, 2], 0, atol=1e-3)
    assert (support.relative[:-1, 1] < 2).all()
    away = -PATCH / PATCH.norm()
    angles = torch.arccos((sites @ away).clamp(-1, 1))
    expected = float(angles.min() / ENCODER.voronois()[2].spacing[angles.argmin()])
    np.testing.assert_allclose(support.relative[-1, 2], expected, rtol=1e-4)
    np.testing.assert_allclose(support.distance[:-1], 0, atol=1e-4)


def test_an_encoder_without_spaced_levels_has_no_relative_distance() -> None:
    assert Embedder(tiny_encoder(dtype=torch.float32), device="cpu").support(48.0, 2.0).relative is None


def test_sites_that_take_no_part_are_nearest_to_nothing() -> None:
    encoder = build()
    fine = encoder.voronois()[2]
    fine.territory[:1490] = -math.inf
    embed = Embedder(encoder, device="cpu")
    near = embed.nearest_sites(xyz=fine.positions().double().numpy()[:50], count=3)
    assert not ((near.site >= FIRST_FINE) & (near.site < FIRST_FINE + 1490)).any()
    assert (near.site >= FIRST_FINE + 1490).any()
    shares = embed.explain(xyz=NEAR).shares
    assert shares is not None
    assert set(np.unique(shares[2].site)) <= {-1, *range(FIRST_FINE + 1490, FIRST_FINE + 1500)}


def test_the_nearest_of_sites_a_hundred_metres_apart_is_found() -> None:
    sites = normalize(PATCH + 1e-3 * fibonacci_lattice(1500), dim=-1)
    config = tiny_config(tessellations=(FINE,))
    encoder = SphericalVoronoiEncoder(config, sites=[sites]).eval()
    here = encoder.voronois()[0].positions().detach().double()
    near = Embedder(encoder, device="cpu").nearest_sites(xyz=(here / here.norm(dim=-1, keepdim=True)).numpy(), count=1)
    assert (near.site[:, 0] == np.arange(1500)).mean() > 0.99  # float32 rounds directions to half a metre


def test_a_copy_by_pickle_explains_the_same() -> None:
    embed = Embedder(ENCODER, device="cpu")
    first = embed.explain(xyz=NEAR[:5])
    again = pickle.loads(pickle.dumps(embed)).explain(xyz=NEAR[:5])
    np.testing.assert_array_equal(first.embedding, again.embedding)


def test_a_description_says_how_far_apart_the_sites_are(tmp_path: Path) -> None:
    ENCODER.save(tmp_path / "m.safetensors")
    described = describe_model(tmp_path / "m.safetensors")["tessellations"]
    assert "background" not in described["1"]
    assert described["2"]["background"] == -6.0
    spacing = ENCODER.voronois()[2].spacing.numpy() * EARTH_RADIUS_KM
    assert described["2"]["spacing_km_median"] == pytest.approx(np.median(spacing))
    assert described["2"]["sharpness_times_spacing_squared_highest"] == pytest.approx(2.0)
    assert "spacing_km_median" not in described["0"]


@pytest.mark.skipif(not torch.cuda.is_available(), reason="needs a GPU")
@pytest.mark.parametrize("options", [{}, {"top_k": 7}, {"precision": "bfloat16"}, {"precision": "float64"}])
def test_a_gpu_gives_what_a_cpu_gives(options: dict[str, Any]) -> None:
    expected = Embedder(ENCODER, device="cpu", **options).embed(xyz=NEAR)
    got = Embedder(ENCODER, device="cuda", **options).embed(xyz=NEAR)
    assert np.abs(got - expected).max() < (2e-2 if "bfloat16" in options.values() else 2e-5)
    explained = Embedder(ENCODER, device="cuda").explain(xyz=NEAR)
    np.testing.assert_allclose(explained.embedding, Embedder(ENCODER, device="cpu").embed(xyz=NEAR), atol=2e-5)
