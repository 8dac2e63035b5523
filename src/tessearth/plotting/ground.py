"""What lies under and over the data of every map: land and sea, coasts and borders, the grid of degrees, the frame."""

import functools
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.labels import outline_rings, world_rings
from tessearth.packages import require
from tessearth.plotting.views import SEEN_COSINE, Floats, Pixels, View
from tessearth.sphere import Box

LAND, SEA = (0.925, 0.917, 0.898), (0.972, 0.98, 0.988)
COAST, GRID, FRAME = "#5f6368", "#9aa0a6", "#5f6368"
WORLD_MASK_STEP, REGION_MASK_CELLS = 0.1, 2400
"""Degrees a cell of the world's land mask is wide; how many cells a region's is."""
GROUND_COLUMNS = 900


def draw_ground(axis: Any, view: View, *, plain: bool = False, over: bool = False) -> Any:
    """Prepare an axis for a map: its limits, land and sea (unless `over` what is already painted), lines and frame.

    `plain` leaves out the grid of degrees, for small panels.
    """
    left, right, bottom, top = view.limits()
    margin = 0.0 if view.box is not None else 0.005 * (right - left)
    axis.set_aspect("equal")
    axis.set(xlim=(left - margin, right + margin), ylim=(bottom - margin, top + margin), xticks=[], yticks=[])
    if not over:
        pixels = view.pixels(GROUND_COLUMNS // (3 if plain else 1))
        show_pixels(axis, pixels, np.where(land_at(pixels, view)[..., None], LAND, SEA), zorder=0.5)
    if not plain:
        _draw_grid(axis, view)
    rings = world_rings() if view.box is None else outline_rings()
    width = 0.15 if plain else 0.22
    add_lines(axis, view.lines(list(rings)), colors=COAST, linewidths=width, zorder=3)
    for spine in axis.spines.values():
        spine.set(visible=view.box is not None, linewidth=0.5, color=FRAME)
    if view.box is None:  # the rim of a world map or hemisphere; a region has the axis's own
        axis.plot(*view.project(view.frame()).T, color=FRAME, linewidth=0.5, zorder=4, scalex=False, scaley=False)
    return axis


def show_pixels(axis: Any, pixels: Pixels, values: npt.NDArray[Any], zorder: float = 1.0, **style: Any) -> Any:
    """Paint values (rows, columns) or colours (rows, columns, 3) of pixels; what the map does not show stays clear."""
    if values.ndim == 3:
        values = np.concatenate((values, pixels.shown[..., None].astype(values.dtype)), axis=-1)
    else:
        values = np.ma.masked_where(~pixels.shown, values)
    return axis.imshow(values, extent=pixels.extent, zorder=zorder, interpolation="nearest", aspect="equal", **style)


def fade_sea(colours: Floats, land: npt.NDArray[np.bool_], strength: float = 0.75) -> Floats:
    """Colours (..., 3) mixed with white where there is no land: a model trained on land guesses there."""
    return np.where(land[..., None], colours, (1 - strength) * colours + strength)


def land_at(pixels: Pixels, view: View) -> npt.NDArray[np.bool_]:
    """Which pixels lie on land, by the shipped outlines, (rows, columns)."""
    lat, lon = pixels.latlon[..., 0], np.mod(pixels.latlon[..., 1] - view.middle[1] + 180, 360) - 180
    shown = pixels.shown
    if not shown.any():
        return shown
    south, north = float(np.nanmin(lat)), float(np.nanmax(lat))
    west, east = float(np.nanmin(lon)), float(np.nanmax(lon))
    step = WORLD_MASK_STEP if view.box is None else max(east - west, north - south) / REGION_MASK_CELLS
    mask = _land_mask(view.middle[1], (south, west, north, east), step, view.box is None)
    row = np.clip((north - lat[shown]) / step, 0, mask.shape[0] - 1).astype(np.int64)
    column = np.clip((lon[shown] - west) / step, 0, mask.shape[1] - 1).astype(np.int64)
    land = np.zeros(shown.shape, dtype=bool)
    land[shown] = mask[row, column]
    return land


@functools.lru_cache(maxsize=8)
def _land_mask(
    middle: float, sides: tuple[float, float, float, float], step: float, coarse: bool
) -> npt.NDArray[np.bool_]:
    """Land within a box of latitudes and of longitudes counted from the middle, as cells of `step` degrees.

    Holes in a country are other countries, so the outer rings alone cover the land.
    """
    image = require("PIL.Image", extra="plot", what="a map")
    draw = require("PIL.ImageDraw", extra="plot", what="a map")
    south, west, north, east = sides
    canvas = image.new("1", (int((east - west) / step) + 2, int((north - south) / step) + 2))
    pen = draw.Draw(canvas)
    for ring in world_rings() if coarse else outline_rings():
        if ring[:, 0].max() < south or ring[:, 0].min() > north:
            continue
        for turn in (-360.0, 0.0, 360.0):
            lon = ring[:, 1] - middle + turn
            if len(ring) > 3 and lon.max() >= west and lon.min() <= east:
                pen.polygon(
                    np.stack(((lon - west) / step, (north - ring[:, 0]) / step), axis=-1).ravel().tolist(), fill=1
                )
    return np.asarray(canvas, dtype=bool)


def _draw_grid(axis: Any, view: View) -> None:
    """Parallels and meridians, and their degrees along the left and lower rim."""
    spacing = 30.0 if view.box is None else _grid_spacing(view.box)
    most = int(np.ceil(90 / spacing)) - 1
    parallels: Floats = spacing * np.arange(-most, most + 1, dtype=np.float64)
    meridians: Floats = np.arange(-180, 180, spacing)
    around = [_parallel(lat, view.middle[1], 180 - 1e-9, 721) for lat in parallels]
    for group in (around, [_meridian(lon) for lon in meridians]):
        add_lines(axis, view.lines(group), colors=GRID, linewidths=0.2, alpha=0.6, zorder=2.5)
    if view.box is not None:
        _label_region(axis, view, parallels, meridians)
    elif view.projection not in SEEN_COSINE:
        for lat in parallels[np.abs(parallels) <= 60]:
            x, y = view.project((lat, view.middle[1] - 180 + 1e-9))
            axis.annotate(_degrees(lat, "N", "S"), (x, y), (-2, 0), textcoords="offset points", ha="right", va="center",
                          fontsize="x-small", color=FRAME)  # fmt: skip


def _grid_spacing(box: Box) -> float:
    extent = max(box.north - box.south, box.width)
    return next(step for step in (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0) if extent / step <= 6 or step == 45.0)


def _label_region(axis: Any, view: View, parallels: Floats, meridians: Floats) -> None:
    """Ticks where the grid meets the left and lower side."""
    (left, right), (bottom, top) = axis.get_xlim(), axis.get_ylim()
    lon0 = view.middle[1]
    near = meridians[np.abs((meridians - lon0 + 180) % 360 - 180) < 90]
    east = [(lon, _crossing(view.project(_meridian(lon)), 1, bottom)) for lon in near]
    north = [(lat, _crossing(view.project(_parallel(lat, lon0, 90, 361)), 0, left)) for lat in parallels]
    x = [(at, _degrees(lon, "E", "W")) for lon, at in east if at is not None and left < at < right]
    y = [(at, _degrees(lat, "N", "S")) for lat, at in north if at is not None and bottom < at < top]
    axis.set_xticks([at for at, _ in x], [text for _, text in x])
    axis.set_yticks([at for at, _ in y], [text for _, text in y])
    axis.tick_params(length=1.5, width=0.4, pad=1, labelsize="x-small", color=FRAME, labelcolor=FRAME)
    axis.set_xlabel("longitude", fontsize="small", labelpad=1)
    axis.set_ylabel("latitude", fontsize="small", labelpad=1)


def _crossing(points: Floats, axis: int, level: float) -> float | None:
    """Where a line of the map first passes a level of x (axis 0) or y (1), the other coordinate; None if nowhere."""
    offset = points[:, axis] - level
    passes = np.flatnonzero(offset[:-1] * offset[1:] < 0)
    if len(passes) == 0:
        return None
    i = passes[0]
    share = offset[i] / (offset[i] - offset[i + 1])
    return float(points[i, 1 - axis] + share * (points[i + 1, 1 - axis] - points[i, 1 - axis]))


def _meridian(lon: float) -> Floats:
    lat = np.linspace(-90, 90, 361)
    return np.stack((lat, np.full_like(lat, lon)), axis=-1)


def _parallel(lat: float, lon0: float, far: float, count: int) -> Floats:
    """A circle of latitude, as far to either side of a longitude."""
    lon = lon0 + np.linspace(-far, far, count)
    return np.stack((np.full_like(lon, lat), lon), axis=-1)


def _degrees(value: float, above: str, below: str) -> str:
    turned = (value + 180) % 360 - 180 if above == "E" else value
    return f"{abs(turned):g}°{'' if turned in (0, -180) else above if turned > 0 else below}"


def add_lines(axis: Any, lines: list[Floats], **style: Any) -> Any:
    """Add lines of the map without changing what it shows."""
    collections = require("matplotlib.collections", extra="plot", what="a map")
    return axis.add_collection(collections.LineCollection(lines, **style), autolim=False)
