"""Regions by name: outlines with all their parts, cut where continents meet, framed across the antimeridian."""

import pickle

import numpy as np
import pytest

from tessearth.errors import UnknownNameError
from tessearth.sphere.grids import GLOBE, build_grid
from tessearth.sphere.land import load_outlines
from tessearth.sphere.regions import BOXES, CONTINENTS, find_region, outline_continents
from tessearth.sphere.sampling import sample_box, sample_sphere

NAIROBI, MOGADISHU, PARIS, MOSCOW, OMSK = (-1.29, 36.82), (2.04, 45.34), (48.86, 2.35), (55.76, 37.62), (54.99, 73.37)
CAYENNE, REUNION, TENERIFE, NEW_YORK = (4.93, -52.33), (-20.9, 55.5), (28.3, -16.6), (40.75, -73.97)
UELEN, HONOLULU, ADAK = (66.155, -169.81), (21.32, -157.84), (51.86, -176.65)
SUVA, LAU = (-18.0, 178.3), (-17.25, -178.95)
HELD = {
    "Kenya": ([NAIROBI], [MOGADISHU, PARIS]),
    "France": ([PARIS, CAYENNE, REUNION], [NAIROBI]),
    "Russia": ([MOSCOW, OMSK, UELEN], [PARIS]),
    "Fiji": ([SUVA, LAU], [PARIS]),
    "USA": ([NEW_YORK, HONOLULU, ADAK], [UELEN]),
    "europe": ([PARIS, MOSCOW], [CAYENNE, REUNION, OMSK, TENERIFE, UELEN]),
    "asia": ([OMSK, UELEN], [MOSCOW, SUVA]),
    "africa": ([NAIROBI, REUNION, TENERIFE], [PARIS]),
    "south-america": ([CAYENNE], [NEW_YORK]),
    "oceania": ([SUVA], [CAYENNE]),
    "world": ([PARIS, (0.0, 0.0), (-90.0, 0.0)], []),
    "mediterranean": ([(40.0, 5.0)], [PARIS]),
}


@pytest.mark.parametrize("name", HELD)
def test_a_region_holds_its_places_and_no_others(name: str) -> None:
    inside, outside = HELD[name]
    region = find_region(name)
    assert region.contains(inside).all()
    assert not region.contains(np.array(outside).reshape(-1, 2)).any()
    assert region.box.contains(np.array(inside)).all()


def test_places_keep_their_shape() -> None:
    region = find_region("kenya")
    assert region.contains(NAIROBI).shape == ()
    assert region.contains(np.zeros((2, 3, 2))).shape == (2, 3)


@pytest.mark.parametrize(
    ("names", "country"),
    [
        (("kenya", "KE", "ken", " Kenya "), "Kenya"),
        (("Côte d'Ivoire", "cote d ivoire", "Ivory Coast", "CIV"), "Côte d'Ivoire"),
        (("United States", "US", "usa", "United States of America"), "United States of America"),
        (("uk", "GB", "United Kingdom"), "United Kingdom"),
        (("DRC", "COD", "Democratic Republic of the Congo"), "Dem. Rep. Congo"),
        (("the netherlands", "NL"), "Netherlands"),
        (("Kosovo", "XKX"), "Kosovo"),
        (("bosnia and herzegovina", "BA"), "Bosnia and Herz."),
    ],
)
def test_a_country_goes_by_all_of_its_names(names: tuple[str, ...], country: str) -> None:
    assert {find_region(name).name for name in names} == {country}


@pytest.mark.parametrize(
    ("name", "west", "east"), [("russia", 19, 192), ("fiji", 174, 182), ("nz", 165, 189), ("usa", 172, 294)]
)
def test_a_box_across_the_antimeridian_is_no_wider_than_it_must_be(name: str, west: float, east: float) -> None:
    box = find_region(name).box
    assert west < box.west < box.east < east


def test_every_outline_belongs_to_a_region_and_a_continent() -> None:
    assert len(outline_continents()) == len(load_outlines())
    for outline in load_outlines():
        if outline.rings:
            assert find_region(outline.name).rings[0] is not None
    places = sample_sphere(20_000, 3)
    lands = np.stack([find_region(name).contains(places) for name in (*CONTINENTS, "antarctica")])
    assert lands.sum(axis=0).max() == 1, "continents overlap"
    assert lands.any(axis=0).mean() == pytest.approx(0.29, abs=0.01)


def test_the_world_is_everywhere_and_boxes_are_boxes() -> None:
    assert find_region("world").box == GLOBE
    assert all(find_region(name).box == box for name, box in BOXES.items())


def test_a_region_goes_to_another_process() -> None:
    region = find_region("kenya")
    sent = pickle.loads(pickle.dumps(region))
    assert sent.contains([NAIROBI, MOGADISHU]).tolist() == [True, False]


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("kenia", "did you mean 'kenya'?"),
        ("urope", "did you mean 'europe'?"),
        ("qqqqqqqq", "there are: world, africa, .* and countries by name or code"),
        ("vatican", "Vatican is too small for the outlines that ship: give a bbox"),
    ],
)
def test_an_unknown_name_is_one_line(name: str, words: str) -> None:
    with pytest.raises(UnknownNameError, match=words):
        find_region(name)


def test_places_are_drawn_evenly_within_a_region() -> None:
    region = find_region("fiji")
    places = sample_box(region.box, region.contains, 500, 0)
    assert region.contains(places).all()
    assert np.abs(places[:, 1]).min() > 170
    np.testing.assert_array_equal(sample_box(region.box, region.contains, 100, 0), places[:100])
    north = find_region("russia").box
    drawn = sample_box(north, north.contains, 20_000, 1)
    # Even on the sphere: the sine of latitude is uniform.
    heights = np.sin(np.deg2rad(drawn[:, 0]))
    assert heights.mean() == pytest.approx(np.sin(np.deg2rad([north.south, north.north])).mean(), abs=0.003)


@pytest.mark.parametrize(
    ("name", "resolution", "grid"),
    [
        ("mediterranean", 0.1, (-10.0, 47.0, 180, 480)),
        ("kenya", 0.05, (33.85, 5.05, 195, 161)),
        ("antarctica", 1.0, (-180.0, -60.0, 30, 360)),
    ],
)
def test_grids_of_regions_have_lines_at_multiples_of_the_resolution(
    name: str, resolution: float, grid: tuple[float, float, int, int]
) -> None:
    region = find_region(name)
    made = build_grid(region.box, resolution, region=region)
    assert (made.west, made.north, made.rows, made.columns) == grid
