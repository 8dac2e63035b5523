"""On a device tiles are what the sources on the host read: rasters and pyramids, poles, antimeridian, every scale."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tessearth.errors import DataError
from tessearth.imagery.source import Source
from tessearth.imagery.sources import GlobalRaster, LocatedPatches, RasterLayers, TilePyramid, on_device
from tessearth.imagery.sources.on_device import DeviceImagery, DevicePyramid
from tessearth.imagery.sources.tile_stores import Tile
from tests.imagery.sources.fabricate import LATLON, all_tiles, encode, write_globe, write_mbtiles

EDGES = [
    (90, 0),
    (-90, 13),
    (89.9, 179.9),
    (-86, -180),
    (85.06, 20),
    (-84.9, 180),
    (0, 180),
    (0, -180),
    (10, 359.5),
    (1e-9, -180),
]
PLACES = np.concatenate(
    (LATLON, np.array(EDGES, dtype=float), np.random.default_rng(0).uniform((-90, -180), (90, 180), (40, 2)))
)
CPU = torch.device("cpu")


def noise_tile(bands: int, side: int = 32) -> Any:
    def make(z: int, x: int, y: int) -> bytes:
        pixels = np.random.default_rng((z, x, y)).integers(0, 256, (side, side, bands)).astype(np.uint8)
        return encode(pixels[..., 0] if bands == 1 else pixels)

    return make


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder, random = tmp_path_factory.mktemp("imagery"), np.random.default_rng(1)
    for name, shape in {
        "colour": (181, 360, 3),
        "gray": (90, 180),
        "odd": (121, 241, 3),
        "same": (181, 360, 3),
    }.items():
        Image.fromarray(random.integers(0, 256, shape).astype(np.uint8)).save(folder / f"{name}.png")
    gaps = random.normal(size=(2, 60, 120)).astype(np.float32)
    gaps[random.random(gaps.shape) < 0.3] = np.nan
    write_globe(folder / "gaps.tif", gaps, nodata=np.nan)
    kept = [tile for zoom in range(5) for tile in all_tiles(zoom) if zoom < 2 or random.random() < 0.5]
    write_mbtiles(folder / "colour.mbtiles", kept, noise_tile(3))
    write_mbtiles(folder / "gray.mbtiles", kept, noise_tile(1))
    write_mbtiles(folder / "corner.mbtiles", [(1, 0, 0), (2, 0, 0)], noise_tile(3))
    return folder


def assert_same_tiles(source: Source, imagery: DeviceImagery | None = None) -> None:
    there = (imagery or DeviceImagery(CPU)).open(source)
    assert there is not None
    expected, found = source.tiles(PLACES), there.tiles(PLACES)
    assert found.dtype == torch.float32
    np.testing.assert_allclose(found.numpy(), expected, atol=1e-5, rtol=0)
    assert np.nanstd(expected) > 0.003  # differences would show


@pytest.mark.parametrize(("size", "km"), [(1, 40.0), (7, 3.7), (12, 111.0), (24, 300.0), (5, 1900.0)])
@pytest.mark.parametrize("name", ["colour.png", "gray.png", "odd.png"])
def test_rasters_at_every_scale(folder: Path, name: str, size: int, km: float) -> None:
    assert_same_tiles(GlobalRaster(folder / name, size=size, km_per_pixel=km, west=-170.0))


def test_a_raster_with_gaps_and_a_fill(folder: Path) -> None:
    for fill in (float("nan"), 0.25):
        assert_same_tiles(GlobalRaster(folder / "gaps.tif", size=6, km_per_pixel=250.0, scale=0.5, fill=fill))


@pytest.mark.parametrize("names", [["colour", "same"], ["colour", "gray", "odd"]])
def test_layers_of_one_shape_and_of_several(folder: Path, names: list[str]) -> None:
    assert_same_tiles(RasterLayers([folder / f"{name}.png" for name in names], size=6, km_per_pixel=60.0))


@pytest.mark.parametrize(("size", "km"), [(4, 20.0), (9, 78.3), (5, 400.0), (3, 1900.0)])
@pytest.mark.parametrize(("name", "mode"), [("colour", "RGB"), ("gray", "L"), ("colour", "RGBA")])
def test_pyramids_with_missing_tiles_at_every_scale(folder: Path, name: str, mode: Any, size: int, km: float) -> None:
    assert_same_tiles(TilePyramid(folder / f"{name}.mbtiles", size=size, km_per_pixel=km, mode=mode, tile_pixels=32))


def test_a_pyramid_at_a_given_zoom_and_in_any_batches(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TilePyramid(folder / "colour.mbtiles", size=5, km_per_pixel=100.0, zoom=4, tile_pixels=32)
    assert_same_tiles(source)
    monkeypatch.setattr(on_device, "TILES_READ_AT_ONCE", 7)
    monkeypatch.setattr(on_device, "TILES_CUT_AT_ONCE", 2)
    monkeypatch.setitem(on_device.POINTS_AT_ONCE, "cpu", 60)
    assert_same_tiles(source)


def test_sources_of_one_file_share_its_pixels(folder: Path) -> None:
    imagery = DeviceImagery(CPU)
    pyramids = [TilePyramid(folder / "colour.mbtiles", size=size, km_per_pixel=50.0, tile_pixels=32) for size in (3, 8)]
    opened = [imagery.open(source) for source in pyramids]
    assert all(isinstance(each, DevicePyramid) for each in opened)
    assert opened[0].pages is opened[1].pages  # type: ignore[union-attr]
    rasters = [
        GlobalRaster(folder / "colour.png", size=size, km_per_pixel=50.0, scale=scale)
        for size, scale in ((3, 2.0), (8, 1.0))
    ]
    layers = RasterLayers([folder / "colour.png", folder / "odd.png"], size=4, km_per_pixel=50.0)
    first, second = (imagery.open(source) for source in rasters)
    assert first.layers == second.layers  # type: ignore[union-attr]
    for source in (*rasters, layers, *pyramids):
        assert_same_tiles(source, imagery)


def test_tiles_are_decoded_once_and_only_where_places_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    source = TilePyramid(folder / "colour.mbtiles", size=3, km_per_pixel=10.0, tile_pixels=32)
    read: list[Tile] = []
    find = source.find_tiles
    monkeypatch.setattr(source, "find_tiles", lambda wanted: (read.extend(wanted), find(wanted))[1])
    there = DeviceImagery(CPU).open(source)
    assert there is not None
    there.tiles(PLACES[:3])
    there.tiles(PLACES[:3])
    assert len(read) == len(set(read)) <= 12
    assert there.tiles(PLACES[:0]).shape == (0, 3, 3, 3)


def test_a_pyramid_without_a_parent_for_a_place_says_so(folder: Path) -> None:
    there = DeviceImagery(CPU).open(TilePyramid(folder / "corner.mbtiles", size=3, km_per_pixel=50.0, tile_pixels=32))
    assert there is not None
    with pytest.raises(DataError, match=r"neither tile 2/.* nor any parent"):
        there.tiles(np.array([[-40.0, 100.0]]))


def test_sources_of_single_pictures_have_no_form_on_a_device(folder: Path) -> None:
    patches = LocatedPatches.__new__(LocatedPatches)
    assert DeviceImagery(CPU).open(patches) is None
