"""Maps of places: embeddings as colours, predictions and the truth."""

import io
from collections.abc import Callable, Sequence
from os import PathLike
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from tessearth.errors import ConfigError, DataError
from tessearth.labels.outlines import load_outlines
from tessearth.packages import require
from tessearth.plotting.colours import MANY_COLOURS, NUMBERS, OTHER_COLOUR, fit_components
from tessearth.plotting.ground import draw_ground, fade_sea, land_at, show_pixels
from tessearth.plotting.views import Floats, Pixels, View
from tessearth.storage.files import atomic_write, write_bytes

Array = npt.NDArray[Any]

FIT_PLACES, EMBED_AT_ONCE = 10_000, 16_384
FEW = 100
"""With fewer pixels on land than this, colours are fitted to all pixels."""


def draw_embeddings(
    axis: Any, embed: Callable[[Floats], Array], view: View, *, columns: int = 500, sea: bool = True
) -> Any:
    """Every place in the colour of its embedding: independent components, fitted on the land that is shown.

    `embed` turns places (N, 2) into embeddings (N, D). Without `sea` only land is embedded, with it the sea is faded.
    """
    pixels = view.pixels(columns)
    land = land_at(pixels, view)
    wanted = pixels.shown if sea else land
    if not wanted.any():
        raise DataError("the map shows no land to embed")
    fit_on = pixels.latlon[land if land.sum() > FEW else wanted]
    fitted = fit_components(embed(fit_on[:: -(-len(fit_on) // FIT_PLACES)]))
    colours = np.ones((*pixels.shown.shape, 3))
    colours[wanted] = _in_parts(lambda latlon: fitted.colours(embed(latlon)), pixels.latlon[wanted])
    show_pixels(axis, pixels, fade_sea(colours, land))
    return draw_ground(axis, view, over=True)


def draw_numbers(axis: Any, latlon: Floats, values: Array, view: View, *, limits: tuple[float, float]) -> Any:
    """Numbers at places as coloured dots; the dots are returned for a colour bar."""
    draw_ground(axis, view, plain=True)
    low, high = limits
    return _dots(axis, latlon, view, c=values, cmap=NUMBERS, vmin=low, vmax=high if high > low else low + 1.0)


def draw_classes(axis: Any, latlon: Floats, codes: Array, view: View, *, colours: dict[int, str]) -> Any:
    """Classes at places as coloured dots; what has no colour of its own is gray."""
    draw_ground(axis, view, plain=True)
    return _dots(axis, latlon, view, c=[colours.get(code, OTHER_COLOUR) for code in codes.tolist()])


def class_colours(codes: Array) -> dict[int, str]:
    """A colour for each of the most frequent classes."""
    found, counts = np.unique(codes, return_counts=True)
    frequent = found[np.argsort(-counts, kind="stable")][: len(MANY_COLOURS)]
    return dict(zip(frequent.tolist(), MANY_COLOURS, strict=False))


def add_class_legend(figure: Any, colours: dict[int, str], names: Sequence[str], others: int) -> None:
    """The classes' names under all panels of a figure."""
    lines = require("matplotlib.lines", extra="plot", what="a figure")
    named = {(names[code] if names else str(code)): colour for code, colour in colours.items()}
    if others:
        named[f"{others} others"] = OTHER_COLOUR
    dots = [lines.Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in named.items()]
    figure.legend(
        handles=dots, loc="outside lower center", ncols=5, frameon=False, handletextpad=0.1, columnspacing=1.0
    )


def pixel_values(pixels: Pixels, values: Array) -> Floats:
    """Values of the places shown (M,) put where their pixels are, (rows, columns); NaN elsewhere."""
    painted = np.full(pixels.shown.shape, np.nan)
    painted[pixels.shown] = values
    return painted


def _in_parts(colour: Callable[[Floats], Floats], latlon: Floats) -> Floats:
    """Colours of many places, some at a time: their embeddings together would fill the memory."""
    starts = range(0, len(latlon), EMBED_AT_ONCE)
    return np.concatenate([colour(latlon[start : start + EMBED_AT_ONCE]) for start in starts])


def _dots(axis: Any, latlon: Floats, view: View, **style: Any) -> Any:
    """Dots that just touch where places lie evenly over land."""
    points = view.project(latlon)
    size = float(np.clip(12_000 / max(1, len(points)), 0.4, 16))
    return axis.scatter(*points.T, s=size, linewidths=0, zorder=2, **style)


SUFFIXES = (".png", ".csv")


def world_grid(step_degrees: float) -> Floats:
    """The centres of equal cells of latitude and longitude, (rows, columns, 2), the north-west corner first."""
    rows, columns = round(180 / step_degrees), round(360 / step_degrees)
    if not 0 < step_degrees <= 30 or abs(rows * step_degrees - 180) > 1e-9:
        raise ConfigError(f"step is {step_degrees} degrees; it must divide 180 and be at most 30")
    lat = 90 - (np.arange(rows) + 0.5) * step_degrees
    lon = -180 + (np.arange(columns) + 0.5) * step_degrees
    return np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1)


def write_world_map(path: str | PathLike[str], values: npt.NDArray[np.floating], *, name: str, title: str = "") -> None:
    """Write values (rows, columns) of a `world_grid`: as a picture (.png), or a table lat, lon, `name` (.csv)."""
    check_map_path(path)
    if str(path).lower().endswith(".png"):
        write_bytes(path, _draw(values, name, title))
        return
    latlon = world_grid(180 / len(values)).reshape(-1, 2)
    table = pa.table({"lat": latlon[:, 0], "lon": latlon[:, 1], name: values.reshape(-1)})
    with atomic_write(path) as file:
        pa.csv.write_csv(table, file)


def check_map_path(path: str | PathLike[str]) -> None:
    """Refuse a name whose suffix says neither picture nor table, before anything is computed."""
    if not str(path).lower().endswith(SUFFIXES):
        raise ConfigError(f"{path} names neither a picture nor a table: end it in {' or '.join(SUFFIXES)}")


def _draw(values: npt.NDArray[np.floating], name: str, title: str) -> bytes:
    """A PNG on the plain latitude-longitude map, coasts and borders over it; no display is needed."""
    figures = require("matplotlib.figure", extra="plot", what="a map")
    collections = require("matplotlib.collections", extra="plot", what="a map")
    figure = figures.Figure(figsize=(11, 5.4), layout="constrained")
    axes = figure.add_subplot()
    image = axes.imshow(values, extent=(-180, 180, -90, 90), cmap="viridis", vmin=0, interpolation="nearest")
    rings = [ring[:, ::-1] for outline in load_outlines() for ring in outline.rings]
    axes.add_collection(collections.LineCollection(rings, colors="white", linewidths=0.35, alpha=0.8))
    axes.set(title=title, xlabel="longitude", ylabel="latitude", xlim=(-180, 180), ylim=(-90, 90))
    figure.colorbar(image, ax=axes, label=name, shrink=0.85)
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=130)
    return content.getvalue()
