"""What holds for every registered baseline, with and without a network behind it."""

import dataclasses
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from tessearth import Embedder, evaluate
from tessearth.encoder.contract import LocationEncoder
from tessearth.errors import ConfigError
from tessearth.sphere.geometry import fibonacci_lattice, xyz_to_latlon
from tessearth.zoo import BASELINES, PositionalEncoder, build_baseline

NETWORK = {"hidden_dim": 24, "num_blocks": 2, "output_dim": 20}
SMALL = {
    "harmonics-siren": {"degrees": 12, "network": {"hidden_dim": 24, "output_dim": 20}},
    "fourier": {"num_frequencies": 16, "network": {"hidden_dim": 24, "num_hidden": 2, "output_dim": 20}},
    "wrap-residual": {"network": NETWORK},
    "grid-feedforward": {"network": {"hidden_dim": 24, "num_hidden": 2, "layer_norm": True, "output_dim": 20}},
}
TRAINABLE = [(name, SMALL.get(name, {"network": NETWORK})) for name in BASELINES]
ALL = [(name, {}) for name in BASELINES if not BASELINES[name].has_network] + TRAINABLE
SEAMS = torch.tensor(
    [(90.0, 0.0), (-90.0, 0.0), (90.0, 123.0), (0.0, 180.0), (0.0, -180.0), (45.0, 179.99999), (-45.0, -179.99999)],
    dtype=torch.float64,
)

everything = pytest.mark.parametrize(("name", "settings"), ALL, ids=[f"{n}{'+network' * bool(s)}" for n, s in ALL])
trainable = pytest.mark.parametrize(("name", "settings"), TRAINABLE, ids=[name for name, _ in TRAINABLE])


def places(count: int = 40, dtype: torch.dtype = torch.float64) -> Tensor:
    return torch.cat((xyz_to_latlon(fibonacci_lattice(count)), SEAMS)).to(dtype)


def double(name: str, settings: dict, seed: int = 0) -> PositionalEncoder:
    return build_baseline(name, settings, seed=seed).double()


def test_the_paper_table_is_registered() -> None:
    paper = {"direct", "cartesian3d", "wrap", "theory", "sphereC", "sphereC+", "sphereM", "sphereM+"}
    ours = {"grid", "harmonics", "harmonics-siren", "fourier", "wrap-residual", "grid-feedforward"}
    assert set(BASELINES) == paper | ours
    for card in BASELINES.values():
        assert card.summary
        assert card.citation
        assert dataclasses.is_dataclass(card.settings)


@pytest.mark.parametrize("name", BASELINES)
def test_published_defaults_give_one_finite_row_per_place(name: str) -> None:
    encoder = build_baseline(name)
    with torch.no_grad():
        out = encoder(places(dtype=torch.float32))
    assert out.shape == (len(places()), encoder.output_dim)
    assert out.dtype == torch.float32
    assert out.isfinite().all()
    assert BASELINES[name].has_network == bool(list(encoder.parameters()))
    assert encoder.position(places()).shape == (len(places()), encoder.position.output_dim)


@everything
def test_rows_do_not_know_of_each_other(name: str, settings: dict) -> None:
    encoder, latlon = double(name, settings), places()
    with torch.no_grad():
        alone = torch.cat([encoder(row[None]) for row in latlon])
        torch.testing.assert_close(alone, encoder(latlon), rtol=0, atol=1e-12)
        torch.testing.assert_close(encoder(latlon.flip(0)).flip(0), alone, rtol=0, atol=1e-12)
        assert encoder(latlon[:0]).shape == (0, encoder.output_dim)


@everything
def test_different_places_get_different_rows(name: str, settings: dict) -> None:
    with torch.no_grad():
        out = double(name, settings)(xyz_to_latlon(fibonacci_lattice(200)))
    assert torch.pdist(out).min() > 1e-7


@everything
def test_a_place_is_the_same_whatever_turn_its_longitude_is_counted_in(name: str, settings: dict) -> None:
    """`direct` is left out on purpose: it hands the numbers on as they are, which is what it stands for."""
    encoder, latlon = double(name, settings), places()
    with torch.no_grad():
        same = [
            torch.allclose(encoder(latlon), encoder(latlon + torch.tensor([0.0, t])), atol=1e-6) for t in (360, -360)
        ]
    assert same == [name != "direct"] * 2


@everything
def test_only_seamless_encodings_are_continuous_across_the_antimeridian(name: str, settings: dict) -> None:
    encoder, lat = double(name, settings), torch.tensor([-50.0, -10.0, 35.0, 70.0], dtype=torch.float64)
    west, east = (torch.stack((lat, torch.full_like(lat, lon)), -1) for lon in (-180 + 1e-9, 180 - 1e-9))
    with torch.no_grad():
        jump = (encoder(west) - encoder(east)).abs().max().item()
    assert (jump < 1e-5) == BASELINES[name].seamless


@everything
def test_the_seed_decides_and_the_global_random_state_is_left_alone(name: str, settings: dict) -> None:
    before = torch.get_rng_state()
    one, again, other = (build_baseline(name, settings, seed=seed) for seed in (3, 3, 4))
    assert torch.equal(torch.get_rng_state(), before)
    states = [encoder.state_dict() for encoder in (one, again, other)]
    assert all(torch.equal(states[0][key], states[1][key]) for key in states[0])
    random = [key for key in states[0] if "norms" not in key]
    assert not any(torch.equal(states[0][key], states[2][key]) for key in random)


@everything
def test_the_state_makes_the_encoder(name: str, settings: dict) -> None:
    one, other = build_baseline(name, settings, seed=3), build_baseline(name, settings, seed=4)
    other.load_state_dict(one.state_dict(), strict=True)
    with torch.no_grad():
        assert torch.equal(one(places()), other(places()))


@trainable
def test_gradients_reach_every_parameter(name: str, settings: dict) -> None:
    encoder = build_baseline(name, settings).train()
    torch.manual_seed(0)  # dropout
    encoder(places(200, torch.float32)).square().sum().backward()
    assert list(encoder.parameters())
    for key, parameter in encoder.named_parameters():
        assert parameter.grad is not None, key
        assert parameter.grad.isfinite().all(), key
        assert parameter.grad.abs().max() > 0, key


@everything
def test_gradients_reach_the_coordinates_and_are_true(name: str, settings: dict) -> None:
    encoder = double(name, settings).requires_grad_(False)
    latlon = places(6).requires_grad_()
    weights = torch.randn(encoder.output_dim, dtype=torch.float64, generator=torch.Generator().manual_seed(0))
    (slope,) = torch.autograd.grad((encoder(latlon) @ weights).sum(), latlon)
    assert slope.isfinite().all()
    inside, step = torch.tensor([[12.3, 45.6], [-50.0, -120.0]], dtype=torch.float64), 1e-7
    (slope,) = torch.autograd.grad((encoder(inside.requires_grad_()) @ weights).sum(), inside)
    for axis in range(2):
        move = step * torch.eye(2, dtype=torch.float64)[axis]
        with torch.no_grad():
            rise = (encoder(inside + move) - encoder(inside - move)) @ weights / (2 * step)
        torch.testing.assert_close(rise, slope[:, axis], rtol=1e-4, atol=1e-4)


@trainable
def test_a_few_steps_of_training_lower_a_loss(name: str, settings: dict) -> None:
    encoder, latlon = build_baseline(name, settings), places(100, torch.float32)
    target = torch.cat((latlon[:, :1] / 90, (latlon[:, :1] / 45) ** 2), -1)
    readout = torch.randn(encoder.output_dim, 2, generator=torch.Generator().manual_seed(1)) / encoder.output_dim**0.5
    optimiser, losses = torch.optim.Adam(encoder.parameters(), 3e-3), []
    for _ in range(40):
        loss = (encoder(latlon) @ readout - target).square().mean()
        optimiser.zero_grad()
        loss.backward()
        optimiser.step()
        losses.append(loss.item())
    assert np.mean(losses[-3:]) < 0.7 * losses[0]


@everything
def test_single_precision_follows_double(name: str, settings: dict) -> None:
    latlon = places().float()  # the same places for both: what is compared is arithmetic
    with torch.no_grad():
        wide = double(name, settings)(latlon.double())
        narrow = build_baseline(name, settings)(latlon)
        mixed = build_baseline(name, settings)(latlon.double())
    assert wide.dtype == torch.float64
    assert mixed.dtype == (torch.float32 if list(build_baseline(name, settings).parameters()) else torch.float64)
    torch.testing.assert_close(narrow.double(), wide, rtol=0, atol=5e-3)
    torch.testing.assert_close(mixed.double(), wide, rtol=0, atol=1e-4)


class OneClass(LocationEncoder):
    """The least an encoder of one's own needs: a width and `forward`."""

    output_dim = 8

    def __init__(self) -> None:
        super().__init__()
        self.layer = torch.nn.Linear(2, 8)

    def forward(self, latlon: torch.Tensor) -> torch.Tensor:
        return self.layer(latlon.deg2rad()).sin()


def test_one_class_with_a_width_and_forward_is_an_encoder(tmp_path: Path) -> None:
    encoder, latlon = OneClass(), np.array([[48.0, 2.0], [-33.0, 151.0]])
    embed = Embedder(encoder, device="cpu")
    assert (embed.name, embed.dim, embed.has_sites, encoder.sites(), encoder.tokens) == (
        "OneClass",
        8,
        False,
        None,
        None,
    )
    wanted = encoder(torch.from_numpy(latlon).float()).detach().numpy()
    np.testing.assert_array_equal(embed(latlon), wanted)
    assert Embedder(encoder, precision="float64")(latlon).dtype == np.float64
    with pytest.raises(ConfigError, match="OneClass does not run in bfloat16: use float32 or float64"):
        Embedder(encoder, precision="bfloat16")
    with pytest.raises(ConfigError, match="this has no name"):
        encoder.save(tmp_path / "unnamed.safetensors")
    assert embed.fingerprint() != Embedder(OneClass()).fingerprint()
    results = evaluate({"own": encoder}, ["checkerboard-50"], ["random"], references=False, maps=[])
    assert [score.model for score in results.scores] == ["own"]
