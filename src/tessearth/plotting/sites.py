"""Sites on maps: where they lie, how sharp they are, which cells they own, how they moved while training."""

import io
from collections.abc import Callable
from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessearth.encoder import Trajectory
from tessearth.errors import ConfigError, DataError
from tessearth.packages import require
from tessearth.plotting.colours import END, SHARPNESS, START, fit_components
from tessearth.plotting.views import (
    Floats,
    View,
    add_colour_bar,
    add_lines,
    draw_ground,
    fade_sea,
    land_at,
    new_figure,
    show_pixels,
)
from tessearth.sphere import EARTH_RADIUS_KM, Cells, latlon_to_xyz, xyz_to_latlon

SHARE = 0.3
"""How many sites the paper's figures show where all would hide each other."""
FEWEST_SITES = 32
"""With fewer sites on land than this, colours are fitted to all."""
MOST_DOTS = 1500
"""More sites than this would fill their own cells."""
CELL_STEP = 1.0
"""Degrees between points along the borders of cells."""
TRAIL = "#303030"
GIF_COLOURS, GIF_DPI = 64, 140
FRAME_MS, HOLD_FRAMES = 110, 8
"""Milliseconds of a frame of an animation; the last stays for as many."""


def draw_sites(axis: Any, xyz: npt.ArrayLike, view: View) -> Any:
    """Every site as a dot; sites are directions (K, 3)."""
    draw_ground(axis, view)
    points = visible_points(view, to_latlon(xyz))
    axis.scatter(*points.T, s=_dot_size(len(points)), color=END, linewidths=0, zorder=5)
    return axis


def draw_sharpness(
    axis: Any, xyz: npt.ArrayLike, sharpness: npt.ArrayLike, view: View, *, share: float = SHARE, seed: int = 0
) -> Any:
    """A seeded share of the sites (K, 3), coloured by their sharpness tau (K,) on a logarithmic scale."""
    colours = require("matplotlib.colors", extra="plot", what="a figure")
    draw_ground(axis, view)
    chosen = sample_sites(len(np.asarray(xyz)), share, seed)
    tau = np.asarray(sharpness, dtype=np.float64)
    points = view.project(to_latlon(xyz)[chosen])
    order = np.argsort(tau[chosen], kind="stable")  # the sharpest on top
    low, high = np.percentile(tau, (1, 99))
    norm = colours.LogNorm(low, max(high, low * 1.01))
    size = 1.8 * _dot_size(len(chosen))
    dots = axis.scatter(
        *points[order].T, c=tau[chosen][order], s=size, cmap=SHARPNESS, norm=norm, linewidths=0, zorder=5
    )
    bar = add_colour_bar(axis, dots, "sharpness τ (a pure number; a site reaches 6371 km / √τ)", extend="both")
    ticks = np.geomspace(low, max(high, low * 1.01), 5)
    bar.set_ticks(ticks, labels=[f"{tick:.3g}" for tick in ticks], minor=False)
    bar.minorticks_off()
    return axis


def draw_cells(axis: Any, cells: Cells, view: View) -> Any:
    """The borders of all cells, the sites as dots where there is room for them."""
    draw_ground(axis, view)
    start, stop = (cells.corners[ends] for ends in cells.borders().T)
    angle = np.arctan2(np.linalg.norm(np.cross(start, stop), axis=1), (start * stop).sum(-1))
    paths = []
    for a, b, wide in zip(start, stop, angle, strict=True):
        along = np.linspace(0, 1, 2 + int(np.rad2deg(wide) / CELL_STEP))[:, None]
        paths.append(to_latlon(np.sin((1 - along) * wide) * a + np.sin(along * wide) * b))
    width = 0.2 if len(cells.sites) > 1000 else 0.5
    add_lines(axis, view.lines(paths), zorder=3.5, colors=END, linewidths=width)
    points = visible_points(view, to_latlon(cells.sites))
    if len(points) <= MOST_DOTS:
        axis.scatter(*points.T, s=0.5 * _dot_size(len(points)), color="black", linewidths=0, zorder=5)
    return axis


def draw_site_embeddings(
    axis: Any, xyz: npt.ArrayLike, embeddings: npt.ArrayLike, view: View, *, columns: int = 1200
) -> Any:
    """Every place in the colour of its nearest site, by components of site embeddings (K, S); the sea is faded."""
    spatial = require("scipy.spatial", extra="plot", what="nearest cells")
    sites = np.asarray(xyz, dtype=np.float64)
    values = np.asarray(embeddings, dtype=np.float64)
    if len(sites) != len(values):
        raise DataError(f"{len(values)} embeddings were given for {len(sites)} sites")
    pixels = view.pixels(columns)
    nearest = np.zeros(pixels.shown.shape, dtype=np.int64)
    tree = spatial.cKDTree(sites / np.linalg.norm(sites, axis=1, keepdims=True))
    nearest[pixels.shown] = tree.query(latlon_to_xyz(torch.from_numpy(pixels.latlon[pixels.shown])).numpy())[1]
    land = land_at(pixels, view)
    on_land = np.unique(nearest[land])
    fitted = fit_components(values[on_land] if len(on_land) >= FEWEST_SITES else values)
    show_pixels(axis, pixels, fade_sea(fitted.colours(values)[nearest], land))
    return draw_ground(axis, view, over=True)


def draw_migration(axis: Any, positions: npt.ArrayLike, view: View, *, share: float = SHARE, seed: int = 0) -> Any:
    """How a seeded share of the sites moved: squares where they began, circles where they ended, lines between.

    `positions` are directions (R, K, 3), recorded in order.
    """
    moved = check_positions(positions)
    draw_ground(axis, view)
    chosen = sample_sites(moved.shape[1], share, seed)
    latlon = to_latlon(moved[:, chosen])
    paths = view.lines([latlon[:, k] for k in range(latlon.shape[1])])
    add_lines(axis, paths, colors=TRAIL, linewidths=0.5, zorder=5)
    size = _dot_size(len(chosen)) * (1.5 if view.box is None else 3.5)
    style = {"s": size, "linewidths": 0, "zorder": 6}
    start, end = (view.project(to_latlon(moved[i, chosen])) for i in (0, -1))
    axis.scatter(*start.T, marker="s", color=START, label="start", **{**style, "s": 0.8 * size})
    axis.scatter(*end.T, marker="o", color=END, label="end", **style)
    median = float(np.median(moved_km(moved)))
    title = f"{share:.0%} of {moved.shape[1]:,} sites; median move {median:,.0f} km"
    left, right, bottom, top = view.limits()
    room = 0.11 * (right - left) / (top - bottom) if view.box else 0.0  # for the degrees and their name
    below = {"loc": "upper center", "bbox_to_anchor": (0.5, -room)}
    axis.legend(title=title, title_fontsize=6.5, ncols=2, frameon=False, markerscale=1.4, borderpad=0.1, **below)
    return axis


def animate_migration(
    trajectory: Trajectory,
    view: View,
    *,
    frames: int = 40,
    share: float = SHARE,
    seed: int = 0,
    width_cm: float = 14.0,
) -> bytes:
    """A GIF of a seeded share of the sites along a trajectory: its recorded steps and moments between them."""
    if frames < 2:
        raise ConfigError(f"an animation of {frames} frames does not move; take at least 2")
    pillow = require("PIL.Image", extra="plot", what="an animation")
    agg = require("matplotlib.backends.backend_agg", extra="plot", what="an animation")
    moved = check_positions(trajectory.positions)
    chosen = sample_sites(moved.shape[1], share, seed)
    figure, axis = new_figure(width_cm, width_cm * min(1.2, view.aspect()) + 0.5)
    figure.set_dpi(GIF_DPI)
    canvas = agg.FigureCanvasAgg(figure)
    draw_ground(axis, view)
    show = _add_moving(axis, moved[:, chosen], view)
    pictures = []
    for at in np.linspace(0, len(moved) - 1, frames).tolist():
        step = float(np.interp(at, np.arange(len(moved)), trajectory.steps))
        median = float(np.median(moved_km(np.stack((moved[0], position_at(moved, at))))))
        what = f"{share:.0%} of {moved.shape[1]:,} sites, squares where they began; median move {median:,.0f} km"
        axis.set_title(f"step {step:,.0f}: {what}")
        show(at)
        canvas.draw()
        pictures.append(pillow.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()))
    return _to_gif(pictures, pillow)


def position_at(positions: npt.NDArray[np.floating], at: float) -> Floats:
    """Sites (K, 3) at a time between records, on the sphere between where both have them."""
    before = min(int(at), len(positions) - 2)
    mixed = positions[before] + (at - before) * (positions[before + 1] - positions[before])
    return np.asarray(mixed / np.linalg.norm(mixed, axis=-1, keepdims=True))


def _add_moving(axis: Any, positions: Floats, view: View) -> Callable[[float], None]:
    """Add dots and trails to an axis; the function returned moves them to a time, counted in records from 0."""
    begun = view.project(to_latlon(positions[0]))
    size = 5.0 if view.box is None else 14.0
    axis.scatter(*begun.T, marker="s", s=0.7 * size, color=START, linewidths=0, zorder=5, alpha=0.8)
    trails = add_lines(axis, [], colors=TRAIL, linewidths=0.5, zorder=5.5)
    dots = axis.scatter(*begun.T, s=size, color=END, linewidths=0, zorder=6)

    def show(at: float) -> None:
        passed = np.concatenate((positions[: int(at) + 1], position_at(positions, at)[None]))
        latlon = to_latlon(passed)
        trails.set_segments(view.lines([latlon[:, k] for k in range(latlon.shape[1])]))
        dots.set_offsets(view.project(latlon[-1]))

    return show


def _to_gif(pictures: list[Any], pillow: Any) -> bytes:
    """One palette for all pictures, taken from the last, which has every colour in it."""
    palette = pictures[-1].quantize(GIF_COLOURS, method=pillow.Quantize.MAXCOVERAGE)
    flat = [picture.quantize(palette=palette, dither=pillow.Dither.NONE) for picture in pictures]
    durations = [FRAME_MS] * (len(flat) - 1) + [FRAME_MS * HOLD_FRAMES]
    content = io.BytesIO()
    flat[0].save(
        content, format="GIF", save_all=True, append_images=flat[1:], duration=durations, loop=0, optimize=False
    )
    return content.getvalue()


def check_positions(positions: npt.ArrayLike) -> Floats:
    """Recorded positions (R, K, 3), when there are at least two moments of at least one site."""
    moved = np.asarray(positions, dtype=np.float64)
    if moved.ndim != 3 or moved.shape[-1] != 3 or len(moved) < 2 or moved.shape[1] < 1:
        raise DataError(f"positions have shape {moved.shape}; migration needs (moments, sites, 3), two moments or more")
    return moved


def moved_km(positions: Floats) -> Floats:
    """How far each site's last position lies from its first, (K,), over the ground."""
    first, last = (p / np.linalg.norm(p, axis=-1, keepdims=True) for p in (positions[0], positions[-1]))
    angle = np.arctan2(np.linalg.norm(np.cross(first, last), axis=-1), (first * last).sum(-1))
    return np.asarray(angle * EARTH_RADIUS_KM)


def sample_sites(count: int, share: float, seed: int) -> npt.NDArray[np.int64]:
    """A seeded share of the sites, in ascending order; at least one."""
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share}; it must be above 0 and at most 1")
    chosen = np.random.default_rng(seed).permutation(count)[: max(1, round(share * count))]
    return np.sort(chosen)


def to_latlon(xyz: npt.ArrayLike) -> Floats:
    """Directions (..., 3) to degrees (..., 2)."""
    return np.asarray(xyz_to_latlon(torch.from_numpy(np.array(xyz, dtype=np.float64))).numpy())


def visible_points(view: View, latlon: Floats) -> Floats:
    """The points of the map that lie within its limits, (M, 2)."""
    points = view.project(latlon)
    left, right, bottom, top = view.limits()
    x, y = points.T
    return np.asarray(points[(x >= left) & (x <= right) & (y >= bottom) & (y <= top)])


def _dot_size(count: int) -> float:
    """Square points: dots shrink as they become many."""
    return float(np.clip(1600 / max(count, 1), 0.5, 4.0))
