"""Projections and regions: what is drawn lies where it should, and nothing is drawn across the rim."""

import numpy as np
import pytest

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.plotting.views import FRAMES, View, build_view, frame_of, land_at
from tessearth.sphere import find_region

PLACES = np.array([(0.0, 0.0), (48.9, 2.3), (-33.9, 151.2), (64.1, -21.9), (1.3, 103.8)])
WORLD = [build_view(name, None, middle) for name in ("robinson", "equal-earth") for middle in ((0, 0), (0, 150))]


@pytest.mark.parametrize("view", WORLD)
def test_world_maps_show_every_place_within_their_limits(view: View) -> None:
    points = view.project(PLACES)
    left, right, bottom, top = view.limits()
    assert np.isfinite(points).all()
    assert (points >= (left, bottom)).all()
    assert (points <= (right, top)).all()


def test_a_hemisphere_hides_the_other_one() -> None:
    view = build_view("orthographic", None, (0.0, 0.0))
    assert np.isnan(view.project([(0.0, 100.0), (10.0, 180.0)])).all()
    np.testing.assert_allclose(view.project([(0.0, 30.0)]), [[0.5, 0.0]], atol=1e-9)


@pytest.mark.parametrize("view", [*WORLD, build_view("orthographic", None, (40, 100)), build_view(None, "oceania")])
def test_pixels_lead_back_to_where_they_are(view: View) -> None:
    pixels = view.pixels(60)
    left, right, bottom, top = pixels.extent
    rows, columns = pixels.shown.shape
    x = left + (np.arange(columns) + 0.5) * (right - left) / columns
    y = top - (np.arange(rows) + 0.5) * (top - bottom) / rows
    grid = np.stack(np.meshgrid(x, y), axis=-1)
    assert pixels.shown.mean() > 0.6
    np.testing.assert_allclose(view.project(pixels.latlon[pixels.shown]), grid[pixels.shown], atol=1e-6)


@pytest.mark.parametrize("view", WORLD)
def test_no_line_jumps_across_a_world_map(view: View) -> None:
    around = [np.stack((np.full(400, lat), np.linspace(-180, 180, 400)), axis=-1) for lat in (-60.0, 0.0, 45.0)]
    width = view.limits()[1] - view.limits()[0]
    lines = view.lines(around)
    assert len(lines) >= 3
    assert max(np.abs(np.diff(line[:, 0])).max() for line in lines) < width / 20


def test_land_is_where_the_outlines_have_it() -> None:
    view = build_view(None, "europe")
    pixels = view.pixels(200)
    land = land_at(pixels, view)
    known = {(48.9, 2.3): True, (52.5, 13.4): True, (40.0, 5.0): False, (47.0, -8.0): False}
    for place, expected in known.items():
        distance = np.nan_to_num(np.abs(pixels.latlon - place).sum(-1), nan=1e9)
        assert land[np.unravel_index(distance.argmin(), distance.shape)] == expected
    world = build_view()
    pixels = world.pixels(300)
    assert land_at(pixels, world)[pixels.shown].mean() == pytest.approx(0.29, abs=0.02)  # Equal Earth keeps areas


@pytest.mark.parametrize("name", [*FRAMES, "mediterranean", "japan", "usa", "fiji", "russia"])
def test_every_region_shows_its_middle(name: str) -> None:
    view = build_view(None, name)
    left, right, bottom, top = view.limits()
    x, y = view.project(frame_of(name).middle())
    assert left < x < right
    assert bottom < y < top


def test_the_world_is_no_region_of_a_map() -> None:
    assert build_view(None, "World") == build_view()


@pytest.mark.parametrize("name", ["New Zealand", "france", "KE", "antarctica"])
def test_a_map_of_a_country_shows_all_of_its_outline(name: str) -> None:
    frame, region = frame_of(name), find_region(name)
    south, north = max(region.box.south, -89), min(region.box.north, 89)
    assert frame.west <= region.box.west
    assert frame.east >= region.box.east
    assert frame.south <= south
    assert frame.north >= north


@pytest.mark.parametrize(
    ("arguments", "kind", "said"),
    [
        ((None, "atlantis"), UnknownNameError, "there is no region named 'atlantis'"),
        ((None, "urope"), UnknownNameError, "did you mean 'europe'"),
        (("mercator",), ConfigError, "projection is 'mercator'; it must be one of robinson"),
        (("local",), ConfigError, "the local projection is for regions"),
    ],
)
def test_what_is_unknown_is_one_line(arguments: tuple[str, ...], kind: type[Exception], said: str) -> None:
    with pytest.raises(kind, match=said):
        build_view(*arguments)
