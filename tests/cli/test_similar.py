"""`tessearth similar`: places like one, over land and in tables."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tessearth import Embedder, similar
from tessearth.embedding import land_places, most_alike, read_km
from tessearth.errors import ConfigError, CoordinateError, UnknownNameError
from tests.cli.conftest import Command

TABLE = pd.DataFrame(
    {
        "id": ["00501", "01001", "7", "+1555"],
        "breite": [48.86, 6.5, 59.9, -0.2],
        "laenge": [2.35, 3.4, 10.7, -78.5],
        "note": ["a, b", "", "ü", "x"],
    }
)
LATLON = TABLE[["breite", "laenge"]].to_numpy()
NAMED = ("--lat", "breite", "--lon", "laenge")


@pytest.fixture
def table(tmp_path: Path) -> Path:
    path = tmp_path / "mine.csv"
    TABLE.to_csv(path, index=False)
    return path


def test_places_over_land_with_towns_nearby(tessearth: Command) -> None:
    shown = tessearth("similar", -3.07, 37.35, "--model", "wrap", "--apart", "1000km", "--count", 3, "--json")
    rows = json.loads(shown.out)
    assert [list(row) for row in rows] == [["lat", "lon", "similarity", "distance_km", "near"]] * 3
    place = np.array((-3.07, 37.35))
    embed, land = Embedder("wrap"), land_places()
    best = most_alike(embed(place), place, embed(land), land, 3, 1000)
    np.testing.assert_allclose([(row["lat"], row["lon"]) for row in rows], land[best.row])
    plain = tessearth("similar", "-3.07, 37.35", "--model", "wrap", "--apart", 1000, "--count", 3)
    assert (plain.status, plain.err) == (0, "")
    assert len(plain.out.splitlines()) == 4
    assert rows[0]["near"] in plain.out


def test_a_place_is_given_by_name(tessearth: Command) -> None:
    shown = tessearth("similar", "Nairobi", "--model", "wrap", "--count", 2)
    assert shown.out.splitlines()[0] == "Nairobi, KE: -1.2833 36.8167"
    assert len(shown.out.splitlines()) == 4


def test_rows_of_a_table_keep_their_cells(tessearth: Command, table: Path, tmp_path: Path) -> None:
    embed = Embedder("wrap")
    similarity = most_alike(embed(50.0, 3.0), np.array((50.0, 3.0)), embed(LATLON), LATLON, 4)
    command = ("similar", 50, 3, "--in", table, *NAMED, "--model", "wrap")
    rows = json.loads(tessearth(*command, "--json").out)
    assert [row["id"] for row in rows] == TABLE["id"][similarity.row].tolist()
    assert [row["note"] or "" for row in rows] == TABLE["note"][similarity.row].tolist()
    np.testing.assert_allclose([row["distance_km"] for row in rows], similarity.distance_km)
    for name in ("out.csv", "out.parquet"):
        done = tessearth(*command, "--out", tmp_path / name, "--count", 2)
        assert done.out == f"{tmp_path / name}: 2 rows\n"
    written = pd.read_csv(tmp_path / "out.csv", dtype=str, keep_default_na=False)
    assert written[TABLE.columns].to_numpy().tolist() == (
        pd.read_csv(table, dtype=str, keep_default_na=False).iloc[similarity.row[:2]].to_numpy().tolist()
    )
    frame = pd.read_parquet(tmp_path / "out.parquet")
    assert frame["id"].tolist() == written["id"].tolist()
    np.testing.assert_allclose(frame["similarity"], similarity.similarity[:2], atol=1e-5)
    refused = tessearth(*command, "--out", tmp_path / "out.csv")
    assert "--overwrite" in refused.err


def test_rows_without_a_place_are_never_similar(tessearth: Command, tmp_path: Path) -> None:
    path = tmp_path / "bad.csv"
    path.write_text("lat,lon,id\n1,40,a\nx,20,b\n3,60,c\n")
    command = ("similar", 1, 40, "--input", path, "--model", "wrap", "--json")
    assert "row 2: column 'lat' holds 'x'" in tessearth(*command).err
    for choice in ("skip", "null"):
        rows = json.loads(tessearth(*command, "--bad-rows", choice).out)
        assert [row["id"] for row in rows] == ["a", "c"]


def test_the_likeness_to_another_place_is_taken_away(tessearth: Command, table: Path) -> None:
    embed = Embedder("wrap")
    here, other = embed(50.0, 3.0), embed(-33.0, 18.0)
    here, other = here / np.linalg.norm(here), other / np.linalg.norm(other)
    own = here - (here @ other) * other
    unit = embed(LATLON) / np.linalg.norm(embed(LATLON), axis=1, keepdims=True)
    shown = tessearth("similar", 50, 3, "--not", -33, 18, "--in", table, *NAMED, "--model", "wrap", "--json")
    expected = np.sort(unit @ own / np.linalg.norm(own))[::-1]
    np.testing.assert_allclose([row["similarity"] for row in json.loads(shown.out)], expected, atol=1e-5)
    assert "nothing is left" in tessearth("similar", 50, 3, "--not", 50, 3, "--model", "wrap").err


def test_python_gives_the_same() -> None:
    found = similar(50.0, 3.0, among=TABLE, lat="breite", lon="laenge", apart="100km", count=3, model="wrap")
    embed = Embedder("wrap")
    best = most_alike(embed(50.0, 3.0), np.array((50.0, 3.0)), embed(LATLON), LATLON, 3, 100)
    assert found.row.tolist() == best.row.tolist()
    np.testing.assert_allclose(found.latlon, LATLON[found.row])
    np.testing.assert_allclose(found.similarity, best.similarity, atol=1e-6)
    assert found.near is not None
    gaps = TABLE.assign(breite=[48.86, np.nan, 59.9, -0.2])
    left = similar("Paris", among=gaps, lat="breite", lon="laenge", on_bad="skip", model="wrap")
    assert sorted(left.row) == [0, 2, 3]
    with pytest.raises(CoordinateError, match="give one place"):
        similar(LATLON, model="wrap")
    with pytest.raises(UnknownNameError, match="Springfield, MO"):
        similar("Springfield", model="wrap")


def test_distances_have_units() -> None:
    assert [read_km(text) for text in (500, "500", "500km", "1.5 km", "100mi", "900m")] == pytest.approx(
        [500, 500, 500, 1.5, 160.9344, 0.9]
    )
    with pytest.raises(ConfigError, match="apart is 'far'"):
        read_km("far")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        ((1, 30, "--count", 0), "count is 0"),
        ((95, 200), "latitude lies between"),
        (("Narobi",), "no town or country is called 'Narobi'; did you mean 'nairobi'?"),
        (("Springfield",), "Springfield, IL, US (39.8017 -89.6437)"),
        ((1, 30, "--apart", "far"), "apart is 'far'"),
        ((1, 30, "--dims", "x"), "--dims is 'x'"),
        ((1, 30, "--out", "o.npy"), "holds arrays, not a table"),
    ],
)
def test_a_mistake_is_one_clear_line(
    tessearth: Command, arguments: tuple[object, ...], words: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    outcome = tessearth("similar", *arguments, "--model", "wrap")
    assert outcome.status == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
