"""Feature recipes: read from TOML, checked word by word."""

from pathlib import Path

import pytest

from tessearth.errors import ConfigError, TessearthError, UnknownNameError
from tessearth.imagery.recipe import RECIPE_FOLDERS, FeatureRecipe, SourceRecipe, find_recipe, load_recipe
from tessearth.settings import from_plain

SHIPPED = sorted(path.stem for folder in RECIPE_FOLDERS if folder.is_dir() for path in folder.glob("*.toml"))


@pytest.mark.parametrize("name", SHIPPED)
def test_shipped_recipes_are_read_by_name(name: str) -> None:
    recipe = load_recipe(name)
    assert recipe.sources
    assert from_plain(FeatureRecipe, recipe.to_dict()) == recipe


def test_some_recipes_are_shipped() -> None:
    assert "smoke" in SHIPPED


def test_the_hash_tells_recipes_apart() -> None:
    source = SourceRecipe(kind="blue-marble", options={"size": 24})
    recipe, same = FeatureRecipe(sources=(source,)), FeatureRecipe(sources=(source,))
    assert recipe.sha256() == same.sha256()
    assert recipe.sha256() != FeatureRecipe(sources=(source,), seed=1).sha256()


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("", "has no [features] table"),
        ("[features", "cannot be read as TOML"),
        ("[features]\n", "setting features.sources is missing"),
        ("[features]\nsources = []\n", "features.sources is empty"),
        ("[features]\nview = 2\n", "unknown setting features.view; did you mean 'views'?"),
        ("[features]\nsources = [{kind = 'x'}]\nviews = '2'\n", "features.views is '2', not a whole number"),
        ("[features]\nsources = [{kind = 'x'}]\nviews = 0\n", "features.views is 0; it must be at least 1"),
        ("[features]\nsources = [{kind = 'x'}]\ndtype = 'int8'\n", "features.dtype is 'int8'; it must be one of"),
        ("[features]\nsources = [{kind = 'x', option = {}}]\n", "unknown setting features.sources[0].option"),
        ("[features]\nsources = [{kind = 'x', options = 3}]\n", "features.sources[0].options is 3, not a table"),
        ("[features]\nsources = [{kind = 'x'}]\nplaces = {count = 0}\n", "places.count is 0"),
        ("[features]\nsources = [{kind = 'x'}]\nplaces = {where = 'sea'}\n", "features.places.where is 'sea'"),
    ],
)
def test_a_wrong_recipe_is_named_in_one_line(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "recipe.toml"
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        load_recipe(str(path))
    assert words in str(caught.value)
    assert str(path) in str(caught.value)
    assert "\n" not in str(caught.value)


def test_an_unknown_recipe_is_met_with_the_nearest_name() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'smoke'"):
        find_recipe("smok")
    with pytest.raises(TessearthError, match="neither as a file nor by name"):
        find_recipe("nothing/here.toml")
