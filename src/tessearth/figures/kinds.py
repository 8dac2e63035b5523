"""Every kind of figure by name: what it shows, and how it is made from a model, a run or a table."""

from collections.abc import Callable, Sequence
from functools import partial
from os import PathLike
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth import plotting
from tessearth.encoder import TRAJECTORIES, read_trajectory
from tessearth.errors import ConfigError, DataError
from tessearth.evaluation import split_names
from tessearth.figures.request import Request, find_run, predict, read_metrics, read_scores, score_top_k
from tessearth.plotting import Floats, Pixels, Score, View
from tessearth.settings import Registry
from tessearth.sphere import build_cells, fibonacci_lattice
from tessearth.storage import write_bytes

Array = npt.NDArray[Any]

ANIMATION = ".gif"
QUERY_PLACES = 20_000
SHEET_TOKENS, SHEET_COLUMNS = 48, 6
BEST_TOKENS, TOP_TILES = 4, 3


class Kind(NamedTuple):
    """One kind of figure."""

    summary: str
    draw: Callable[[Request], Any]
    """Makes the figure."""
    settings: tuple[str, ...] = ()
    """The names of `Settings` that it follows."""


def draw(kind: str, request: Request) -> Any:
    """The figure of a kind, by name."""
    return KINDS[kind].draw(request)


def check_figure(kind: str, path: str | PathLike[str], dpi: int = plotting.DPI) -> None:
    """Refuse an unknown kind, a file that cannot be written and unusable dots per inch, before any work."""
    KINDS[kind]
    if not 20 <= dpi <= 2400:
        raise ConfigError(f"dpi is {dpi}; it must lie between 20 and 2400")
    animated = (ANIMATION,) if kind == "migration" else ()
    out = plotting.check_figure_path(path, (*plotting.SUFFIXES, *animated))
    if not out.parent.is_dir():
        raise ConfigError(f"there is no folder {out.parent} to write {out.name} into")


def write_figure(kind: str, request: Request, path: str | PathLike[str], dpi: int = plotting.DPI) -> None:
    """Draw a figure in the paper's style and write it; migration to a .gif is an animation."""
    check_figure(kind, path, dpi)
    with plotting.paper_style():
        if Path(path).suffix.lower() != ANIMATION:
            plotting.save_figure(draw(kind, request), path, dpi)
            return
        trajectory = read_trajectory(find_run(request.model, request.run) / TRAJECTORIES)
        style: dict[str, Any] = {} if request.width_cm is None else {"width_cm": request.width_cm}
        style |= {"share": request.share, "seed": request.seed, "frames": request.frames}
        write_bytes(path, plotting.animate_migration(trajectory, request.view, **style))


def _on_map(paint: Callable[[Any, Request], str], request: Request, below_cm: float = 0.35) -> Any:
    """A figure of one map: `paint` draws on its axis and returns its title."""
    figure, axis = request.map_figure(below_cm)
    axis.set_title(paint(axis, request))
    return figure


def _sites(axis: Any, request: Request) -> str:
    xyz = request.positions()
    plotting.draw_sites(axis, xyz, request.view)
    return f"{len(xyz):,} sites"


def _sharpness(axis: Any, request: Request) -> str:
    tau = request.voronoi().sharpness().detach().cpu().numpy()
    plotting.draw_sharpness(axis, request.positions(), tau, request.view, share=request.share, seed=request.seed)
    return f"sharpness of {request.share:.0%} of {len(tau):,} sites"


def _cells(axis: Any, request: Request) -> str:
    cells = build_cells(request.positions())
    plotting.draw_cells(axis, cells, request.view)
    return f"Voronoi cells of {len(cells.sites):,} sites"


def _site_embeddings(axis: Any, request: Request) -> str:
    embeddings = request.voronoi().embeddings.detach().cpu().numpy()
    columns = request.columns or 1200
    plotting.draw_site_embeddings(axis, request.positions(), embeddings, request.view, columns=columns)
    return "site embeddings by nearest cell (three independent components)"


def _embeddings(axis: Any, request: Request) -> str:
    plotting.draw_embeddings(axis, request.embedder.embed, request.view, columns=request.columns or 500)
    return "location embeddings (three independent components)"


def _migration(axis: Any, request: Request) -> str:
    trajectory = read_trajectory(find_run(request.model, request.run) / TRAJECTORIES)
    plotting.draw_migration(axis, trajectory.positions, request.view, share=request.share, seed=request.seed)
    return f"site migration over {trajectory.steps[-1] - trajectory.steps[0]:,} steps"


def _token(axis: Any, request: Request) -> str:
    pixels = request.pixels(400)
    attention = request.attention(pixels.latlon[pixels.shown])
    on_land = plotting.land_at(pixels, request.view)[pixels.shown]
    telling = plotting.most_telling(attention[on_land] if on_land.any() else attention, 1)[0]
    token = plotting.check_token(telling if request.token is None else request.token, attention.shape[1])
    drawn = plotting.draw_token_map(axis, pixels, attention[:, token], request.view)
    plotting.add_colour_bar(axis, drawn, "attention (%)", extend="max")
    return f"where token {token} is attended to"


def _tokens_sheet(request: Request) -> Any:
    pixels = request.pixels(160)
    attention = request.attention(pixels.latlon[pixels.shown])
    chosen = plotting.most_used(attention, SHEET_TOKENS)
    rows = -(-len(chosen) // SHEET_COLUMNS)
    width = request.width_cm or plotting.PAGE_CM
    shape = pixels.shown.shape
    height = rows * (width / SHEET_COLUMNS * shape[0] / shape[1] + 0.42) + 1.2
    figure, axes = plotting.new_figure(width, height, rows, SHEET_COLUMNS)
    for axis, token in zip(np.ravel(axes), chosen, strict=False):
        peak = max(float(np.percentile(attention[:, token], 99.5)), 1e-9)  # but for half a percent of places
        share = np.minimum(attention[:, token] / peak, 1.0)
        drawn = plotting.draw_token_map(axis, pixels, share, request.view, plain=True, highest=1.0)
        axis.set_title(f"token {token} (to {100 * peak:.2g} %)", fontsize=6, pad=1.5)
    for axis in np.ravel(axes)[len(chosen) :]:
        axis.set_axis_off()
    plotting.add_colour_bar(list(np.ravel(axes)), drawn, "attention (% of the token's own highest)", shrink=0.4)
    return figure


def _tokens_best(request: Request) -> Any:
    pixels = request.pixels(300)
    attention = request.attention(pixels.latlon[pixels.shown])
    on_land = plotting.land_at(pixels, request.view)
    land, beneath = pixels.latlon[on_land], attention[on_land[pixels.shown]]
    chosen = plotting.most_telling(beneath, min(BEST_TOKENS, attention.shape[1]))
    tops = [land[plotting.top_places(land, beneath[:, token], TOP_TILES)] for token in chosen]
    if min(map(len, tops)) < TOP_TILES:
        raise DataError(f"fewer than {TOP_TILES} places on the map's land lie apart from each other; show more of it")
    tiles = request.tiles(np.concatenate(tops))
    pictures = tiles.pictures.reshape(len(chosen), TOP_TILES, *tiles.pictures.shape[1:])
    width = request.width_cm or plotting.PAGE_CM
    figure, _ = plotting.new_figure(width, 0.62 * width)
    figure.clear()
    for part, token, latlon, shown in zip(figure.subfigures(2, 2).flat, chosen, tops, pictures, strict=False):
        axes = _tiles_over_map(part, request.view, pixels, attention[:, token], latlon, shown)
        axes["tile1"].set_title(f"token {token}", pad=2)
    scale = f"tiles {tiles.km:,.0f} km wide, " if tiles.km else ""
    figure.suptitle(f"{scale}at the places on land that attend most to each token (circles)", fontsize=7)
    return figure


def _token_use(request: Request) -> Any:
    _, axis = plotting.new_figure(request.width_cm or plotting.COLUMN_CM)
    attention = request.attention(plotting.to_latlon(fibonacci_lattice(QUERY_PLACES).numpy()))
    return plotting.draw_token_use(axis, attention).figure


def _training(request: Request) -> Any:
    figure, axes = plotting.new_figure(request.width_cm or plotting.PAGE_CM, 6.0, 1, 2)
    rows = read_metrics(find_run(request.model, request.run))
    plotting.draw_losses(axes[0], rows)
    plotting.draw_retrieval(axes[1], rows)
    return figure


def _performance(request: Request) -> Any:
    scores = _scores(request)
    measures = [name for name in ("accuracy", "r2") if not np.isnan([getattr(s, name) for s in scores]).all()]
    figure, axes = plotting.new_figure(request.width_cm or plotting.PAGE_CM, 5.6, 1, len(measures))
    for axis, measure in zip(np.ravel(axes), measures, strict=True):
        plotting.draw_performance(axis, scores, measure, x=request.x)  # type: ignore[arg-type]
    return figure


def _scores(request: Request) -> Sequence[Score]:
    """The scores of the table, or those of the model with fewer sites kept."""
    if request.table is not None:
        return read_scores(Path(request.table), request.x)
    if request.x != "top_k":
        raise ConfigError("performance is drawn from a table: give --table FILE, and what was varied with --set x=NAME")
    sites = len(request.positions())
    kept = [*(4**i for i in range(16) if 4**i < sites), sites]  # 1, 4, 16 ... and all
    return score_top_k(request.model, kept, device=request.device)


def _predictions(request: Request) -> Any:
    models = [request.model, *(split_names(request.models) if request.models else [])]
    told = request.predicted or predict(models, request.task, device=request.device)
    return plotting.draw_predictions(told, request.view, width_cm=request.width_cm or plotting.PAGE_CM)


def _tiles_over_map(part: Any, view: View, pixels: Pixels, attention: Array, latlon: Floats, tiles: Array) -> Any:
    """The axes of one token: its top tiles in a row, its map below with the tiles' places on it."""
    axes = part.subplot_mosaic([[f"tile{i}" for i in range(len(tiles))], ["map"] * len(tiles)], height_ratios=(1, 1.45))
    for i, (tile, (lat, lon)) in enumerate(zip(tiles, latlon, strict=True)):
        axis = axes[f"tile{i}"]
        axis.imshow(tile, interpolation="bicubic")
        axis.spines[:].set(visible=True, linewidth=0.4)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(
            f"{abs(lat):.0f}°{'N' if lat >= 0 else 'S'} {abs(lon):.0f}°{'E' if lon >= 0 else 'W'}", labelpad=1.5
        )
    drawn = plotting.draw_token_map(axes["map"], pixels, attention, view, plain=True)
    points = view.project(latlon)
    axes["map"].scatter(*points.T, s=9, facecolors="none", edgecolors="#56B4E9", linewidths=0.9, zorder=6)
    plotting.add_colour_bar(axes["map"], drawn, "attention (%)", location="right", shrink=0.8, aspect=16, extend="max")
    return axes


KINDS: Registry[Kind] = Registry(
    "figure",
    {
        "sites": Kind("where the sites lie", partial(_on_map, _sites), ("tessellation",)),
        "site-embeddings": Kind(
            "every place in the colour of its nearest site's embedding",
            partial(_on_map, _site_embeddings),
            ("tessellation", "columns"),
        ),
        "embeddings": Kind("every place in the colour of its embedding", partial(_on_map, _embeddings), ("columns",)),
        "cells": Kind("the Voronoi cells", partial(_on_map, _cells), ("tessellation",)),
        "sharpness": Kind(
            "how sharp the sites are", partial(_on_map, _sharpness, below_cm=1.3), ("tessellation", "share", "seed")
        ),
        "migration": Kind(
            "how sites moved in training (--run); as .gif an animation",
            partial(_on_map, _migration, below_cm=1.9),
            ("share", "seed", "frames"),
        ),
        "token": Kind("the attention to one token", partial(_on_map, _token, below_cm=1.3), ("token", "columns")),
        "tokens-best": Kind(
            "the four tokens that tell places apart best, with the tiles that attend most to them",
            _tokens_best,
            ("columns", "store"),
        ),
        "tokens": Kind("the maps of the 48 tokens used most", _tokens_sheet, ("columns",)),
        "token-use": Kind("mean attention of every token, effective tokens and entropy", _token_use),
        "predictions": Kind("the predictions of probes and the truth", _predictions, ("task", "models")),
        "performance": Kind("scores against what was varied (--table)", _performance, ("x",)),
        "training": Kind("losses and retrieval along a run (--run)", _training),
    },
)
