"""Every kind of figure by name: what it shows, and how it is made from a model, a run or a table."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.figures.request import Request, read_tiles, tile_km
from tessearth.figures.scores import find_run, read_metrics, read_trajectory
from tessearth.plotting import curves, places, sites, tokens
from tessearth.plotting.ground import land_at
from tessearth.plotting.views import COLUMN_CM, PAGE_CM, Floats, Pixels, View, add_colour_bar, new_figure
from tessearth.registry import Registry
from tessearth.sphere.geometry import fibonacci_lattice
from tessearth.sphere.voronoi_cells import build_cells

Array = npt.NDArray[Any]

QUERY_PLACES = 20_000
SHEET_TOKENS, SHEET_COLUMNS = 48, 6
BEST_TOKENS, TOP_TILES = 4, 3


class Kind(NamedTuple):
    """One kind of figure."""

    summary: str
    draw: Callable[[Request], Any]
    """Makes the figure."""


def _sites(request: Request) -> Any:
    figure, axis = request.map_figure()
    xyz = request.positions()
    sites.draw_sites(axis, xyz, request.view)
    axis.set_title(f"{len(xyz):,} sites")
    return figure


def _sharpness(request: Request) -> Any:
    figure, axis = request.map_figure(1.3)
    tau = request.voronoi().sharpness().detach().cpu().numpy()
    sites.draw_sharpness(axis, request.positions(), tau, request.view, share=request.share, seed=request.seed)
    axis.set_title(f"sharpness of {request.share:.0%} of {len(tau):,} sites")
    return figure


def _cells(request: Request) -> Any:
    figure, axis = request.map_figure()
    cells = build_cells(request.positions())
    sites.draw_cells(axis, cells, request.view)
    axis.set_title(f"Voronoi cells of {len(cells.sites):,} sites")
    return figure


def _site_embeddings(request: Request) -> Any:
    figure, axis = request.map_figure()
    embeddings = request.voronoi().embeddings.detach().cpu().numpy()
    columns = request.columns or 1200
    sites.draw_site_embeddings(axis, request.positions(), embeddings, request.view, columns=columns)
    axis.set_title("site embeddings by nearest cell (three independent components)")
    return figure


def _embeddings(request: Request) -> Any:
    figure, axis = request.map_figure()
    places.draw_embeddings(axis, request.embedder.embed, request.view, columns=request.columns or 500)
    axis.set_title("location embeddings (three independent components)")
    return figure


def _migration(request: Request) -> Any:
    figure, axis = request.map_figure(1.9)
    trajectory = read_trajectory(find_run(request.model, request.run))
    sites.draw_migration(axis, trajectory.positions, request.view, share=request.share, seed=request.seed)
    axis.set_title(f"site migration over {trajectory.steps[-1] - trajectory.steps[0]:,} steps")
    return figure


def _token(request: Request) -> Any:
    pixels = request.pixels(400)
    attention = request.attention(pixels.latlon[pixels.shown])
    on_land = land_at(pixels, request.view)[pixels.shown]
    telling = tokens.most_telling(attention[on_land] if on_land.any() else attention, 1)[0]
    token = telling if request.token is None else request.token
    tokens.check_token(token, attention.shape[1])
    figure, axis = request.map_figure(1.3)
    drawn = tokens.draw_token_map(axis, pixels, attention[:, token], request.view)
    add_colour_bar(axis, drawn, "attention (%)", extend="max")
    axis.set_title(f"where token {token} is attended to")
    return figure


def _tokens_sheet(request: Request) -> Any:
    pixels = request.pixels(160)
    attention = request.attention(pixels.latlon[pixels.shown])
    chosen = tokens.most_used(attention, SHEET_TOKENS)
    rows = -(-len(chosen) // SHEET_COLUMNS)
    width = request.width_cm or PAGE_CM
    shape = pixels.shown.shape
    height = rows * (width / SHEET_COLUMNS * shape[0] / shape[1] + 0.42) + 1.2
    figure, axes = new_figure(width, height, rows, SHEET_COLUMNS)
    for axis, token in zip(np.ravel(axes), chosen, strict=False):
        drawn = tokens.draw_token_map(
            axis, pixels, _relative(attention[:, token]), request.view, plain=True, highest=1.0
        )
        axis.set_title(f"token {token} (to {100 * _peak(attention[:, token]):.2g} %)", fontsize=6, pad=1.5)
    for axis in np.ravel(axes)[len(chosen) :]:
        axis.set_axis_off()
    add_colour_bar(list(np.ravel(axes)), drawn, "attention (% of the token's own highest)", shrink=0.4)
    return figure


def _tokens_best(request: Request) -> Any:
    pixels = request.pixels(300)
    attention = request.attention(pixels.latlon[pixels.shown])
    on_land = land_at(pixels, request.view)
    land, beneath = pixels.latlon[on_land], attention[on_land[pixels.shown]]
    chosen = tokens.most_telling(beneath, min(BEST_TOKENS, attention.shape[1]))
    tops = [tokens.top_places(land, beneath[:, token], TOP_TILES) for token in chosen]
    store = request.tile_store()
    pictures = read_tiles(np.concatenate(tops), store)
    pictures = pictures.reshape(len(chosen), TOP_TILES, *pictures.shape[1:])
    width = request.width_cm or PAGE_CM
    figure, _ = new_figure(width, 0.62 * width)
    figure.clear()
    for part, token, latlon, tiles in zip(figure.subfigures(2, 2).flat, chosen, tops, pictures, strict=False):
        _tiles_over_map(part, request.view, pixels, attention[:, token], latlon, tiles, token)
    wide = tile_km(store)
    scale = f"tiles {wide:,.0f} km wide, " if wide else ""
    figure.suptitle(f"{scale}at the places on land that attend most to each token (circles)", fontsize=7)
    return figure


def _token_use(request: Request) -> Any:
    _, axis = new_figure(request.width_cm or COLUMN_CM)
    attention = request.attention(sites.to_latlon(fibonacci_lattice(QUERY_PLACES).numpy()))
    return tokens.draw_token_use(axis, attention).figure


def _training(request: Request) -> Any:
    figure, axes = new_figure(request.width_cm or PAGE_CM, 6.0, 1, 2)
    rows = read_metrics(find_run(request.model, request.run))
    curves.draw_losses(axes[0], rows)
    curves.draw_retrieval(axes[1], rows)
    return figure


def _performance(request: Request) -> Any:
    if not request.scores:
        raise ConfigError("performance is drawn from a table: name it with --table FILE and what was varied with --x")
    measures = [name for name in ("accuracy", "r2") if not np.isnan([getattr(s, name) for s in request.scores]).all()]
    figure, axes = new_figure(request.width_cm or PAGE_CM, 5.6, 1, len(measures))
    for axis, measure in zip(np.ravel(axes), measures, strict=True):
        curves.draw_performance(axis, request.scores, measure, x=request.varied)  # type: ignore[arg-type]
    return figure


def _predictions(request: Request) -> Any:
    told = request.predicted
    if told is None:
        raise ConfigError("prediction maps need predictions: Request.predicted, which `tessearth plot` works out")
    panels = {"truth": told.truth, **{f"{name} ({told.scores[name]})": said for name, said in told.said.items()}}
    columns = min(2, len(panels))
    rows = -(-len(panels) // columns)
    left, right, bottom, top = request.view.limits()
    width = request.width_cm or PAGE_CM
    figure, axes = new_figure(
        width, rows * (width / columns * (top - bottom) / (right - left) + 0.5) + 1.4, rows, columns
    )
    colours = places.class_colours(told.truth) if not told.numbers else {}
    limits = tuple(np.percentile(told.truth, (2, 98))) if told.numbers else (0.0, 1.0)
    for axis, (title, values) in zip(np.ravel(axes), panels.items(), strict=False):
        if told.numbers:
            drawn = places.draw_numbers(axis, told.latlon, values, request.view, limits=limits)
        else:
            places.draw_classes(axis, told.latlon, values, request.view, colours=colours)
        axis.set_title(title)
    for axis in np.ravel(axes)[len(panels) :]:
        axis.set_axis_off()
    if told.numbers:
        add_colour_bar(list(np.ravel(axes)), drawn, told.unit, extend="both", shrink=0.5)
    else:
        places.add_class_legend(figure, colours, told.classes, len(np.unique(told.truth)) - len(colours))
    return figure


def _tiles_over_map(
    part: Any, view: View, pixels: Pixels, attention: Array, latlon: Floats, tiles: Array, token: int
) -> None:
    """One token: its top tiles in a row, its map below with the tiles' places on it."""
    axes = part.subplot_mosaic([[f"tile{i}" for i in range(len(tiles))], ["map"] * len(tiles)], height_ratios=(1, 1.45))
    for i, (tile, (lat, lon)) in enumerate(zip(tiles, latlon, strict=True)):
        axis = axes[f"tile{i}"]
        axis.imshow(tile, interpolation="bicubic")
        axis.spines[:].set(visible=True, linewidth=0.4)
        axis.set(xticks=[], yticks=[])
        axis.set_xlabel(
            f"{abs(lat):.0f}°{'N' if lat >= 0 else 'S'} {abs(lon):.0f}°{'E' if lon >= 0 else 'W'}", labelpad=1.5
        )
    axes["tile1" if len(tiles) > 1 else "tile0"].set_title(f"token {token}", pad=2)
    drawn = tokens.draw_token_map(axes["map"], pixels, attention, view, plain=True)
    points = view.project(latlon)
    axes["map"].scatter(*points.T, s=9, facecolors="none", edgecolors="#56B4E9", linewidths=0.9, zorder=6)
    add_colour_bar(axes["map"], drawn, "attention (%)", location="right", shrink=0.8, aspect=16, extend="max")


def _relative(attention: Array) -> Array:
    return np.minimum(attention / _peak(attention), 1.0)


def _peak(attention: Array) -> float:
    """A token's highest attention, but for the last half percent of places."""
    return max(float(np.percentile(attention, 99.5)), 1e-9)


KINDS: Registry[Kind] = Registry(
    "figure",
    {
        "sites": Kind("where the sites lie", _sites),
        "site-embeddings": Kind("every place in the colour of its nearest site's embedding", _site_embeddings),
        "embeddings": Kind("every place in the colour of its embedding", _embeddings),
        "cells": Kind("the Voronoi cells", _cells),
        "sharpness": Kind("how sharp the sites are", _sharpness),
        "migration": Kind("how sites moved in training (--run); as .gif a moving picture", _migration),
        "token": Kind("where one token is attended to (--token)", _token),
        "tokens-best": Kind("the four tokens that tell most, with the tiles that attend most to them", _tokens_best),
        "tokens": Kind("the maps of the 48 tokens used most", _tokens_sheet),
        "token-use": Kind("mean attention of every token, effective tokens and entropy", _token_use),
        "predictions": Kind("a probe's predictions beside the truth (--task, --models)", _predictions),
        "performance": Kind("scores against what was varied (--table, --x)", _performance),
        "training": Kind("losses and retrieval along a run (--run)", _training),
    },
)


def draw(kind: str, request: Request) -> Any:
    """The figure of a kind, by name."""
    return KINDS[kind].draw(request)
