"""`tessearth retrieve` as a stranger would use it."""

import json
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tessearth import Embedder
from tessearth.embedding.retrieval import Retriever, most_alike, read_database
from tessearth.imagery.store import FeatureStore
from tessearth.training.loop import pretrain
from tests.cli.conftest import Command
from tests.training.fabricate import fabricate_store, toy_recipe


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> FeatureStore:
    return fabricate_store(tmp_path_factory.mktemp("stores") / "store", pca=16)


@pytest.fixture(scope="module")
def trained(store: FeatureStore, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose embeddings were trained to meet the store's components, which are as wide."""
    recipe = toy_recipe(objective={"contrastive": 1.0, "distillation": 0.0}, steps=300, checkpoint_every=300)
    return Path(pretrain(recipe, tmp_path_factory.mktemp("runs") / "run", store=store).weights)


def test_a_database_is_built_and_used(tessearth: Command, store: FeatureStore, model: Path, tmp_path: Path) -> None:
    out = tmp_path / "db.npz"
    made = tessearth("retrieve", "build", "--model", model, "--store", store.path, "--out", out)
    assert (made.status, made.err) == (0, "")
    assert f"use it with --model {model}+range={out}" in made.out
    database = read_database(out)
    with np.load(out) as archive:
        assert sorted(archive.files) == ["image_embeddings", "keys", "locs"]
    np.testing.assert_array_equal(database.latlon, store.latlon[store.training])
    np.testing.assert_array_equal(database.keys, Embedder(model)(database.latlon))
    assert store.components is not None
    np.testing.assert_array_equal(database.values, store.components[store.training, 0].astype(np.float32))

    place = np.array([[48.8, 2.3]])
    for suffix, mode in (("range", "semantic"), ("range-geo", "geodesic")):
        shown = tessearth("encode", 48.8, 2.3, "--model", f"{model}+{suffix}={out}", "--json")
        expected = Retriever(database, mode).encode(Embedder(model)(place), place)[0]  # type: ignore[arg-type]
        np.testing.assert_allclose(json.loads(shown.out)["embedding"], expected, atol=1e-5)
    table = tmp_path / "t.csv"
    pd.DataFrame({"lat": [48.8], "lon": [2.3]}).to_csv(table, index=False)
    done = tessearth("encode", "--input", table, "--out", tmp_path / "o.npy", "--model", f"{model}+range={out}")
    assert (done.status, done.err) == (0, "")
    expected = Embedder(f"{model}+range={out}")(place)
    np.testing.assert_array_equal(np.load(tmp_path / "o.npy"), expected)


def test_values_and_places_are_chosen(tessearth: Command, store: FeatureStore, tmp_path: Path) -> None:
    out = tmp_path / "db.npz"
    tessearth(
        *("retrieve", "build", "--model", "wrap", "--store", store.path, "--out", out),
        *("--values", "features", "--held-out"),
    )
    database = read_database(out)
    np.testing.assert_array_equal(database.latlon, store.latlon)
    np.testing.assert_array_equal(database.values, store.features[:, 0].astype(np.float32))


def test_without_out_the_name_alone_finds_it(
    tessearth: Command, store: FeatureStore, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("TESSEARTH_CACHE", str(tmp_path))
    made = tessearth("retrieve", "build", "--model", "sphereM+", "--store", store.path)
    assert "use it with --model sphereM++range\n" in made.out
    shown = tessearth("encode", -10, 20, "--model", "sphereM++range", "--json")
    assert len(json.loads(shown.out)["embedding"]) == Embedder("sphereM+").dim + 16
    described = json.loads(tessearth("info", "sphereM++range", "--json").out)
    assert described["retrieval"]["rows"] == len(store.training)


def test_image_keys_meet_the_embeddings_trained_on_them(
    tessearth: Command, store: FeatureStore, trained: Path, tmp_path: Path
) -> None:
    """A place's embedding finds its own image among all far more often than chance would."""
    out = tmp_path / "db.npz"
    made = tessearth("retrieve", "build", "--model", trained, "--store", store.path, "--out", out, "--keys", "image")
    assert made.status == 0, made.err
    database = read_database(out)
    assert database.keys.shape == (len(store.training), 16)
    embeddings = Embedder(trained)(database.latlon)
    nearest = np.argsort(-embeddings @ (database.keys / np.linalg.norm(database.keys, axis=1, keepdims=True)).T)[:, :10]
    found = np.mean([own in some for own, some in enumerate(nearest)])
    assert found > 4 * 10 / len(database.keys)


def test_a_database_is_what_a_place_is_compared_with(
    tessearth: Command, store: FeatureStore, model: Path, tmp_path: Path
) -> None:
    out = tmp_path / "db.npz"
    tessearth("retrieve", "build", "--model", model, "--store", store.path, "--out", out)
    database = read_database(out)
    shown = tessearth("similar", -10, "-20.5", "--model", model, "--database", out, "--json", "--count", 5)
    named = json.loads(shown.out)
    place = np.array((-10.0, -20.5))
    best = most_alike(Embedder(model)(place), place, database.keys, database.latlon, 5)
    np.testing.assert_allclose([(row["lat"], row["lon"]) for row in named], database.latlon[best.row])
    np.testing.assert_allclose([row["similarity"] for row in named], best.similarity, atol=1e-5)
    again = tessearth("similar", -10, -20.5, "--model", f"{model}+range={out}", "--json", "--count", 5)
    assert again.out == shown.out


def test_a_mistake_is_one_clear_line(
    tessearth: Command, store: FeatureStore, model: Path, trained: Path, tmp_path: Path
) -> None:
    other = fabricate_store(tmp_path / "other", pca=16, seed=5)
    bare = fabricate_store(tmp_path / "bare")
    tessearth("retrieve", "build", "--model", "wrap", "--store", store.path, "--out", tmp_path / "wrap.npz")
    build = ("retrieve", "build", "--out", tmp_path / "x.npz", "--store")
    cases = {
        (*build, store.path, "--keys", "image", "--model", model): "does not say that it was trained on",
        (*build, store.path, "--keys", "image", "--model", "wrap"): "and images have no space in common",
        (
            *build,
            other.path,
            "--keys",
            "image",
            "--model",
            trained,
        ): f"trained on {other.path}; use --keys location",
        (*build, store.path, "--keys", "both", "--model", "wrap"): "keys is 'both'; it must be one of location, image",
        (*build, bare.path, "--values", "components", "--model", "wrap"): "keeps no components",
        (*build, tmp_path, "--model", "wrap"): "is not a feature store",
        (*build, store.path, "--model", "wrap+range=d.npz"): "reads a database already",
        (*build, store.path, "--model", "warp"): "did you mean 'wrap'?",
        ("encode", 1, 30, "--model", f"{model}+range={tmp_path / 'wrap.npz'}"): "it was built for another model",
        ("similar", 1, 30, "--model", "direct", "--database", tmp_path / "wrap.npz"): "another model's",
    }
    for arguments, words in cases.items():
        outcome = tessearth(*arguments)
        assert outcome.status == 2, arguments
        assert words in outcome.err
        assert outcome.err.count("\n") == 1
        assert not (tmp_path / "x.npz").exists()
