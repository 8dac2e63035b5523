"""Features made on a device are those of a store; what was fitted is kept; other sources are refused."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tessearth.errors import ConfigError
from tessearth.imagery import building, device_features
from tessearth.imagery.building import build_store
from tessearth.imagery.device_features import DeviceReader, compute_features, has_device_form
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tests.imagery.sources.fabricate import all_tiles, encode, write_mbtiles

CPU = torch.device("cpu")
RCF = {"num_filters": 8, "num_patches": 400}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small globe of soft random colours, and a pyramid of noise with missing tiles."""
    folder, random = tmp_path_factory.mktemp("imagery"), np.random.default_rng(0)
    coarse = Image.fromarray(random.integers(0, 256, (18, 36, 3), dtype=np.uint8))
    coarse.resize((720, 360), Image.Resampling.BICUBIC).save(folder / "earth.png")

    def tile(z: int, x: int, y: int) -> bytes:
        return encode(random.integers(0, 256, (32, 32)).astype(np.uint8))

    write_mbtiles(
        folder / "night.mbtiles", [one for z in range(5) for one in all_tiles(z) if z < 4 or one[1] % 3], tile
    )
    return folder


def make_recipe(folder: Path, **changes: Any) -> FeatureRecipe:
    raster = {"path": str(folder / "earth.png"), "size": 14, "km_per_pixel": 55.0}
    pyramid = {
        "location": str(folder / "night.mbtiles"),
        "size": 8,
        "km_per_pixel": 40.0,
        "mode": "L",
        "tile_pixels": 32,
    }
    sources = (
        SourceRecipe(kind="global-raster", options=raster, crop=12, encoder_options=RCF),
        SourceRecipe(kind="tile-pyramid", options={**pyramid, "tile_pixels": 32}, encoder_options=RCF),
    )
    places = PlacesRecipe(where="sphere", count=150, seed=3, validation=0.2)
    values = {"sources": sources, "places": places, "fit_places": 40, "dtype": "float32", "views": 2}
    return FeatureRecipe(**{**values, "pca": 12, "balanced": True, "flattening": 0.25, **changes})


def test_components_are_those_of_a_store(folder: Path, tmp_path: Path) -> None:
    recipe = make_recipe(folder)
    store = build_store(recipe, tmp_path / "store", chunk_places=32)
    found = compute_features(recipe, device=CPU)
    np.testing.assert_array_equal(found.latlon, store.latlon)
    np.testing.assert_array_equal(found.training, store.training)
    np.testing.assert_array_equal(found.validation, store.validation)
    assert found.components is not None
    assert store.components is not None
    np.testing.assert_allclose(found.components.numpy(), store.components, atol=1e-4)
    assert found.manifest["recipe_sha256"] == store.manifest["recipe_sha256"]
    with pytest.raises(ConfigError, match="only 12 components are kept"):
        _ = found.features


def test_without_components_all_features_are_kept(folder: Path, tmp_path: Path) -> None:
    recipe = make_recipe(folder, pca=0, balanced=False, flattening=0.0, dtype="float16")
    store = build_store(recipe, tmp_path / "store", chunk_places=32)
    found = compute_features(recipe, device=CPU)
    assert found.components is None
    assert found.features.dtype == torch.float16
    np.testing.assert_allclose(found.features.float().numpy(), store.features.astype(np.float32), atol=2e-3)


def test_what_was_fitted_is_kept_and_used_again(folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    recipe = make_recipe(folder, places=PlacesRecipe(where="sphere", count=60, seed=4))
    first = compute_features(recipe, device=CPU, folder=tmp_path)
    assert sorted(path.name for path in tmp_path.rglob("*.safetensors")) == [
        "0.safetensors",
        "1.safetensors",
        "components.safetensors",
    ]
    monkeypatch.setattr(device_features, "fit_projection", None)  # nothing is fitted again
    told: list[tuple[int, int]] = []
    again = compute_features(recipe, device=CPU, folder=tmp_path, progress=lambda *done: told.append(done))
    assert torch.equal(first.array, again.array)
    assert told[-1] == (60, 60)


def test_components_fitted_to_some_places_are_those_of_all_places(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(folder)
    monkeypatch.setattr(device_features, "FITTED_PLACES", 50)
    monkeypatch.setitem(device_features.PLACES_AT_ONCE, "cpu", 33)
    found = compute_features(recipe, device=CPU)
    reader = DeviceReader(recipe, CPU)
    places = reader.prepare(None)
    assert sum(map(len, reader.fit_components(places, None))) == 50
    expected = reader.project(reader.features(places.latlon, np.arange(150)))
    torch.testing.assert_close(found.array, expected, atol=1e-5, rtol=0)


def test_a_store_made_on_the_device_is_that_of_the_host(
    folder: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    recipe = make_recipe(folder, dtype="float16")
    host = build_store(recipe, tmp_path / "host", chunk_places=32)
    monkeypatch.setattr(building, "READING_DEVICES", ("cpu",))
    monkeypatch.setattr(building, "read_tiles", None)
    monkeypatch.setitem(device_features.PLACES_AT_ONCE, "cpu", 64)

    def stop(done: int, total: int) -> None:
        if done >= 64:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        build_store(recipe, tmp_path / "device", chunk_places=32, progress=stop)
    device = build_store(recipe, tmp_path / "device", chunk_places=32)
    np.testing.assert_allclose(device.features.astype(np.float32), host.features.astype(np.float32), atol=2e-3)
    whole = build_store(recipe, tmp_path / "whole", chunk_places=32)
    assert (tmp_path / "whole" / "features.npy").read_bytes() == (tmp_path / "device" / "features.npy").read_bytes()
    np.testing.assert_array_equal(whole.components, device.components)


def test_sources_without_a_form_on_a_device_are_named(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "0.png").write_bytes((folder / "earth.png").read_bytes())
    (tmp_path / "places.csv").write_text("file,lat,lon\n0.png,41,62\n")
    options = {"folder": str(tmp_path), "table": str(tmp_path / "places.csv")}
    recipe = make_recipe(folder, sources=(SourceRecipe(kind="image-folder", options=options),))
    assert not has_device_form(recipe)
    assert has_device_form(make_recipe(folder))
    with pytest.raises(ConfigError, match="'image-folder' has no form on a device"):
        compute_features(recipe, device=CPU)


def test_more_components_than_features_are_refused(folder: Path) -> None:
    with pytest.raises(ConfigError, match="pca is 9999, but features are only"):
        compute_features(make_recipe(folder, pca=9999), device=CPU)
