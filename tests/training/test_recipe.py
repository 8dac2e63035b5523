"""Recipes: read, laid over their base, changed by one value, written back; what is wrong is said with its place."""

import tomllib
from pathlib import Path

import pytest

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.imagery.recipe import RECIPE_FOLDERS
from tessearth.settings import from_plain
from tessearth.training.recipe import Recipe, first_difference, read_recipe, to_toml


def shipped() -> list[str]:
    folder = next(folder for folder in RECIPE_FOLDERS if folder.is_dir())
    return sorted(str(path.relative_to(folder).with_suffix("")) for path in folder.rglob("*.toml"))


@pytest.mark.parametrize("name", shipped())
def test_a_shipped_recipe_reads_and_comes_back_from_its_own_toml(name: str) -> None:
    recipe = read_recipe(name)
    assert from_plain(Recipe, tomllib.loads(to_toml(recipe.to_dict()))) == recipe


def test_the_paper_recipe_is_the_papers_table() -> None:
    recipe = read_recipe("paper")
    assert (recipe.encoder.num_sites, recipe.encoder.mixture_dim, recipe.encoder.num_tokens) == (4096, 384, 64)
    assert (recipe.training.batch_size, recipe.training.epochs, recipe.training.warmup_epochs) == (6384, 300, 5)
    groups = recipe.training.groups
    rates = [
        group.learning_rate for group in (groups.sites, groups.head, groups.sharpness, groups.tokens, groups.image)
    ]
    assert rates == [1e-3, 5e-4, 5e-4, 2e-4, 5e-5]
    decays = [
        group.weight_decay for group in (groups.sites, groups.head, groups.sharpness, groups.tokens, groups.image)
    ]
    assert decays == [0, 0.01, 0, 0.01, 0]
    objective = recipe.objective
    weights = (objective.contrastive, objective.reconstruction, objective.alignment, objective.distillation)
    assert weights == (1, 100, 0.1, 0)


def test_changes_are_typed_and_reach_into_lists() -> None:
    recipe = read_recipe(
        "paper",
        [
            "training.batch_size=64",
            "objective.reduction=sum",
            "encoder.tessellations.0.num_sites=32",
            "training.groups.head.learning_rate=1e-2",
            "features=none",
            "training.anneal_temperature=false",
        ],
    )
    assert recipe.training.batch_size == 64
    assert recipe.objective.reduction == "sum"
    assert recipe.encoder.num_sites == 32
    assert recipe.training.groups.head.learning_rate == 1e-2
    assert recipe.training.groups.head.weight_decay == 0.01
    assert recipe.features is None
    assert recipe.training.anneal_temperature is False


def test_a_base_is_laid_under_and_may_have_a_base_itself(tmp_path: Path) -> None:
    (tmp_path / "a.toml").write_text('base = "paper"\n[training]\nepochs = 7\n')
    (tmp_path / "b.toml").write_text(f'base = "{tmp_path / "a.toml"}"\n[training]\nseed = 3\n')
    recipe = read_recipe(str(tmp_path / "b.toml"))
    assert (recipe.training.epochs, recipe.training.seed, recipe.training.batch_size) == (7, 3, 6384)


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ("training.batchsize=3", r"unknown setting training\.batchsize; did you mean 'batch_size'"),
        ("training.batch_size=many", r"training\.batch_size is 'many', not a whole number"),
        ("training.batch_size=0", "must be at least 1"),
        ("training.precision=fp8", "must be one of 'float32'"),
        ("objective.contrastive=-1", "must be at least 0"),
        ("encoder.tessellations.3.num_sites=1", "'3' is no place in a list of 1"),
        ("training.steps", "not of the form a.b=value"),
        ("training.seed.deeper=1", "seed is no table"),
        ("sites.start=clusters", "name the encoder"),
        ("training.share=0", "above 0"),
    ],
)
def test_what_is_wrong_is_said_in_one_line(change: str, words: str) -> None:
    with pytest.raises(ConfigError, match=words) as raised:
        read_recipe("paper", [change])
    assert "\n" not in str(raised.value)


def test_recipes_that_are_not_there_or_go_in_circles(tmp_path: Path) -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'paper'"):
        read_recipe("papr")
    file = tmp_path / "loop.toml"
    file.write_text(f'base = "{file}"\n')
    with pytest.raises(ConfigError, match="lead back to itself"):
        read_recipe(str(file))


def test_the_first_difference_is_found_where_it_is() -> None:
    old, new = (
        read_recipe("paper").to_dict(),
        read_recipe("paper", ["encoder.tessellations.0.sharpness=20.0"]).to_dict(),
    )
    assert first_difference(old, old) is None
    assert first_difference(old, new) == "encoder.tessellations.0.sharpness is 20.0, there it is 45.0"
