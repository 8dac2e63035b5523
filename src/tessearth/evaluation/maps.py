"""Maps of what was predicted: the truth, the prediction and the difference, side by side at the places tested on.

The world is drawn in the Equal Earth projection, so that a region counts for what it covers; places within a smaller
part of it are drawn on a plane that is true at their middle.
"""

import io
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.evaluation.runner import Prediction
from tessearth.labels.outlines import outline_rings, world_rings
from tessearth.packages import require

Array = npt.NDArray[Any]
Floats = npt.NDArray[np.float64]

EQUAL_EARTH = (1.340264, -0.081106, 0.000893, 0.003796)
"""The polynomial of Savric, Patterson and Jenny 2018."""
LOCAL_DEGREES = 60.0
"""Places within this many degrees of latitude and of longitude get a map of their own part."""
MARGIN = 0.06
CLASS_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's, which people of any colour vision tell apart; the most frequent classes get them."""
OTHER_COLOUR = "#b8b8b8"
RIGHT, WRONG = "#0072B2", "#D55E00"
LINE_COLOUR = "#666666"
NUMBERS, DIFFERENCES = "viridis", "PuOr"


class View(NamedTuple):
    """How places come onto the paper."""

    middle: tuple[float, float] | None
    """The place a local map is true at; None for the world."""

    def project(self, latlon: Floats) -> Floats:
        """Places (N, 2) to points of the plane (N, 2), x to the right."""
        if self.middle is None:
            return equal_earth(latlon)
        lat, lon = self.middle
        east = np.mod(latlon[:, 1] - lon + 180, 360) - 180
        return np.stack((east * np.cos(np.deg2rad(lat)), latlon[:, 0] - lat), axis=-1)


def draw_maps(prediction: Prediction, title: str) -> bytes:
    """A PNG of three maps."""
    matplotlib = require("matplotlib.figure", extra="plot", what="maps of predictions")
    task = prediction.task
    places = task.latlon[prediction.rows]
    view = choose_view(places)
    figure = matplotlib.Figure(figsize=(16, 3.9) if view.middle is None else (14, 6), layout="constrained")
    axes = figure.subplots(1, 3)
    for axis, heading in zip(axes, ("truth", "prediction", "difference"), strict=True):
        _draw_ground(axis, view, places)
        axis.set_title(heading, fontsize=11)
    figure.suptitle(title, fontsize=12)
    (_draw_classes if task.kind == "classify" else _draw_numbers)(figure, axes, view, places, prediction)
    buffer = io.BytesIO()
    figure.savefig(buffer, format="png", dpi=100)
    return buffer.getvalue()


def equal_earth(latlon: Floats) -> Floats:
    """Places (N, 2) in degrees on the Equal Earth map (N, 2): areas are kept.

    sin t = (sqrt 3 / 2) sin lat; y = sum_i a_i t^(2i+1), x = 2 sqrt 3 lon cos t / (3 dy/dt), with powers 1, 3, 7, 9.
    """
    lat, lon = np.deg2rad(latlon).T
    t = np.arcsin(np.sqrt(3) / 2 * np.sin(lat))
    powers = (1, 3, 7, 9)
    y = sum(a * t**power for a, power in zip(EQUAL_EARTH, powers, strict=True))
    slope = sum(a * power * t ** (power - 1) for a, power in zip(EQUAL_EARTH, powers, strict=True))
    return np.stack((2 * np.sqrt(3) * lon * np.cos(t) / (3 * slope), y), axis=-1)


def choose_view(places: Floats) -> View:
    """A map of the places' own part of the world when they lie close together, else of the whole."""
    lat, lon = places.T
    turned = np.mod(lon, 360)
    # Across the antimeridian longitudes are close when counted from 0 to 360, elsewhere when counted from -180.
    lon = turned if np.ptp(turned) < np.ptp(lon) else lon
    if max(np.ptp(lat), np.ptp(lon)) > LOCAL_DEGREES:
        return View(None)
    return View((float(lat.min() + lat.max()) / 2, float(lon.min() + lon.max()) / 2))


def _draw_ground(axis: Any, view: View, places: Floats) -> None:
    """Coasts and borders behind the places, and the frame around them."""
    collections = require("matplotlib.collections", extra="plot", what="maps of predictions")
    if view.middle is None:
        edge = np.concatenate((_meridian(-180.0), _meridian(180.0)[::-1]))
        axis.fill(*equal_earth(edge).T, facecolor="#f3f5f7", edgecolor="#999999", linewidth=0.6, zorder=0)
        lines = [equal_earth(ring) for ring in world_rings()]
    else:
        points = view.project(places)
        low, high = points.min(0), points.max(0)
        pad = max(float((high - low).max()) * MARGIN, 0.05)
        axis.set(xlim=(low[0] - pad, high[0] + pad), ylim=(low[1] - pad, high[1] + pad), facecolor="#f3f5f7")
        near = np.array(view.middle)
        lines = [view.project(ring) for ring in outline_rings() if np.abs(ring - near).min(0).max() < LOCAL_DEGREES]
    axis.add_collection(
        collections.LineCollection(lines, colors=LINE_COLOUR, linewidths=0.3, zorder=3), autolim=view.middle is None
    )
    axis.set_aspect("equal")
    axis.set_xticks([])
    axis.set_yticks([])
    for spine in axis.spines.values():
        spine.set_visible(view.middle is not None)


def _draw_numbers(figure: Any, axes: Any, view: View, places: Floats, prediction: Prediction) -> None:
    truth, said = prediction.task.target[prediction.rows], prediction.values
    low, high = np.percentile(truth, (2, 98))
    far = float(np.percentile(np.abs(said - truth), 95)) or 1.0
    unit = str(prediction.task.about.get("unit", prediction.task.name))
    scale = {"cmap": NUMBERS, "vmin": low, "vmax": high if high > low else low + 1}
    for axis, values in zip(axes, (truth, said), strict=False):
        drawn = _scatter(axis, view, places, values, **scale)
    _colour_bar(figure, drawn, list(axes[:2]), unit)
    drawn = _scatter(axes[2], view, places, said - truth, cmap=DIFFERENCES, vmin=-far, vmax=far)
    _colour_bar(figure, drawn, [axes[2]], "prediction minus truth")


def _colour_bar(figure: Any, drawn: Any, axes: list[Any], label: str) -> None:
    """A bar below maps, as long under two as under one."""
    shape = {"shrink": 0.7 / len(axes), "aspect": 28, "pad": 0.02}
    figure.colorbar(drawn, ax=axes, location="bottom", extend="both", **shape).set_label(label, fontsize=9)


def _draw_classes(figure: Any, axes: Any, view: View, places: Floats, prediction: Prediction) -> None:
    lines = require("matplotlib.lines", extra="plot", what="maps of predictions")
    task, truth, said = prediction.task, prediction.task.target[prediction.rows], prediction.values
    codes, counts = np.unique(truth, return_counts=True)
    frequent = codes[np.argsort(-counts, kind="stable")][: len(CLASS_COLOURS)]
    colours = dict(zip(frequent.tolist(), CLASS_COLOURS, strict=False))
    for axis, values in zip(axes, (truth, said), strict=False):
        _scatter(axis, view, places, None, c=[colours.get(code, OTHER_COLOUR) for code in values.tolist()])
    right = truth == said
    _scatter(axes[2], view, places, None, c=np.where(right, RIGHT, WRONG))

    def legend(named: dict[str, str], over: Any) -> None:
        dots = [
            lines.Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in named.items()
        ]
        where = {"loc": "upper center", "bbox_to_anchor": (0.5, -0.02), "frameon": False, "fontsize": 8}
        over.legend(handles=dots, ncols=min(4, len(dots)), handletextpad=0.1, columnspacing=1.0, **where)

    names = {(task.classes[code] if task.classes else str(code)): colour for code, colour in colours.items()}
    others = {f"{len(codes) - len(frequent)} others": OTHER_COLOUR} if len(codes) > len(frequent) else {}
    for axis in axes[:2]:
        legend(names | others, axis)
    legend({f"right ({right.mean():.1%})": RIGHT, f"wrong ({1 - right.mean():.1%})": WRONG}, axes[2])


def _scatter(axis: Any, view: View, places: Floats, values: Array | None, **style: Any) -> Any:
    """Dots, smaller where there are more of them."""
    size = float(np.clip(9000 / len(places), 0.8, 30))
    points = view.project(places)
    if values is not None:
        style["c"] = values
    return axis.scatter(points[:, 0], points[:, 1], s=size, linewidths=0, zorder=2, **style)


def _meridian(lon: float) -> Floats:
    lat = np.linspace(-90, 90, 91)
    return np.stack((lat, np.full_like(lat, lon)), axis=-1)
