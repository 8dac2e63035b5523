"""Maps of predictions, read off the figure: where dots lie, what their colours say; and maps of cells."""

import io
from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex

from tessearth.plotting import Predicted, draw_predictions
from tessearth.plotting.colours import MANY_COLOURS, OTHER_COLOUR
from tessearth.plotting.places import RIGHT, WRONG, write_world_map
from tessearth.plotting.views import View, figure_bytes, view_around
from tessearth.sphere.grids import world_grid
from tests.evaluation.fabricate import PLACES, class_task, number_task
from tests.plotting.pictures import drawn_share, has_colour, read, words

NEAR = np.array([47.0, 8.0]) + PLACES / 30
FIJI = np.stack((PLACES[:, 0] / 20, np.mod(PLACES[:, 1] / 20, 360) - 180 + 1e-9), axis=-1)


def numbers(said: np.ndarray, latlon: np.ndarray = PLACES) -> Predicted:
    return Predicted(latlon, number_task().target, {"prediction": said}, "height (metres)")


def draw(told: Predicted) -> Any:
    return draw_predictions(told, view_around(told.latlon), columns=3, difference=True)


def dots(axis: Any) -> Any:
    return next(part for part in axis.collections if len(part.get_offsets()) > 1)


def colours(axis: Any) -> list[str]:
    return [to_hex(colour) for colour in dots(axis).get_facecolors()]


@pytest.mark.parametrize("latlon", [PLACES, NEAR, FIJI], ids=["world", "local", "antimeridian"])
def test_every_dot_lies_where_its_place_is_and_every_map_has_its_name(latlon: np.ndarray) -> None:
    figure = draw(numbers(number_task().target, latlon))
    maps = figure.axes[:3]
    assert [axis.get_title() for axis in maps] == ["truth", "prediction", "difference"]
    for axis in maps:
        points = view_around(latlon).project(latlon)
        np.testing.assert_allclose(dots(axis).get_offsets(), points)
        (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
        assert ((points > (left, bottom)) & (points < (right, top))).all()
        assert len(axis.collections) > 1  # coasts and borders


def test_truth_and_prediction_share_one_scale_and_the_difference_is_even_around_nothing() -> None:
    target = number_task().target
    said = target * 0.5 + 0.3
    axes = draw(numbers(said)).axes
    truth, prediction, difference = (dots(axis) for axis in axes[:3])
    low, high = np.percentile(target, (2, 98))
    for part, values in ((truth, target), (prediction, said)):
        np.testing.assert_array_equal(part.get_array(), values)
        assert (part.norm.vmin, part.norm.vmax) == (low, high)
    np.testing.assert_array_equal(difference.get_array(), said - target)
    far = np.percentile(np.abs(said - target), 95)
    assert (difference.norm.vmin, difference.norm.vmax) == (-far, far)
    assert [axis.get_xlabel() for axis in axes[3:]] == ["height (metres)", "prediction minus truth"]


def test_the_bar_of_two_maps_is_as_long_as_that_of_one_and_below_them() -> None:
    figure = draw(numbers(number_task().target))
    figure.draw_without_rendering()
    *maps, both, one = (axis.get_position() for axis in figure.axes)
    assert both.width == pytest.approx(one.width, rel=0.05)
    assert 0.5 * maps[0].width < one.width < 0.9 * maps[0].width
    assert max(both.y1, one.y1) <= min(place.y0 for place in maps)


def test_scales_have_a_length_where_nothing_varies() -> None:
    same = np.full(len(PLACES), 7.0)
    truth, _, difference = (dots(axis) for axis in draw(Predicted(PLACES, same, {"a": same})).axes[:3])
    assert (truth.norm.vmin, truth.norm.vmax) == (7.0, 8.0)
    assert (difference.norm.vmin, difference.norm.vmax) == (-1.0, 1.0)


def test_classes_have_a_colour_each_and_right_and_wrong_another() -> None:
    task = class_task()
    said = np.where(np.arange(len(PLACES)) % 4 == 0, (task.target + 1) % 4, task.target)
    figure = draw(Predicted(PLACES, task.target, {"a": said}, classes=task.classes))
    for axis, values in zip(figure.axes, (task.target, said), strict=False):
        shown = dict(zip(values.tolist(), colours(axis), strict=True))
        assert sorted(shown.values()) == sorted(colour.lower() for colour in MANY_COLOURS[:4])
        assert [shown[code] for code in values.tolist()] == colours(axis)
    assert colours(figure.axes[2]) == [(RIGHT if right else WRONG).lower() for right in task.target == said]
    assert set(task.classes) | {"right (75.0%)", "wrong (25.0%)"} <= set(words(figure).split(" | "))
    picture = read(io.BytesIO(figure_bytes(figure, dpi=150)))
    third = picture[:, picture.shape[1] * 2 // 3 :]
    assert has_colour(third, RIGHT)
    assert has_colour(third, WRONG)


def test_the_most_frequent_classes_get_colours_and_the_rest_is_counted() -> None:
    codes = np.repeat(np.arange(12), [10, 55, 50, 40, 25, 15, 5, 12, 11, 7, 6, 4])
    figure = draw(Predicted(PLACES, codes, {"a": codes}, classes=()))
    frequent = [1, 2, 3, 4, 5, 7, 8, 0, 9]
    expected = {code: colour.lower() for code, colour in zip(frequent, MANY_COLOURS, strict=True)}
    assert colours(figure.axes[0]) == [expected.get(code, OTHER_COLOUR) for code in codes.tolist()]
    assert [text.get_text() for text in figure.legends[0].get_texts()] == [*map(str, frequent), "3 others"]


def test_a_local_map_is_a_little_wider_than_its_places() -> None:
    view = view_around(NEAR)
    assert view.box is not None
    pad = 0.06 * np.ptp(NEAR, axis=0).max()
    (south, west), (north, east) = NEAR.min(axis=0), NEAR.max(axis=0)
    assert view.box == pytest.approx((west - pad, south - pad, east + pad, north + pad))
    tiny = view_around(np.array([47.0, 8.0]) + PLACES / 1e6).box
    assert tiny is not None
    assert tiny.width == pytest.approx(0.1, abs=1e-3)


@pytest.mark.parametrize(("height", "width", "local"), [(60, 60, True), (60.1, 1, False), (1, 60.1, False)])
def test_places_are_close_together_within_sixty_degrees(height: float, width: float, local: bool) -> None:
    view = view_around(np.array([[-20.0, 10.0], [height - 20, 10.0 + width], [-19.0, 10.5]]))
    assert (view == View()) is not local
    if local:
        assert view.middle == pytest.approx((height / 2 - 20, 10 + width / 2))


def test_longitudes_are_close_across_the_antimeridian() -> None:
    assert view_around(np.array([[-18.0, 178.0], [-17.0, -179.0]])).middle == pytest.approx((-17.5, 179.5))


def test_cells_are_painted_where_they_lie(tmp_path: Any) -> None:
    latlon = world_grid(5.0)
    write_world_map(tmp_path / "m.png", (latlon[..., 1] > 0).astype(float), name="east")
    picture = read(tmp_path / "m.png")
    middle = picture.shape[1] // 2
    assert drawn_share(picture) > 0.5
    assert has_colour(picture[:, :middle], "#440154", 1000)
    assert has_colour(picture[:, middle:], "#fde725", 1000)
