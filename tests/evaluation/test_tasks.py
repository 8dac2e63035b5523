"""Tasks: the embedded labels, the published files, checkerboards, tables of one's own, and what cannot be evaluated."""

import gc
import warnings
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tessearth.errors import ConfigError, DataError, TableError, TessearthError, UnknownNameError
from tessearth.evaluation.tasks import FILE_TASKS, Task, available_files, check_task, load_task
from tessearth.labels import country_names
from tessearth.labels.sources import SOURCES, write_prepared
from tessearth.labels.table import LABELS, describe_labels
from tessearth.sphere.geometry import GOLDEN_RATIO

RNG = np.random.default_rng(0)
ROWS = 60
LON, LAT = RNG.uniform(-179, 179, ROWS), RNG.uniform(-59, 80, ROWS)


def write(folder: Path, name: str, lon: str, lat: str, **columns: object) -> None:
    pd.DataFrame({lon: LON, lat: LAT, **columns}).to_csv(folder / name, index=False)


@pytest.fixture
def published(tmp_path: Path) -> Path:
    """The published files' columns, with the traps they have: blanks, "N/A", oceans, whole numbers before fractions."""
    names = np.array(["Tundra", "Deserts", "N/A", ""])[np.arange(ROWS) % 4]
    for part in ("train", "val"):
        write(tmp_path, f"ecoregion_{part}.csv", "X", "Y", BIOME_NAME=names, ECO_NAME=np.arange(ROWS) % 2)
    write(tmp_path, "country.csv", "lon", "lat", country=np.array(["Ocean", "Chad", "Peru"])[np.arange(ROWS) % 3])
    write(tmp_path, "temp.csv", "Lon", "Lat", meanT=LAT * 2)
    write(tmp_path, "housing.csv", "longitude", "latitude", median_house_value=np.arange(ROWS) * 1000)
    write(tmp_path, "elevation.csv", "lon", "lat", elevation=[*map(str, range(ROWS - 1)), "0.5"])
    write(tmp_path, "population.csv", "lon", "lat", population=np.arange(ROWS))
    for part, share in (("train", 2), ("test", 3)):
        write(tmp_path, f"land_ocean_{part}.csv", "lon", "lat", land=np.arange(ROWS) % share == 0)
    write(tmp_path, "ERA5_Land_Clipped_2020.csv", "Longitude", "Latitude", t2m=LAT, tp=LON)
    return tmp_path


def test_every_published_file_becomes_its_tasks(published: Path) -> None:
    assert available_files(published) == [*FILE_TASKS, "range/era5/t2m", "range/era5/tp"]
    for name in available_files(published):
        task = load_task(name, data_dir=published)
        assert task.name == name
        assert len(task.latlon) == len(task.target)
        lat, lon = task.latlon[0]
        assert np.isclose(LAT, lat).any()
        assert np.isclose(LON, lon).any()


def test_published_labels_are_read_as_they_were_published(published: Path) -> None:
    biome = load_task("range/biome", data_dir=published)
    assert biome.classes == ("Deserts", "Tundra")  # blanks and "N/A" are dropped, as pandas does
    assert len(biome.target) == ROWS
    assert biome.notes == (f"{ROWS} rows without a label left out",)
    eco = load_task("range/ecoregion", data_dir=published)
    assert (eco.kind, eco.classes, len(eco.target)) == ("classify", ("0", "1"), 2 * ROWS)
    population = load_task("range/population", data_dir=published)
    np.testing.assert_allclose(population.target, np.log(1.0 + np.arange(ROWS)))
    np.testing.assert_allclose(load_task("range/temperature", data_dir=published).target, LAT * 2)
    np.testing.assert_allclose(load_task("range/elevation", data_dir=published).target[-2:], [ROWS - 2, 0.5])
    np.testing.assert_allclose(load_task("range/era5/tp", data_dir=published).target, LON)


def test_country_comes_with_and_without_the_ocean(published: Path) -> None:
    both, land = (load_task(name, data_dir=published) for name in ("range/country", "range/country-land"))
    assert len(both.target) == ROWS
    assert {both.classes[code] for code in both.target} == {"Ocean", "Chad", "Peru"}
    assert {land.classes[code] for code in land.target} == {"Chad", "Peru"}
    assert len(land.target) == 2 * ROWS // 3


def test_land_and_ocean_keep_their_own_split(published: Path) -> None:
    task = load_task("range/land", data_dir=published)
    assert task.split is not None
    assert task.split.train.tolist() == list(range(ROWS))
    assert task.split.test.tolist() == list(range(ROWS, 2 * ROWS))
    truth = np.array(task.classes)[task.target] == "True"
    np.testing.assert_array_equal(truth[ROWS:], np.arange(ROWS) % 3 == 0)


def test_embedded_labels_become_tasks(tmp_path: Path) -> None:
    """From a prepared file of the true format, with unknown values as the labels mark them."""
    values = {
        name: np.where(np.arange(80) == 7, -1, np.arange(80) % 2)
        if label.kind == "classify"
        else np.where(np.arange(80) == 7, np.nan, np.arange(80) / 3)
        for name, label in LABELS.items()
    }
    places = {where: RNG.uniform(-60, 60, (80, 2)) for where in ("land", "sphere", "own")}
    arrays = {
        **{f"places/{where}": array for where, array in places.items()},
        **{f"labels/{name}": array for name, array in values.items()},
    }
    classes = {name: ["no", "yes"] for name, label in LABELS.items() if label.kind == "classify"}
    about = {"labels": describe_labels(), "classes": classes, "sources": list(SOURCES)}
    write_prepared(tmp_path / "b.safetensors", arrays, about)
    for name, label in LABELS.items():
        task = load_task(name, benchmark=tmp_path / "b.safetensors")
        assert (task.kind, len(task.target)) == (label.kind, 79)
        np.testing.assert_array_equal(task.latlon, np.delete(places[label.places], 7, axis=0))
        np.testing.assert_array_equal(task.target, np.delete(values[name], 7))
        assert task.notes == ("1 places without a label left out",)
        assert task.countries is None  # the file's countries are not those of this version
    about["classes"] = {**classes, "country": country_names()}
    write_prepared(tmp_path / "c.safetensors", arrays, about)
    rain, housing = (load_task(name, benchmark=tmp_path / "c.safetensors") for name in ("rain", "housing"))
    np.testing.assert_array_equal(rain.countries, np.delete(values["country"], 7))
    assert housing.countries is None


def test_a_checkerboard_is_its_definition() -> None:
    task = load_task("checkerboard-500")
    assert task.split is not None
    assert (len(task.split.train), len(task.split.test)) == (10_000, 10_000)
    i = np.arange(500)
    z, theta = 1 - (2 * i + 1) / 500, 2 * np.pi * i / GOLDEN_RATIO
    supports = np.stack((np.sqrt(1 - z**2) * np.cos(theta), np.sqrt(1 - z**2) * np.sin(theta), z), -1)
    for row in RNG.choice(20_000, 200, replace=False):
        lat, lon = np.deg2rad(task.latlon[row])
        place = np.array((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)))
        gaps = np.sort(np.linalg.norm(supports - place, axis=1))
        if gaps[1] - gaps[0] > 1e-9:
            assert task.target[row] == np.linalg.norm(supports - place, axis=1).argmin() % 16
    counts = np.bincount(task.target, minlength=16)
    assert counts.min() > 1000
    test = task.latlon[task.split.test]
    np.testing.assert_allclose(np.sin(np.deg2rad(test[:, 0])), 1 - (2 * np.arange(10_000) + 1) / 10_000, atol=1e-9)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_table_of_ones_own_in_any_format(tmp_path: Path, suffix: str) -> None:
    frame = pd.DataFrame({"lat": LAT, "lon": LON, "soil": np.array(["clay", "sand", None] * 20), "ph": LAT / 10})
    path = tmp_path / f"mine.{suffix}"
    frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    soil, ph = load_task(f"{path}:soil"), load_task(f"{path}:ph")
    assert (soil.kind, soil.classes, len(soil.target)) == ("classify", ("clay", "sand"), 40)
    np.testing.assert_allclose(soil.latlon, np.stack((LAT, LON), -1)[np.arange(ROWS) % 3 != 2])
    assert ph.kind == "regress"
    np.testing.assert_allclose(ph.target, LAT / 10)


@pytest.mark.parametrize("suffix", ["csv", "csv.gz", "parquet"])
def test_a_table_that_was_read_is_closed(tmp_path: Path, suffix: str) -> None:
    path, frame = tmp_path / f"mine.{suffix}", pd.DataFrame({"lat": LAT, "lon": LON, "ph": LAT / 10})
    frame.to_parquet(path) if suffix == "parquet" else frame.to_csv(path, index=False)
    gc.collect()  # what others left open is not counted
    with warnings.catch_warnings(record=True) as heard:
        warnings.simplefilter("always", ResourceWarning)
        load_task(f"{path}:ph")
        gc.collect()
    assert [str(warning.message) for warning in heard if warning.category is ResourceWarning] == []


def test_the_kind_can_be_said(tmp_path: Path) -> None:
    pd.DataFrame({"lat": LAT, "lon": LON, "zone": np.arange(ROWS) % 3}).to_csv(tmp_path / "a.csv", index=False)
    assert load_task(f"{tmp_path}/a.csv:zone").kind == "regress"
    task = load_task(f"{tmp_path}/a.csv:zone:classify")
    assert (task.kind, task.classes) == ("classify", ("0", "1", "2"))


def test_a_class_seen_once_is_kept_and_noted(tmp_path: Path) -> None:
    names = np.array(["a", "b"])[np.arange(ROWS) % 2].astype(object)
    names[5] = "rare"
    pd.DataFrame({"lat": LAT, "lon": LON, "y": names}).to_csv(tmp_path / "a.csv", index=False)
    task = load_task(f"{tmp_path}/a.csv:y")
    assert len(task.target) == ROWS
    assert task.notes == ("1 of 3 classes seen once (rare): kept, but never both learned and tested",)


BAD_COLUMNS = {
    "one class": (["x"] * ROWS, "every one of its 60 rows is of one class, 'x'"),
    "constant": ([2.5] * ROWS, "every one of its 60 rows is 2.5"),
    "all missing": ([np.nan] * ROWS, "column 'y' is empty in all 60 rows"),
    "classes too rare": ([f"n{i // 2}" for i in range(ROWS)], "no class has more than 2 of the 60 rows"),
    "numbers as classes": ([f"{i}.5" for i in range(ROWS)], "if the column holds numbers, give it as :regress"),
    "text as numbers": ([*map(str, range(ROWS - 1)), "many"], "column 'y' holds 'many', not a number"),
    "infinite": ([*range(ROWS - 1), np.inf], "column 'y' holds infinite values"),
}
BAD_KINDS = {"numbers as classes": ":classify", "text as numbers": ":regress"}


@pytest.mark.parametrize("name", BAD_COLUMNS)
def test_what_cannot_be_predicted_is_one_line(tmp_path: Path, name: str) -> None:
    column, words = BAD_COLUMNS[name]
    pd.DataFrame({"lat": LAT, "lon": LON, "y": column}).to_csv(tmp_path / "a.csv", index=False)
    with pytest.raises(TessearthError) as caught:
        load_task(f"{tmp_path}/a.csv:y{BAD_KINDS.get(name, '')}")
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


@pytest.mark.parametrize(("kind", "rows", "folds"), [("classify", 19, 10), ("regress", 5, 3)])
def test_too_few_rows_are_one_line(kind: str, rows: int, folds: int) -> None:
    target = np.arange(rows) % 2 if kind == "classify" else np.arange(rows) * 1.0
    task = Task(name="tiny", kind=kind, latlon=np.zeros((rows, 2)), target=target)  # type: ignore[arg-type]
    with pytest.raises(DataError, match=f"task tiny: {rows} rows are too few for {folds} folds"):
        check_task(task)


def test_a_name_that_is_no_task_is_one_line(tmp_path: Path, published: Path) -> None:
    (published / "population.csv").write_text("lon,lat,population\n" + "1,2,-5\n" * 30)
    (published / "country.csv").write_text("lon,lat,country\n" + "1,2,Chad\n3,4,Mali\n" * 30)
    (tmp_path / "swapped.csv").write_text("lat,lon,y\n" + "150,2,a\n120,3,b\n" * 30)
    (tmp_path / "words.csv").write_text("lat,lon,y\n" + "1,2,a\nhere,3,b\n" * 30)
    cases = {
        "kopen": (UnknownNameError, "there is no task named 'kopen'; did you mean 'koppen'?"),
        "range/biom": (UnknownNameError, "did you mean 'range/biome'?"),
        "range/era5/snow": (TableError, "there is no column 'snow'; there are: Longitude, Latitude, t2m, tp"),
        "range/population": (DataError, "holds -5, and log(1 + p) needs p >= 0"),
        "range/country-land": (DataError, "the file has no class 'ocean' to leave out"),
        "checkerboard-many": (ConfigError, "must end in a number of supports"),
        "checkerboard-3": (ConfigError, "must end in a number of supports"),
        "nothing.csv:y": (TableError, "nothing.csv: there is no such file"),
        f"{tmp_path}/temp.csv:meant": (TableError, "there is no column 'meant'; did you mean 'meanT'?"),
        f"{tmp_path}/temp.csv:meanT:guess": (ConfigError, "ends in 'guess'"),
        "mine.csv:": (TableError, "names no column"),
        f"{tmp_path}/swapped.csv:y": (TableError, "this looks like (lon, lat): swap the two"),
        f"{tmp_path}/words.csv:y": (TableError, "column 'lat' holds 'here', not a number"),
    }
    for name, (kind, words) in cases.items():
        with pytest.raises(kind) as caught:
            load_task(name, data_dir=published)
        assert words in str(caught.value), name
        assert "\n" not in str(caught.value)
    with pytest.raises(ConfigError, match="say where they are with data_dir"):
        load_task("range/biome")
    with pytest.raises(TableError, match="there is no such file"):
        load_task("range/biome", data_dir=tmp_path / "elsewhere")


def table_task(*counts: int, kind: str = "classify") -> Task:
    codes = np.repeat(np.arange(len(counts)), counts)
    target = codes if kind == "classify" else codes * 1.0
    names = tuple(f"c{i}" for i in range(len(counts))) if kind == "classify" else ()
    return Task(name="t", kind=kind, latlon=np.zeros((len(codes), 2)), target=target, classes=names)  # type: ignore[arg-type]


def test_a_class_must_fill_ten_folds_twice_and_a_number_three() -> None:
    assert check_task(table_task(20, 2)).notes == ()
    with pytest.raises(DataError, match=r"no class has more than 19 of the 21 rows, too few for 10 folds$"):
        check_task(table_task(19, 2))
    assert check_task(table_task(3, 3, kind="regress")).notes == ()
    with pytest.raises(DataError, match="5 rows are too few for 3 folds; it needs at least 6"):
        check_task(table_task(3, 2, kind="regress"))
    with pytest.raises(DataError, match="task t: no row has a target"):
        check_task(table_task())


def test_numbers_taken_for_classes_are_guessed_where_most_rows_differ() -> None:
    with pytest.raises(DataError, match="give it as :regress"):
        check_task(table_task(11, *[1] * 10))
    with pytest.raises(DataError, match=r"folds$"):
        check_task(table_task(12, *[1] * 10))


@pytest.mark.parametrize(
    ("rare", "said"),
    [
        (1, "1 of 2 classes seen once (c1): kept"),
        (3, "3 of 4 classes seen once (c1, c2, c3): kept"),
        (4, "4 of 5 classes seen once (c1, c2, c3, ...): kept"),
    ],
)
def test_up_to_three_classes_seen_once_are_named(rare: int, said: str) -> None:
    (note,) = check_task(table_task(20, *[1] * rare)).notes
    assert note.startswith(said)
    assert check_task(table_task(20, 2, 3)).notes == ()


@pytest.mark.parametrize("supports", ["15", "1000001", "-20", "16.5", ""])
def test_a_checkerboard_has_at_least_as_many_supports_as_colours(supports: str) -> None:
    with pytest.raises(ConfigError, match="must end in a number of supports from 16 to 1000000"):
        load_task(f"checkerboard-{supports}")
    assert load_task("checkerboard-16").about == {"supports": 16, "colours": 16}


def test_places_are_told_apart_a_block_at_a_time() -> None:
    """Twenty thousand places and two thousand supports are more products than are held at once."""
    small, large = load_task("checkerboard-2000"), load_task("checkerboard-100")
    np.testing.assert_array_equal(small.latlon, large.latlon)
    assert small.split is not None
    np.testing.assert_array_equal(np.concatenate((small.split.train, small.split.test)), np.arange(20_000))
    assert len(np.unique(small.target)) == 16


def test_a_file_and_a_column_may_have_colons_and_blanks_around_them(tmp_path: Path) -> None:
    pd.DataFrame({"lat": LAT, "lon": LON, "y": LAT}).to_csv(tmp_path / "a.csv", index=False)
    assert load_task(f"{tmp_path}/a.csv : y").kind == "regress"
    assert load_task(f"{tmp_path}/a.csv: y :regress").about == {"files": ["a.csv"], "column": "y"}
    with pytest.raises(TableError, match="names no file"):
        load_task(":y")
