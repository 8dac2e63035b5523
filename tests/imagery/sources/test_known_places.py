"""The middle of a tile is the place asked for, in every kind of source, and its pixels lie where geometry says."""

from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth.imagery.sources import GeoTiff, GlobalRaster, TilePyramid, image_folder, sentinel2_patches
from tests.imagery.sources.fabricate import (
    LATLON,
    PLACES,
    Array,
    all_tiles,
    degrees_apart,
    encode,
    from_origin,
    globe_centres,
    harmonic,
    harmonic_tile,
    mercator_position,
    pattern_tile,
    position_pattern,
    tangent_grid,
    to_xyz,
    write_globe,
    write_mbtiles,
    write_projected,
    write_s2_folder,
    write_tiff,
    write_tile_folder,
)

POLES_AND_SEAMS = np.array([[90.0, 0.0], [-90.0, 40.0], [89.9, 120.0], [0.0, 180.0], [-40.0, -180.0], [88.0, -179.99]])


def directions(tiles: Array) -> Array:
    return np.moveaxis(tiles, 1, -1)


def expected_directions(latlon: Array, size: int, km_per_pixel: float) -> Array:
    return tangent_grid(torch.from_numpy(latlon), size, km_per_pixel).numpy()


@pytest.fixture(scope="module")
def xyz_globe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A global raster of half degrees whose bands are the direction of every pixel."""
    pytest.importorskip("rasterio")
    pixels = to_xyz(globe_centres(360, 720)).transpose(2, 0, 1).astype(np.float32)
    return write_globe(tmp_path_factory.mktemp("globe") / "xyz.tif", pixels)


@pytest.fixture(scope="module")
def harmonic_globe(tmp_path_factory: pytest.TempPathFactory) -> Path:
    pytest.importorskip("rasterio")
    pixels = harmonic(to_xyz(globe_centres(720, 1440)))[None].astype(np.float32)
    return write_globe(tmp_path_factory.mktemp("globe") / "harmonic.tif", pixels)


@pytest.fixture(scope="module")
def pattern_pyramid(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_mbtiles(tmp_path_factory.mktemp("tiles") / "pattern.mbtiles", all_tiles(3), pattern_tile)


def test_a_global_raster_shows_20_places_within_a_tenth_of_its_pixel(xyz_globe: Path) -> None:
    tiles = GlobalRaster(xyz_globe, size=5, km_per_pixel=40).tiles(LATLON)
    assert len(PLACES) == 20
    assert degrees_apart(directions(tiles)[:, 2, 2], to_xyz(LATLON)).max() < 0.1 * 0.5
    assert degrees_apart(directions(tiles), expected_directions(LATLON, 5, 40)).max() < 0.1 * 0.5


def test_an_8_bit_picture_shows_20_places_within_its_pixel(tmp_path: Path) -> None:
    pixels = np.rint((to_xyz(globe_centres(180, 360)) + 1) * 127.5).astype(np.uint8)
    (tmp_path / "xyz.png").write_bytes(encode(pixels))
    tiles = GlobalRaster(tmp_path / "xyz.png", size=3, km_per_pixel=100).tiles(LATLON)
    assert degrees_apart(directions(tiles)[:, 1, 1] * 2 - 1, to_xyz(LATLON)).max() < 1


@pytest.mark.parametrize("store", ["mbtiles", "folder", "tms folder"])
def test_a_pyramid_shows_20_places_within_a_fiftieth_of_its_pixel(
    tmp_path: Path, pattern_pyramid: Path, store: str
) -> None:
    tms = store.startswith("tms")
    location = pattern_pyramid
    if store != "mbtiles":
        location = write_tile_folder(tmp_path / "tiles", all_tiles(3), pattern_tile, tms=tms)
    source = TilePyramid(location, size=3, km_per_pixel=0.5, zoom=3, mode="RGBA", tms=tms)
    levels = source.tiles(LATLON)[:, :, 1, 1] * 255
    np.testing.assert_allclose(levels, position_pattern(*mercator_position(LATLON, 3)), atol=0.02)


def test_a_pyramid_is_not_off_by_whole_waves_of_that_pattern(tmp_path: Path) -> None:
    def tile(z: int, x: int, y: int) -> bytes:
        columns, rows = np.meshgrid(np.arange(256), np.arange(256))
        return encode(np.stack((columns, rows, 0 * rows), axis=-1).astype(np.uint8))

    path = write_mbtiles(tmp_path / "one.mbtiles", [(0, 0, 0)], tile)
    inner = LATLON[np.abs(LATLON[:, 1]) < 179]  # over the antimeridian this picture leaps from 255 to 0
    levels = TilePyramid(path, size=3, km_per_pixel=1).tiles(inner)[:, :, 1, 1] * 255
    np.testing.assert_allclose(levels[:, :2], np.stack(mercator_position(inner, 0), axis=-1), atol=0.02)


def test_a_global_geotiff_shows_20_places_within_its_pixel(xyz_globe: Path) -> None:
    tiles = GeoTiff(xyz_globe, size=5, km_per_pixel=40).tiles(LATLON)
    error = degrees_apart(directions(tiles)[:, 2, 2], to_xyz(LATLON)) / 0.5
    at_the_edge = (
        np.abs(LATLON[:, 1]) > 179.7
    )  # half a pixel from where the file ends there is no neighbour to blend with
    assert at_the_edge.sum() == 5
    assert error[~at_the_edge].max() < 0.1
    assert error[at_the_edge].max() < 0.55


@pytest.mark.parametrize(
    ("crs", "place", "metres"),
    [
        ("EPSG:32631", PLACES["Paris"], 20.0),
        ("EPSG:32701", PLACES["Taveuni, east of 180"], 20.0),
        ("EPSG:32760", PLACES["Taveuni, west of 180"], 20.0),
        ("EPSG:3413", PLACES["Arctic, 85 N west of 180"], 500.0),
        ("EPSG:3413", PLACES["Arctic, 85 N east of 180"], 500.0),
        ("EPSG:3857", PLACES["Quito"], 100.0),
        ("EPSG:6933", PLACES["Sahara"], 1000.0),
    ],
)
def test_a_projected_geotiff_shows_its_place_within_a_tenth_of_a_pixel(
    tmp_path: Path, crs: str, place: tuple[float, float], metres: float
) -> None:
    pytest.importorskip("rasterio")
    path = write_projected(tmp_path / "projected.tif", crs, place, metres=metres, side=64)
    latlon, km_per_pixel = np.array([place]), metres / 1000
    tiles = GeoTiff(path, size=5, km_per_pixel=km_per_pixel).tiles(latlon)
    pixel = np.rad2deg(metres / 6_371_000)
    assert degrees_apart(directions(tiles)[:, 2, 2], to_xyz(latlon)).max() < 0.1 * pixel
    assert degrees_apart(directions(tiles), expected_directions(latlon, 5, km_per_pixel)).max() < 0.1 * pixel


@pytest.mark.parametrize("lon", [179.95, -179.95, 180.0])
def test_a_geotiff_across_the_antimeridian_is_read_from_both_sides(tmp_path: Path, lon: float) -> None:
    pytest.importorskip("rasterio")
    lats, lons = -15 - (np.arange(80) + 0.5) * 0.05, 178 + (np.arange(80) + 0.5) * 0.05
    centres = np.stack(np.meshgrid(lats, lons, indexing="ij"), axis=-1)
    pixels = to_xyz(centres).transpose(2, 0, 1).astype(np.float32)
    path = write_tiff(tmp_path / "fiji.tif", pixels, from_origin(178, -15, 0.05, 0.05), "EPSG:4326")
    latlon = np.array([[-17.0, lon]])
    tiles = GeoTiff(path, size=7, km_per_pixel=5.0).tiles(latlon)
    assert degrees_apart(directions(tiles), expected_directions(latlon, 7, 5.0)).max() < 0.1 * 0.05


def test_located_patches_are_found_at_20_places(tmp_path: Path) -> None:
    pytest.importorskip("rasterio")
    source = sentinel2_patches(write_s2_folder(tmp_path / "s2", LATLON))
    backwards = LATLON[::-1].copy()
    first_band = source.tiles(backwards)[:, 0, 0, 0]
    np.testing.assert_allclose(first_band, (1000 + np.arange(20)[::-1]) / 10_000, rtol=1e-6)
    np.testing.assert_array_equal(source.places, LATLON)


def test_pictures_in_a_folder_are_found_at_20_places(tmp_path: Path) -> None:
    lines = ["image,latitude,longitude"]
    for number, (lat, lon) in enumerate(LATLON):
        (tmp_path / f"{number}.png").write_bytes(encode(np.full((8, 8, 3), 10 * number, dtype=np.uint8)))
        lines.append(f"{number}.png,{lat},{lon}")
    (tmp_path / "places.csv").write_text("\n".join(lines))
    tiles = image_folder(tmp_path, "places.csv").tiles(LATLON[::-1].copy())
    np.testing.assert_allclose(tiles[:, 0, 0, 0], 10 * np.arange(20)[::-1] / 255, rtol=1e-6)


def test_a_harmonic_on_a_global_raster_matches_its_closed_form(harmonic_globe: Path) -> None:
    places = np.concatenate((LATLON, POLES_AND_SEAMS))
    tiles = GlobalRaster(harmonic_globe, size=9, km_per_pixel=25).tiles(places)
    np.testing.assert_allclose(tiles[:, 0], harmonic(expected_directions(places, 9, 25)), atol=5e-5)


def test_a_harmonic_on_a_reduced_raster_matches_its_closed_form(harmonic_globe: Path) -> None:
    places = np.concatenate((LATLON, POLES_AND_SEAMS))
    tiles = GlobalRaster(harmonic_globe, size=9, km_per_pixel=110).tiles(places)
    np.testing.assert_allclose(tiles[:, 0], harmonic(expected_directions(places, 9, 110)), atol=3e-4)


def test_a_harmonic_in_a_geotiff_matches_its_closed_form(harmonic_globe: Path) -> None:
    tiles = GeoTiff(harmonic_globe, size=9, km_per_pixel=25).tiles(LATLON)
    np.testing.assert_allclose(tiles[:, 0], harmonic(expected_directions(LATLON, 9, 25)), atol=1e-4)


def test_a_harmonic_in_a_pyramid_matches_its_closed_form(tmp_path: Path) -> None:
    path = write_mbtiles(tmp_path / "harmonic.mbtiles", all_tiles(2), harmonic_tile)
    source = TilePyramid(path, size=9, km_per_pixel=20, mode="L", zoom=2)
    closed_form = harmonic(expected_directions(LATLON, 9, 20))
    within_the_map = np.rad2deg(np.arcsin(expected_directions(LATLON, 9, 20)[..., 2])) < 85
    error = np.abs(source.tiles(LATLON)[:, 0] - closed_form)
    assert error[within_the_map].max() < 1 / 255
