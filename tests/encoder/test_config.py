"""Configurations: what they accept, and what they say when they do not."""

import json
import math

import pytest
import torch

from tessearth import Embedder, EncoderConfig, SphericalVoronoiEncoder
from tessearth.encoder.config import TessellationConfig
from tessearth.encoder.model import Units
from tessearth.errors import ConfigError
from tessearth.settings import from_plain
from tessearth.sphere import latlon_to_xyz


def test_a_configuration_survives_json() -> None:
    config = EncoderConfig(
        tessellations=(TessellationConfig(num_sites=7, logits="decoupled"), TessellationConfig(sharpness=3.0)),
        num_tokens=0,
        coordinate_octaves=2,
    )
    assert from_plain(EncoderConfig, json.loads(json.dumps(config.to_dict()))) == config


def test_the_defaults_are_the_papers_model() -> None:
    config = EncoderConfig()
    assert (config.num_sites, config.mixture_dim, config.num_tokens, config.output_dim) == (4096, 384, 64, 512)
    (tessellation,) = config.tessellations
    assert (tessellation.sharpness, tessellation.sharpness_range) == (45.0, (0.5, 500.0))
    assert (tessellation.logits, tessellation.on_sphere) == ("paper", True)
    assert (config.hidden_dim, config.num_blocks, config.dropout, config.token_dropout) == (512, 2, 0.5, 0.1)
    assert (config.token_gate, config.location_temperature, config.final_temperature) == (0.5, 0.5, 0.2)
    assert (config.image_temperature, config.cosine_attention, config.coordinate_octaves) == (0.05, False, 0)
    assert config.normalize


def test_whole_numbers_are_read_as_floats_where_floats_belong() -> None:
    assert from_plain(EncoderConfig, {"dropout": 0}).dropout == 0.0


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"num_tokns": 3}, "unknown setting num_tokns; did you mean 'num_tokens'?"),
        ({"num_tokens": "64"}, "num_tokens is '64', not a whole number"),
        ({"num_tokens": True}, "num_tokens is True, not a whole number"),
        ({"num_tokens": -1}, "num_tokens is -1; it must be at least 0"),
        ({"dropout": 1.0}, "dropout is 1.0; it must lie in [0, 1)"),
        ({"dropout": float("nan")}, "dropout is nan, not a number"),
        ({"token_gate": 1.5}, "token_gate is 1.5; it must lie in [0, 1]"),
        ({"image_temperature": 0.0}, "image_temperature is 0.0; it must be positive"),
        ({"tessellations": []}, "an encoder needs at least one tessellation"),
        ({"tessellations": 5}, "tessellations is 5, not a list"),
        ({"tessellations": [5]}, "tessellations[0] is 5, not a table of settings"),
        ({"tessellations": [{"num_sites": 0}]}, "num_sites is 0; it must be at least 1"),
        ({"tessellations": [{"logits": "papers"}]}, "tessellations[0].logits is 'papers'; it must be one of"),
        ({"tessellations": [{"sharpness": 900}]}, "sharpness 900.0 does not lie in sharpness_range (0.5, 500.0)"),
        ({"tessellations": [{"sharpness_range": [1]}]}, "tessellations[0].sharpness_range holds 1 values, not 2"),
    ],
)
def test_a_wrong_setting_is_named(values: dict[str, object], words: str) -> None:
    with pytest.raises(ConfigError) as caught:
        from_plain(EncoderConfig, values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


AT_LEAST_ONE = ("output_dim", "hidden_dim")
AT_LEAST_NONE = ("num_tokens", "num_blocks", "coordinate_octaves")
SHARES = ("dropout", "token_dropout")
TEMPERATURES = ("location_temperature", "final_temperature", "image_temperature")
EDGES: dict[str, tuple[tuple[float, ...], tuple[float, ...]]] = {
    **dict.fromkeys(AT_LEAST_ONE, ((1, 2), (0, -1))),
    **dict.fromkeys(AT_LEAST_NONE, ((0, 1), (-1,))),
    **dict.fromkeys(SHARES, ((0.0, 0.5, 0.999), (-0.001, 1.0, 1.5))),
    "token_gate": ((0.0, 0.5, 1.0), (-0.001, 1.001)),
    **dict.fromkeys(TEMPERATURES, ((1e-6, 2.0), (0.0, -0.1, math.inf))),
}


@pytest.mark.parametrize("name", EDGES)
def test_a_setting_may_be_as_far_as_its_edge_and_no_further(name: str) -> None:
    inside, outside = EDGES[name]
    for value in inside:
        assert getattr(EncoderConfig(**{name: value}), name) == value  # type: ignore[arg-type]
    for value in outside:
        with pytest.raises(ConfigError, match=f"{name} is {value}; it must"):
            EncoderConfig(**{name: value})  # type: ignore[arg-type]


@pytest.mark.parametrize("name", ["num_sites", "site_dim"])
def test_a_tessellation_has_at_least_one_site_of_one_dimension(name: str) -> None:
    assert getattr(TessellationConfig(**{name: 1}), name) == 1
    with pytest.raises(ConfigError, match=f"{name} is 0; it must be at least 1"):
        TessellationConfig(**{name: 0})


@pytest.mark.parametrize(
    ("low", "sharpness", "high", "fits"),
    [
        (2.0, 2.0, 2.0, True),
        (1.0, 1.0, 3.0, True),
        (1.0, 3.0, 3.0, True),
        (0.5, 0.8, 0.9, True),
        (1.0, 0.9, 3.0, False),
        (1.0, 3.1, 3.0, False),
        (0.0, 1.0, 3.0, False),
        (-1.0, 1.0, 3.0, False),
        (1.0, 2.0, math.inf, False),
    ],
)
def test_sharpness_starts_within_its_finite_range_above_nothing(
    low: float, sharpness: float, high: float, fits: bool
) -> None:
    if fits:
        assert TessellationConfig(sharpness=sharpness, sharpness_range=(low, high)).sharpness == sharpness
    else:
        with pytest.raises(ConfigError, match=f"sharpness {sharpness} does not lie in sharpness_range"):
            TessellationConfig(sharpness=sharpness, sharpness_range=(low, high))


def test_widths_add_up_over_tessellations() -> None:
    parts = (TessellationConfig(num_sites=7, site_dim=3), TessellationConfig(num_sites=5, site_dim=4))
    config = EncoderConfig(tessellations=parts)
    assert (config.num_sites, config.mixture_dim) == (12, 7)


def test_an_unknown_form_of_logits_is_named() -> None:
    with pytest.raises(ConfigError, match="logits is 'cosine'; it must be one of 'paper', 'decoupled', 'chord'"):
        TessellationConfig(logits="cosine")  # type: ignore[arg-type]


def test_units_of_the_last_layer_are_the_embedding() -> None:
    config = EncoderConfig(output_dim=32, hidden_dim=32, num_blocks=0, exit="units", leak=0.25, normalize=False)
    encoder = SphericalVoronoiEncoder(config).eval()
    end = encoder.head.exit
    assert isinstance(end, Units)
    end.centre.normal_()
    places = torch.tensor([[10.0, 20.0], [-40.0, 3.0]])
    xyz = latlon_to_xyz(places)
    blend, _ = encoder.blend(xyz, encoder.mix([v.weights(xyz) for v in encoder.voronois()]))
    before = end.layer(blend)
    torch.testing.assert_close(encoder(places), torch.maximum(before, 0.25 * before) - end.centre)
    torch.testing.assert_close(
        torch.from_numpy(Embedder(encoder).embed(places.numpy())), encoder(places), rtol=1e-4, atol=1e-5
    )


def test_units_may_be_more_than_a_trunk_is_wide() -> None:
    encoder = SphericalVoronoiEncoder(EncoderConfig(output_dim=32, hidden_dim=16, num_blocks=1, exit="units"))
    assert encoder(torch.zeros(3, 2)).shape == (3, 32)
    assert encoder.head.entry is not None
    assert encoder.head.entry.out_features == 16


def test_a_linear_exit_is_not_spoken_of_and_has_no_leak() -> None:
    assert not {"exit", "leak"} & EncoderConfig().to_dict().keys()
    with pytest.raises(ConfigError, match=r"leak is 0\.3, which is for exit = 'units', not 'linear'"):
        EncoderConfig(leak=0.3)
    with pytest.raises(ConfigError, match=r"leak is 1.5; it must lie in \[0, 1\)"):
        EncoderConfig(exit="units", leak=1.5)
