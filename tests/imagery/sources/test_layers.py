"""Pictures laid over each other: the bands of every one, in order, at the same places."""

from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import ConfigError
from tessearth.imagery.reading import build_source
from tessearth.imagery.recipe import SourceRecipe
from tessearth.imagery.sources import GlobalRaster, RasterLayers
from tests.imagery.sources.test_global_raster import write_png

PLACES = np.array([[10.0, 20.0], [-45.0, 170.0]])


def pictures(folder: Path) -> list[Path]:
    rng = np.random.default_rng(0)
    return [
        write_png(folder / f"{name}.png", rng.integers(0, 255, (40, 80, 3), dtype=np.uint8)) for name in ("may", "july")
    ]


def test_a_tile_is_the_tiles_of_all_layers(tmp_path: Path) -> None:
    paths = pictures(tmp_path)
    layers = RasterLayers(paths, size=6, km_per_pixel=400.0)
    alone = [GlobalRaster(path, size=6, km_per_pixel=400.0).tiles(PLACES) for path in paths]
    np.testing.assert_array_equal(layers.tiles(PLACES), np.concatenate(alone, axis=1))
    assert len(layers.bands) == 6
    assert len(set(layers.bands)) == 6
    hashes = [layer["files"] for layer in layers.describe()["layers"]]
    assert hashes[0] != hashes[1]


def test_a_recipe_names_it(tmp_path: Path) -> None:
    paths = [str(path) for path in pictures(tmp_path)]
    options = {"paths": paths, "size": 6, "km_per_pixel": 400.0}
    assert build_source(SourceRecipe(kind="raster-layers", options=options)).tiles(PLACES).shape == (2, 6, 6, 6)


@pytest.mark.parametrize("paths", [[], "may.png"])
def test_a_list_of_paths_is_needed(paths: object) -> None:
    with pytest.raises(ConfigError, match="needs a list of at least one path"):
        RasterLayers(paths, size=6, km_per_pixel=400.0)  # type: ignore[arg-type]
