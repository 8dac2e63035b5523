"""Levels: sharpness tied to spacing, logits through the chord, and the background."""

import dataclasses
import math
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.encoder import EncoderConfig, SoftVoronoi, SphericalVoronoiEncoder, TessellationConfig, load_weights
from tessearth.errors import ConfigError
from tessearth.sphere import fibonacci_lattice

SPACED = TessellationConfig(num_sites=400, site_dim=4, sharpness="spacing", logits="chord")


def tessellation(config: TessellationConfig = SPACED, *, scale: float = 1.0) -> SoftVoronoi:
    """A tessellation on a lattice, or on a patch of the sphere that is `scale` as large."""
    sites = fibonacci_lattice(config.num_sites)
    if scale < 1:
        sites = torch.nn.functional.normalize(torch.tensor([1.0, 0, 0], dtype=torch.float64) + scale * sites, dim=-1)
    voronoi = SoftVoronoi(config, sites)
    torch.nn.init.normal_(voronoi.embeddings)
    return voronoi


def test_sharpness_is_c_over_the_square_of_the_mean_chord_to_the_nearest_sites() -> None:
    voronoi = tessellation()
    chords = torch.cdist(voronoi.directions.double(), voronoi.directions.double()).sort(-1).values[:, 1:7].mean(-1)
    torch.testing.assert_close(voronoi.spacing.double(), chords, rtol=1e-5, atol=0)
    torch.testing.assert_close(voronoi.sharpness().double(), 2 / chords.square(), rtol=1e-4, atol=0)


def test_chords_are_decoupled_logits_on_unit_vectors() -> None:
    chord = tessellation(TessellationConfig(num_sites=64, site_dim=4, sharpness=20.0, logits="chord"))
    decoupled = SoftVoronoi(dataclasses.replace(chord.config, logits="decoupled"), fibonacci_lattice(64))
    places = fibonacci_lattice(100).float()
    with torch.no_grad():
        for voronoi in (chord, decoupled):
            voronoi.territory.copy_(torch.linspace(-1, 1, 64))
    torch.testing.assert_close(chord.weights(places), decoupled.weights(places), rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("scale", [1.0, 1e-2, 1e-3])
def test_float32_holds_however_near_the_sites_are(scale: float) -> None:
    voronoi = tessellation(scale=scale)
    near = voronoi.positions().detach()[::7] + 0.3 * voronoi.spacing[::7, None] * torch.randn(58, 3)
    near = torch.nn.functional.normalize(near, dim=-1)
    exact = tessellation(scale=scale).double()
    exact.load_state_dict(voronoi.state_dict())
    wanted = exact.weights(near.double())
    spread = 6e-8 * float(voronoi.sharpness().max().sqrt())  # what rounding a place to float32 amounts to, in weights
    assert (voronoi.weights(near).double() - wanted).abs().max() < max(2e-6, 20 * spread)


def test_sites_a_kilometre_apart_are_told_apart_in_float32() -> None:
    voronoi = tessellation(dataclasses.replace(SPACED, sharpness=1e8, sharpness_range=(0.5, 1e9)), scale=1e-3)
    sites = voronoi.positions().detach()
    assert torch.equal(voronoi.weights(sites).argmax(-1), torch.arange(400))


def test_the_background_takes_what_no_site_is_near_to() -> None:
    voronoi = tessellation(dataclasses.replace(SPACED, background=-8.0), scale=0.05)
    far, near = torch.tensor([[-1.0, 0, 0]]), voronoi.positions().detach()
    assert float(voronoi.weights(far).sum()) < 1e-6
    assert float(voronoi.weights(near).sum(-1).min()) > 0.99


def test_a_site_with_territory_minus_infinity_takes_no_part() -> None:
    voronoi, places = tessellation(), fibonacci_lattice(50).float()
    rest = SoftVoronoi(dataclasses.replace(SPACED, num_sites=300), voronoi.directions.detach()[:300])
    with torch.no_grad():
        voronoi.territory[300:] = -math.inf
        rest.log_sharpness.copy_(voronoi.log_sharpness[:300])
    weights = voronoi.weights(places)
    weights.square().sum().backward()
    torch.testing.assert_close(weights[:, :300], rest.weights(places))
    assert not weights[:, 300:].any()
    assert all(
        bool(part.grad.isfinite().all())
        for part in (voronoi.directions, voronoi.log_sharpness)
        if part.grad is not None
    )


def test_in_training_gradients_of_positions_are_in_units_of_spacing() -> None:
    places, gradients = fibonacci_lattice(50).float(), []
    for training in (True, False):
        voronoi = tessellation().train(training)
        torch.manual_seed(0)
        torch.nn.init.normal_(voronoi.embeddings)
        (voronoi.weights(places) @ voronoi.embeddings).square().sum().backward()
        assert voronoi.directions.grad is not None
        gradients.append(voronoi.directions.grad)
    torch.testing.assert_close(gradients[0], gradients[1] * tessellation().spacing[:, None])


def test_constraints_keep_the_ratio_of_sharpness_to_spacing_in_its_range() -> None:
    voronoi = tessellation()
    with torch.no_grad():
        voronoi.log_sharpness.add_(torch.linspace(-20, 20, 400))
    voronoi.constrain_()
    ratio = voronoi.sharpness() * voronoi.spacing.square()
    assert float(ratio.min()) == pytest.approx(0.5, rel=1e-3)
    assert float(ratio.max()) == pytest.approx(500, rel=1e-3)


def levels(**changes: object) -> EncoderConfig:
    """A small encoder of a broad level and a spaced one."""
    broad = TessellationConfig(num_sites=32, site_dim=4, sharpness=8.0)
    return EncoderConfig(
        tessellations=(broad, SPACED), output_dim=16, hidden_dim=8, num_tokens=4, num_blocks=1, **changes
    )  # type: ignore[arg-type]


def test_half_precision_files_keep_the_geometry_of_chords(tmp_path: Path) -> None:
    encoder = SphericalVoronoiEncoder(levels())
    from tessearth.encoder.weights import save

    save(encoder, tmp_path / "half.safetensors", dtype=torch.float16)
    back = load_weights(tmp_path / "half.safetensors").voronois()[1]
    assert torch.equal(back.directions, encoder.voronois()[1].directions)
    assert torch.equal(back.spacing, encoder.voronois()[1].spacing)


def test_a_model_with_levels_embeds_the_same_after_its_file(tmp_path: Path) -> None:
    encoder = SphericalVoronoiEncoder(levels()).eval()
    encoder.save(tmp_path / "levels.safetensors")
    latlon = torch.from_numpy(np.random.default_rng(0).uniform((-90, -180), (90, 180), (20, 2))).float()
    assert torch.equal(load_weights(tmp_path / "levels.safetensors")(latlon), encoder(latlon))


def test_plain_tessellations_are_described_without_the_settings_of_levels() -> None:
    described = EncoderConfig().to_dict()["tessellations"][0]
    assert set(described) == {"num_sites", "site_dim", "sharpness", "sharpness_range", "logits", "on_sphere"}


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"sharpness": "spacing"}, "needs logits = 'chord'"),
        ({"sharpness": "spacing", "logits": "chord", "on_sphere": False}, "sites on the sphere"),
        ({"sharpness": "spacing", "logits": "chord", "spacing_factor": 0.1}, "does not lie in sharpness_range"),
        ({"sharpness": "spacing", "logits": "chord", "num_sites": 6}, "6 sites have no 6 neighbours"),
        ({"background": -8.0}, "background is for logits = 'chord'"),
        ({"logits": "cord"}, "must be one of 'paper', 'decoupled', 'chord'"),
    ],
)
def test_levels_that_cannot_be_are_refused(settings: dict[str, object], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        TessellationConfig(**settings)  # type: ignore[arg-type]
