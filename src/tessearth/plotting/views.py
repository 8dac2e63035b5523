"""How a part of the sphere comes onto paper: projections, regions by name, and the places of a map's pixels."""

import contextlib
import io
from collections.abc import Iterator
from dataclasses import dataclass
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple, get_args

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.labels import load_outlines
from tessearth.packages import require
from tessearth.settings import Registry, did_you_mean
from tessearth.sphere import Box
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
NEAR_MAINLAND, LARGE_ISLAND = 12.0, 0.08
"""Degrees between middles, and the share of the largest ring's extent, for a ring to belong to a country's map."""
REGION_DEGREES, REGION_MARGIN = 60.0, 0.06
"""Places within this many degrees of latitude and of longitude get a map of their own, this share of them wider."""
ROUND_TRIP = 1e-6


REGIONS: Registry[Box] = Registry(
    "region",
    {
        "africa": Box(-20, -37, 53, 38),
        "asia": Box(60, -8, 148, 56),
        "australia": Box(110, -45, 156, -9),
        "caribbean": Box(-92, 7, -58, 28),
        "central-europe": Box(2, 44, 22, 56),
        "east-asia": Box(98, 20, 148, 52),
        "europe": Box(-12, 34, 42, 71),
        "mediterranean": Box(-10, 29, 38, 47),
        "middle-east": Box(30, 11, 66, 43),
        "north-america": Box(-135, 12, -55, 62),
        "oceania": Box(110, -50, 190, 5),
        "south-america": Box(-84, -57, -32, 14),
        "south-asia": Box(64, 4, 98, 37),
        "southeast-asia": Box(92, -12, 142, 24),
    },
)


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
    """A view by names: the world in Equal Earth, a region (`REGIONS` or a country) in the local projection."""
    box = None if region in (None, "world") else find_region(str(region))
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


def find_region(name: str) -> Box:
    """A region of the table, or a country's mainland with a margin around it; case and spaces do not matter."""
    wanted = name.strip().lower().replace(" ", "-").replace("_", "-")
    if wanted in REGIONS:
        return REGIONS[wanted]
    rings = {outline.name.lower().replace(" ", "-"): outline.rings for outline in load_outlines() if outline.rings}
    if wanted not in rings:
        near = did_you_mean(wanted, (*REGIONS, *rings))
        advice = near if "did you mean" in near else f"{did_you_mean(wanted, REGIONS)}, and the countries"
        raise UnknownNameError(f"there is no region named {name!r}{advice}")
    mainland = _mainland(rings[wanted])
    (south, west), (north, east) = mainland.min(axis=0), mainland.max(axis=0)
    pad = COUNTRY_MARGIN * max(north - south, (east - west) / 2)
    aside = min(pad, (360 - (east - west)) / 2)
    return Box(west - aside, max(south - pad, -89.0), east + aside, min(north + pad, 89.0))


def _mainland(rings: tuple[Floats, ...]) -> Floats:
    """The corners of a country's largest ring and of large ones near it: Japan's islands, France without Guiana."""
    extents = np.array([np.prod(np.ptp(ring, axis=0)) for ring in rings])
    middles = np.array([(ring.min(axis=0) + ring.max(axis=0)) / 2 for ring in rings])
    largest = int(np.argmax(extents))
    near = np.abs(middles - middles[largest]).max(axis=1) < NEAR_MAINLAND
    kept = near & (extents >= LARGE_ISLAND * extents[largest])
    return np.concatenate([ring for ring, keep in zip(rings, kept, strict=True) if keep])


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
