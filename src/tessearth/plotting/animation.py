"""Site migration as a moving picture: one frame for each recorded step and some between them."""

import io
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.packages import require
from tessearth.plotting.colours import END, START
from tessearth.plotting.ground import draw_ground
from tessearth.plotting.sites import SHARE, check_positions, moved_km, sample_sites, to_latlon
from tessearth.plotting.views import Floats, View, check_figure_path, new_figure
from tessearth.storage.files import write_bytes

SUFFIXES = (".gif",)
COLOURS, DPI = 64, 140
HOLD_FRAMES = 8
"""Frames for which the last picture stays."""


def animate_migration(
    path: Any,
    steps: npt.NDArray[np.int64],
    positions: npt.ArrayLike,
    view: View,
    *,
    frames: int = 40,
    share: float = SHARE,
    seed: int = 0,
    width_cm: float = 14.0,
    milliseconds: int = 110,
) -> int:
    """Write a GIF of a seeded share of the sites along a trajectory; return the number of frames.

    `steps` (R,) are optimiser steps, `positions` (R, K, 3) the sites at each of them.
    """
    check_figure_path(path, SUFFIXES)
    if frames < 2:
        raise ConfigError(f"an animation of {frames} frames does not move; take at least 2")
    pillow = require("PIL.Image", extra="plot", what="an animation")
    agg = require("matplotlib.backends.backend_agg", extra="plot", what="an animation")
    moved = check_positions(positions)
    chosen = sample_sites(moved.shape[1], share, seed)
    left, right, bottom, top = view.limits()
    figure, axis = new_figure(width_cm, width_cm * min(1.2, (top - bottom) / (right - left)) + 0.5)
    figure.set_dpi(DPI)
    canvas = agg.FigureCanvasAgg(figure)
    draw_ground(axis, view)
    artists = _Moving(axis, moved[:, chosen], view)
    pictures = []
    for at in np.linspace(0, len(moved) - 1, frames):
        step = float(np.interp(at, np.arange(len(moved)), steps))
        median = float(np.median(moved_km(np.stack((moved[0], position_at(moved, float(at)))))))
        what = f"{share:.0%} of {moved.shape[1]:,} sites, squares where they began; median move {median:,.0f} km"
        artists.show(float(at), f"step {step:,.0f}: {what}")
        canvas.draw()
        pictures.append(pillow.fromarray(np.asarray(canvas.buffer_rgba())[..., :3].copy()))
    write_bytes(path, _to_gif(pictures, milliseconds, pillow))
    return len(pictures)


class _Moving:
    """The dots and trails of an animation, drawn once and moved."""

    def __init__(self, axis: Any, positions: Floats, view: View) -> None:
        collections = require("matplotlib.collections", extra="plot", what="an animation")
        self.axis, self.positions, self.view = axis, positions, view
        begun = view.project(to_latlon(positions[0]))
        size = 5.0 if view.box is None else 14.0
        axis.scatter(*begun.T, marker="s", s=0.7 * size, color=START, linewidths=0, zorder=5, alpha=0.8)
        self.trails = axis.add_collection(
            collections.LineCollection([], colors="#303030", linewidths=0.5, zorder=5.5), autolim=False
        )
        self.dots = axis.scatter(*begun.T, s=size, color=END, linewidths=0, zorder=6)

    def show(self, at: float, title: str) -> None:
        """Move everything to a time between the first record (0) and the last."""
        here = position_at(self.positions, at)
        way = np.concatenate((self.positions[: int(at) + 1], here[None]))
        latlon = to_latlon(way)
        self.trails.set_segments(self.view.lines([latlon[:, k] for k in range(latlon.shape[1])]))
        self.dots.set_offsets(self.view.project(latlon[-1]))
        self.axis.set_title(title)


def position_at(positions: Floats, at: float) -> Floats:
    """Sites (K, 3) at a time between records, on the sphere between where both have them."""
    before = min(int(at), len(positions) - 2)
    mixed = positions[before] + (at - before) * (positions[before + 1] - positions[before])
    return np.asarray(mixed / np.linalg.norm(mixed, axis=-1, keepdims=True))


def _to_gif(pictures: list[Any], milliseconds: int, pillow: Any) -> bytes:
    """One palette for all pictures, taken from the last, which has every colour in it."""
    palette = pictures[-1].quantize(COLOURS, method=pillow.Quantize.MAXCOVERAGE)
    flat = [picture.quantize(palette=palette, dither=pillow.Dither.NONE) for picture in pictures]
    durations: npt.NDArray[np.int64] = np.full(len(flat), milliseconds)
    durations[-1] *= HOLD_FRAMES
    content = io.BytesIO()
    flat[0].save(
        content,
        format="GIF",
        save_all=True,
        append_images=flat[1:],
        duration=durations.tolist(),
        loop=0,
        optimize=False,
    )
    return content.getvalue()
