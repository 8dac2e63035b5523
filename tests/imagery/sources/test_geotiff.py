import pickle
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import Source
from tessearth.imagery.sources import GeoTiff, geotiff, images
from tests.imagery.sources.fabricate import (
    Array,
    degrees_apart,
    from_origin,
    to_xyz,
    write_globe,
    write_projected,
    write_tiff,
)

rasterio = pytest.importorskip("rasterio")

PARIS = np.array([[48.8566, 2.3522]])
UTM = "EPSG:32631"


def around_paris(path: Path, pixels: Array, metres: float = 100.0, **options: object) -> Path:
    """Pixels (C, side, side) in UTM, centred on Paris."""
    import pyproj

    x, y = pyproj.Transformer.from_crs("EPSG:4326", UTM, always_xy=True).transform(PARIS[0, 1], PARIS[0, 0])
    half = pixels.shape[1] * metres / 2
    return write_tiff(path, pixels, from_origin(x - half, y + half, metres, metres), UTM, **options)


def noise(bands: int, side: int = 64, dtype: type = np.uint16) -> Array:
    return np.random.default_rng(0).integers(0, 250, (bands, side, side)).astype(dtype)


def test_it_is_a_source_with_any_number_of_bands(tmp_path: Path) -> None:
    source = GeoTiff(around_paris(tmp_path / "a.tif", noise(7)), size=5, km_per_pixel=0.1)
    assert isinstance(source, Source)
    assert source.bands == tuple(f"band{number}" for number in range(1, 8))
    assert source.tiles(PARIS).shape == (1, 7, 5, 5)
    assert source.tiles(np.empty((0, 2))).shape == (0, 7, 5, 5)


def test_bands_are_chosen_by_number_and_named_by_the_file(tmp_path: Path) -> None:
    path = around_paris(tmp_path / "a.tif", noise(3))
    with rasterio.open(path, "r+") as file:
        file.descriptions = ("blue", "green", "red")
    chosen = GeoTiff(path, size=5, km_per_pixel=0.1, band_numbers=(3, 1))
    assert chosen.bands == ("red", "blue")
    np.testing.assert_array_equal(chosen.tiles(PARIS), GeoTiff(path, size=5, km_per_pixel=0.1).tiles(PARIS)[:, [2, 0]])


@pytest.mark.parametrize("numbers", [(4,), (0,), ()])
def test_a_band_it_does_not_have_is_refused(tmp_path: Path, numbers: tuple[int, ...]) -> None:
    path = around_paris(tmp_path / "a.tif", noise(3))
    with pytest.raises(ConfigError, match=r"a\.tif has bands 1 to 3"):
        GeoTiff(path, size=5, km_per_pixel=0.1, band_numbers=numbers)


def test_8_bits_are_scaled_others_kept_and_the_files_own_scale_applied(tmp_path: Path) -> None:
    eight = around_paris(tmp_path / "8.tif", np.full((1, 32, 32), 51, np.uint8))
    sixteen = around_paris(tmp_path / "16.tif", np.full((1, 32, 32), 51, np.uint16))
    own = around_paris(tmp_path / "own.tif", np.full((1, 32, 32), 51, np.int16))
    with rasterio.open(own, "r+") as file:
        file.scales, file.offsets = (0.1,), (-2.0,)
    for path, expected in ((eight, 0.2), (sixteen, 51), (own, 3.1)):
        np.testing.assert_allclose(GeoTiff(path, size=3, km_per_pixel=0.1).tiles(PARIS), expected, rtol=1e-6)
    np.testing.assert_allclose(GeoTiff(own, size=3, km_per_pixel=0.1, scale=2).tiles(PARIS), 102)


def test_pixels_without_data_become_nan_or_what_is_asked_for(tmp_path: Path) -> None:
    pixels = np.full((1, 64, 64), 9, np.int16)
    pixels[:, :, 32:] = -1
    path = around_paris(tmp_path / "a.tif", pixels, nodata=-1)
    tile = GeoTiff(path, size=8, km_per_pixel=0.1).tiles(PARIS)[0, 0]
    np.testing.assert_allclose(tile[:, :3], 9)
    assert np.isnan(tile[:, 5:]).all()
    filled = GeoTiff(path, size=8, km_per_pixel=0.1, fill=-7).tiles(PARIS)[0, 0]
    np.testing.assert_allclose(filled[:, 5:], -7)


def test_a_tile_that_reaches_beyond_the_raster_is_filled_there(tmp_path: Path) -> None:
    path = around_paris(tmp_path / "a.tif", np.full((1, 20, 20), 9, np.int16))
    tile = GeoTiff(path, size=40, km_per_pixel=0.1, fill=0).tiles(PARIS)[0, 0]
    np.testing.assert_allclose(tile[14:26, 14:26], 9)
    assert (tile[:8] == 0).all()
    assert (tile[:, :8] == 0).all()
    assert (tile[:, -8:] == 0).all()


def test_a_place_outside_is_named_with_the_bounds(tmp_path: Path) -> None:
    path = around_paris(tmp_path / "a.tif", noise(1))
    with pytest.raises(
        DataError, match=r"place 1 at lat 51, lon 0 is outside .*a\.tif, which covers lat 48\.\d+ to 48\.\d+"
    ):
        GeoTiff(path, size=5, km_per_pixel=0.1).tiles(np.array([PARIS[0], [51.0, 0.0]]))


def test_the_other_side_of_the_earth_is_outside(tmp_path: Path) -> None:
    path = around_paris(tmp_path / "a.tif", noise(1))
    with pytest.raises(DataError, match="is outside"):
        GeoTiff(path, size=5, km_per_pixel=0.1).tiles(-PARIS + [[0.0, 180.0]])


@pytest.mark.parametrize("overviews", [(), (2, 4, 8)])
def test_finer_pixels_are_averaged_not_skipped(tmp_path: Path, overviews: tuple[int, ...]) -> None:
    path = around_paris(
        tmp_path / "a.tif",
        noise(1, side=512, dtype=np.float32),
        metres=10.0,
        tiled=True,
        blockxsize=128,
        blockysize=128,
    )
    if overviews:
        with rasterio.open(path, "r+") as file:
            file.build_overviews(overviews, rasterio.enums.Resampling.average)
    fine, coarse = (GeoTiff(path, size=16, km_per_pixel=km).tiles(PARIS) for km in (0.01, 0.1))
    assert coarse.std() < 0.2 * fine.std()
    assert coarse.mean() == pytest.approx(125, abs=4)


@pytest.mark.parametrize("km_per_pixel", [0.02, 0.037, 0.09, 0.21])
def test_averaging_does_not_move_the_place(tmp_path: Path, km_per_pixel: float) -> None:
    path = write_projected(tmp_path / "xyz.tif", UTM, (48.8566, 2.3522), metres=20, side=512)
    tiles = GeoTiff(path, size=9, km_per_pixel=km_per_pixel).tiles(PARIS)
    assert degrees_apart(tiles[0, :, 4, 4], to_xyz(PARIS)[0]) < 0.1 * np.rad2deg(0.02 / 6371)


def test_only_the_window_of_a_place_is_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = around_paris(tmp_path / "a.tif", noise(1, side=512))
    globe = write_globe(tmp_path / "globe.tif", np.zeros((1, 180, 360), np.uint8))
    read: list[tuple[int, int]] = []

    def watched(dataset: object, **options: object) -> Array:
        pixels = images.read_pixels(dataset, **options)
        read.append(pixels.shape[1:])
        return pixels

    monkeypatch.setattr(geotiff, "read_pixels", watched)
    GeoTiff(path, size=8, km_per_pixel=0.1).tiles(PARIS)
    GeoTiff(path, size=8, km_per_pixel=1.0).tiles(PARIS)
    GeoTiff(globe, size=8, km_per_pixel=111.0).tiles(np.array([[10.0, 179.9]]))  # one window on either side
    assert len(read) == 4
    assert max(side for shape in read for side in shape) <= 14


def test_a_vrt_reads_as_the_file_behind_it(tmp_path: Path) -> None:
    path = around_paris(tmp_path / "a.tif", noise(2))
    with rasterio.open(path) as file:
        transform = file.transform.to_gdal()
    bands = "".join(
        f'<VRTRasterBand dataType="UInt16" band="{band}"><SimpleSource>'
        f'<SourceFilename relativeToVRT="1">a.tif</SourceFilename><SourceBand>{band}</SourceBand>'
        '<SrcRect xOff="0" yOff="0" xSize="64" ySize="64"/><DstRect xOff="0" yOff="0" xSize="64" ySize="64"/>'
        "</SimpleSource></VRTRasterBand>"
        for band in (1, 2)
    )
    numbers = ", ".join(repr(float(value)) for value in transform)
    head = f"<SRS>{UTM}</SRS><GeoTransform>{numbers}</GeoTransform>"
    (tmp_path / "a.vrt").write_text(f'<VRTDataset rasterXSize="64" rasterYSize="64">{head}{bands}</VRTDataset>')
    virtual = GeoTiff(tmp_path / "a.vrt", size=5, km_per_pixel=0.1)
    np.testing.assert_array_equal(virtual.tiles(PARIS), GeoTiff(path, size=5, km_per_pixel=0.1).tiles(PARIS))
    assert {file["name"] for file in virtual.describe()["files"]} == {"a.vrt", "a.tif"}


def test_it_travels_to_other_processes_and_threads(tmp_path: Path) -> None:
    source = GeoTiff(around_paris(tmp_path / "a.tif", noise(2)), size=5, km_per_pixel=0.1)
    places = PARIS + np.linspace(-0.01, 0.01, 8)[:, None]
    tiles = source.tiles(places)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).tiles(places), tiles)
    with ThreadPoolExecutor(4) as pool:
        np.testing.assert_array_equal(np.concatenate(list(pool.map(source.tiles, np.split(places, 8)))), tiles)


def test_its_record_says_how_it_was_read(tmp_path: Path) -> None:
    record = GeoTiff(around_paris(tmp_path / "a.tif", noise(2)), size=5, km_per_pixel=0.1).describe()
    assert record["kind"] == "geotiff"
    assert len(record["files"][0]["sha256"]) == 64
    assert record["packages"]["rasterio"] == rasterio.__version__


def test_a_damaged_or_unlocated_file_is_named(tmp_path: Path) -> None:
    (tmp_path / "torn.tif").write_bytes(b"II*\0torn")
    with pytest.raises(DataError, match=r"cannot read .*torn\.tif"):
        GeoTiff(tmp_path / "torn.tif", size=5, km_per_pixel=0.1)
    path = around_paris(tmp_path / "a.tif", noise(1, side=256), compress="deflate")
    content = bytearray(path.read_bytes())
    content[len(content) // 4 : -len(content) // 4] = bytes(len(content[len(content) // 4 : -len(content) // 4]))
    path.write_bytes(content)
    with pytest.raises(DataError, match=r"cannot read .*a\.tif"):
        GeoTiff(path, size=200, km_per_pixel=0.1).tiles(PARIS)
    with rasterio.open(tmp_path / "lost.tif", "w", driver="GTiff", width=4, height=4, count=1, dtype="uint8",
                       transform=from_origin(7, 9, 2, 2)) as file:  # fmt: skip
        file.write(np.zeros((1, 4, 4), np.uint8))
    with pytest.raises(DataError, match=r"lost\.tif does not say where it lies"):
        GeoTiff(tmp_path / "lost.tif", size=5, km_per_pixel=0.1)
