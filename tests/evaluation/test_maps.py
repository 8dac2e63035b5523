"""What a map shows, read off the figure before it becomes a picture: where dots lie, what their colours say."""

from typing import Any

import numpy as np
import pytest
from matplotlib.colors import to_hex
from matplotlib.figure import Figure

from tessearth.evaluation.maps import (
    CLASS_COLOURS,
    OTHER_COLOUR,
    RIGHT,
    WRONG,
    View,
    choose_view,
    draw_maps,
    equal_earth,
)
from tessearth.evaluation.runner import Prediction
from tessearth.evaluation.tasks import Task
from tests.evaluation.fabricate import PLACES, class_task, number_task

NEAR = np.array([47.0, 8.0]) + PLACES / 30


@pytest.fixture
def draw(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Draws, and gives the figure instead of its picture."""
    figures: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, *_, **__: figures.append(figure))

    def drawn(task: Task, values: np.ndarray, rows: np.ndarray | None = None) -> Figure:
        rows = np.arange(len(task.target)) if rows is None else rows
        draw_maps(Prediction(task, "random", "random-42", rows, values, 0.5), "a title")
        return figures[-1]

    return drawn


def dots(axis: Any) -> Any:
    return next(part for part in axis.collections if len(part.get_offsets()) > 1)


def outlines(axis: Any) -> list[np.ndarray]:
    part = next(part for part in axis.collections if type(part).__name__ == "LineCollection")
    return [path.vertices for path in part.get_paths()]


def colours(axis: Any) -> list[str]:
    return [to_hex(colour) for colour in dots(axis).get_facecolors()]


def test_three_maps_side_by_side_have_their_names(draw: Any) -> None:
    figure = draw(number_task(), number_task().target)
    assert [axis.get_title() for axis in figure.axes[:3]] == ["truth", "prediction", "difference"]
    assert figure.get_suptitle() == "a title"
    assert all(
        axis.get_aspect() == 1 and len(axis.get_xticks()) == len(axis.get_yticks()) == 0 for axis in figure.axes[:3]
    )


@pytest.mark.parametrize("latlon", [PLACES, NEAR], ids=["world", "local"])
def test_every_dot_lies_where_its_place_is_on_the_map(draw: Any, latlon: np.ndarray) -> None:
    task, rows = number_task(latlon=latlon), np.arange(3, 200, 2)
    for axis in draw(task, task.target[rows], rows).axes[:3]:
        np.testing.assert_allclose(dots(axis).get_offsets(), choose_view(latlon[rows]).project(latlon[rows]))


def test_truth_and_prediction_share_one_scale_and_the_difference_is_even_around_nothing(draw: Any) -> None:
    task = number_task()
    said = task.target * 0.5 + 0.3
    axes = draw(task, said).axes
    truth, prediction, difference = (dots(axis) for axis in axes[:3])
    low, high = np.percentile(task.target, (2, 98))
    for part, values in ((truth, task.target), (prediction, said)):
        np.testing.assert_array_equal(part.get_array(), values)
        assert (part.norm.vmin, part.norm.vmax) == (low, high)
    np.testing.assert_array_equal(difference.get_array(), said - task.target)
    far = np.percentile(np.abs(said - task.target), 95)
    assert (difference.norm.vmin, difference.norm.vmax) == (-far, far)
    assert [axis.get_xlabel() for axis in axes[3:]] == ["metres", "prediction minus truth"]


def test_the_bar_of_two_maps_is_as_long_as_that_of_one_and_below_them(draw: Any) -> None:
    figure = draw(number_task(), number_task().target)
    figure.draw_without_rendering()
    *maps, both, one = (axis.get_position() for axis in figure.axes)
    assert both.width == pytest.approx(one.width, rel=0.05)
    assert 0.5 * maps[0].width < one.width < 0.9 * maps[0].width
    assert max(both.y1, one.y1) <= min(place.y0 for place in maps)


def test_scales_have_a_length_where_nothing_varies(draw: Any) -> None:
    same = Task(name="same", kind="regress", latlon=PLACES, target=np.full(len(PLACES), 7.0))
    truth, _, difference = (dots(axis) for axis in draw(same, same.target).axes[:3])
    assert (truth.norm.vmin, truth.norm.vmax) == (7.0, 8.0)
    assert (difference.norm.vmin, difference.norm.vmax) == (-1.0, 1.0)


def test_classes_have_a_colour_each_and_right_and_wrong_another(draw: Any) -> None:
    task = class_task()
    said = np.where(np.arange(len(PLACES)) % 4 == 0, (task.target + 1) % 4, task.target)
    axes = draw(task, said).axes
    for axis, values in zip(axes, (task.target, said), strict=False):
        shown = dict(zip(values.tolist(), colours(axis), strict=True))
        assert sorted(shown.values()) == sorted(colour.lower() for colour in CLASS_COLOURS[:4])
        assert [shown[code] for code in values.tolist()] == colours(axis)
    assert colours(axes[2]) == [(RIGHT if right else WRONG).lower() for right in task.target == said]
    words = [[text.get_text() for text in axis.get_legend().get_texts()] for axis in axes]
    assert sorted(words[0]) == sorted(words[1]) == sorted(task.classes)
    assert words[2] == ["right (75.0%)", "wrong (25.0%)"]


def test_the_most_frequent_classes_get_colours_and_the_rest_is_counted(draw: Any) -> None:
    codes = np.repeat(np.arange(10), [10, 60, 50, 40, 30, 15, 5, 12, 11, 7])
    task = Task(name="many", kind="classify", latlon=PLACES, target=codes)
    axes = draw(task, codes).axes
    frequent = [1, 2, 3, 4, 5, 7, 8]
    expected = {code: colour.lower() for code, colour in zip(frequent, CLASS_COLOURS, strict=True)}
    assert colours(axes[0]) == [expected.get(code, OTHER_COLOUR) for code in codes.tolist()]
    words = [text.get_text() for text in axes[0].get_legend().get_texts()]
    assert words == [*map(str, frequent), "3 others"]
    assert [axis.get_legend()._ncols for axis in axes] == [4, 4, 2]  # legends of more would leave their map


def test_a_local_map_is_framed_a_little_wider_than_its_places(draw: Any) -> None:
    task = number_task(latlon=NEAR)
    points = choose_view(NEAR).project(NEAR)
    pad = 0.06 * np.ptp(points, axis=0).max()
    for axis in draw(task, task.target).axes[:3]:
        assert axis.get_xlim() == pytest.approx((points[:, 0].min() - pad, points[:, 0].max() + pad))
        assert axis.get_ylim() == pytest.approx((points[:, 1].min() - pad, points[:, 1].max() + pad))
        assert all(spine.get_visible() for spine in axis.spines.values())
        assert outlines(axis)  # Switzerland has neighbours
    tiny = number_task(latlon=np.array([47.0, 8.0]) + PLACES / 1e6)
    left, right = draw(tiny, tiny.target).axes[0].get_xlim()
    assert right - left == pytest.approx(0.1, abs=1e-3)


def test_the_world_has_its_outline_and_its_coasts_and_no_frame(draw: Any) -> None:
    axis = draw(number_task(), number_task().target).axes[0]
    assert not any(spine.get_visible() for spine in axis.spines.values())
    (globe,) = axis.patches
    assert np.abs(globe.get_xy()).max(0) == pytest.approx(np.abs(equal_earth(np.array([[0.0, 180], [90, 0]]))).max(0))
    assert len(outlines(axis)) > 100
    assert all((np.abs(line) < (2.71, 1.32)).all() for line in outlines(axis))


@pytest.mark.parametrize(("rows", "size"), [(240, 30.0), (1000, 9.0), (20_000, 0.8)])
def test_dots_are_smaller_where_there_are_more(draw: Any, rows: int, size: float) -> None:
    task = number_task(latlon=np.resize(PLACES, (rows, 2)))
    assert dots(draw(task, task.target).axes[0]).get_sizes() == pytest.approx([size])


def test_the_world_map_has_the_published_size() -> None:
    """Savric, Patterson and Jenny: 2.7066 radii to the edge of the equator, 1.3173 to the pole."""
    found = equal_earth(np.array([[0.0, 180.0], [90.0, 0.0], [0.0, 0.0], [-90.0, -180.0]]))
    np.testing.assert_allclose(found[:3], [[2.70663, 0], [0, 1.31736], [0, 0]], atol=1e-4)
    np.testing.assert_allclose(found[3, 1], -1.31736, atol=1e-4)


def test_a_local_map_counts_degrees_from_its_middle() -> None:
    view = View((60.0, 179.0))
    points = view.project(np.array([[60.0, 179.0], [61.0, 179.0], [60.0, -179.0], [59.0, 177.0]]))
    np.testing.assert_allclose(points, [[0, 0], [0, 1], [1, 0], [-1, -1]], atol=1e-9)


@pytest.mark.parametrize(("height", "width", "local"), [(60, 60, True), (60.1, 1, False), (1, 60.1, False)])
def test_places_are_close_together_within_sixty_degrees(height: float, width: float, local: bool) -> None:
    view = choose_view(np.array([[-20.0, 10.0], [height - 20, 10.0 + width], [-19.0, 10.5]]))
    assert view.middle == (pytest.approx((height / 2 - 20, 10 + width / 2)) if local else None)
