"""The density of town dwellers is the kernel sum it says it is."""

import numpy as np

from tessearth.labels.people import BANDWIDTH_KM, PLACES_AT_ONCE, _build_towns, population_density
from tessearth.labels.sources import load_prepared

RADIUS_KM = 6371.0088


def unit_vectors(latlon: np.ndarray) -> np.ndarray:
    lat, lon = np.radians(latlon).T
    return np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=-1)


def density_by_definition(latlon: np.ndarray) -> np.ndarray:
    towns = load_prepared("towns", ["towns"], _build_towns).arrays
    everywhere = unit_vectors(towns["latlon"])
    straight = RADIUS_KM * np.stack([np.linalg.norm(everywhere - here, axis=1) for here in unit_vectors(latlon)])
    kernel = np.exp(-(straight**2) / (2 * BANDWIDTH_KM**2)) / (2 * np.pi * BANDWIDTH_KM**2)
    return kernel @ towns["inhabitants"]


def test_density_is_the_sum_over_all_towns() -> None:
    cities = np.array([(48.86, 2.35), (35.68, 139.76), (78.22, 15.65), (-18.12, 178.44), (-16.8, 180.0), (24.0, 10.0)])
    anywhere = np.random.default_rng(1).uniform((-60, -180), (75, 180), (20, 2))
    latlon = np.concatenate((cities, anywhere))
    expected = density_by_definition(latlon)
    np.testing.assert_allclose(population_density(latlon), expected, rtol=1e-4, atol=0.05)
    assert expected[0] > 1000


def test_density_does_not_depend_on_which_places_are_asked_together() -> None:
    generator = np.random.default_rng(2)
    latlon = np.array((45.0, 5.0)) + generator.normal(0, 1, (PLACES_AT_ONCE + 10, 2))
    np.testing.assert_allclose(population_density(latlon)[-20:], population_density(latlon[-20:]), rtol=1e-12)
    assert population_density(latlon[:0]).shape == (0,)


def test_a_turn_of_longitude_changes_nothing() -> None:
    latlon = np.array([(-16.8, -179.9), (-17.8, 177.9), (65.0, -180.0), (90.0, 0.0)])
    np.testing.assert_allclose(
        population_density(latlon + np.array((0.0, 360.0))), population_density(latlon), atol=1e-9
    )
