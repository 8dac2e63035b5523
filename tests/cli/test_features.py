"""`tessearth features` and `tessearth info STORE`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessearth.errors import ConfigError
from tessearth.imagery.recipe import load_recipe
from tessearth.imagery.store import FeatureStore
from tests.cli.conftest import Command

RECIPE = """
[features.places]
where = "sphere"
count = 60

[[features.sources]]
kind = "global-raster"
options = {{ path = "{raster}", size = 12, km_per_pixel = 80.0 }}
encoder_options = {{ num_filters = 4, num_patches = 200 }}
"""


@pytest.fixture
def recipe(tmp_path: Path) -> Path:
    rng = np.random.default_rng(0)
    small = Image.fromarray(rng.integers(0, 256, (9, 18, 3), dtype=np.uint8))
    small.resize((360, 180), Image.Resampling.BICUBIC).save(tmp_path / "earth.png")
    (tmp_path / "recipe.toml").write_text(RECIPE.format(raster=tmp_path / "earth.png"))
    return tmp_path / "recipe.toml"


def test_a_store_is_made_described_and_drawn(tessearth: Command, recipe: Path) -> None:
    store = recipe.parent / "store"
    made = tessearth("features", recipe, "--out", store)
    assert made.status == 0
    assert "60 places x 1 views x" in made.out
    assert made.err == ""
    assert len(FeatureStore(store).latlon) == 60
    sheet = recipe.parent / "sheet.png"
    described = json.loads(tessearth("info", store, "--json", "--sheet", sheet, "--tiles", 12).out)
    assert described["places"] == 60
    assert described["sources"]["0"]["encoder"]["name"] == "rcf"
    assert Image.open(sheet).width > 500
    assert "training places" in tessearth("info", store).out
    again = tessearth("features", recipe, "--out", store)
    assert again.out == made.out


def test_a_recipe_that_is_based_on_another_has_its_features(tessearth: Command, recipe: Path) -> None:
    changed = recipe.parent / "changed.toml"
    changed.write_text(f'base = "{recipe}"\n[features.places]\ncount = 40\n[training]\nepochs = 3\n')
    made = tessearth("features", changed, "--out", recipe.parent / "store")
    assert made.status == 0, made.err
    assert "40 places x 1 views x" in made.out


def test_every_shipped_recipe_that_can_be_trained_alone_has_features() -> None:
    assert load_recipe("ablations/half-data") == load_recipe("paper")
    assert load_recipe("baselines/wrap") == load_recipe("earth")
    assert load_recipe("paper-s2").sources[0].kind == "sentinel2-patches"
    with pytest.raises(ConfigError, match=r"own-store\.toml has no \[features\] table"):
        load_recipe("finetune/own-store")


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("smok", "--out", "s"), "there is no recipe 'smok', neither as a file nor by name; did you mean 'smoke'?"),
        (("smoke",), "--out"),
        (("{recipe}", "--out", "{recipe}"), "cannot make"),
        (("{recipe}", "--out", "s", "--device", "quantum"), "quantum"),
    ],
)
def test_a_mistake_is_one_line(
    tessearth: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch, arguments: tuple[str, ...], words: str
) -> None:
    monkeypatch.chdir(recipe.parent)
    outcome = tessearth("features", *(argument.format(recipe=recipe) for argument in arguments))
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert words in outcome.err


def test_a_store_of_another_recipe_is_one_line_and_stays(tessearth: Command, recipe: Path) -> None:
    store = recipe.parent / "store"
    tessearth("features", recipe, "--out", store)
    recipe.write_text(recipe.read_text().replace("count = 60", "count = 61"))
    outcome = tessearth("features", recipe, "--out", store)
    assert outcome.status == 2
    assert f"{store} is a store of another recipe; choose another --out, or remove it first" in outcome.err
    assert len(FeatureStore(store).latlon) == 60


def test_a_sheet_of_a_model_makes_no_sense(tessearth: Command) -> None:
    outcome = tessearth("info", "untrained", "--sheet", "x.png")
    assert outcome.status == 2
    assert "--sheet draws the tiles of a feature store" in outcome.err


@pytest.mark.parametrize(
    ("done", "kept"), [(0, "nothing was computed yet"), (32, "the features of 32 places are kept in ")]
)
def test_ctrl_c_says_what_is_kept_and_how_to_go_on(
    tessearth: Command, recipe: Path, monkeypatch: pytest.MonkeyPatch, done: int, kept: str
) -> None:
    from tessearth import imagery

    def interrupted(*_: object, progress: Callable[[int, int], None], **__: object) -> None:
        progress(done, 60)
        raise KeyboardInterrupt

    monkeypatch.setattr(imagery, "build_store", interrupted)
    outcome = tessearth("features", recipe, "--out", recipe.parent / "store")
    assert outcome.status == 130
    assert kept in outcome.err
    assert "run the same command again to go on" in outcome.err
