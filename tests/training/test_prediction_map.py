"""A map of predictions: every cell is what the model says there, with its bounds or its probability."""

from pathlib import Path

import numpy as np
import pytest
import rasterio

from tessearth.errors import ConfigError, DataError, OutputError, UnknownNameError
from tessearth.training import prediction_map
from tessearth.training.finetuned import FineTuned
from tessearth.training.prediction_map import predict_map
from tests.training.test_finetuning import LATLON, bands, tune, waves

BOX = (33.9, -4.7, 41.9, 5.5)


@pytest.fixture(scope="module")
def numbers() -> FineTuned:
    return tune(target=waves(LATLON), epochs=0, frozen=True)


def centres(file: rasterio.DatasetReader) -> np.ndarray:
    rows, columns = np.mgrid[: file.height, : file.width]
    step, west, north = file.transform.a, file.transform.c, file.transform.f
    return np.stack([north - (rows + 0.5) * step, west + (columns + 0.5) * step], axis=-1)


def test_every_cell_is_what_the_model_says_there(numbers: FineTuned, tmp_path: Path) -> None:
    seen: list[tuple[int, int]] = []
    shape = predict_map(
        numbers, tmp_path / "map.tif", 0.025, bbox=BOX, coverage=0.8, progress=lambda *now: seen.append(now)
    )
    assert shape == (408, 320, ("prediction", "low", "high"))
    assert seen[-1] == (4, 4)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.crs.to_epsg() == 4326
        assert file.descriptions == ("prediction", "low", "high")
        assert file.tags()["coverage"] == "0.8"
        assert file.overviews(1) == [2]
        np.testing.assert_allclose(file.bounds, BOX, atol=1e-9)
        values, places = file.read(), centres(file)
    np.testing.assert_allclose(values[0], numbers.predict(places), rtol=1e-5)
    half = numbers.half_width(0.8)
    np.testing.assert_allclose(values[0] - values[1], half, rtol=1e-3)
    np.testing.assert_allclose(values[2] - values[0], half, rtol=1e-3)
    assert [path.name for path in tmp_path.iterdir()] == ["map.tif"]


def test_classes_are_codes_with_names_and_probabilities(tmp_path: Path) -> None:
    tuned = tune(target=bands(LATLON), epochs=0, frozen=True)
    predict_map(tuned, tmp_path / "map.tif", 5.0, land=True)
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.descriptions == ("prediction", "probability")
        tags, (code, probability), places = file.tags(1), file.read(), centres(file)
    named = np.array([tags[f"class_{number}"] for number in range(3)], dtype=object)
    on_land = np.isfinite(code)
    assert 0.1 < on_land.mean() < 0.5
    np.testing.assert_array_equal(named[code[on_land].astype(int)], tuned.predict(places[on_land]))
    np.testing.assert_allclose(probability[on_land], tuned.values(places[on_land]).max(-1), rtol=1e-5)
    beside = (tmp_path / "map.tif.aux.xml").read_text()
    assert "<Category>north</Category><Category>south</Category>" in beside


def test_a_map_across_the_antimeridian_has_the_same_values(numbers: FineTuned, tmp_path: Path) -> None:
    predict_map(numbers, tmp_path / "map.tif", 2.0, bbox=(170, -20, -170, 0))
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.bounds.right == 190
        np.testing.assert_allclose(file.read(1), numbers.predict(centres(file)), rtol=1e-5)


def test_an_old_model_has_no_bounds_and_says_so(numbers: FineTuned, tmp_path: Path) -> None:
    kept, numbers.residuals = numbers.residuals, None
    with pytest.warns(UserWarning, match="there are no intervals"):
        predict_map(numbers, tmp_path / "map.tif", 10.0)
    numbers.residuals = kept
    with rasterio.open(tmp_path / "map.tif") as file:
        assert file.descriptions == ("prediction",)


def test_mistakes_are_one_line_and_leave_nothing(numbers: FineTuned, tmp_path: Path) -> None:
    (tmp_path / "there.tif").write_bytes(b"mine")
    for name, words in (("map.png", "ends in .tif"), ("there.tif", "add --overwrite"), ("no/map.tif", "no folder")):
        with pytest.raises((ConfigError, OutputError), match=words):
            predict_map(numbers, tmp_path / name, 10.0)
    with pytest.raises(ConfigError, match="both say where"):
        predict_map(numbers, tmp_path / "map.tif", 10.0, bbox=BOX, region="kenya")
    with pytest.raises(UnknownNameError, match="did you mean 'kenya'"):
        predict_map(numbers, tmp_path / "map.tif", 10.0, region="kenia")
    assert [path.name for path in tmp_path.iterdir()] == ["there.tif"]
    assert (tmp_path / "there.tif").read_bytes() == b"mine"


def test_a_map_that_was_interrupted_goes_on(
    numbers: FineTuned, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def stop(done: int, total: int) -> None:
        if done == 2:
            raise KeyboardInterrupt

    predict_map(numbers, tmp_path / "whole.tif", 0.025, bbox=BOX)
    with pytest.raises(KeyboardInterrupt, match="2 finished chunks are kept"):
        predict_map(numbers, tmp_path / "map.tif", 0.025, bbox=BOX, progress=stop)
    with pytest.raises(DataError, match="unfinished work of other settings"):
        predict_map(numbers, tmp_path / "map.tif", 0.05, bbox=BOX)
    with open(tmp_path / "map.tif.part" / "windows.f4", "r+b") as file:
        file.write(b"\1\2\3\4")  # the first window is damaged
    made: list[int] = []
    monkeypatch.setattr(
        prediction_map, "_window", lambda *given, make=prediction_map._window: (made.append(given[2]), make(*given))[1]
    )
    predict_map(numbers, tmp_path / "map.tif", 0.025, bbox=BOX)
    assert made == [0, 2, 3]
    assert (tmp_path / "map.tif").read_bytes() == (tmp_path / "whole.tif").read_bytes()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["map.tif", "whole.tif"]
