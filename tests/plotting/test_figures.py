"""Every figure: drawn on, in its colours, with its words; and the numbers it says are those of its data."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from tessearth.encoder.contract import measure_token_use
from tessearth.encoder.sites import TRAJECTORIES, Trajectory, read_trajectory
from tessearth.errors import ConfigError, DataError, TableError
from tessearth.figures.request import read_metrics, read_scores
from tessearth.plotting import (
    Score,
    View,
    animate_migration,
    build_view,
    draw_cells,
    draw_classes,
    draw_embeddings,
    draw_losses,
    draw_migration,
    draw_numbers,
    draw_performance,
    draw_retrieval,
    draw_sharpness,
    draw_site_embeddings,
    draw_sites,
    draw_token_map,
    draw_token_use,
    new_figure,
    paper_style,
    save_figure,
)
from tessearth.plotting.colours import END, START
from tessearth.plotting.places import class_colours, most_telling, most_used, top_places
from tessearth.plotting.sites import moved_km, position_at, sample_sites
from tessearth.sphere.voronoi_cells import build_cells
from tests.plotting.pictures import distinct_colours, drawn_share, has_colour, read, render, words

VIEWS = {
    "world": View(),
    "robinson": build_view("robinson"),
    "globe": build_view("orthographic", None, (45.0, 10.0)),
    "region": build_view(None, "europe"),
}


@pytest.fixture
def rng() -> np.random.Generator:
    return np.random.default_rng(0)


@pytest.fixture
def xyz(rng: np.random.Generator) -> np.ndarray:
    return rng.normal(size=(300, 3))


@pytest.mark.parametrize("name", VIEWS)
def test_sites_are_drawn_in_every_view(name: str, axis: Any, xyz: np.ndarray) -> None:
    assert draw_sites(axis, xyz, VIEWS[name]) is axis
    picture = render(axis.figure)
    assert drawn_share(picture) > 0.15
    assert has_colour(picture, END, 5)


def test_a_map_without_sites_has_none_of_their_colour(axis: Any) -> None:
    """What the other tests look for is not there by itself."""
    from tessearth.plotting import draw_ground

    assert not has_colour(render(draw_ground(axis, View()).figure), END, 1)


def test_regions_have_labelled_degrees(axis: Any, xyz: np.ndarray) -> None:
    draw_sites(axis, xyz, VIEWS["region"])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("longitude", "latitude")
    assert {"50°N", "60°N", "10°E"} <= {tick.get_text() for tick in [*axis.get_xticklabels(), *axis.get_yticklabels()]}


@pytest.mark.parametrize("name", VIEWS)
def test_cells_are_drawn_without_lines_across_the_map(name: str, axis: Any, xyz: np.ndarray) -> None:
    draw_cells(axis, build_cells(xyz), VIEWS[name])
    assert has_colour(render(axis.figure, 150), END)
    left, right, *_ = VIEWS[name].limits()
    lines = max(axis.collections, key=lambda drawn: drawn.get_zorder() == 3.5).get_segments()
    assert max(np.abs(np.diff(line[:, 0])).max() for line in lines) < (right - left) / 10


def test_site_embeddings_fill_the_map_with_colours(axis: Any, xyz: np.ndarray, rng: np.random.Generator) -> None:
    draw_site_embeddings(axis, xyz, rng.laplace(size=(300, 8)), View(), columns=200)
    picture = render(axis.figure)
    assert distinct_colours(picture) > 60
    with pytest.raises(DataError, match="2 embeddings were given for 300 sites"):
        draw_site_embeddings(axis, xyz, np.ones((2, 8)), View(), columns=50)


def test_sites_of_one_embedding_share_one_colour(xyz: np.ndarray, rng: np.random.Generator) -> None:
    """Eastern and western sites with embeddings of their own give a map of two halves."""
    values = np.where(xyz[:, 1:2] > 0, [[1.0] + [0.0] * 4], [[0.0] * 4 + [1.0]]) + 0.01 * rng.normal(size=(300, 5))
    _, axis = new_figure()
    draw_site_embeddings(axis, xyz, values, View(), columns=200)
    image = np.asarray(axis.images[0].get_array())
    row = image[image.shape[0] // 2]
    west, east = row[20:80, :3].mean(axis=0), row[120:180, :3].mean(axis=0)
    assert np.abs(west - east).max() > 0.05


def test_embeddings_colour_places_by_what_they_are(axis: Any) -> None:
    def embed(latlon: np.ndarray) -> np.ndarray:
        lat, lon = np.deg2rad(latlon).T
        return np.stack((np.sin(lat), np.cos(lat) * np.sin(lon), np.cos(lat) * np.cos(lon), lat**3), axis=-1)

    draw_embeddings(axis, embed, View(), columns=120)
    assert distinct_colours(render(axis.figure)) > 60
    image = np.asarray(axis.images[0].get_array())
    assert np.abs(image[10, 60, :3] - image[-10, 60, :3]).max() > 0.03
    assert not image[0, 0, 3]  # outside the rim nothing is painted


def test_sharpness_has_a_labelled_bar(axis: Any, xyz: np.ndarray, rng: np.random.Generator) -> None:
    draw_sharpness(axis, xyz, rng.uniform(10, 500, 300), View(), share=1.0)
    assert "sharpness τ" in words(axis.figure)
    assert distinct_colours(render(axis.figure, 150)) > 40
    with pytest.raises(ConfigError, match=r"share is 0.0; it must be above 0"):
        draw_sharpness(axis, xyz, np.ones(300), View(), share=0.0)


def test_migration_shows_squares_circles_and_how_far(axis: Any, run: Path) -> None:
    trajectory = read_trajectory(run / TRAJECTORIES)
    draw_migration(axis, trajectory.positions, View(), share=0.5, seed=1)
    picture = render(axis.figure, 150)
    assert has_colour(picture, START)
    assert has_colour(picture, END)
    median = np.median(moved_km(trajectory.positions))
    assert f"50% of 60 sites; median move {median:,.0f} km" in words(axis.figure)


def test_a_move_is_measured_over_the_ground() -> None:
    positions = np.array([[(1.0, 0, 0), (0, 0, 1)], [(0, 1.0, 0), (0, 0, 1)]])
    np.testing.assert_allclose(moved_km(positions), [6371.0088 * np.pi / 2, 0.0])


def test_samples_of_sites_follow_their_seed() -> None:
    first = sample_sites(1000, 0.3, 7)
    assert len(first) == 300
    np.testing.assert_array_equal(first, sample_sites(1000, 0.3, 7))
    assert (first != sample_sites(1000, 0.3, 8)).any()


def test_an_animation_moves_from_the_first_record_to_the_last(run: Path) -> None:
    from PIL import Image

    trajectory = read_trajectory(run / TRAJECTORIES)
    content = animate_migration(trajectory, View(), frames=3, share=1.0, width_cm=8)
    with Image.open(io.BytesIO(content)) as film:
        assert film.n_frames == 3
        frames = []
        for number in range(3):
            film.seek(number)
            frames.append(np.asarray(film.convert("RGB"), dtype=np.float64) / 255)
    assert all(has_colour(frame, END, 10) for frame in frames)
    assert has_colour(frames[-1], START, 5)
    assert (frames[0] != frames[-1]).any(axis=-1).mean() > 0.002
    np.testing.assert_allclose(position_at(trajectory.positions, 3.0), trajectory.positions[3], atol=1e-6)
    with pytest.raises(ConfigError, match="does not move"):
        animate_migration(trajectory, View(), frames=1)
    with pytest.raises(DataError, match="two moments or more"):
        animate_migration(Trajectory(*(part[:1] for part in trajectory[:3])), View())


def test_token_maps_paint_attention_in_percent(axis: Any) -> None:
    pixels = VIEWS["world"].pixels(100)
    attention = np.cos(np.deg2rad(pixels.latlon[pixels.shown][:, 0])) * 0.5
    drawn = draw_token_map(axis, pixels, attention, VIEWS["world"])
    assert drawn.norm.vmax == pytest.approx(50, rel=0.02)
    assert distinct_colours(render(axis.figure)) > 15


def test_token_use_says_what_attention_amounts_to(axis: Any) -> None:
    attention = np.zeros((10, 8))
    attention[:, 0] = attention[:, 1] = 0.5
    use = measure_token_use(torch.from_numpy(attention))
    assert use.effective == pytest.approx(2.0)
    assert use.entropy_share == pytest.approx(np.log(2) / np.log(8))
    assert use.above_uniform == 2
    draw_token_use(axis, attention)
    said = words(axis.figure)
    assert "2 of 8 tokens above uniform" in said
    assert "effective tokens per place: 2.0" in said
    assert "mean attention (%)" in said
    assert [round(bar.get_height(), 6) for bar in axis.patches][:3] == [50, 50, 0]


def test_tokens_are_chosen_by_use_and_by_what_they_tell(rng: np.random.Generator) -> None:
    where = rng.random(500)
    attention = np.stack((np.full(500, 0.6), 0.3 * where, 0.29 * where, 0.1 * rng.random(500)), axis=-1)
    assert most_used(attention, 2) == [0, 1]
    assert most_telling(attention, 2) == [1, 3]  # the third is the second's double


def test_top_places_lie_apart() -> None:
    latlon = np.array([(0.0, 0.0), (0.0, 1.0), (0.0, 40.0), (0.0, -179.0), (0.0, 179.0)])
    chosen = top_places(latlon, np.array([5.0, 4.0, 3.0, 2.0, 1.0]), 3)
    assert chosen == [0, 2, 3]
    assert len(top_places(latlon, np.ones(5), 4)) == 3


def test_predictions_are_dots_in_the_colours_of_their_values(axis: Any, rng: np.random.Generator) -> None:
    latlon = np.stack((rng.uniform(-60, 70, 800), rng.uniform(-180, 180, 800)), axis=-1)
    draw_numbers(axis, latlon, latlon[:, 0], View(), limits=(-60, 70))
    assert distinct_colours(render(axis.figure, 150)) > 40
    codes = (latlon[:, 1] > 0).astype(int)
    colours = class_colours(codes)
    _, other = new_figure()
    draw_classes(other, latlon, codes, View(), colours=colours)
    picture = render(other.figure, 150)
    assert all(has_colour(picture, colour) for colour in colours.values())


def test_training_curves_are_those_of_the_metrics(run: Path) -> None:
    rows = read_metrics(run)
    figure, axes = new_figure(17, 6, 1, 2)
    draw_losses(axes[0], rows)
    draw_retrieval(axes[1], rows)
    np.testing.assert_allclose(axes[0].lines[0].get_xydata(), [(10, 0.5), (20, 0.25), (30, 5 / 30)])
    said = words(figure)
    for wanted in ("optimiser step", "loss term", "held-out retrieval (%)", "contrastive", "image to place, top 5"):
        assert wanted in said


def test_performance_averages_rows_alike(axis: Any) -> None:
    scores = [Score(256, "random", 0.7, 0.5), Score(256, "random", 0.8, 0.5), Score(4096, "random", 0.9, 0.6)]
    draw_performance(axis, scores, "accuracy", x="sites")
    np.testing.assert_allclose(axis.lines[0].get_xydata(), [(256, 75), (4096, 90)])
    assert (axis.get_xlabel(), axis.get_ylabel()) == ("Voronoi sites K", "mean accuracy (%)")
    assert axis.get_xscale() == "log"


def test_scores_are_read_from_csv(tmp_path: Path) -> None:
    table = tmp_path / "t.csv"
    table.write_text("top_k,split,accuracy,r2\n1,random,0.5,\n64,random,0.7,0.4\n")
    scores = read_scores(table, "top_k")
    assert [score.x for score in scores] == [1, 64]
    assert np.isnan(scores[0].r2)
    one = tmp_path / "one.csv"
    one.write_text("K,accuracy\n64,0.5\n64,0.6\n")
    with pytest.raises(TableError, match="has 1 values of K; a curve needs at least 2"):
        read_scores(one, "K")
    with pytest.raises(TableError, match="it needs sites, and accuracy or r2"):
        read_scores(table, "sites")


@pytest.mark.parametrize("suffix", [".png", ".svg", ".pdf"])
def test_the_same_figure_gives_the_same_file(suffix: str, tmp_path: Path) -> None:
    contents = []
    for number in (0, 1):
        with paper_style():
            figure, axis = new_figure()
            axis.plot([1, 2], [3, 5])
            axis.set_xlabel("years")
            path = tmp_path / f"{number}{suffix}"
            save_figure(figure, path)
        contents.append(path.read_bytes())
    assert contents[0] == contents[1]
    assert suffix != ".png" or drawn_share(read(path)) > 0.005
    assert suffix != ".svg" or b"years" in contents[0]


def test_damaged_runs_are_one_line(tmp_path: Path) -> None:
    (tmp_path / "trajectories.npz").write_bytes(b"nothing")
    (tmp_path / "metrics.jsonl").write_text("{")
    with pytest.raises(DataError, match=r"trajectories\.npz is not an npz of plain arrays, or is damaged"):
        read_trajectory(tmp_path / TRAJECTORIES)
    with pytest.raises(DataError, match="cannot be read as one JSON object a line"):
        read_metrics(tmp_path)
