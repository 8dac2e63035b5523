"""A sheet of a store's tiles with their places, to see at a glance what its features have seen."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError
from tessearth.imagery.reading import build_source, read_tiles
from tessearth.imagery.store import FeatureStore
from tessearth.packages import require
from tessearth.storage import atomic_write

TILE_SIDE = 96
CAPTION = 14
GAP = 6
COLUMNS = 8


def draw_contact_sheet(store: FeatureStore, path: str | Path, *, count: int = 48) -> None:
    """Draw tiles of places chosen at random, always the same, to a PNG: one block of rows per source and view.

    Colours are the bands called red, green and blue (B04, B03, B02 of Sentinel-2), else the first three, stretched
    between the 1st and 99th percentile of the sheet.
    """
    if count < 1:
        raise ConfigError(f"a sheet of {count} tiles shows nothing; count must be at least 1")
    pillow = require("PIL.Image", extra="data", what="drawing a contact sheet")
    draw = require("PIL.ImageDraw", extra="data", what="drawing a contact sheet")
    chosen = np.sort(np.random.default_rng(0).permutation(len(store.latlon))[:count])
    sources = [build_source(recipe) for recipe in store.recipe.sources]
    per_place = [read_tiles(sources, store.latlon, store.recipe, range(row, row + 1)) for row in chosen]
    blocks = [
        (
            f"{recipe.kind}, view {view}",
            to_picture(np.concatenate([tiles[i][view] for tiles in per_place]), source.bands),
        )
        for i, (recipe, source) in enumerate(zip(store.recipe.sources, sources, strict=True))
        for view in range(store.recipe.views)
    ]
    sheet = _paint(blocks, store.latlon[chosen], pillow, draw)
    with atomic_write(path) as file:
        sheet.save(file, format="PNG")


def _paint(
    blocks: list[tuple[str, npt.NDArray[np.uint8]]], places: npt.NDArray[np.float64], pillow: Any, draw: Any
) -> Any:
    """Blocks of tiles (N, 3, h, w) one under another, each with its title, each tile with its place."""
    rows = -(-len(places) // COLUMNS)
    cell, block_height = TILE_SIDE + GAP, CAPTION + rows * (TILE_SIDE + CAPTION + GAP)
    sheet = pillow.new("RGB", (COLUMNS * cell + GAP, len(blocks) * (block_height + GAP) + GAP), "white")
    pen = draw.Draw(sheet)
    for number, (title, tiles) in enumerate(blocks):
        top = GAP + number * (block_height + GAP)
        pen.text((GAP, top), title, fill="black")
        for i, (tile, (lat, lon)) in enumerate(zip(tiles, places, strict=True)):
            left, upper = GAP + i % COLUMNS * cell, top + CAPTION + i // COLUMNS * (TILE_SIDE + CAPTION + GAP)
            image = pillow.fromarray(np.ascontiguousarray(tile.transpose(1, 2, 0)))
            sheet.paste(image.resize((TILE_SIDE, TILE_SIDE), pillow.Resampling.NEAREST), (left, upper))
            pen.text((left, upper + TILE_SIDE + 1), f"{lat:.2f} {lon:.2f}", fill="black")
    return sheet


def to_picture(tiles: npt.NDArray[np.float32], bands: tuple[str, ...]) -> npt.NDArray[np.uint8]:
    """Tiles (N, C, h, w) as bytes of three bands, (N, 3, h, w), gray when there are fewer, stretched together."""
    for wanted in (("red", "green", "blue"), ("B04", "B03", "B02")):
        if all(band in bands for band in wanted):
            shown = tiles[:, [bands.index(band) for band in wanted]]
            break
    else:
        shown = tiles[:, :3] if len(bands) >= 3 else np.repeat(tiles[:, :1], 3, axis=1)
    low, high = np.nanpercentile(shown, (1, 99))
    scaled = (np.nan_to_num(shown, nan=low) - low) / max(high - low, 1e-6)
    return np.asarray(np.clip(scaled, 0, 1) * 255, dtype=np.uint8)
