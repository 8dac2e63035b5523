"""The encoder as a PyTorch module: initialisation, modes, precision, compilation, fine-tuning."""

import math

import pytest
import torch
from torch import nn

from tessearth import EncoderConfig, SphericalVoronoiEncoder
from tessearth.encoder.config import TessellationConfig
from tessearth.errors import ConfigError
from tests.conftest import tiny_config, tiny_encoder

PLACES = torch.tensor([[48.85, 2.35], [-33.9, 151.2], [90.0, 0.0], [0.0, 180.0]])


def build(seed: int, **changes: object) -> SphericalVoronoiEncoder:
    return SphericalVoronoiEncoder(tiny_config(**changes), sites="full", generator=torch.Generator().manual_seed(seed))


def test_the_papers_model_has_the_papers_number_of_parameters() -> None:
    encoder = SphericalVoronoiEncoder.allocate(EncoderConfig())
    assert sum(parameter.numel() for parameter in encoder.parameters()) == 3_453_057


def test_initial_weights_follow_the_paper() -> None:
    big = (TessellationConfig(num_sites=2000, site_dim=50),)
    encoder = build(0, tessellations=big, num_tokens=16, output_dim=64)
    voronoi, tokens = encoder.voronois()[0], encoder.tokens
    assert float(voronoi.embeddings.std()) == pytest.approx(0.02, rel=0.02)
    torch.testing.assert_close(voronoi.sharpness(), torch.full((2000,), 45.0))
    torch.testing.assert_close(tokens.tokens @ tokens.tokens.T, torch.eye(16), rtol=0, atol=1e-5)
    for logits in (tokens.location_logits, tokens.image_logits):
        assert float(logits.weight.std()) == pytest.approx(0.1, rel=0.1)
        assert float(logits.bias.abs().max()) == 0
    assert float(tokens.temperature()) == pytest.approx(0.5)
    assert float(tokens.image_temperature) == pytest.approx(0.05)


def test_linear_layers_start_as_pytorchs_own_do() -> None:
    """Uniform within 1 / sqrt(inputs), weights and biases alike: a deviation of that over sqrt 3."""
    encoder = build(0, hidden_dim=400)
    for layer in (encoder.projection, encoder.head.entry, encoder.head.blocks[1].second, encoder.head.exit):
        bound = layer.in_features**-0.5
        for drawn in (layer.weight, layer.bias):
            if drawn is not None and drawn.numel() > 300:
                assert float(drawn.abs().max()) <= bound
                assert float(drawn.min()) < -0.97 * bound
                assert float(drawn.max()) > 0.97 * bound
                assert float(drawn.std()) == pytest.approx(bound / math.sqrt(3), rel=0.1)


def test_the_default_start_is_on_land() -> None:
    from tessearth.sphere.geometry import xyz_to_latlon
    from tessearth.sphere.land import is_inhabited_land

    encoder = SphericalVoronoiEncoder(tiny_config())
    # float32 positions may fall a metre into the sea, hence the share
    assert is_inhabited_land(xyz_to_latlon(encoder.sites().positions.detach().double()).numpy()).mean() > 0.95


def test_a_seed_gives_one_encoder_and_another_seed_another() -> None:
    torch.manual_seed(99)
    one, same, other = build(1), build(1), build(2)
    for name, tensor in one.state_dict().items():
        assert torch.equal(tensor, same.state_dict()[name]), name
    assert not torch.equal(one.head.entry.weight, other.head.entry.weight)


def test_more_tokens_than_dimensions_still_start_as_unit_rows() -> None:
    tokens = build(0, num_tokens=30, output_dim=18).tokens
    torch.testing.assert_close(tokens.tokens.norm(dim=-1), torch.ones(30))


def test_sites_may_be_given() -> None:
    sites = torch.eye(3)
    config = tiny_config(tessellations=(TessellationConfig(num_sites=3, site_dim=12),))
    torch.testing.assert_close(SphericalVoronoiEncoder(config, sites=[sites]).sites().positions, sites)
    with pytest.raises(ConfigError, match=r"sites\[0\] has shape \(2, 3\), not \(3, 3\)"):
        SphericalVoronoiEncoder(config, sites=[sites[:2]])
    with pytest.raises(ConfigError, match="2 sets of sites were given for 1 tessellations"):
        SphericalVoronoiEncoder(config, sites=[sites, sites])


def test_dropout_acts_only_in_training_and_hides_tokens_for_the_whole_batch() -> None:
    encoder = build(0, token_dropout=0.6, num_tokens=12)
    encoder.train()
    torch.manual_seed(0)
    hidden = encoder.encode(PLACES).token_attention == 0
    assert hidden.any()
    assert (hidden == hidden[0]).all()
    assert not hidden.all(dim=-1).any()
    assert not torch.equal(encoder(PLACES), encoder(PLACES))
    encoder.eval()
    assert torch.equal(encoder(PLACES), encoder(PLACES))
    assert (encoder.encode(PLACES).token_attention > 0).all()


@pytest.mark.parametrize("share", [0.0, 0.1, 0.4])
def test_as_many_tokens_are_hidden_as_was_asked_for(share: float) -> None:
    encoder = build(0, token_dropout=share, num_tokens=200).train()
    torch.manual_seed(0)
    hidden = [float((encoder.encode(PLACES).token_attention == 0).double().mean()) for _ in range(50)]
    assert sum(hidden) / 50 == pytest.approx(share, abs=0.02)


def test_one_token_always_stays_in_sight() -> None:
    encoder = build(0, token_dropout=0.99, num_tokens=4).train()
    for seed in range(50):
        torch.manual_seed(seed)
        assert encoder.encode(PLACES).token_attention.isfinite().all()


def test_constraints_bring_sites_and_sharpness_back() -> None:
    encoder = build(0)
    voronoi = encoder.voronois()[0]
    with torch.no_grad():
        voronoi.directions.mul_(torch.linspace(0.1, 5, 40)[:, None])
        voronoi.log_sharpness.copy_(torch.linspace(-3, 10, 40))
    encoder.constrain_()
    torch.testing.assert_close(voronoi.directions.norm(dim=-1), torch.ones(40))
    assert float(voronoi.sharpness().min()) == pytest.approx(0.5)
    assert float(voronoi.sharpness().max()) == pytest.approx(500, rel=1e-5)


def test_sites_off_the_sphere_keep_their_length() -> None:
    free = (TessellationConfig(num_sites=40, site_dim=12, on_sphere=False),)
    encoder = build(0, tessellations=free)
    before = encoder(PLACES)
    with torch.no_grad():
        encoder.voronois()[0].directions.mul_(2)
    encoder.constrain_()
    assert float(encoder.voronois()[0].directions.norm(dim=-1).mean()) == pytest.approx(2)
    assert not torch.allclose(encoder(PLACES), before)


def test_double_precision_is_more_precise() -> None:
    encoder = build(3).eval()
    exact = encoder.double()(PLACES.double())
    single = encoder.float()(PLACES)
    assert exact.dtype == torch.float64
    torch.testing.assert_close(single.double(), exact, rtol=0, atol=2e-6)


@pytest.mark.parametrize("dtype", [torch.float16, torch.bfloat16, torch.float32, torch.float64])
def test_embeddings_are_of_unit_length_and_at_least_single_precision_whatever_the_head_is(dtype: torch.dtype) -> None:
    encoder = build(3).eval()
    encoder.head.to(dtype)
    encoder.norm.to(dtype)
    encoder.projection.to(dtype)
    encoder.tokens.to(dtype)
    encoding = encoder.encode(PLACES)
    assert encoding.raw.dtype == dtype
    assert encoding.embedding.dtype == (torch.float64 if dtype == torch.float64 else torch.float32)
    torch.testing.assert_close(encoding.embedding.norm(dim=-1).float(), torch.ones(4), rtol=0, atol=1e-6)
    assert encoding.site_weights.dtype == torch.float32


def test_users_may_ask_for_the_heads_own_length() -> None:
    encoder = build(3, normalize=False).eval()
    encoding = encoder.encode(PLACES)
    assert torch.equal(encoding.embedding, encoding.raw)
    assert not torch.allclose(encoding.raw.norm(dim=-1), torch.ones(4), atol=1e-2)


def test_double_coordinates_are_welcome_in_a_single_precision_encoder() -> None:
    encoder = build(3).eval()
    out = encoder(PLACES.double())
    assert out.dtype == torch.float32
    torch.testing.assert_close(out, encoder(PLACES), rtol=0, atol=1e-5)


def test_torch_compile_gives_the_same_embeddings_without_graph_breaks() -> None:
    encoder = tiny_encoder(dtype=torch.float32)
    compiled = torch.compile(encoder, fullgraph=True, backend="inductor")
    torch.testing.assert_close(compiled(PLACES), encoder(PLACES), rtol=0, atol=1e-5)


def test_fine_tuning_learns_labels_through_the_whole_encoder() -> None:
    torch.manual_seed(0)
    encoder = build(0, dropout=0.0, token_dropout=0.0).train()
    latlon = torch.rand(64, 2) * torch.tensor([160.0, 340.0]) - torch.tensor([80.0, 170.0])
    target = torch.sin(latlon[:, 0].deg2rad() * 3) * torch.cos(latlon[:, 1].deg2rad() * 2)
    readout = nn.Linear(encoder.config.output_dim, 1)
    optimiser = torch.optim.Adam([*encoder.parameters(), *readout.parameters()], lr=1e-2)
    losses = []
    for _ in range(60):
        loss = (readout(encoder(latlon))[:, 0] - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        encoder.constrain_()
        losses.append(float(loss.detach()))
    assert losses[-1] < losses[0] / 10
    assert math.isfinite(losses[-1])


def test_a_frozen_encoder_stays_as_it_is_while_a_readout_learns() -> None:
    encoder = build(0).eval().requires_grad_(False)
    before = {name: tensor.clone() for name, tensor in encoder.state_dict().items()}
    readout = nn.Linear(encoder.config.output_dim, 1)
    readout(encoder(PLACES)).sum().backward()
    assert readout.weight.grad is not None
    assert all(torch.equal(tensor, before[name]) for name, tensor in encoder.state_dict().items())


def test_the_encoder_keeps_parameters_and_buffers_only() -> None:
    encoder = build(0).eval()
    before = set(vars(encoder)), set(encoder.state_dict())
    encoder.encode(PLACES)
    assert (set(vars(encoder)), set(encoder.state_dict())) == before
