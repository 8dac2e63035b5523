"""Where training places are drawn: over land, the sphere, a box, a region, a table, or where a source has imagery."""

import gzip
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pytest
from PIL import Image

from tessearth.errors import ConfigError, DataError, TableError, TessearthError, UnknownNameError
from tessearth.imagery.building import build_store
from tessearth.imagery.reading import build_places, build_source, check_files
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe, load_recipe
from tessearth.settings import from_plain
from tessearth.sphere import find_region, sample_land
from tests.imagery.sources.fabricate import (
    from_origin,
    mercator_position,
    pattern_tile,
    write_mbtiles,
    write_tiff,
    write_tile_folder,
)

HASHES = {
    "earth": "37b9d8b76933278964da0b1b96331c94fb842aa8fe45de2749fefb645244bd38",
    "smoke": "923513985076d82f904adbf830dbf6a74b68e2f5f0d81d286fdd5f7f1298e4bf",
    "paper": "78962b032ebcc546226fa4e124335d242444794cf9ec7be5f78c6b24d021a4d9",
    "paper-s2": "e171c564346c636c79140fc6034ae34e0202ccb612e6af4212c8a5749697069c",
}
"""The checksums of recipes in stores that were made before there were regions."""


class Anywhere:
    """A source that no place is asked of."""

    bands = ("grey",)


def places_of(**settings: Any) -> np.ndarray:
    return build_places(PlacesRecipe(**settings), Anywhere(), "anywhere").latlon  # type: ignore[arg-type]


@pytest.mark.parametrize("name", HASHES)
def test_stores_of_earlier_recipes_are_still_theirs(name: str) -> None:
    assert load_recipe(name).sha256() == HASHES[name]


def test_new_settings_make_another_recipe_and_survive_their_own_record() -> None:
    source = SourceRecipe(kind="blue-marble")
    recipes = [
        FeatureRecipe(sources=(source,), places=PlacesRecipe(**places))  # type: ignore[arg-type]
        for places in (
            {},
            {"where": "region", "region": "kenya"},
            {"where": "bbox", "bbox": (170, -25, -170, -10)},
            {"where": "table", "table": "mine.csv", "lat": "y", "lon": "x"},
            {"where": "table", "table": "mine.csv", "count": 5},
        )
    ]
    assert len({recipe.sha256() for recipe in recipes}) == len(recipes)
    assert [from_plain(FeatureRecipe, recipe.to_dict()) for recipe in recipes] == recipes


def test_a_region_is_drawn_within_its_outline() -> None:
    latlon = places_of(where="region", region="KE", count=300)
    assert latlon.shape == (300, 2)
    assert find_region("kenya").contains(latlon).all()
    assert (latlon != places_of(where="region", region="KE", count=300, seed=1)).any()


def test_a_box_is_drawn_whole_and_across_the_antimeridian() -> None:
    latlon = places_of(where="bbox", bbox=(170, -25, -170, -10), count=400)
    assert ((latlon[:, 0] > -25) & (latlon[:, 0] < -10) & (np.abs(latlon[:, 1]) > 170)).all()
    assert 100 < (latlon[:, 1] > 0).sum() < 300


def test_land_is_drawn_as_before() -> None:
    np.testing.assert_array_equal(places_of(count=50, seed=2), sample_land(50, 2))


def test_a_table_gives_its_rows_or_some_of_them(tmp_path: Path) -> None:
    latlon = sample_land(120, 5)
    frame = pd.DataFrame({"name": "x", "y": latlon[:, 0], "x": latlon[:, 1]})
    frame.to_parquet(tmp_path / "mine.parquet")
    frame.to_csv(tmp_path / "mine.csv.gz", index=False, sep=";")
    assert gzip.decompress((tmp_path / "mine.csv.gz").read_bytes()).startswith(b"name;y;x")
    for name in ("mine.parquet", "mine.csv.gz"):
        table = {"where": "table", "table": str(tmp_path / name), "lat": "y", "lon": "x"}
        np.testing.assert_allclose(places_of(**table), latlon, atol=1e-12)
        some = places_of(**table, count=30)
        assert len(some) == 30
        assert len(np.unique(some, axis=0)) == 30
        assert set(map(tuple, some.round(9))) <= set(map(tuple, latlon.round(9)))


def test_a_store_of_a_table_that_changed_is_refused(tmp_path: Path) -> None:
    table, options = tmp_path / "mine.csv", {"num_filters": 4, "num_patches": 100}
    Image.fromarray(np.random.default_rng(0).integers(0, 256, (90, 180, 3), dtype=np.uint8)).save(tmp_path / "a.png")
    where = {"path": str(tmp_path / "a.png"), "size": 12, "km_per_pixel": 100.0}
    source = SourceRecipe(kind="global-raster", options=where, encoder_options=options)
    places = PlacesRecipe(where="table", table=str(table), validation=0.2)
    recipe = FeatureRecipe(sources=(source,), places=places, fit_places=20)
    rows = [f"{lat:.3f},{lon:.3f}" for lat, lon in sample_land(40, 1)]
    for number in (30, 40):
        table.write_text("\n".join(["lat,lon", *rows[:number]]))
        if number == 30:
            assert len(build_store(recipe, tmp_path / "store").latlon) == 30
            build_store(recipe, tmp_path / "store")
    with pytest.raises(DataError, match=r"a store of other rows than .*mine\.csv has now"):
        build_store(recipe, tmp_path / "store")


def test_a_bad_row_of_a_table_is_named(tmp_path: Path) -> None:
    (tmp_path / "mine.csv").write_text("lat,lon\n1,2\n99,2\n")
    with pytest.raises(TableError, match=r"mine\.csv.*row 2"):
        places_of(where="table", table=str(tmp_path / "mine.csv"))


def test_a_geotiff_gives_places_whose_whole_tile_it_holds(tmp_path: Path) -> None:
    """Half of the raster holds no data, and no tile reaches into it or over the edge."""
    pixels = np.random.default_rng(0).integers(1, 250, (1, 100, 100)).astype(np.uint8)
    pixels[:, :, 50:] = 0
    path = write_tiff(tmp_path / "a.tif", pixels, from_origin(500_000, 5_500_000, 100, 100), "EPSG:32631", nodata=0)
    recipe = SourceRecipe(
        kind="geotiff",
        options={"path": str(path), "size": 6, "km_per_pixel": 0.1},
        encoder_options={"num_filters": 4, "num_patches": 100},
    )
    places = PlacesRecipe(where="source", count=60, validation=0.2)
    source = build_source(recipe)
    latlon = build_places(places, source, "geotiff").latlon
    assert np.isfinite(source.tiles(latlon)).all()
    assert np.ptp(latlon, axis=0) == pytest.approx((0.085, 0.062), abs=0.01)
    store = build_store(FeatureRecipe(sources=(recipe,), places=places, fit_places=20), tmp_path / "store")
    assert len(store.latlon) == 60


@pytest.mark.parametrize("form", ["mbtiles", "folder", "tms"])
def test_a_pyramid_gives_places_whose_map_tiles_it_has(tmp_path: Path, form: str) -> None:
    """Without its coarser zooms a tile that is missing cannot be cut from a parent: reading it would be an error."""
    tiles = [(6, x, y) for x in (32, 33, 34) for y in (21, 22) if (x, y) != (33, 22)]
    folder = tmp_path / "pyramid"
    if form == "mbtiles":
        write_mbtiles(folder, tiles, pattern_tile)
    else:
        write_tile_folder(folder, tiles, pattern_tile, tms=form == "tms")
    options = {"location": str(folder), "size": 8, "km_per_pixel": 3.0, "tms": form == "tms"}
    source = build_source(SourceRecipe(kind="tile-pyramid", options=options))
    latlon = build_places(PlacesRecipe(where="source", count=200), source, "tile-pyramid").latlon
    assert len(latlon) == 200
    column, row = (axis // 256 for axis in mercator_position(latlon, 6))
    assert {(6, int(x), int(y)) for x, y in zip(column, row, strict=True)} == set(tiles)
    assert source.tiles(latlon).shape == (200, 3, 8, 8)


def test_a_server_of_tiles_says_what_to_set() -> None:
    options = {"location": "http://127.0.0.1:9/{z}/{x}/{y}.png", "max_zoom": 3, "size": 4, "km_per_pixel": 30.0}
    source = build_source(SourceRecipe(kind="tile-pyramid", options=options))
    with pytest.raises(ConfigError, match="does not say which tiles it has: set places"):
        build_places(PlacesRecipe(where="source", count=3), source, "tile-pyramid")


def test_a_source_without_bounds_says_what_to_set() -> None:
    with pytest.raises(ConfigError, match=r"has no places of its own and no bounds; set places\.where to 'land'"):
        places_of(where="source")


WRONG: dict[str, tuple[dict[str, Any], type[TessearthError], str]] = {
    "no bbox": ({"where": "bbox"}, ConfigError, r"where is 'bbox': add places.bbox = \[WEST, SOUTH, EAST, NORTH\]"),
    "no region": ({"where": "region"}, ConfigError, 'add places.region = "NAME"'),
    "no table": ({"where": "table"}, ConfigError, 'add places.table = "FILE"'),
    "region unasked": ({"region": "kenya"}, ConfigError, "region is given, but places.where is 'land': set it to 'reg"),
    "two places": ({"where": "bbox", "bbox": (0, 0, 1, 1), "table": "t.csv"}, ConfigError, "table is given, but"),
    "lat of nothing": ({"lat": "y"}, ConfigError, "name columns of places.table"),
    "sea of a region": (
        {"where": "region", "region": "kenya", "elsewhere": 0.1},
        ConfigError,
        "set places.elsewhere = 0",
    ),
    "upside down": ({"where": "bbox", "bbox": (0, 9, 1, 1)}, ConfigError, r"south \(9\) is not below north"),
    "unknown": ({"where": "region", "region": "kenia"}, UnknownNameError, "did you mean 'kenya'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_combination_is_one_clear_line(wrong: str) -> None:
    settings, kind, words = WRONG[wrong]
    with pytest.raises(kind, match=words) as raised:
        PlacesRecipe(**settings)
    assert "\n" not in str(raised.value)


def test_all_missing_files_are_named_at_once_with_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(DataError) as raised:
        check_files(load_recipe("earth"))
    words = str(raised.value)
    assert words.count("imagery/nasa-bmng") == 5
    assert "imagery/blackmarble-z6.mbtiles; tools/imagery" in words
    assert "begin with smoke" in words
    check_files(load_recipe("smoke"))
    with pytest.raises(DataError, match=r"S2-100K, B13_.*; name yours with --set features"):
        check_files(load_recipe("paper-s2"))
    addresses = [
        {"path": "/vsicurl/x.tif"},
        {"path": "NETCDF:x.nc:t"},
        {"location": "https://example.org/{z}/{x}/{y}.png"},
    ]
    check_files(FeatureRecipe(sources=tuple(SourceRecipe(kind="geotiff", options=options) for options in addresses)))
    source = SourceRecipe(kind="geotiff", options={"path": "mine.tif"})
    with pytest.raises(DataError, match=r"not there: mine\.tif; paths count from the folder of the command"):
        build_store(FeatureRecipe(sources=(source,)), tmp_path / "store")
    assert list(tmp_path.iterdir()) == []
