"""Maps and the figures they are drawn on: projections, regions by name, pixels, land and sea, coasts, degrees."""

import contextlib
import functools
import io
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.packages import require
from tessearth.sphere import Box, find_region, outline_rings, world_rings
from tessearth.storage import write_bytes

Floats = npt.NDArray[np.float64]
Projection = Literal["robinson", "equal-earth", "orthographic", "local"]

PROJ_NAMES: dict[str, str] = {
    "robinson": "+proj=robin +lon_0={lon} +R=1",
    "equal-earth": "+proj=eqearth +lon_0={lon} +R=1",
    "orthographic": "+proj=ortho +lat_0={lat} +lon_0={lon} +R=1",
    "local": "+proj=laea +lat_0={lat} +lon_0={lon} +R=1",
}
"""Lengths are in radii of the sphere; "local" is Lambert's equal-area map, true at the region's middle."""
SEEN_COSINE = {"orthographic": 0.0, "local": -0.5}
"""Projections around one place show what lies within this cosine of it."""
COUNTRY_MARGIN = 0.12
REGION_DEGREES, REGION_MARGIN = 60.0, 0.06
"""Places within this many degrees of latitude and of longitude get a map of their own, this share of them wider."""
ROUND_TRIP = 1e-6

LAND, SEA = (0.925, 0.917, 0.898), (0.972, 0.98, 0.988)
COAST, GRID, FRAME = "#5f6368", "#9aa0a6", "#5f6368"
WORLD_MASK_STEP, REGION_MASK_CELLS = 0.1, 2400
"""Degrees a cell of the world's land mask is wide; how many cells a region's is."""
GROUND_COLUMNS = 900


FRAMES = {
    "africa": Box(-20, -37, 53, 38),
    "asia": Box(60, -8, 148, 56),
    "europe": Box(-12, 34, 42, 71),
    "north-america": Box(-135, 12, -55, 62),
    "oceania": Box(110, -50, 190, 5),
    "south-america": Box(-84, -57, -32, 14),
}
"""What maps of a continent show: not its last islands, so that the rest is large enough to see."""


class Pixels(NamedTuple):
    """The places of a map's pixels."""

    latlon: Floats
    """(rows, columns, 2) degrees, the top row first; NaN where the map shows no place."""
    extent: tuple[float, float, float, float]
    """Left, right, bottom and top on the map, as imshow wants it."""

    @property
    def shown(self) -> npt.NDArray[np.bool_]:
        """Where there is a place, (rows, columns)."""
        return np.isfinite(self.latlon[..., 0])


@dataclass(frozen=True, slots=True, kw_only=True)
class View:
    """A projection and the part of the sphere it shows."""

    projection: Projection = "equal-earth"
    middle: tuple[float, float] = (0.0, 0.0)
    """The latitude and longitude the projection is built around; world maps use the longitude alone."""
    box: Box | None = None
    """The region shown; None is the world, or a hemisphere."""

    def __post_init__(self) -> None:
        if self.projection not in get_args(Projection):
            raise ConfigError(f"projection is {self.projection!r}; it must be one of {', '.join(get_args(Projection))}")

    def project(self, latlon: npt.ArrayLike) -> Floats:
        """Places (..., 2) in degrees to points of the map (..., 2), x to the right; NaN for what cannot be seen."""
        places = np.asarray(latlon, dtype=np.float64)
        x, y = self._proj()(places[..., 1], places[..., 0])
        points = np.stack((x, y), axis=-1)
        points[~(np.isfinite(points).all(-1) & self._visible(places))] = np.nan
        return points

    def limits(self) -> tuple[float, float, float, float]:
        """Left, right, bottom and top of what the map shows."""
        edge = self.project(self.frame() if self.box is None else self.box.edge())
        (left, bottom), (right, top) = np.nanmin(edge, axis=0), np.nanmax(edge, axis=0)
        return float(left), float(right), float(bottom), float(top)

    def aspect(self) -> float:
        """The height of the map by its width."""
        left, right, bottom, top = self.limits()
        return (top - bottom) / (right - left)

    def frame(self) -> Floats:
        """Places around the rim of a world map or hemisphere, (M, 2)."""
        if self.projection == "orthographic":
            return self._horizon()
        lat = np.linspace(-90, 90, 181)
        west, east = self.middle[1] - 180 + 1e-9, self.middle[1] + 180 - 1e-9
        sides = [np.stack((lat, np.full_like(lat, lon)), axis=-1) for lon in (west, east)]
        return np.concatenate((sides[0], sides[1][::-1], sides[0][:1]))

    def pixels(self, columns: int) -> Pixels:
        """The places at the centres of as many columns of square pixels, and the rows that go with them."""
        if columns < 2:
            raise ConfigError(f"a map of {columns} columns shows nothing; take at least 2")
        left, right, bottom, top = self.limits()
        rows = max(2, round(columns * (top - bottom) / (right - left)))
        x = left + (np.arange(columns) + 0.5) * (right - left) / columns
        y = top - (np.arange(rows) + 0.5) * (top - bottom) / rows
        points = np.stack(np.meshgrid(x, y), axis=-1)
        lon, lat = self._proj()(points[..., 0], points[..., 1], inverse=True)
        latlon = np.stack((lat, lon), axis=-1)
        # Beyond the rim some projections answer with places of their own making: those do not lead back.
        finite = np.isfinite(latlon).all(-1)
        back = self.project(np.where(finite[..., None], latlon, 0.0))
        inside = finite & (np.abs(back - points).max(-1, initial=0.0, where=np.isfinite(back)) < ROUND_TRIP)
        inside &= np.isfinite(back).all(-1)
        return Pixels(np.where(inside[..., None], latlon, np.nan), (left, right, bottom, top))

    def lines(self, paths: list[Floats]) -> list[Floats]:
        """Paths of places (M, 2) as lines of the map, broken where they leave it or jump over its rim."""
        if not paths:
            return []
        places = np.concatenate(paths)
        points = self.project(places)
        hidden = ~np.isfinite(points[:, 0])
        begins = np.zeros(len(places), dtype=bool)
        begins[np.cumsum([len(path) for path in paths])[:-1]] = True
        begins |= hidden
        if self.projection not in SEEN_COSINE:
            turned = np.mod(places[:, 1] - self.middle[1] + 180, 360)
            begins[1:] |= np.abs(np.diff(turned)) > 180
        pieces = np.split(points, np.flatnonzero(begins))
        pieces = [piece[1:] if len(piece) and np.isnan(piece[0, 0]) else piece for piece in pieces]
        return self._within([piece for piece in pieces if len(piece) > 1])

    def _within(self, lines: list[Floats]) -> list[Floats]:
        """Lines that reach into a region: the others would only swell a vector file."""
        if self.box is None or not lines:
            return lines
        left, right, bottom, top = self.limits()
        low, high = (np.array([reduce(line, axis=0) for line in lines]) for reduce in (np.min, np.max))
        inside = np.asarray((high >= (left, bottom)).all(axis=1) & (low <= (right, top)).all(axis=1))
        return [line for line, kept in zip(lines, inside, strict=True) if kept]

    def _proj(self) -> Any:
        pyproj = require("pyproj", extra="plot", what="a map")
        lat, lon = self.middle
        return pyproj.Proj(PROJ_NAMES[self.projection].format(lat=lat, lon=lon))

    def _visible(self, latlon: Floats) -> npt.NDArray[np.bool_]:
        lowest = SEEN_COSINE.get(self.projection)
        if lowest is None:
            return np.ones(latlon.shape[:-1], dtype=bool)
        lat, lon = np.deg2rad(latlon[..., 0]), np.deg2rad(latlon[..., 1])
        lat0, lon0 = np.deg2rad(self.middle)
        cosine = np.sin(lat) * np.sin(lat0) + np.cos(lat) * np.cos(lat0) * np.cos(lon - lon0)
        return np.asarray(cosine > lowest)

    def _horizon(self) -> Floats:
        """Places just inside the rim of a hemisphere: a quarter of a turn, less a hair, from its middle."""
        lat0, lon0 = np.deg2rad(self.middle)
        bearing, far = np.linspace(0, 2 * np.pi, 361), np.pi / 2 - 1e-6
        lat = np.arcsin(np.sin(lat0) * np.cos(far) + np.cos(lat0) * np.sin(far) * np.cos(bearing))
        east = np.arctan2(np.sin(bearing) * np.sin(far) * np.cos(lat0), np.cos(far) - np.sin(lat0) * np.sin(lat))
        return np.asarray(np.rad2deg(np.stack((lat, lon0 + east), axis=-1)))


def build_view(
    projection: str | None = None, region: str | None = None, middle: tuple[float, float] | None = None
) -> View:
    """A view by names: the world in Equal Earth, a region (see `sphere.find_region`) in the local projection."""
    box = None if region is None or find_region(region).name == "world" else frame_of(region)
    chosen = projection or ("equal-earth" if box is None else "local")
    if chosen == "local" and box is None:
        raise ConfigError("the local projection is for regions; name one, or take equal-earth")
    around = middle or ((0.0, 0.0) if box is None else box.middle())
    return View(projection=chosen, middle=around, box=box)  # type: ignore[arg-type] # View names the choices itself


def view_around(latlon: Floats) -> View:
    """A map of places (N, 2): of their own part of the world when they lie close together, else of the whole."""
    lat, lon = latlon.T
    turned = np.mod(lon, 360)
    # Across the antimeridian longitudes are close when counted from 0 to 360, elsewhere when counted from -180.
    lon = turned if np.ptp(turned) < np.ptp(lon) else lon
    extent = max(np.ptp(lat), np.ptp(lon))
    if extent > REGION_DEGREES:
        return View()
    pad = max(REGION_MARGIN * float(extent), 0.05)
    south, north = max(float(lat.min()) - pad, -90.0), min(float(lat.max()) + pad, 90.0)
    box = Box(float(lon.min()) - pad, south, float(lon.max()) + pad, north)
    return View(projection="local", middle=box.middle(), box=box)


def frame_of(region: str) -> Box:
    """What a map of a region shows: a continent as in `FRAMES`, else its box, around an outline with a margin."""
    found = find_region(region)
    if found.name in FRAMES:
        return FRAMES[found.name]
    if not found.rings:
        return found.box
    west, south, east, north = found.box
    pad = COUNTRY_MARGIN * max(north - south, (east - west) / 2)
    aside = min(pad, (360 - (east - west)) / 2)
    return Box(west - aside, max(south - pad, -89.0), east + aside, min(north + pad, 89.0))


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
    extent = 180.0 if view.box is None else max(view.box.north - view.box.south, view.box.width)
    spacing = next(step for step in (1.0, 2.0, 5.0, 10.0, 20.0, 30.0, 45.0) if extent / step <= 6 or step == 45.0)
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


COLUMN_CM = 8.5
"""The width of a journal's column; two and the gap between them are `PAGE_CM`."""
PAGE_CM = 17.5
CM_PER_INCH = 2.54
SUFFIXES = (".png", ".svg", ".pdf")
DPI = 300

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # it comes with matplotlib, so a figure looks the same on every machine
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "savefig.dpi": DPI,
    "svg.fonttype": "none",
    "svg.hashsalt": "tessearth",  # the same figure gives the same file
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Everything made and saved inside follows `STYLE`."""
    matplotlib = require("matplotlib", extra="plot", what="a figure")
    with matplotlib.rc_context(STYLE):
        yield


def new_figure(width_cm: float = COLUMN_CM, height_cm: float | None = None, rows: int = 1, columns: int = 1) -> Any:
    """A figure and its axes (an array when there are several), laid out so that nothing overlaps."""
    figures = require("matplotlib.figure", extra="plot", what="a figure")
    if not 1 <= width_cm <= 200:
        raise ConfigError(f"width is {width_cm} cm; it must lie between 1 and 200")
    size = (width_cm / CM_PER_INCH, (height_cm or 0.62 * width_cm) / CM_PER_INCH)
    figure = figures.Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.03, hspace=0.03)
    return figure, figure.subplots(rows, columns)


def add_colour_bar(axis: Any, drawn: Any, label: str, **style: Any) -> Any:
    """A labelled bar below an axis, or below several."""
    first = axis[0] if isinstance(axis, list) else axis
    shape = {"location": "bottom", "shrink": 0.7, "aspect": 32, "pad": 0.02, **style}
    bar = first.figure.colorbar(drawn, ax=axis, **shape)
    bar.set_label(label, labelpad=2)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=2, width=0.4, pad=1.5)
    return bar


def check_figure_path(path: str | PathLike[str], suffixes: tuple[str, ...] = SUFFIXES) -> Path:
    """The path, when its ending is a kind of file that can be written."""
    if Path(path).suffix.lower() not in suffixes:
        raise ConfigError(f"{path} names no kind of figure: end it in {' or '.join(suffixes)}")
    return Path(path)


def save_figure(figure: Any, path: str | PathLike[str], dpi: int = DPI) -> None:
    """Write a figure in the format its ending names."""
    write_bytes(path, figure_bytes(figure, check_figure_path(path).suffix.lower()[1:], dpi))


def figure_bytes(figure: Any, kind: str = "png", dpi: int = DPI) -> bytes:
    """A figure as a file of a kind; it carries no date, so the same figure gives the same bytes."""
    content = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(content, format=kind, dpi=dpi, metadata=dates.get(kind), bbox_inches="tight", pad_inches=0.02)
    return content.getvalue()
