"""Configurations: what they accept, and what they say when they do not."""

import json

import pytest

from tessearth import EncoderConfig
from tessearth.encoder.config import TessellationConfig
from tessearth.errors import ConfigError


def test_a_configuration_survives_json() -> None:
    config = EncoderConfig(
        tessellations=(TessellationConfig(num_sites=7, logits="decoupled"), TessellationConfig(sharpness=3.0)),
        num_tokens=0,
        coordinate_octaves=2,
    )
    assert EncoderConfig.from_dict(json.loads(json.dumps(config.to_dict()))) == config


def test_the_defaults_are_the_papers_model() -> None:
    config = EncoderConfig()
    assert (config.num_sites, config.mixture_dim, config.num_tokens, config.output_dim) == (4096, 384, 64, 512)


def test_whole_numbers_are_read_as_floats_where_floats_belong() -> None:
    assert EncoderConfig.from_dict({"dropout": 0}).dropout == 0.0


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
        EncoderConfig.from_dict(values)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)
