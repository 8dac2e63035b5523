"""What everyone knows about some places."""

import numpy as np
import pytest

from tessearth.labels import LABELS, prepare_labels
from tessearth.labels.climate import koppen_names

PLACES = {
    "Paris": (48.8566, 2.3522),
    "Everest": (27.988, 86.925),
    "Dead Sea": (31.50, 35.48),
    "Manaus": (-3.10, -60.02),
    "Sahara": (24.0, 10.0),
    "Vostok": (-78.46, 106.84),
    "Tokyo": (35.68, 139.76),
    "Meaux, outside Paris": (48.96, 2.88),
    "Chartres, farther out": (48.45, 1.49),
    "Verkhoyansk": (67.55, 133.39),
    "Singapore": (1.35, 103.82),
    "Pacific": (0.0, -150.0),
}


def at(name: str, label: str) -> float:
    return float(prepare_labels([PLACES[name]], [label])[label][0])


def climate(name: str) -> str:
    return koppen_names()[int(at(name, "koppen"))]


def test_paris_has_its_temperature_and_rain() -> None:
    assert at("Paris", "temperature") == pytest.approx(10.9, abs=0.5)
    assert np.expm1(at("Paris", "rain")) == pytest.approx(627, abs=15)


def test_everest_is_high_and_the_dead_sea_low() -> None:
    assert at("Everest", "elevation") > 5500
    assert at("Dead Sea", "elevation") < -300
    assert at("Pacific", "elevation") == 0


def test_vostok_is_cold() -> None:
    assert at("Vostok", "temperature") == pytest.approx(-50, abs=2)


def test_the_sahara_is_dry() -> None:
    assert np.expm1(at("Sahara", "rain")) < 50


def test_climate_classes_are_those_of_the_books() -> None:
    expected = {"Manaus": "Af", "Sahara": "BWh", "Paris": "Cfb", "Verkhoyansk": "Dfd", "Vostok": "EF"}
    assert {name: climate(name) for name in expected} == expected
    assert at("Pacific", "koppen") == -1


def test_seasons_are_wide_in_siberia_and_narrow_at_the_equator() -> None:
    assert at("Verkhoyansk", "temperature_range") > 45
    assert at("Singapore", "temperature_range") < 4
    assert 13 < at("Paris", "temperature_range") < 18


def test_people_live_in_cities() -> None:
    ranked = ["Tokyo", "Paris", "Meaux, outside Paris", "Chartres, farther out", "Sahara"]
    people = [at(name, "population") for name in ranked]
    assert people == sorted(people, reverse=True)
    assert np.diff(people).max() < -0.3
    assert at("Pacific", "population") == 0


def test_land_and_sea() -> None:
    codes = {name: LABELS["land"].class_names()[int(at(name, "land"))] for name in ("Paris", "Pacific", "Vostok")}
    assert codes == {"Paris": "land", "Pacific": "sea", "Vostok": "land"}
