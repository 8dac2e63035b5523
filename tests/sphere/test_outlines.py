"""The shipped outlines: small, whole, cut at the antimeridian, and read back as they were written."""

import runpy
from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import DataError
from tessearth.labels.sources import OUTLINE_FILE, describe_source
from tessearth.packages import package_file
from tessearth.sphere.land import Outline, decode_outlines, load_outlines

RADIUS_KM = 6371.0088


def area_km2(ring: np.ndarray) -> float:
    """The signed area on the sphere, with edges straight in latitude and longitude: positive counterclockwise."""
    lat, lon = np.radians(ring).T
    return float(-np.sum(np.diff(lon) * (np.sin(lat[:-1]) + np.sin(lat[1:]))) / 2 * RADIUS_KM**2)


def by_name(name: str) -> Outline:
    return next(outline for outline in load_outlines() if outline.name == name)


def test_the_file_is_small() -> None:
    assert package_file("tessearth", OUTLINE_FILE, extra="data", what="").stat().st_size < 1e6


def test_rings_are_closed_and_stay_within_one_turn() -> None:
    rings = [ring for outline in load_outlines() for ring in outline.rings]
    assert len(load_outlines()) == 255
    assert all((ring[0] == ring[-1]).all() and len(ring) >= 4 for ring in rings)
    everything = np.concatenate(rings)
    assert np.abs(everything[:, 0]).max() <= 90
    assert np.abs(everything[:, 1]).max() <= 180


def test_no_edge_leaps_over_the_antimeridian() -> None:
    for outline in load_outlines():
        for ring in outline.rings:
            along_pole = (np.abs(ring[:-1, 0]) == 90) & (np.abs(ring[1:, 0]) == 90)
            assert (np.abs(np.diff(ring[:, 1]))[~along_pole] < 20).all(), outline.name


def test_what_crosses_the_antimeridian_has_both_halves() -> None:
    for name in ("Russia", "Fiji", "United States of America", "New Zealand", "Kiribati"):
        east = np.concatenate(by_name(name).rings)[:, 1]
        assert (east > 170).any(), name
        assert (east < -160).any(), name


@pytest.mark.parametrize(
    ("name", "area"),
    [("France", 640_000), ("Russia", 16_900_000), ("South Africa", 1_220_000), ("Lesotho", 30_400), ("Fiji", 18_500)],
)
def test_areas_are_those_of_the_countries(name: str, area: float) -> None:
    """Holes run against their outer ring, so the plain sum leaves them out."""
    assert sum(area_km2(ring) for ring in by_name(name).rings) == pytest.approx(area, rel=0.03)


def test_antarctica_is_closed_along_the_pole() -> None:
    rings = by_name("Antarctica").rings
    assert min(ring[:, 0].min() for ring in rings) == -90
    assert 11.5e6 < sum(area_km2(ring) for ring in rings) < 14.5e6


def test_outer_rings_run_counterclockwise_and_come_first() -> None:
    for outline in load_outlines():
        if outline.rings:
            assert area_km2(outline.rings[0]) > 0, outline.name
    holes = [area_km2(ring) for ring in by_name("South Africa").rings if area_km2(ring) < 0]
    assert holes == [pytest.approx(-area_km2(by_name("Lesotho").rings[0]))]


def test_codes_are_those_of_iso_3166() -> None:
    codes = {outline.name: outline.iso_numeric for outline in load_outlines()}
    assert (codes["France"], codes["Fiji"], codes["Lesotho"], codes["Kosovo"]) == ("250", "242", "426", "")
    assert sum(code != "" for code in codes.values()) == 239


def test_the_file_says_where_it_comes_from() -> None:
    about = describe_source("outlines")["made_from"]
    assert (about["package"], about["version"]) == ("world-atlas", "2.0.2")
    assert len(about["tarball_sha256"]) == len(about["file_sha256"]) == 64
    assert "public domain" in about["licence"]


def test_outlines_are_read_back_as_written() -> None:
    generator = np.random.default_rng(3)
    scale, origin = np.array([0.0036, 0.0017]), np.array([-180.0, -85.0])
    rings = []
    for count in (2, 0, 1):
        walks = [np.clip(generator.integers(-300, 300, (9, 2)).cumsum(0) + 50_000, 0, 99_999) for _ in range(count)]
        rings.append([np.concatenate((walk, walk[:1])) for walk in walks])
    countries = [{"name": name, "iso_numeric": code} for name, code in (("Ää", "001"), ("None", ""), ("C", "003"))]
    encode = runpy.run_path(str(Path(__file__).parents[2] / "tools" / "make_outlines"))["encode_outlines"]
    found = decode_outlines(encode(countries, rings, scale, origin, {"package": "made up"}))
    assert [(outline.name, outline.iso_numeric) for outline in found] == [("Ää", "001"), ("None", ""), ("C", "003")]
    for outline, expected in zip(found, rings, strict=True):
        assert len(outline.rings) == len(expected)
        for ring, steps in zip(outline.rings, expected, strict=True):
            np.testing.assert_allclose(ring, (steps * scale + origin)[:, ::-1], rtol=0, atol=1e-12)


def test_a_damaged_file_is_named() -> None:
    content = package_file("tessearth", OUTLINE_FILE, extra="data", what="").read_bytes()
    for damaged in (b"", b"not an archive", content[:1000], content[: len(content) // 2]):
        with pytest.raises(DataError, match="outlines are damaged"):
            decode_outlines(damaged)
