"""`Embedder` over everything that has a name: one contract, whatever the encoder."""

import copy
import importlib.util
import pickle
import shutil
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth import Embedder, LocationFeatures, save
from tessearth.embedding.retrieval import Database, Retriever, save_database
from tessearth.errors import ConfigError, DataError, UnknownNameError, WeightsError
from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.zoo import (
    BASELINES,
    PUBLISHED,
    PositionalEncoder,
    PositionalEncoding,
    build_baseline,
)
from tessearth.zoo.names import ModelName, default_database, is_untrained, known_names, parse_name
from tests.conftest import tiny_encoder
from tests.zoo import fabricate

RNG = np.random.default_rng(0)
LATLON = np.stack([RNG.uniform(-89, 89, 50), RNG.uniform(-180, 180, 50)], axis=1)
SIREN = {"degrees": 8, "network": {"hidden_dim": 24, "num_hidden": 2, "output_dim": 20}}
VORONOI = tiny_encoder(dtype=torch.float32)


def database(width: int, rows: int = 60, values: int = 7) -> Database:
    latlon = np.stack([RNG.uniform(-89, 89, rows), RNG.uniform(-180, 180, rows)], axis=1)
    keys, pictures = (RNG.normal(size=(rows, wide)).astype(np.float32) for wide in (width, values))
    return Database(latlon, keys, pictures)


@pytest.fixture(scope="module")
def names(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    """One name of every kind that needs a file."""
    folder = tmp_path_factory.mktemp("models")
    save(VORONOI, folder / "voronoi.safetensors")
    build_baseline("harmonics-siren", SIREN, seed=3).save(folder / "siren.safetensors")
    torch.save(fabricate.geoclip(), folder / "geoclip.pth")
    save_database(database(18), folder / "range.npz")
    save_database(database(4), folder / "wrap.npz")
    return {
        "voronoi": str(folder / "voronoi.safetensors"),
        "saved": str(folder / "siren.safetensors"),
        "geoclip": f"geoclip={folder / 'geoclip.pth'}",
        "retrieval": f"{folder / 'voronoi.safetensors'}+range={folder / 'range.npz'}",
        "geodesic": f"{folder / 'voronoi.safetensors'}+range-geo={folder / 'range.npz'}",
        "retrieval on a baseline": f"wrap+range={folder / 'wrap.npz'}",
    }


KINDS = ["voronoi", "saved", "geoclip", "retrieval", "geodesic", "retrieval on a baseline"]


@pytest.mark.parametrize("kind", [*BASELINES, *KINDS])
def test_places_in_finite_rows_out_in_the_shape_they_came_in(names: dict[str, str], kind: str) -> None:
    embed = Embedder(names.get(kind, kind))
    whole = embed.embed(LATLON)
    assert embed.name == names.get(kind, kind)
    assert whole.dtype == np.float32
    assert whole.shape == (50, embed.dim)
    assert np.isfinite(whole).all()
    assert embed(np.zeros((0, 2))).shape == (0, embed.dim)
    assert embed((48.0, 2.0)).shape == (embed.dim,)
    assert embed(LATLON.reshape(5, 10, 2)).shape == (5, 10, embed.dim)
    np.testing.assert_allclose(Embedder(names.get(kind, kind), batch_size=7)(LATLON), whole, atol=1e-5)


@pytest.mark.parametrize("kind", [*BASELINES, *KINDS])
def test_directions_mean_the_same_places(names: dict[str, str], kind: str) -> None:
    embed = Embedder(names.get(kind, kind))
    xyz = latlon_to_xyz(torch.from_numpy(LATLON)).numpy() * 6371.0
    np.testing.assert_allclose(embed(xyz=xyz), embed(LATLON), atol=1e-5)


@pytest.mark.parametrize("kind", [*BASELINES, *KINDS])
def test_double_precision_is_close_and_double(names: dict[str, str], kind: str) -> None:
    wide = Embedder(names.get(kind, kind), precision="float64")(LATLON)
    assert wide.dtype == np.float64
    np.testing.assert_allclose(Embedder(names.get(kind, kind))(LATLON), wide, atol=1e-4)


@pytest.mark.parametrize("name", BASELINES)
def test_a_baselines_rows_are_its_own_with_float64_features(name: str) -> None:
    """Degrees keep their digits to the features: the same in float32 would differ by more than this tolerance."""
    encoder = build_baseline(name)
    with torch.no_grad():
        expected = encoder(torch.from_numpy(LATLON)).float().numpy()
    np.testing.assert_allclose(Embedder(name)(LATLON), expected, atol=1e-6)


@pytest.mark.parametrize("precision", ["bfloat16", "float16"])
def test_half_precision_is_the_networks(precision: str) -> None:
    encoder = build_baseline("harmonics-siren", SIREN)
    rough, fine = Embedder(encoder, precision=precision)(LATLON), Embedder(encoder)(LATLON)
    assert rough.dtype == np.float32
    assert 0 < np.abs(rough - fine).max() < 0.2 * np.abs(fine).max()
    with pytest.raises(ConfigError, match=f"wrap does not run in {precision}: use float32 or float64"):
        Embedder("wrap", precision=precision)


@pytest.mark.skipif(importlib.util.find_spec("geoclip") is None, reason="the geoclip package is not installed")
def test_geoclip_is_found_in_its_package() -> None:
    embed = Embedder("geoclip")
    assert embed(LATLON).shape == (50, 512)


def test_retrieval_is_the_retrievers(names: dict[str, str], tmp_path: Path) -> None:
    data = database(18)
    save_database(data, tmp_path / "db.npz")
    query = Embedder(VORONOI)(LATLON)
    for suffix, mode in (("range", "semantic"), ("range-geo", "geodesic")):
        embed = Embedder(f"{names['voronoi']}+{suffix}={tmp_path / 'db.npz'}")
        expected = Retriever(data, mode).encode(query, LATLON)  # type: ignore[arg-type]
        np.testing.assert_allclose(embed(LATLON), expected, atol=1e-5)
        assert embed.dim == 7 + 18


def test_a_database_beside_its_model_needs_no_name(names: dict[str, str], tmp_path: Path) -> None:
    model = tmp_path / "mine.safetensors"
    shutil.copy(names["voronoi"], model)
    with pytest.raises(DataError, match="tessearth retrieve build --model"):
        Embedder(f"{model}+range")
    save_database(database(18), default_database(str(model)))
    assert Embedder(f"{model}+range").dim == 25
    save_database(database(19), tmp_path / "other.npz")
    with pytest.raises(ConfigError, match="18 wide and the database's keys 19: it was built for another model"):
        Embedder(f"{model}+range={tmp_path / 'other.npz'}")


def test_databases_of_names_lie_in_the_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("TESSEARTH_CACHE", str(tmp_path))
    save_database(database(4), default_database("wrap"))
    assert Embedder("wrap+range").dim == 11
    assert default_database("satclip=a/b.ckpt").parent == default_database("MVRL/TTE").parent == tmp_path / "range"


@pytest.mark.parametrize(
    ("name", "parts"),
    [
        ("sphereM+", ("sphereM+", None, None)),
        ("sphereM++range", ("sphereM+", "semantic", None)),
        ("a.safetensors+range-geo=d+range.npz", ("a.safetensors", "geodesic", "d+range.npz")),
        ("satclip=w.ckpt+range=d.npz", ("satclip=w.ckpt", "semantic", "d.npz")),
        ("a+ranger", ("a+ranger", None, None)),
    ],
)
def test_names_come_apart(name: str, parts: tuple[str | None, ...]) -> None:
    assert parse_name(name) == ModelName(*parts)  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("name", "error", "words"),
    [
        ("sphereN+", UnknownNameError, "there is no model named 'sphereN+', nor such a file or folder; did you mean"),
        ("geoclp", UnknownNameError, "did you mean 'geoclip'?"),
        ("untraned+range", UnknownNameError, "'untraned', nor such a file or folder; did you mean 'untrained'?"),
        ("untrained+rnge", UnknownNameError, "did you mean 'untrained+range'?"),
        ("satclp=w.ckpt", UnknownNameError, "there is no set of published weights named 'satclp'; did you mean 'satc"),
        ("satclip=nothing.ckpt", WeightsError, "there is no weights file nothing.ckpt"),
        ("satclip", WeightsError, "satclip needs the file it was published as"),
        ("wrap+range=nothing.npz", DataError, "there is no file nothing.npz"),
        ("zzzzzz", UnknownNameError, "; there are: earth, "),
    ],
)
def test_a_wrong_name_is_one_line(name: str, error: type[Exception], words: str) -> None:
    with pytest.raises(error) as caught:
        Embedder(name)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_sites_are_for_voronoi_encoders(names: dict[str, str]) -> None:
    assert Embedder(names["voronoi"]).has_sites
    for name in ("wrap", names["retrieval"]):
        embed = Embedder(name)
        assert not embed.has_sites
        for ask in (embed.explain, embed.support, embed.nearest_sites):
            with pytest.raises(ConfigError, match="has no sites of its own"):
                ask(LATLON)
    with pytest.raises(ConfigError, match="top_k keeps the nearest sites of a Voronoi encoder, and wrap has none"):
        Embedder("wrap", top_k=3)


class Halves(PositionalEncoding):
    """Somebody's own encoding, with a setting that is no tensor."""

    def __init__(self, scale: float) -> None:
        super().__init__(2)
        self.scale = scale

    def forward(self, latlon: torch.Tensor) -> torch.Tensor:
        return latlon * self.scale


def test_the_fingerprint_is_of_what_decides_the_embeddings(names: dict[str, str], tmp_path: Path) -> None:
    def of(model: object, **options: object) -> str:
        return Embedder(model, **options).fingerprint()  # type: ignore[arg-type]

    for kind in KINDS:
        assert of(names[kind]) == of(names[kind])
        assert len(of(names[kind])) == 64
    assert of(names["voronoi"]) == of(VORONOI) == of(copy.deepcopy(VORONOI).double())
    assert of(names["saved"]) == of(build_baseline("harmonics-siren", SIREN, seed=3))
    assert of(names["voronoi"], batch_size=3) == of(VORONOI)
    shutil.copy(names["voronoi"], tmp_path / "renamed.safetensors")
    assert of(tmp_path / "renamed.safetensors") == of(VORONOI)
    for number, wide in enumerate((18, 18)):  # the same shapes, other numbers
        save_database(database(wide), tmp_path / f"{number}.npz")
    different = [
        *(of(name) for name in BASELINES),
        *(of(names[kind]) for kind in KINDS),
        of(VORONOI, top_k=3),
        of(VORONOI, precision="float64"),
        of(VORONOI, precision="bfloat16"),
        of(tiny_encoder(seed=1, dtype=torch.float32)),
        of(build_baseline("harmonics-siren", SIREN, seed=4)),
        of(build_baseline("grid", {"num_scales": 5})),
        of(f"{names['voronoi']}+range={tmp_path / '0.npz'}"),
        of(f"{names['voronoi']}+range={tmp_path / '1.npz'}"),
        of(PositionalEncoder(Halves(0.5))),
        of(PositionalEncoder(Halves(0.25))),
    ]
    assert len(set(different)) == len(different)


def test_every_kind_survives_pickling(names: dict[str, str]) -> None:
    for name in (*names.values(), "sphereM+"):
        embed = Embedder(name)
        again = pickle.loads(pickle.dumps(embed))
        np.testing.assert_array_equal(again(LATLON), embed(LATLON))
        assert again.fingerprint() == embed.fingerprint()


def test_a_baseline_is_a_scikit_learn_transformer() -> None:
    features = LocationFeatures("sphereM+").fit(LATLON)
    np.testing.assert_array_equal(features.transform(LATLON), Embedder("sphereM+")(LATLON))


def test_only_networks_with_random_weights_are_untrained() -> None:
    assert {name for name in known_names() if is_untrained(name)} == {
        "untrained",
        *(name for name, card in BASELINES.items() if card.has_network),
    }
    assert is_untrained("fourier+range=d.npz")
    assert not any(is_untrained(name) for name in PUBLISHED)
