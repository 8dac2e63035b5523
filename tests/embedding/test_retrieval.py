"""Retrieval: the formula in float64, in little memory, from strict files."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from tessearth.embedding import retrieval
from tessearth.embedding.retrieval import Database, Retriever, most_alike, read_database, save_database
from tessearth.errors import ConfigError, DataError
from tessearth.zoo.names import Mode
from tests.memory import PEAK

RNG = np.random.default_rng(0)


def make_database(rows: int, width: int = 12, values: int = 7) -> Database:
    latlon = np.stack((RNG.uniform(-90, 90, rows), RNG.uniform(-180, 180, rows)), -1)
    keys = RNG.normal(size=(rows, width)).astype(np.float32)
    return Database(latlon, keys, (3 * RNG.normal(size=(rows, values)) + 1).astype(np.float32))


def unit(x: np.ndarray) -> np.ndarray:
    return x.astype(np.float64) / np.linalg.norm(x.astype(np.float64), axis=-1, keepdims=True)


def xyz(latlon: np.ndarray) -> np.ndarray:
    lat, lon = np.deg2rad(latlon).T
    return np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), -1)


def softmax(logits: np.ndarray) -> np.ndarray:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def formula(database: Database, queries: np.ndarray, latlon: np.ndarray, mode: Mode) -> np.ndarray:
    """The published form, word for word, in float64 and with the whole matrix of weights."""
    q, k, values = unit(queries), unit(database.keys), database.values.astype(np.float64)
    if mode == "semantic":
        return np.concatenate((softmax(15 * q @ k.T) @ values, q), axis=1)
    near = softmax(40 * xyz(latlon) @ xyz(database.latlon).T) @ values
    return np.concatenate((0.5 * near + 0.5 * softmax(12 * q @ k.T) @ values, q), axis=1)


@pytest.mark.parametrize("mode", ["semantic", "geodesic"])
@pytest.mark.parametrize("rows", [1, 5, 3000])
def test_retrieval_is_the_formula(mode: Mode, rows: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(retrieval, "WEIGHTS_AT_ONCE", {"cpu": 64 * 3000})  # several blocks of queries, the last short
    database = make_database(rows)
    queries, latlon = RNG.normal(size=(150, 12)), make_database(150).latlon
    found = Retriever(database, mode).encode(queries, latlon)
    np.testing.assert_allclose(found, formula(database, queries, latlon, mode), atol=1e-5)
    assert Retriever(database, mode).encode(queries[:0], latlon[:0]).shape == (0, 19)


def test_a_large_database_is_the_formula_too() -> None:
    database = make_database(100_000, 32, 24)
    queries, latlon = RNG.normal(size=(40, 32)), make_database(40).latlon
    queries[:5] = database.keys[:5]  # and queries that stand on a key
    for mode in ("semantic", "geodesic"):
        found = Retriever(database, mode).encode(queries, latlon)
        np.testing.assert_allclose(found, formula(database, queries, latlon, mode), atol=1e-5)


def test_the_length_of_queries_and_keys_does_not_matter() -> None:
    database, queries = make_database(50), RNG.normal(size=(9, 12))
    longer = Database(database.latlon, database.keys * 1000, database.values)
    np.testing.assert_allclose(Retriever(longer).encode(queries * 99), Retriever(database).encode(queries), atol=1e-5)


CODE = """
import numpy as np, torch
torch.set_num_threads(1)
from tessearth.embedding.retrieval import Database, Retriever
rng = np.random.default_rng(0)
latlon = np.stack((rng.uniform(-90, 90, 100_000), rng.uniform(-180, 180, 100_000)), -1)
random = lambda rows, width: rng.random((rows, width), dtype=np.float32)
retriever = Retriever(Database(latlon, random(100_000, 16), random(100_000, 8)), "geodesic")
queries = random(2000, 16)
retriever.encode(queries[:1], latlon[:1])
before = peak()
retriever.encode(queries, latlon[:2000])
print((peak() - before) / 2**20)
"""


def test_a_hundred_thousand_rows_take_little_memory() -> None:
    """The whole matrix of 2,000 x 100,000 weights would be 800 MB for each of the two parts."""
    done = subprocess.run([sys.executable, "-c", PEAK + CODE], capture_output=True, text=True, check=True)
    assert float(done.stdout) < 400


def test_places_alike_are_the_nearest_keys() -> None:
    database, query = make_database(500), RNG.normal(size=12)
    cosine = unit(database.keys) @ unit(query)
    found = most_alike(query, np.zeros(2), database.keys, database.latlon, 6)
    np.testing.assert_array_equal(found.row, np.argsort(-cosine)[:6])
    np.testing.assert_allclose(found.similarity, -np.sort(-cosine)[:6], atol=1e-6)


def test_a_database_reads_back(tmp_path: Path) -> None:
    database = make_database(30)
    save_database(database, tmp_path / "db.npz")
    for written, read in zip(database, read_database(tmp_path / "db.npz"), strict=True):
        np.testing.assert_array_equal(written, read)
    locs = np.load(tmp_path / "db.npz")["locs"]
    np.testing.assert_array_equal(locs[:, 0], database.latlon[:, 1])  # the format is longitude first


def test_a_bad_database_is_one_line(tmp_path: Path) -> None:
    good = {"locs": [[170.0, 5.0], [3.0, 4.0]], "keys": np.ones((2, 3)), "image_embeddings": np.ones((2, 4))}
    cases = {
        "no keys": ({"keys": None}, "has no keys; it must hold locs, keys, image_embeddings"),
        "surplus": ({"extra": np.ones(2)}, "has a surplus extra"),
        "latitude first": ({"locs": [[5.0, 170.0], [4.0, 3.0]]}, "locs must be (lon, lat) in degrees"),
        "wrong shape": ({"locs": np.ones((2, 3))}, "locs has shape (2, 3)"),
        "short keys": ({"keys": np.ones((1, 3))}, "keys is float64 of shape (1, 3), not numbers (2, width)"),
        "not finite": ({"image_embeddings": np.full((2, 4), np.nan)}, "image_embeddings holds values that are not fin"),
        "objects": ({"keys": np.array([[1, None], [2, 3]], dtype=object)}, "is not an npz of plain arrays"),
    }
    for name, (change, words) in cases.items():
        path = tmp_path / f"{name}.npz"
        np.savez(path, **{key: np.asarray(value) for key, value in {**good, **change}.items() if value is not None})
        with pytest.raises(DataError) as caught:
            read_database(path)
        assert words in str(caught.value)
        assert "\n" not in str(caught.value)
    (tmp_path / "text.npz").write_text("hello")
    np.save(tmp_path / "array.npy", np.ones(3))
    (tmp_path / "cut.npz").write_bytes((tmp_path / "surplus.npz").read_bytes()[:200])
    for name in ("text.npz", "array.npy", "cut.npz", "missing.npz"):
        with pytest.raises(DataError):
            read_database(tmp_path / name)


def test_misuse_is_named() -> None:
    database = make_database(10)
    with pytest.raises(ConfigError, match="the geodesic mode needs the place of every embedding"):
        Retriever(database, "geodesic").encode(np.ones((2, 12)))
    with pytest.raises(DataError, match="the keys are 12 wide"):
        Retriever(database).encode(np.ones((2, 11)))
    with pytest.raises(ConfigError, match="mode is 'both'"):
        Retriever(database, "both")  # type: ignore[arg-type]
    with pytest.raises(ConfigError, match="count is 11; it must lie between 1 and 10"):
        most_alike(np.ones(12), np.zeros(2), database.keys, database.latlon, 11)
