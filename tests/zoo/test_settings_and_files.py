"""Baselines from plain values and on disk: round trips and refusals."""

from pathlib import Path
from typing import Any

import pytest
import safetensors.torch
import torch

from tessearth.encoder.weights import save
from tessearth.errors import ConfigError, UnknownNameError, WeightsError
from tessearth.zoo import BASELINES, PositionalEncoder, build_baseline, load_baseline
from tessearth.zoo.baselines.elementary import Direct
from tessearth.zoo.baselines.sphere2vec import Sphere2VecSettings
from tests.conftest import tiny_encoder
from tests.zoo.test_contract import ALL, places

WRONG: list[tuple[str, Any, str]] = [
    ("grid", {"num_scale": 3}, "unknown setting grid.num_scale; did you mean 'num_scales'?"),
    ("grid", {"num_scales": 0}, "num_scales is 0"),
    ("theory", {"min_radius": 0.0}, "must be positive and in this order"),
    ("sphereM", {"min_radius": 2.0}, "must be positive and in this order"),
    ("harmonics", {"degrees": 102}, "between 1 and 101"),
    ("harmonics", {"degrees": 0}, "between 1 and 101"),
    ("harmonics-siren", {"network": {"hidden_dim": 0}}, "hidden_dim is 0"),
    ("harmonics-siren", {"network": {"first_frequency": 0.0}}, "first_frequency is 0.0"),
    ("fourier", {"sigmas": []}, "at least one positive number"),
    ("fourier", {"sigmas": [1.0, -2.0]}, "at least one positive number"),
    ("fourier", {"network": {"activation": "swish"}}, "fourier.network.activation is 'swish'"),
    ("wrap-residual", {"network": {"dropout": 1.0}}, "dropout is 1.0"),
    ("wrap-residual", {"network": {"output_dim": 0}}, "output_dim is 0"),
    ("wrap", {"network": 5}, "not a table of settings"),
    ("wrap", Sphere2VecSettings(), "the settings of wrap are a Sphere2VecSettings"),
]


@pytest.mark.parametrize(("name", "settings", "answer"), WRONG)
def test_settings_that_describe_no_baseline_are_refused_in_one_line(name: str, settings: Any, answer: str) -> None:
    with pytest.raises(ConfigError) as caught:
        build_baseline(name, settings)
    assert answer in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_name_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match=r"did you mean 'sphereM\+'"):
        build_baseline("spheerM+")


def test_settings_may_be_their_dataclass() -> None:
    encoder = build_baseline("sphereC", Sphere2VecSettings(num_scales=4))
    assert encoder.output_dim == 12
    assert encoder.settings == Sphere2VecSettings(num_scales=4)
    assert BASELINES["sphereC"].settings is Sphere2VecSettings


@pytest.mark.parametrize(("name", "settings"), ALL)
def test_a_baseline_comes_back_bit_for_bit(tmp_path: Path, name: str, settings: dict[str, Any]) -> None:
    encoder = build_baseline(name, settings, seed=5)
    encoder.save(tmp_path / "b.safetensors", provenance={"made": "by a test"})
    before = torch.get_rng_state()
    again = load_baseline(tmp_path / "b.safetensors")
    assert torch.equal(torch.get_rng_state(), before)
    assert (again.name, again.settings, again.training) == (name, encoder.settings, False)
    with torch.no_grad():
        assert torch.equal(again(places()), encoder(places()))


def test_a_file_of_another_format_or_a_damaged_one_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "b.safetensors"
    encoder = build_baseline("wrap-residual", {"network": {"hidden_dim": 4}})
    save(tiny_encoder(), path)
    with pytest.raises(WeightsError, match="no encoder was saved in it"):
        load_baseline(path)
    torch.save(encoder.state_dict(), path)
    with pytest.raises(WeightsError, match="no encoder was saved in it"):
        load_baseline(path)
    encoder.save(path)
    path.write_bytes(path.read_bytes()[:-40])
    with pytest.raises(WeightsError, match="damaged, cut short"):
        load_baseline(path)


@pytest.mark.parametrize(("baseline", "settings"), [("nothing", "{}"), ("wrap", '{"a": 1}'), ("wrap", "{")])
def test_a_header_that_names_no_baseline_is_refused(tmp_path: Path, baseline: str, settings: str) -> None:
    header = {"format": "tessearth-baseline", "format_version": "1", "baseline": baseline, "settings": settings}
    safetensors.torch.save_file({"a": torch.zeros(2)}, tmp_path / "b.safetensors", header)
    with pytest.raises(WeightsError, match="a header that cannot be used"):
        load_baseline(tmp_path / "b.safetensors")


def test_an_encoder_put_together_by_hand_cannot_be_saved(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="has no name"):
        PositionalEncoder(Direct()).save(tmp_path / "b.safetensors")
    assert list(tmp_path.iterdir()) == []
