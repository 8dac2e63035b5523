"""Kernels cut the tiles that the sources on the host read, on a GPU or under Triton's interpreter."""

from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from tessearth.imagery.source import Source
from tessearth.imagery.sources import GlobalRaster, RasterLayers, TilePyramid
from tessearth.imagery.sources.on_device import DeviceImagery
from tessearth.packages import has_kernels
from tests.imagery.sources.fabricate import all_tiles, write_mbtiles
from tests.imagery.sources.test_on_device import noise_tile

DEVICE = torch.device("cuda" if torch.cuda.is_available() else "cpu")
needs_kernels = pytest.mark.skipif(
    not has_kernels(DEVICE), reason="kernels need a GPU, or Triton and TRITON_INTERPRET=1"
)
PLACES = np.array([(90, 0), (-90, 13), (89.9, 179.9), (-86, -180), (10, 359.5), (0, 180), (47.3, 8.5), (-33.9, 151.2)])


def assert_same_tiles(source: Source, places: np.ndarray = PLACES) -> None:
    there = DeviceImagery(DEVICE).open(source)
    assert there is not None
    np.testing.assert_allclose(there.tiles(places).cpu().numpy(), source.tiles(places), atol=1e-5, rtol=0)
    np.testing.assert_allclose(there.tiles(places[:3]).cpu().numpy(), source.tiles(places[:3]), atol=1e-5, rtol=0)
    assert there.tiles(places[:0]).shape[0] == 0


@needs_kernels
@pytest.mark.parametrize(("size", "km"), [(7, 3.7), (5, 300.0)])
def test_rasters_of_several_layers(tmp_path: Path, size: int, km: float) -> None:
    random = np.random.default_rng(1)
    for name, shape in {"colour": (181, 360, 3), "same": (181, 360, 3), "gray": (90, 180)}.items():
        Image.fromarray(random.integers(0, 256, shape).astype(np.uint8)).save(tmp_path / f"{name}.png")
    assert_same_tiles(GlobalRaster(tmp_path / "gray.png", size=size, km_per_pixel=km, west=-170.0))
    assert_same_tiles(RasterLayers([tmp_path / "colour.png", tmp_path / "same.png"], size=size, km_per_pixel=km))


@needs_kernels
@pytest.mark.parametrize(("size", "km"), [(4, 20.0), (5, 400.0)])
@pytest.mark.parametrize("mode", ["RGB", "L", "RGBA"])
def test_pyramids_with_missing_tiles(tmp_path: Path, mode: str, size: int, km: float) -> None:
    random = np.random.default_rng(1)
    kept = [tile for zoom in range(5) for tile in all_tiles(zoom) if zoom < 2 or random.random() < 0.5]
    write_mbtiles(tmp_path / "some.mbtiles", kept, noise_tile(1 if mode == "L" else 3))
    source = TilePyramid(tmp_path / "some.mbtiles", size=size, km_per_pixel=km, mode=mode, tile_pixels=32)  # type: ignore[arg-type]
    assert_same_tiles(source)


@needs_kernels
def test_many_random_places(tmp_path: Path) -> None:
    places = np.random.default_rng(0).uniform((-90, -180), (90, 180), (40, 2))
    write_mbtiles(tmp_path / "all.mbtiles", [tile for zoom in range(5) for tile in all_tiles(zoom)], noise_tile(3))
    assert_same_tiles(TilePyramid(tmp_path / "all.mbtiles", size=3, km_per_pixel=70.0, tile_pixels=32), places)
