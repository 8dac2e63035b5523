"""Smooth waves of the position, distilled beside image features."""

import math

import pytest
import torch

from tessearth.errors import ConfigError
from tessearth.sphere.geometry import fibonacci_lattice, xyz_to_latlon
from tessearth.training.model import PositionWaves
from tessearth.training.objective import ObjectiveConfig

OBJECTIVE = ObjectiveConfig(distillation=30.0, position=0.3, position_degrees=6)


def lattice(count: int = 20_000) -> torch.Tensor:
    return xyz_to_latlon(fibonacci_lattice(count))


def test_waves_hold_the_stated_share_of_the_features_variance() -> None:
    waves = PositionWaves(OBJECTIVE, feature_width=40)(lattice())
    assert waves.shape == (20_000, 6 * 8)
    assert float(waves.var(dim=0).sum()) == pytest.approx(0.3 * 40, rel=1e-3)
    assert float(waves.mean(dim=0).abs().max()) < 1e-3


def test_finer_waves_count_less_by_the_decay() -> None:
    waves = PositionWaves(OBJECTIVE, feature_width=40)(lattice())
    deviation = waves.std(dim=0)
    first, last = deviation[:3].mean(), deviation[-13:].mean()
    assert float(first / last) == pytest.approx(6.0, rel=1e-2)


def test_waves_are_continuous_across_the_antimeridian_and_at_the_poles() -> None:
    waves = PositionWaves(OBJECTIVE, feature_width=40)
    places = torch.tensor([[10.0, 180.0], [10.0, -180.0], [90.0, 0.0], [90.0, 77.0]])
    found = waves(places)
    torch.testing.assert_close(found[0], found[1], atol=1e-4, rtol=0)
    torch.testing.assert_close(found[2], found[3], atol=1e-4, rtol=0)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"position": -1.0}, "at least 0"),
        ({"position": math.nan}, "at least 0"),
        ({"position_degrees": 0}, "between 1 and 100"),
        ({"distillation": 0.0}, "part of what is distilled"),
    ],
)
def test_settings_that_make_no_sense_are_refused(changes: dict[str, float], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ObjectiveConfig(**{"distillation": 30.0, "position": 0.3, **changes})  # type: ignore[arg-type]
