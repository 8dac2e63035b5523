"""Every baseline against a slow plain reference."""

import numpy as np
import pytest
import torch

from tessearth.zoo import BASELINES, PositionalEncoder, build_baseline
from tests.zoo import slow

LATLON = torch.from_numpy(slow.PLACES)


def outputs(encoder: PositionalEncoder) -> slow.Vector:
    with torch.no_grad():
        return encoder.double()(LATLON).numpy()


def weights(encoder: PositionalEncoder) -> dict[str, slow.Vector]:
    return {name: tensor.double().numpy() for name, tensor in encoder.state_dict().items()}


def test_every_baseline_has_a_reference_here() -> None:
    others = {"harmonics", "harmonics-siren", "fourier", "wrap-residual", "grid-feedforward"}
    assert set(slow.POSITIONS) | others == set(BASELINES)


@pytest.mark.parametrize("name", slow.POSITIONS)
def test_positional_encodings_are_their_formulas(name: str) -> None:
    expected = np.array([slow.POSITIONS[name](lat, lon) for lat, lon in slow.PLACES])
    np.testing.assert_allclose(outputs(build_baseline(name)), expected, rtol=0, atol=1e-11)


def residual(x: slow.Vector, w: slow.Weights) -> slow.Vector:
    x = slow.relu(slow.linear(x, w, "network.entry"))
    for i in range(2):
        inner = slow.relu(slow.linear(x, w, f"network.blocks.{i}.first"))
        x = x + slow.relu(slow.linear(inner, w, f"network.blocks.{i}.second"))
    return slow.linear(x, w, "network.exit") if "network.exit.weight" in w else x


@pytest.mark.parametrize("name", [*slow.POSITIONS, "wrap-residual"])
@pytest.mark.parametrize("output_dim", [None, 7])
def test_the_residual_network_is_its_formula_behind_any_encoding(name: str, output_dim: int | None) -> None:
    encoder = build_baseline(name, {"network": {"hidden_dim": 9, "num_blocks": 2, "output_dim": output_dim}}, seed=1)
    assert encoder.output_dim == (output_dim or 9)
    position, w = slow.POSITIONS.get(name, slow.wrap), weights(encoder)
    expected = [residual(np.array(position(lat, lon)), w) for lat, lon in slow.PLACES]
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-11)


def test_siren_behind_harmonics_is_its_formula() -> None:
    values = {"hidden_dim": 8, "num_hidden": 3, "output_dim": 5, "first_frequency": 30.0, "hidden_frequency": 1.5}
    encoder = build_baseline("harmonics-siren", {"degrees": 6, "network": values})
    w, expected = weights(encoder), []
    for lat, lon in slow.PLACES:
        x = slow.harmonics(lat, lon, 6)
        for i, frequency in enumerate((30.0, 1.5, 1.5)):
            x = np.sin(frequency * slow.linear(x, w, f"network.layers.{i}"))
        expected.append(slow.linear(x, w, "network.exit"))
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-10)


def test_siren_starts_within_its_published_bounds() -> None:
    w = weights(build_baseline("harmonics-siren"))
    for name, bound in (("layers.0", 1 / 1600), ("layers.1", (6 / 512) ** 0.5), ("exit", (6 / 512) ** 0.5)):
        reach = np.abs(w[f"network.{name}.weight"]).max()
        assert 0.99 * bound < reach <= bound * (1 + 1e-6)


def test_summed_fourier_capsules_are_their_formula() -> None:
    values = {"sigmas": [1.0, 16.0, 256.0], "num_frequencies": 6}
    encoder = build_baseline("fourier", {**values, "network": {"hidden_dim": 9, "num_hidden": 3, "output_dim": 5}})
    w, expected = weights(encoder), []
    for lat, lon in slow.PLACES:
        total = np.zeros(5)
        for i in range(3):
            x = slow.fourier_features(lat, lon, w["position.frequencies"][i])
            for j in range(3):
                x = slow.relu(slow.linear(x, w, f"network.capsules.{i}.layers.{j}"))
            total += slow.linear(x, w, f"network.capsules.{i}.exit")
        expected.append(total)
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-10)


def test_fourier_features_stand_alone_and_spread_as_their_sigmas_say() -> None:
    from tessearth.zoo.baselines.fourier import FourierSettings

    encoder = build_baseline("fourier", FourierSettings(network=None))
    assert encoder.output_dim == 3 * 2 * 256
    frequencies = weights(encoder)["position.frequencies"]
    np.testing.assert_allclose(frequencies.std(axis=(1, 2)), [1, 16, 256], rtol=0.1)
    lat, lon = slow.PLACES[0]
    expected = np.concatenate([slow.fourier_features(lat, lon, b) for b in frequencies])
    np.testing.assert_allclose(outputs(encoder)[0], expected, rtol=0, atol=1e-10)


@pytest.mark.parametrize("activation", ["gelu", "leakyrelu"])
def test_the_feed_forward_network_is_its_formula(activation: str) -> None:
    network = {"hidden_dim": 9, "num_hidden": 2, "output_dim": 5, "activation": activation}
    network |= {"layer_norm": True, "skip": True, "activate_output": True, "dropout": 0.5}
    encoder = build_baseline("grid-feedforward", {"num_scales": 8, "network": network})
    act, w, expected = {"gelu": slow.gelu, "leakyrelu": slow.leaky}[activation], weights(encoder), []
    for lat, lon in slow.PLACES:
        x = act(slow.linear(np.array(slow.grid(lat, lon, 8, 0.1, 360.0)), w, "network.layers.0"))
        x = slow.norm(x, w, "network.norms.0")
        x = slow.norm(x + act(slow.linear(x, w, "network.layers.1")), w, "network.norms.1")
        expected.append(act(slow.linear(x, w, "network.exit")))
    np.testing.assert_allclose(outputs(encoder), expected, rtol=0, atol=1e-10)


def test_the_equal_earth_map_has_equal_areas_and_its_equator_spans_two() -> None:
    from tessearth.zoo.baselines.fourier import equal_earth

    latlon = torch.tensor([[0.0, -180.0], [0.0, 179.9999999], [90.0, 0.0]], dtype=torch.float64)
    corners = equal_earth(latlon)
    torch.testing.assert_close(corners[:, 0], torch.tensor([-1.0, 1.0, 0.0], dtype=torch.float64), atol=1e-6, rtol=0)
    lat = torch.linspace(-80, 80, 33, dtype=torch.float64)
    inside = torch.stack((lat, torch.full_like(lat, 50.0)), -1).requires_grad_()
    by_lon = torch.autograd.grad(equal_earth(inside)[:, 0].sum(), inside)[0][:, 1]
    by_lat = torch.autograd.grad(equal_earth(inside)[:, 1].sum(), inside)[0][:, 0]
    share = by_lon * by_lat / lat.deg2rad().cos()
    torch.testing.assert_close(share, share[:1].expand_as(share), rtol=1e-4, atol=0)
