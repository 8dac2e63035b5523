"""Augmented views: the same place cropped, turned, flipped and blurred, each view fixed by seed, place and view number.

Nothing here depends on which other tiles share a batch: every tile has draws of its own, and pixels of one tile never
meet those of another. A feature store that was interrupted and resumed at another batch boundary sees the same views.
"""

import math
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import DataError
from tessearth.imagery.recipe import ViewSettings
from tessearth.sphere import mix, mix_seed, to_unit

DRAWS = 8
"""Random numbers set aside for each view of each place, so that a new kind of draw leaves the others as they were."""


class ViewParameters(NamedTuple):
    """What happens to each of N tiles, in this order: crop, turn, flip, blur; (N,) each."""

    top: Tensor
    """Where the crop begins, as a share of the room there is."""
    left: Tensor
    turns: Tensor
    """Quarter turns counter-clockwise."""
    mirrored: Tensor
    """Whether left and right are exchanged."""
    upside_down: Tensor
    blur: Tensor
    """Standard deviation of the blur in pixels, 0 for none."""


def augment(
    tiles: Tensor,
    *,
    indices: Sequence[int] | npt.NDArray[np.int64],
    view: int,
    seed: int,
    size: int | None = None,
    settings: ViewSettings | None = None,
) -> Tensor:
    """One view of each tile (N, C, H, W), of `size` pixels a side from anywhere inside it; None keeps all of it.

    `indices` are the places' numbers, one for each tile: with seed and view they fix what happens to it.
    """
    if len(tiles) != len(indices):
        raise DataError(f"{len(indices)} indices were given for {len(tiles)} tiles; give one for each")
    settings = settings or ViewSettings()
    drawn = ViewParameters(*(part.to(tiles.device) for part in view_parameters(seed, indices, view, settings)))
    if size is not None:
        tiles = crop(tiles, size, drawn.top, drawn.left)
    if settings.rotation == "quarter":
        tiles = quarter_turn(tiles, drawn.turns)
    if settings.flip:
        tiles = flip(tiles, drawn.mirrored, drawn.upside_down)
    # The reach comes from the settings, not from the widest blur of this batch: a tile must not feel its neighbours.
    reach = math.ceil(3 * settings.blur_pixels[1])
    return blur(tiles, drawn.blur, reach) if settings.blur_share > 0 else tiles


def view_parameters(
    seed: int, indices: Sequence[int] | npt.NDArray[np.int64], view: int, settings: ViewSettings | None = None
) -> ViewParameters:
    """What a view does to each place, drawn from (seed, place, view) and nothing else."""
    chosen = settings or ViewSettings()
    # Numbers in [0, 1), (DRAWS, N): a hash of seed, view, place and draw, one after another.
    places = np.fromiter(indices, dtype=np.int64).astype(np.uint64)
    state = mix(mix_seed(seed) ^ np.uint64(view % 2**64))
    hashed = mix(mix(state ^ places) ^ np.arange(1, DRAWS + 1, dtype=np.uint64)[:, None])
    _, top, left, turns, mirrored, upside_down, blurred, blur = torch.from_numpy(to_unit(hashed))
    least, most = chosen.blur_pixels
    none = torch.zeros_like(top)
    return ViewParameters(
        top=top,
        left=left,
        turns=(4 * turns).long() if chosen.rotation == "quarter" else none.long(),
        mirrored=(mirrored < 0.5) & chosen.flip,
        upside_down=(upside_down < 0.5) & chosen.flip,
        blur=torch.where(blurred < chosen.blur_share, least + (most - least) * blur, none),
    )


def centre_crop(tiles: Tensor, size: int) -> Tensor:
    """The middle of tiles, (N, C, H, W) to (N, C, size, size); of an odd margin the smaller part is above and left."""
    height, width = _room(tiles, size)
    top, left = height // 2, width // 2
    return tiles[..., top : top + size, left : left + size]


def crop(tiles: Tensor, size: int, top: Tensor, left: Tensor) -> Tensor:
    """A square of each tile, (N, C, H, W) to (N, C, size, size), placed by shares in [0, 1) of the room there is."""
    height, width = _room(tiles, size)
    rows, columns = (top * (height + 1)).long(), (left * (width + 1)).long()
    windows = tiles.unfold(2, size, 1).unfold(3, size, 1)  # all of them, as a view: (N, C, rows, columns, size, size)
    return windows[torch.arange(len(tiles), device=tiles.device), :, rows, columns].contiguous()


def flip(tiles: Tensor, mirrored: Tensor, upside_down: Tensor) -> Tensor:
    """Exchange left and right where `mirrored` says, top and bottom where `upside_down` says, each (N,)."""
    tiles = torch.where(mirrored[:, None, None, None], tiles.flip(3), tiles)
    return torch.where(upside_down[:, None, None, None], tiles.flip(2), tiles)


def quarter_turn(tiles: Tensor, turns: Tensor) -> Tensor:
    """Turn square tiles counter-clockwise by quarters, (N,)."""
    height, width = tiles.shape[-2:]
    if height != width:
        raise DataError(f"tiles of {height} x {width} pixels cannot be turned; only square ones can")
    turned = tiles.clone()
    for quarters in (1, 2, 3):
        chosen = turns % 4 == quarters
        turned[chosen] = tiles[chosen].rot90(quarters, (2, 3))
    return turned


def blur(tiles: Tensor, deviation: Tensor, reach: int) -> Tensor:
    """Gaussian blur by pixels (N,), 0 leaving a tile as it is, weighing pixels up to `reach` away along each side.

    Beyond the edge the tile goes on mirrored, edge pixel included, so that every pixel gives away exactly what it had:
    the mean of every band stays.
    """
    reach = min(reach, *tiles.shape[-2:])
    steps = torch.arange(-reach, reach + 1, device=tiles.device)
    weights = torch.exp(-0.5 * (steps / deviation.double().clamp_min(1e-3)[:, None]) ** 2)
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(tiles)  # (N, taps)
    blurred = _along(_along(tiles, weights, reach, dim=2), weights, reach, dim=3)
    return torch.where((deviation > 0)[:, None, None, None], blurred, tiles)


def _along(tiles: Tensor, weights: Tensor, reach: int, dim: int) -> Tensor:
    """Weighted sum of shifted copies along one side, weights (N, taps)."""
    size = tiles.shape[dim]
    around = torch.arange(-reach, size + reach, device=tiles.device)
    mirrored = torch.where(around < 0, -1 - around, around)
    mirrored = torch.where(mirrored >= size, 2 * size - 1 - mirrored, mirrored)
    longer = tiles.index_select(dim, mirrored)
    total = torch.zeros_like(tiles)
    for tap in range(2 * reach + 1):
        total += weights[:, tap, None, None, None] * longer.narrow(dim, tap, size)
    return total


def _room(tiles: Tensor, size: int) -> tuple[int, int]:
    height, width = tiles.shape[-2:]
    if not 1 <= size <= min(height, width):
        raise DataError(f"tiles of {height} x {width} pixels cannot be cropped to {size}; choose from 1 to their side")
    return height - size, width - size
