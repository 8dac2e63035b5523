"""What must hold of the encoder whatever its weights and wherever the place."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.sphere.geometry import fibonacci_lattice, latlon_to_xyz
from tests.conftest import tiny_encoder

FORMS = {
    "paper": {},
    "decoupled": {"tessellations": (TessellationConfig(num_sites=40, site_dim=12, logits="decoupled"),)},
    "two tessellations": {
        "tessellations": (
            TessellationConfig(num_sites=15, site_dim=7, sharpness=10.0),
            TessellationConfig(num_sites=50, site_dim=5, sharpness=300.0, logits="decoupled"),
        )
    },
    "off the sphere": {"tessellations": (TessellationConfig(num_sites=40, site_dim=12, on_sphere=False),)},
    "no tokens": {"num_tokens": 0},
    "cosine attention": {"cosine_attention": True},
    "coordinate conditioning": {"coordinate_octaves": 4},
    "raw": {"normalize": False},
}
every_form = pytest.mark.parametrize("form", FORMS)

latitudes = st.floats(-90, 90)
longitudes = st.floats(-180, 180)
seeds = st.integers(0, 10_000)


def encoder_of(form: str, seed: int = 0) -> SphericalVoronoiEncoder:
    return tiny_encoder(seed, **FORMS[form])


def places(*latlon: tuple[float, float]) -> torch.Tensor:
    return torch.tensor(latlon, dtype=torch.float64)


def random_rotation(seed: int) -> torch.Tensor:
    q, r = torch.linalg.qr(torch.randn(3, 3, dtype=torch.float64, generator=torch.Generator().manual_seed(seed)))
    q = q * r.diagonal().sign()
    return q * q.det().sign()


@every_form
@given(lat=latitudes, lon=longitudes)
def test_weights_and_attention_are_distributions(form: str, lat: float, lon: float) -> None:
    encoder = encoder_of(form)
    encoding = encoder.encode(places((lat, lon)))
    assert (encoding.site_weights >= 0).all()
    for block in encoding.site_weights.split([t.num_sites for t in encoder.config.tessellations], dim=-1):
        assert math.isclose(float(block.sum()), 1, abs_tol=1e-12)
    if encoding.token_attention is not None:
        assert math.isclose(float(encoding.token_attention.sum()), 1, abs_tol=1e-12)
    if encoder.config.normalize:
        assert math.isclose(float(encoding.embedding.norm()), 1, abs_tol=1e-12)


@pytest.mark.parametrize("form", [form for form in FORMS if form != "coordinate conditioning"])
@given(lat=latitudes, lon=longitudes, seed=seeds)
def test_rotating_sites_and_points_together_changes_nothing(form: str, lat: float, lon: float, seed: int) -> None:
    encoder, rotation = encoder_of(form), random_rotation(seed)
    xyz = latlon_to_xyz(places((lat, lon)))
    before = encoder.embed_xyz(xyz)
    with torch.no_grad():
        for voronoi in encoder.voronois():
            voronoi.directions.copy_(voronoi.directions @ rotation.T)
    torch.testing.assert_close(encoder.embed_xyz(xyz @ rotation.T), before, rtol=0, atol=1e-10)


@every_form
@given(lat=latitudes, lon=longitudes, turns=st.integers(-2, 2))
def test_longitude_wraps(form: str, lat: float, lon: float, turns: int) -> None:
    encoder = encoder_of(form)
    here, there = encoder(places((lat, lon), (lat, lon + 360 * turns)))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)


@every_form
@given(lon=longitudes, pole=st.sampled_from([-90.0, 90.0]))
def test_a_pole_is_one_point_whatever_its_longitude(form: str, lon: float, pole: float) -> None:
    here, there = encoder_of(form)(places((pole, 0), (pole, lon)))
    torch.testing.assert_close(here, there, rtol=0, atol=1e-10)


@every_form
@given(lat=latitudes)
def test_both_sides_of_the_antimeridian_are_neighbours(form: str, lat: float) -> None:
    east, west, far = encoder_of(form)(places((lat, 179.9999), (lat, -179.9999), (lat, 179.9)))
    step = float((east - west).norm())
    assert step < 1e-3
    if abs(lat) < 80:
        assert step < float((east - far).norm())


@every_form
def test_rows_do_not_see_each_other(form: str) -> None:
    encoder = encoder_of(form)
    latlon = places(*[(lat, lon) for lat in range(-80, 81, 20) for lon in range(-170, 171, 40)])
    together = encoder(latlon)
    torch.testing.assert_close(torch.cat([encoder(row[None]) for row in latlon]), together, rtol=0, atol=1e-12)
    order = torch.randperm(len(latlon), generator=torch.Generator().manual_seed(0))
    torch.testing.assert_close(encoder(latlon[order]), together[order], rtol=0, atol=1e-12)


@given(lat=latitudes, lon=longitudes, seed=seeds)
def test_sharp_sites_become_hard_cells(lat: float, lon: float, seed: int) -> None:
    sharp = TessellationConfig(num_sites=60, site_dim=6, sharpness=1e9, sharpness_range=(0.5, 1e9))
    generator = torch.Generator().manual_seed(seed)
    encoder = SphericalVoronoiEncoder(
        encoder_of("paper").config.__class__(tessellations=(sharp,), output_dim=6, hidden_dim=6, num_tokens=3),
        sites=[fibonacci_lattice(60)],
        generator=generator,
    ).double()
    voronoi = encoder.voronois()[0]
    voronoi.directions.data.copy_(fibonacci_lattice(60))
    voronoi.log_sharpness.data.fill_(math.log(1e9))
    xyz = latlon_to_xyz(places((lat, lon)))
    nearest = (xyz @ voronoi.positions().T).argmax(dim=-1)
    torch.testing.assert_close(voronoi.weights(xyz) @ voronoi.embeddings, voronoi.embeddings[nearest])
    torch.testing.assert_close(voronoi.weights(xyz, top_k=1), voronoi.weights(xyz))


@every_form
@given(lat=latitudes, lon=longitudes)
def test_top_k_of_all_sites_is_the_full_model(form: str, lat: float, lon: float) -> None:
    encoder = encoder_of(form)
    xyz = latlon_to_xyz(places((lat, lon)))
    largest = max(t.num_sites for t in encoder.config.tessellations)
    torch.testing.assert_close(encoder.embed_xyz(xyz, top_k=largest), encoder.embed_xyz(xyz), rtol=0, atol=0)


@given(lat=latitudes, lon=longitudes, k=st.integers(1, 39))
def test_top_k_leaves_exactly_k_sites_and_approaches_the_full_model(lat: float, lon: float, k: int) -> None:
    encoder = encoder_of("paper")
    xyz = latlon_to_xyz(places((lat, lon)))
    weights = encoder.encode_xyz(xyz, top_k=k).site_weights
    assert int((weights > 0).sum()) <= k
    assert math.isclose(float(weights.sum()), 1, abs_tol=1e-12)
    full = encoder.encode_xyz(xyz).site_weights
    dropped = 1 - float(full.topk(k).values.sum())
    assert float((weights - full).abs().sum()) <= 2 * dropped + 1e-12


@given(sharpness=st.floats(0.5, 5000))
def test_decoupled_territory_does_not_depend_on_sharpness(sharpness: float) -> None:
    """A site's logit at its own position is its territory alone; in the paper's form a sharper site wins there too."""
    config = TessellationConfig(num_sites=2, site_dim=2, logits="decoupled", sharpness_range=(0.5, 5000.0))
    voronoi = tiny_encoder(tessellations=(config,)).voronois()[0]
    sites = latlon_to_xyz(places((0, 0), (0, 20)))
    with torch.no_grad():
        voronoi.directions.copy_(sites)
        voronoi.log_sharpness.copy_(torch.tensor([sharpness, 30.0]).log())
    torch.testing.assert_close(voronoi.logits(sites).diagonal(), voronoi.territory, rtol=0, atol=1e-10)


@every_form
def test_gradients_reach_every_trainable_tensor(form: str) -> None:
    encoder = encoder_of(form)
    latlon = places((10, 20), (-40, 100), (70, -120), (0, 0)).requires_grad_()
    encoding = encoder.encode(latlon)
    target = torch.randn(encoding.raw.shape, dtype=torch.float64, generator=torch.Generator().manual_seed(1))
    loss = (encoding.embedding * target).sum()
    if encoder.tokens is not None:
        looking = encoder.tokens.image_attention(torch.nn.functional.normalize(target, dim=-1))
        loss = loss + (encoder.tokens.attend(looking) * target).sum()
    loss.backward()
    assert latlon.grad is not None
    assert latlon.grad.abs().sum() > 0
    for name, parameter in encoder.named_parameters():
        assert parameter.grad is not None, name
        assert parameter.grad.isfinite().all(), name
        assert parameter.grad.abs().sum() > 0, name


@every_form
def test_gradients_match_finite_differences(form: str) -> None:
    encoder = encoder_of(form)
    latlon = places((12.3, 45.6), (-33.0, 151.0))
    names = list(dict(encoder.named_parameters()))
    trainable = [p for n, p in encoder.named_parameters() if "image" not in n]
    generator = torch.Generator().manual_seed(0)
    # One random direction through all parameters at once: its slope is the gradient's product with it.
    directions = [torch.randn(p.shape, dtype=torch.float64, generator=generator) for p in trainable]
    target = torch.randn(2, encoder.config.output_dim, dtype=torch.float64, generator=generator)

    def value(step: float) -> float:
        with torch.no_grad():
            for p, d in zip(trainable, directions, strict=True):
                p.add_(step * d)
            result = float((encoder(latlon) * target).sum())
            for p, d in zip(trainable, directions, strict=True):
                p.sub_(step * d)
        return result

    gradients = torch.autograd.grad((encoder(latlon) * target).sum(), trainable)
    slope = sum(float((g * d).sum()) for g, d in zip(gradients, directions, strict=True))
    step = 1e-7
    assert names
    assert (value(step) - value(-step)) / (2 * step) == pytest.approx(slope, rel=2e-4, abs=1e-6)


def test_gradients_of_the_place_match_finite_differences() -> None:
    encoder = encoder_of("paper")
    torch.autograd.gradcheck(encoder, (places((12.3, 45.6)).requires_grad_(),), atol=1e-6)
