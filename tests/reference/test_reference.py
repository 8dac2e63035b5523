"""Every operation of the encoder against the float64 numpy reference, and whole checkpoints against stored outputs."""

import json
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch

from tessearth.encoder import ResidualBlock
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.voronoi import SoftVoronoi
from tessearth.encoder.weights import load_weights
from tessearth.sphere.geometry import latlon_to_xyz
from tests.conftest import tiny_encoder
from tests.reference import numpy_encoder as reference

HERE = Path(__file__).parent / "official"
SHARED = Path(__file__).parents[3] / "shared" / "parity"
FOLDERS = sorted(path.parent for root in (HERE, SHARED) for path in root.glob("*/expected.npz"))
OWN = sorted(path.parent for path in HERE.glob("*/expected.npz"))


def random_places(count: int, seed: int = 0) -> np.ndarray:
    rng = np.random.default_rng(seed)
    return np.stack([rng.uniform(-90, 90, count), rng.uniform(-180, 180, count)], axis=1)


def test_the_repository_carries_its_own_fixtures() -> None:
    assert [folder.name for folder in OWN] == ["cosine", "plain", "same_width"]


@pytest.mark.parametrize("folder", FOLDERS, ids=lambda folder: f"{folder.parent.name}-{folder.name}")
def test_checkpoints_give_the_outputs_they_must(folder: Path) -> None:
    encoder = load_weights(folder)
    expected = {name: torch.from_numpy(value) for name, value in np.load(folder / "expected.npz").items()}
    with torch.no_grad():
        encoding = encoder.encode(expected["latlon"])
        assert encoder.tokens is not None
        looking = encoder.tokens.image_attention(expected["image_features"])
        got = {
            "embedding_raw": encoding.raw,
            "embedding_unit": encoding.embedding,
            "token_attention": encoding.token_attention,
            "site_weights": encoding.site_weights,
            "image_attention": looking,
            "image_attended": encoder.tokens.attend(looking),
        }
        torch.testing.assert_close(encoder(expected["latlon"]), encoding.embedding, rtol=0, atol=1e-6)
    for name, value in got.items():
        torch.testing.assert_close(value, expected[name], rtol=0, atol=1e-5, msg=lambda m, n=name: f"{n}: {m}")


@pytest.mark.parametrize("folder", OWN, ids=lambda folder: folder.name)
def test_whole_model_in_float64_equals_the_reference(folder: Path) -> None:
    config = json.loads((folder / "config.json").read_text())
    tensors = safetensors.numpy.load_file(folder / "model.safetensors")
    latlon = random_places(200)
    features = reference.unit(np.random.default_rng(1).normal(size=(9, config["output_dim"])))
    expected = reference.run(config, tensors, latlon, features)
    with torch.no_grad():
        encoding = load_weights(folder).double().encode(torch.from_numpy(latlon))
    for name, value in (
        ("site_weights", encoding.site_weights),
        ("token_attention", encoding.token_attention),
        ("embedding_raw", encoding.raw),
        ("embedding_unit", encoding.embedding),
    ):
        assert value is not None
        np.testing.assert_allclose(value.numpy(), expected[name], rtol=1e-9, atol=1e-11, err_msg=name)


def test_sphere_equals_the_reference() -> None:
    latlon = random_places(500)
    np.testing.assert_allclose(latlon_to_xyz(torch.from_numpy(latlon)), reference.sphere(latlon), rtol=0, atol=1e-15)


@pytest.mark.parametrize("form", ["paper", "decoupled"])
def test_site_weights_equal_the_reference(form: str) -> None:
    encoder = tiny_encoder(tessellations=(TessellationConfig(num_sites=30, site_dim=4, sharpness=60.0, logits=form),))
    voronoi = encoder.voronois()[0]
    xyz = reference.sphere(random_places(100))
    sites, log_tau = voronoi.directions.detach().numpy(), voronoi.log_sharpness.detach().numpy()
    if form == "paper":
        expected = reference.site_weights(xyz, sites, log_tau)
    else:
        expected = reference.decoupled_site_weights(xyz, sites, log_tau, voronoi.territory.detach().numpy())
    got = voronoi.weights(torch.from_numpy(xyz)).detach().numpy()
    np.testing.assert_allclose(got, expected, rtol=1e-10, atol=1e-14)


def test_top_k_keeps_the_largest_weights_and_renormalises() -> None:
    voronoi: SoftVoronoi = tiny_encoder().voronois()[0]
    xyz = reference.sphere(random_places(50))
    full = reference.site_weights(xyz, voronoi.directions.detach().numpy(), voronoi.log_sharpness.detach().numpy())
    kept = np.where(full >= np.sort(full, axis=1)[:, [-7]], full, 0)
    got = voronoi.weights(torch.from_numpy(xyz), top_k=7).detach().numpy()
    np.testing.assert_allclose(got, kept / kept.sum(axis=1, keepdims=True), rtol=1e-9, atol=1e-15)


def test_residual_block_equals_the_reference() -> None:
    torch.manual_seed(0)
    block = ResidualBlock(11, dropout=0.5).double().eval()
    x = np.random.default_rng(0).normal(size=(20, 11))
    layers = (block.first.weight, block.first.bias, block.second.weight, block.second.bias)
    expected = reference.residual(x, *(layer.detach().numpy() for layer in layers))
    np.testing.assert_allclose(block(torch.from_numpy(x)).detach().numpy(), expected, rtol=1e-12)


def test_several_tessellations_concatenate_their_mixtures() -> None:
    parts = (
        TessellationConfig(num_sites=10, site_dim=3),
        TessellationConfig(num_sites=25, site_dim=5, sharpness=200.0),
    )
    encoder = tiny_encoder(tessellations=parts)
    xyz = torch.from_numpy(reference.sphere(random_places(30)))
    each = [
        reference.site_weights(xyz.numpy(), v.directions.detach().numpy(), v.log_sharpness.detach().numpy())
        for v in encoder.voronois()
    ]
    encoding = encoder.encode_xyz(xyz)
    np.testing.assert_allclose(encoding.site_weights.detach(), np.concatenate(each, axis=1), rtol=1e-9, atol=1e-14)
    mixtures = [w @ v.embeddings.detach().numpy() for w, v in zip(each, encoder.voronois(), strict=True)]
    attention = encoder.tokens.location_attention(torch.from_numpy(np.concatenate(mixtures, axis=1)))
    torch.testing.assert_close(encoding.token_attention, attention)


def test_coordinate_conditioning_gives_the_head_sines_and_cosines_of_the_position() -> None:
    encoder = tiny_encoder(coordinate_octaves=3)
    xyz = reference.sphere(random_places(20))
    angles = np.concatenate([np.pi * 2**j * xyz for j in range(3)], axis=1)
    got = encoder.coordinate_features(torch.from_numpy(xyz)).numpy()
    np.testing.assert_allclose(got, np.concatenate([np.sin(angles), np.cos(angles)], axis=1), atol=1e-12)
    assert encoder.head.entry.in_features == encoder.config.output_dim + 18


def test_annealed_temperature_equals_its_formula() -> None:
    tokens = tiny_encoder().tokens
    tokens.log_temperature.data.fill_(np.log(0.5))
    for progress, expected in ((0.0, 0.5), (0.25, 0.425), (1.0, 0.2)):
        tokens.temperature_progress.fill_(progress)
        assert float(tokens.temperature().detach()) == pytest.approx(expected)
