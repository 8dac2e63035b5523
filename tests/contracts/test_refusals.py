"""Mistakes that users make and no other test does: each is one line that names what was given and what to do."""

import sqlite3
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch

import tessearth
from tessearth.encoder.sites import read_trajectory
from tessearth.errors import ConfigError, DataError, TessearthError, WeightsError
from tessearth.evaluation.plan import build_plan
from tessearth.imagery.image_encoders import IMAGE_ENCODERS
from tessearth.imagery.recipe import PlacesRecipe
from tessearth.imagery.sources.tile_stores import FolderTiles, MBTiles, UrlTiles
from tessearth.plotting.curves import draw_retrieval
from tessearth.settings import Registry
from tessearth.storage.foreign_weights import tensors_in
from tessearth.training.loop import choose_device
from tessearth.training.recipe import TrainingRecipe
from tessearth.training.sites_recipe import SitesRecipe
from tessearth.zoo import layouts
from tests.evaluation.fabricate import number_task

MISTAKES: dict[str, tuple[type[TessearthError], Callable[[], object], str]] = {
    "an encoder without weights": (
        ConfigError,
        IMAGE_ENCODERS["vit"],
        "the image encoder vit needs weights=PATH",
    ),
    "filters from nothing": (
        ConfigError,
        IMAGE_ENCODERS["rcf"],
        "give it tiles=, shape (N, C, H, W)",
    ),
    "elsewhere than everywhere": (
        ConfigError,
        lambda: PlacesRecipe(where="sphere", elsewhere=0.1),
        "places.elsewhere adds to places over land, but places.where is 'sphere'",
    ),
    "a share of all elsewhere": (ConfigError, lambda: PlacesRecipe(elsewhere=1.0), "places.elsewhere is 1.0; it must"),
    "clusters of nobody": (ConfigError, lambda: SitesRecipe(start="clusters"), "name the encoder: sites.model = NAME"),
    "no rounds": (ConfigError, lambda: SitesRecipe(rounds=0), "sites.rounds is 0; it must be at least 1"),
    "a temperature of ice": (
        ConfigError,
        lambda: TrainingRecipe(contrastive_temperature=0.001),
        "training.contrastive_temperature is 0.001; it must be at least 0.01",
    ),
    "a device that trains nothing": (
        ConfigError,
        lambda: choose_device("meta"),
        "training runs on cpu and cuda, not on 'meta'",
    ),
    "a server of unknown depth": (
        ConfigError,
        lambda: UrlTiles.of("https://tiles.example/{z}/{x}/{y}.png"),
        "give max_zoom, the deepest zoom that",
    ),
    "weights of nothing": (
        WeightsError,
        lambda: tensors_in({"state_dict": {"a": 1}}, ("state_dict",), "w.pt"),
        "w.pt holds no named tensors",
    ),
    "grid cells without their settings": (
        WeightsError,
        lambda: layouts.read_csp({"params": {"spa_enc_type": "gridcell"}}, "w.pt"),
        "w.pt: its params lack",
    ),
    "harmonics that are no square": (
        WeightsError,
        lambda: layouts._read_degrees(50, "w.pt"),
        "the first layer takes 50 features, which are not all harmonics up to a degree",
    ),
    "metrics without retrieval": (
        DataError,
        lambda: draw_retrieval(None, [{"step": 1, "validation": {"total": 1.0}}]),
        "the metrics have no validation row",
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_one_line_that_says_what_to_do(mistake: str) -> None:
    kind, make, words = MISTAKES[mistake]
    with pytest.raises(kind) as caught:
        make()
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_two_tasks_of_one_name_cannot_be_told_apart() -> None:
    plan = build_plan([number_task(), number_task()], ["random"])
    assert [(row.task, row.reason) for row in plan.skipped] == [("height", "two tasks are called 'height'")]
    assert len(plan.tasks) == 1


def test_a_name_is_registered_once() -> None:
    registry: Registry[int] = Registry("thing", {"a": 1})
    registry.register("b", 2)
    with pytest.raises(ValueError, match="a thing named 'a' is registered already"):
        registry.register("a", 3)
    assert dict(registry) == {"a": 1, "b": 2}
    assert registry.get("c") is None


def test_the_package_has_its_names_and_no_others() -> None:
    assert set(tessearth.__all__) <= set(dir(tessearth))
    with pytest.raises(AttributeError, match="module 'tessearth' has no attribute 'embedder'"):
        tessearth.embedder  # type: ignore[attr-defined]  # noqa: B018


def test_a_folder_without_tiles_is_no_pyramid(tmp_path: Path) -> None:
    (tmp_path / "0" / "0").mkdir(parents=True)
    (tmp_path / "0" / "0" / "readme.txt").touch()
    with pytest.raises(DataError, match=r"holds no tiles: expected files such as 0/0/0\.png in it"):
        FolderTiles.of(tmp_path)


def test_zoom_levels_are_whole_numbers(tmp_path: Path) -> None:
    path = tmp_path / "t.mbtiles"
    with sqlite3.connect(path) as connection:
        connection.execute("create table metadata (name text, value text)")
        connection.execute("create table tiles (zoom_level, tile_column, tile_row, tile_data blob)")
        connection.execute("insert into tiles values ('deep', 0, 0, x'00')")
    connection.close()
    with pytest.raises(DataError, match="has zoom levels from 'deep' to 'deep', not whole numbers"):
        MBTiles.of(path)


def test_a_trajectory_has_a_step_for_every_position(tmp_path: Path) -> None:
    np.savez(tmp_path / "t.npz", steps=np.arange(3), positions=np.zeros((2, 5, 3)), sharpness=np.ones((2, 5)))
    with pytest.raises(DataError, match=r"has 3 steps for positions of shape \(2, 5, 3\)"):
        read_trajectory(tmp_path / "t.npz")


def test_harmonics_of_every_degree_are_read() -> None:
    assert [layouts._read_degrees(inputs, "w.pt") for inputs in (1, 4, 100)] == [1, 2, 10]
    signs = layouts.harmonic_signs(2)
    assert torch.equal(signs, torch.tensor([1.0, -1.0, -1.0, -1.0]))
