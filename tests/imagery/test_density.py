"""Densities: places are drawn in proportion to them and to the sphere's area, from every kind of file."""

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

from tessearth.errors import ConfigError, DataError
from tessearth.imagery import read_density
from tessearth.imagery.density import Density
from tessearth.imagery.reading import build_places, check_files
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.settings import from_plain
from tessearth.sphere import Box, find_region, is_inhabited_land
from tests.imagery.sources.fabricate import all_tiles, encode, from_origin, write_mbtiles, write_tiff

RANDOM = np.random.default_rng(0)


def two_levels(path: Path) -> Path:
    """A picture of the globe, three times as dense in the west as in the east."""
    pixels = np.full((90, 180), 60, dtype=np.uint8)
    pixels[:, 90:] = 20
    Image.fromarray(pixels).save(path)
    return path


class Anywhere:
    bands = ("grey",)


def test_places_fall_by_weight_and_by_area(tmp_path: Path) -> None:
    drawn = read_density(two_levels(tmp_path / "two.png")).draw(20_000, seed=1)
    assert (drawn[:, 1] < 0).mean() == pytest.approx(0.75, abs=0.012)
    assert (np.abs(drawn[:, 0]) < 30).mean() == pytest.approx(0.5, abs=0.014)  # half of the sphere's area


def test_a_draw_follows_from_its_seed_and_begins_larger_ones(tmp_path: Path) -> None:
    density = read_density(two_levels(tmp_path / "two.png"))
    np.testing.assert_array_equal(density.draw(100, 1), density.draw(90_000, 1)[:100])
    assert not np.array_equal(density.draw(100, 1), density.draw(100, 2))
    assert density.draw(0, 1).shape == (0, 2)


def test_a_density_is_evaluated_cell_by_cell(tmp_path: Path) -> None:
    density = read_density(two_levels(tmp_path / "two.png"), above=10)
    places = np.array([[0, -10], [0, 10], [80, -150], [-80, 150], [45, 180]])
    np.testing.assert_array_equal(density.at(places), [50, 10, 50, 10, 50])
    part = Density("part", np.array([[1.0, 2.0], [3.0, 4.0]]), np.array([50.0, 45.0, 40.0]), 170.0, 20.0)
    places = np.array([[47, 172], [47, -175], [40, 172], [50, 185], [39.9, 172], [47, 169], [47, -169]])
    np.testing.assert_array_equal(part.at(places), [1, 2, 3, 2, 0, 0, 0])
    drawn = part.draw(500, 0)
    assert (part.at(drawn) > 0).all()
    assert (drawn[:, 1] < 0).any()


def test_a_pyramid_is_read_by_its_brightness(tmp_path: Path) -> None:
    def tile(z: int, x: int, y: int) -> bytes:
        return encode(np.full((256, 256, 3), 200 if (x, y) == (1, 0) else 30, dtype=np.uint8))

    path = write_mbtiles(tmp_path / "night.mbtiles", [(0, 0, 0), *all_tiles(1)], tile)
    density = read_density(path, above=45)
    np.testing.assert_array_equal(density.at([[10, 10], [84, 170], [-10, 10], [86, 10]]), [155, 155, 0, 0])
    drawn = density.draw(300, 0)
    assert (drawn > 0).all()
    assert drawn[:, 0].max() <= 85.06


def test_a_geotiff_in_any_projection(tmp_path: Path) -> None:
    pixels = np.zeros((1, 40, 40), dtype=np.float32)
    pixels[0, :, 20:] = 5.0
    pixels[0, 0, 0] = np.nan
    path = write_tiff(
        tmp_path / "utm.tif", pixels, from_origin(460_000, 5_040_000, 2000, 2000), "EPSG:32632", nodata=np.nan
    )
    density = read_density(path)
    drawn = density.draw(400, 3)
    assert density.at([[45.2, 9.3]]) == pytest.approx(5)
    assert density.at([[45.2, 8.5]]) == 0
    assert (drawn[:, 1] > 8.95).all()
    assert ((drawn[:, 0] > 44.7) & (drawn[:, 0] < 45.6)).all()


def test_a_table_counts_its_rows_by_weight(tmp_path: Path) -> None:
    (tmp_path / "plain.csv").write_text("lat,lon\n48.85,2.35\n48.86,2.36\n-33.9,18.4\n")
    (tmp_path / "heavy.csv").write_text("lat,lon,weight\n48.85,2.35,1\n-33.9,18.4,3\n")
    drawn = read_density(tmp_path / "plain.csv").draw(3000, 0)
    assert (drawn[:, 0] > 0).mean() == pytest.approx(2 / 3, abs=0.03)
    assert np.abs(np.where(drawn[:, :1] > 0, drawn - (48.85, 2.35), drawn - (-33.9, 18.4))).max() < 0.46
    drawn = read_density(tmp_path / "heavy.csv", km=20).draw(3000, 0)
    assert (drawn[:, 0] > 0).mean() == pytest.approx(1 / 4, abs=0.03)


@pytest.mark.parametrize(
    ("where", "inside"),
    [
        ({"where": "region", "region": "kenya"}, find_region("kenya").contains),
        ({"where": "bbox", "bbox": (170.0, -25.0, -170.0, -10.0)}, Box(170, -25, 190, -10).contains),
        ({"where": "land"}, is_inhabited_land),
        ({"where": "sphere"}, lambda places: places[:, 0] <= 90),
    ],
)
def test_a_share_of_a_recipes_places_follows_its_density(
    tmp_path: Path, where: dict[str, object], inside: object
) -> None:
    path = str(two_levels(tmp_path / "two.png"))
    recipe = PlacesRecipe(count=1000, density=path, density_share=0.3, density_above=10, **where)  # type: ignore[arg-type]
    places = build_places(recipe, Anywhere(), "anywhere").latlon  # type: ignore[arg-type]
    even = build_places(replace(recipe, density=None, count=700), Anywhere(), "anywhere").latlon  # type: ignore[arg-type]
    assert len(places) == 1000
    np.testing.assert_array_equal(places[:700], even)
    assert inside(places).all()


def test_what_cannot_be_drawn_is_one_clear_line(tmp_path: Path) -> None:
    path = two_levels(tmp_path / "two.png")
    with pytest.raises(ConfigError, match="has no weight: no pixel lies above 60"):
        read_density(path, above=60)
    east = read_density(path, above=0)._replace(width=10.0)
    with pytest.raises(ConfigError, match="has no weight where places are asked for"):
        east.draw(5, 0, box=Box(0, 0, 10, 10))
    with pytest.raises(ConfigError, match="has no weight where places are asked for"):
        read_density(path).draw(5, 0, wanted=lambda places: places[:, 0] > 99)
    with pytest.raises(ConfigError, match=r"where is 'table', which has its own"):
        PlacesRecipe(where="table", table="a.csv", density="b.csv")
    with pytest.raises(DataError, match="there is no density"):
        read_density(tmp_path / "none.tif")
    for text in ("lat,lon,weight\n41,2,-3\n", "lat,lon,weight\n41,2,0\n"):
        (tmp_path / "bad.csv").write_text(text)
        with pytest.raises(ConfigError, match="the weights of"):
            read_density(tmp_path / "bad.csv")
    with pytest.raises(ConfigError, match="cells of a density are 1 km wide"):
        read_density(tmp_path / "bad.csv", km=1)
    recipe = FeatureRecipe(sources=(SourceRecipe(kind="blue-marble"),), places=PlacesRecipe(density="none.tif"))
    with pytest.raises(DataError, match=r"files that are not there: none\.tif"):
        check_files(recipe)
    assert from_plain(FeatureRecipe, recipe.to_dict()) == recipe
