"""Maps of places: embeddings as colours, predictions, values of cells, and semantic tokens: where and how much used."""

from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv
import torch

from tessearth.encoder import measure_token_use
from tessearth.errors import ConfigError, DataError
from tessearth.packages import require
from tessearth.plotting.colours import (
    ATTENTION,
    CLASS_COLOURS,
    DIFFERENCES,
    END,
    MANY_COLOURS,
    NUMBERS,
    OTHER_COLOUR,
    START,
    fit_components,
)
from tessearth.plotting.views import (
    PAGE_CM,
    Floats,
    Pixels,
    View,
    add_colour_bar,
    check_figure_path,
    draw_ground,
    fade_sea,
    figure_bytes,
    land_at,
    new_figure,
    paper_style,
    show_pixels,
)
from tessearth.sphere import latlon_to_xyz, world_grid
from tessearth.storage import atomic_write, write_bytes

Array = npt.NDArray[Any]

FIT_PLACES, EMBED_AT_ONCE = 10_000, 16_384
FEW = 100
"""With fewer pixels on land than this, colours are fitted to all pixels."""
RIGHT, WRONG = END, START
CELL_PIXELS, CELL_DPI = 1200, 180
ALIKE = 0.5
"""Maps that correlate more than this show the same thing twice."""
TOP_APART = np.deg2rad(12.0)
"""Top places of a token lie at least this angle from each other, or one spot would fill them all."""


def draw_embeddings(axis: Any, embed: Callable[[Floats], Array], view: View, *, columns: int = 500) -> Any:
    """Every place in the colour of its embedding: independent components, fitted on the land that is shown.

    `embed` turns places (N, 2) into embeddings (N, D). The sea is faded.
    """
    pixels = view.pixels(columns)
    land = land_at(pixels, view)
    if not pixels.shown.any():
        raise DataError("the map shows no places to embed")
    fit_on = pixels.latlon[land if land.sum() > FEW else pixels.shown]
    fitted = fit_components(embed(fit_on[:: -(-len(fit_on) // FIT_PLACES)]))
    colours = np.ones((*pixels.shown.shape, 3))
    latlon = pixels.latlon[pixels.shown]
    parts = (latlon[start : start + EMBED_AT_ONCE] for start in range(0, len(latlon), EMBED_AT_ONCE))
    colours[pixels.shown] = np.concatenate([fitted.colours(embed(part)) for part in parts])
    show_pixels(axis, pixels, fade_sea(colours, land))
    return draw_ground(axis, view, over=True)


def draw_numbers(
    axis: Any, latlon: Floats, values: Array, view: View, *, limits: tuple[float, float], colours: str = NUMBERS
) -> Any:
    """Numbers at places as coloured dots; the dots are returned for a colour bar."""
    draw_ground(axis, view, plain=True)
    low, high = limits
    return _dots(axis, latlon, view, c=values, cmap=colours, vmin=low, vmax=high if high > low else low + 1.0)


def draw_classes(axis: Any, latlon: Floats, codes: Array, view: View, *, colours: Mapping[int, str]) -> Any:
    """Classes at places as coloured dots; what has no colour of its own is gray."""
    draw_ground(axis, view, plain=True)
    return _dots(axis, latlon, view, c=[colours.get(code, OTHER_COLOUR) for code in codes.tolist()])


def class_colours(codes: Array) -> dict[int, str]:
    """A colour for each of the most frequent classes."""
    found, counts = np.unique(codes, return_counts=True)
    frequent = found[np.argsort(-counts, kind="stable")][: len(MANY_COLOURS)]
    return dict(zip(frequent.tolist(), MANY_COLOURS, strict=False))


class Predicted(NamedTuple):
    """What encoders predict at places, and the truth."""

    latlon: Floats
    """(N, 2) degrees."""
    truth: Array
    """(N,) numbers, or codes of classes."""
    said: Mapping[str, Array]
    """Predictions (N,) by the titles of their maps, in the order to draw."""
    unit: str = ""
    classes: Sequence[str] | None = None
    """Names of the codes, empty where they have none; None for numbers."""


def draw_predictions(
    told: Predicted, view: View, *, width_cm: float = PAGE_CM, columns: int = 2, difference: bool = False
) -> Any:
    """A figure of maps: the truth and each encoder's predictions in the same colours.

    With `difference` the last map shows prediction minus truth of the last encoder, or where its class is right.
    """
    panels = [("truth", told.truth), *told.said.items()]
    count = len(panels) + difference
    columns = min(columns, count)
    rows = -(-count // columns)
    below = 2.2 if difference else 1.4  # centimetres for bars and legends; a caption goes above the difference
    figure, grid = new_figure(width_cm, rows * (width_cm / columns * view.aspect() + 0.5) + below, rows, columns)
    axes = np.ravel(grid).tolist()
    for axis, title in zip(axes[:count], [*(title for title, _ in panels), "difference"], strict=False):
        axis.set_title(title)
    for axis in axes[count:]:
        axis.set_axis_off()
    maps = [(axis, values) for axis, (_, values) in zip(axes, panels, strict=False)]
    if told.classes is None:
        over, shrink = (axes[: len(panels)], 0.7 / len(panels)) if difference else (axes, 0.5)
        limits = tuple(np.percentile(told.truth, (2, 98)).tolist())
        drawn = [draw_numbers(axis, told.latlon, values, view, limits=limits) for axis, values in maps]
        add_colour_bar(over, drawn[-1], told.unit, extend="both", shrink=shrink)
    else:
        _paint_classes(told, view, maps)
    if difference:
        paint = _paint_errors if told.classes is None else _paint_hits
        paint(told, view, axes[len(panels)], panels[-1][1])
    return figure


def _paint_classes(told: Predicted, view: View, maps: Sequence[tuple[Any, Array]]) -> None:
    colours = class_colours(told.truth)
    for axis, codes in maps:
        draw_classes(axis, told.latlon, codes, view, colours=colours)
    others = len(np.unique(told.truth)) - len(colours)
    names = {(told.classes[code] if told.classes else str(code)): colour for code, colour in colours.items()}
    names |= {f"{others} others": OTHER_COLOUR} if others else {}
    maps[0][0].figure.legend(handles=_key(names), loc="outside lower center", ncols=5, **KEY_STYLE)


def _paint_errors(told: Predicted, view: View, axis: Any, values: Array) -> None:
    error = values - told.truth
    far = float(np.percentile(np.abs(error), 95)) or 1.0
    drawn = draw_numbers(axis, told.latlon, error, view, limits=(-far, far), colours=DIFFERENCES)
    add_colour_bar(axis, drawn, "prediction minus truth", extend="both")


def _paint_hits(told: Predicted, view: View, axis: Any, codes: Array) -> None:
    right = (codes == told.truth).astype(np.int64)
    draw_classes(axis, told.latlon, right, view, colours={1: RIGHT, 0: WRONG})
    names = {f"right ({right.mean():.1%})": RIGHT, f"wrong ({1 - right.mean():.1%})": WRONG}
    axis.legend(handles=_key(names), loc="upper center", bbox_to_anchor=(0.5, 0.0), ncols=2, **KEY_STYLE)


KEY_STYLE: dict[str, Any] = {"frameon": False, "handletextpad": 0.1, "columnspacing": 1.0}


def _key(names: Mapping[str, str]) -> list[Any]:
    """Dots of a legend, by name and colour."""
    lines = require("matplotlib.lines", extra="plot", what="a figure")
    return [lines.Line2D([], [], marker="o", linestyle="", color=colour, label=name) for name, colour in names.items()]


def _pixel_values(pixels: Pixels, values: Array) -> Floats:
    """Values of the places shown (M,) put where their pixels are, (rows, columns); NaN elsewhere."""
    painted = np.full(pixels.shown.shape, np.nan)
    painted[pixels.shown] = values
    return painted


def _dots(axis: Any, latlon: Floats, view: View, **style: Any) -> Any:
    """Dots that just touch where places lie evenly over land."""
    points = view.project(latlon)
    size = float(np.clip(12_000 / max(1, len(points)), 0.4, 16))
    return axis.scatter(*points.T, s=size, linewidths=0, zorder=2, **style)


MAP_SUFFIXES = (".png", ".csv")


def write_world_map(path: str | PathLike[str], values: npt.NDArray[np.floating], *, name: str, title: str = "") -> None:
    """Write values (rows, columns) of a `world_grid`: as a picture (.png), or a table lat, lon, `name` (.csv)."""
    check_figure_path(path, MAP_SUFFIXES)
    if str(path).lower().endswith(".png"):
        write_bytes(path, _draw_cells(values, name, title))
        return
    latlon = world_grid(180 / len(values)).reshape(-1, 2)
    table = pa.table({"lat": latlon[:, 0], "lon": latlon[:, 1], name: values.reshape(-1)})
    with atomic_write(path) as file:
        pa.csv.write_csv(table, file)


def _draw_cells(values: npt.NDArray[np.floating], name: str, title: str) -> bytes:
    """A PNG of the world, every pixel in the colour of the cell it lies in."""
    view = View()
    pixels = view.pixels(CELL_PIXELS)
    lat, lon = pixels.latlon[pixels.shown].T
    step = 180 / len(values)
    row = np.minimum(((90 - lat) / step).astype(np.int64), values.shape[0] - 1)
    column = np.minimum(((lon + 180) / step).astype(np.int64), values.shape[1] - 1)
    with paper_style():
        figure, axis = new_figure(PAGE_CM, PAGE_CM * view.aspect() + 1.6)
        drawn = show_pixels(axis, pixels, _pixel_values(pixels, values[row, column]), cmap=NUMBERS, vmin=0)
        draw_ground(axis, view, over=True)
        axis.set_title(title)
        add_colour_bar(axis, drawn, name)
        return figure_bytes(figure, dpi=CELL_DPI)


def draw_token_use(axis: Any, attention: Array) -> Any:
    """Mean attention of every token in descending order, with the line of uniform use and what it amounts to."""
    use = measure_token_use(torch.from_numpy(np.asarray(attention, dtype=np.float64)))
    tokens = len(use.mean)
    ranked = 100 * np.sort(use.mean.numpy())[::-1]
    colours = [END if value > 100 / tokens else CLASS_COLOURS[4] for value in ranked]
    axis.bar(np.arange(1, tokens + 1), ranked, width=0.85, color=colours)
    axis.axhline(100 / tokens, color=START, linestyle="--", linewidth=0.9, label=f"uniform: {100 / tokens:.2g} %")
    axis.set(xlabel="token, by rank", ylabel="mean attention (%)", xlim=(0.3, tokens + 0.7))
    said = f"{use.above_uniform} of {tokens} tokens above uniform\neffective tokens per place: {use.effective:.1f}\n"
    said += f"entropy: {use.entropy_share:.2f} of ln {tokens}"
    axis.legend(title=said, title_fontsize=6.5, loc="upper right", frameon=False, alignment="left")
    return axis


def draw_token_map(
    axis: Any, pixels: Pixels, attention: Array, view: View, *, plain: bool = False, highest: float | None = None
) -> Any:
    """The attention that one token gets over a map, (M,) for the places `pixels` shows, in percent."""
    painted = 100 * _pixel_values(pixels, attention)
    top = 100 * highest if highest is not None else float(np.nanpercentile(painted, 99.5))
    drawn = show_pixels(axis, pixels, painted, cmap=ATTENTION, vmin=0.0, vmax=max(top, 1e-3))
    draw_ground(axis, view, plain=plain, over=True)
    return drawn


def most_used(attention: Array, count: int) -> list[int]:
    """The tokens with the most attention over places (N, T), most first."""
    return [int(token) for token in np.argsort(-attention.mean(axis=0), kind="stable")[:count]]


def most_telling(attention: Array, count: int) -> list[int]:
    """Tokens that tell places apart: the largest spread over places first, without maps similar to one already chosen.

    When too few differ enough, the next by spread fill up.
    """
    order = [int(token) for token in np.argsort(-attention.std(axis=0), kind="stable")]
    alike = np.nan_to_num(np.corrcoef(attention, rowvar=False).reshape(len(order), len(order)))
    chosen: list[int] = []
    for token in order:
        if len(chosen) < count and all(alike[token, other] < ALIKE for other in chosen):
            chosen.append(token)
    return (chosen + [token for token in order if token not in chosen])[:count]


def top_places(latlon: Floats, attention: Array, count: int, apart: float = TOP_APART) -> list[int]:
    """Rows of the places (N, 2) with the most attention (N,), at most a number, none within an angle of another."""
    xyz = latlon_to_xyz(torch.from_numpy(latlon)).numpy()
    chosen: list[int] = []
    free = np.ones(len(xyz), dtype=bool)
    for row in np.argsort(-attention, kind="stable").tolist():
        if free[row] and len(chosen) < count:
            chosen.append(row)
            free &= xyz @ xyz[row] < np.cos(apart)
    return chosen


def check_token(token: int, tokens: int) -> int:
    """The number of a token, when there is such a one."""
    if not 0 <= token < tokens:
        raise ConfigError(f"token is {token}; the model's tokens are numbered 0 to {tokens - 1}")
    return token
