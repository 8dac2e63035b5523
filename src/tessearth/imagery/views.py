"""Augmented views: the same place cropped, turned, flipped and blurred, each view fixed by seed, place and view number.

Nothing here depends on which other tiles share a batch: every tile has draws of its own, and pixels of one tile never
meet those of another. A feature store that was interrupted and resumed at another batch boundary sees the same views.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import ConfigError, DataError
from tessearth.sphere import mix, mix_seed, to_unit

DRAWS = 8
"""Random numbers set aside for each view of each place, so that a new kind of draw leaves the others as they were."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ViewSettings:
    """Which changes a view may undergo."""

    flip: bool = True
    """Mirror left to right and top to bottom, each for half of the views."""

    rotation: Literal["none", "quarter", "any"] = "quarter"
    """Turn not at all, by a multiple of 90 degrees (exact), or by any angle (bilinear, corners mirrored in)."""

    blur_share: float = 0.5
    """The share of views that are blurred."""

    blur_pixels: tuple[float, float] = (0.1, 1.0)
    """From how little to how much, as the Gaussian's standard deviation in pixels."""

    def __post_init__(self) -> None:
        if not 0 <= self.blur_share <= 1:
            raise ConfigError(f"blur_share is {self.blur_share}; it must lie in [0, 1]")
        if not 0 < self.blur_pixels[0] <= self.blur_pixels[1]:
            raise ConfigError(f"blur_pixels is {self.blur_pixels}; give the least, above 0, and the most")


class ViewParameters(NamedTuple):
    """What happens to each of N tiles, in this order: rotate, crop, turn, flip, blur."""

    angle: Tensor
    """Turn about the centre in radians, counter-clockwise, (N,)."""
    top: Tensor
    """Where the crop begins, as a share of the room there is, (N,)."""
    left: Tensor
    """The same from the left, (N,)."""
    turns: Tensor
    """Quarter turns counter-clockwise, (N,)."""
    mirrored: Tensor
    """Whether left and right are exchanged, (N,)."""
    upside_down: Tensor
    """Whether top and bottom are exchanged, (N,)."""
    blur: Tensor
    """Standard deviation of the blur in pixels, 0 for none, (N,)."""


def augment(
    tiles: Tensor,
    *,
    indices: Iterable[int],
    view: int,
    seed: int,
    size: int | None = None,
    settings: ViewSettings | None = None,
) -> Tensor:
    """One view of each tile (N, C, H, W), of `size` pixels a side from anywhere inside it; None keeps all of it.

    `indices` are the places' numbers, one for each tile: with seed and view they fix what happens to it.
    """
    chosen = settings or ViewSettings()
    return apply_view(tiles, view_parameters(seed, indices, view, chosen), size, chosen)


def view_parameters(
    seed: int, indices: Iterable[int], view: int, settings: ViewSettings | None = None
) -> ViewParameters:
    """What a view does to each place, drawn from (seed, place, view) and nothing else."""
    chosen = settings or ViewSettings()
    angle, top, left, turns, mirrored, upside_down, blurred, blur = torch.from_numpy(_uniform(seed, indices, view))
    least, most = chosen.blur_pixels
    none = torch.zeros_like(angle)
    return ViewParameters(
        angle=2 * math.pi * angle if chosen.rotation == "any" else none,
        top=top,
        left=left,
        turns=(4 * turns).long() if chosen.rotation == "quarter" else none.long(),
        mirrored=(mirrored < 0.5) & chosen.flip,
        upside_down=(upside_down < 0.5) & chosen.flip,
        blur=torch.where(blurred < chosen.blur_share, least + (most - least) * blur, none),
    )


def apply_view(tiles: Tensor, parameters: ViewParameters, size: int | None, settings: ViewSettings) -> Tensor:
    """Tiles (N, C, H, W) as the parameters say, cropped to `size` pixels a side unless that is None."""
    if len(tiles) != len(parameters.top):
        raise DataError(f"{len(parameters.top)} indices were given for {len(tiles)} tiles; give one for each")
    if settings.rotation == "any":
        tiles = rotate(tiles, parameters.angle)
    if size is not None:
        tiles = crop(tiles, size, parameters.top, parameters.left)
    if settings.rotation == "quarter":
        tiles = quarter_turn(tiles, parameters.turns)
    if settings.flip:
        tiles = flip(tiles, parameters.mirrored, parameters.upside_down)
    # The reach comes from the settings, not from the widest blur of this batch: a tile must not feel its neighbours.
    reach = math.ceil(3 * settings.blur_pixels[1])
    return blur(tiles, parameters.blur, reach) if settings.blur_share > 0 else tiles


def centre_crop(tiles: Tensor, size: int) -> Tensor:
    """The middle of tiles, (N, C, H, W) to (N, C, size, size); of an odd margin the smaller part is above and left."""
    height, width = _room(tiles, size)
    top, left = height // 2, width // 2
    return tiles[..., top : top + size, left : left + size]


def crop(tiles: Tensor, size: int, top: Tensor, left: Tensor) -> Tensor:
    """A square of each tile, (N, C, H, W) to (N, C, size, size), placed by shares in [0, 1) of the room there is."""
    height, width = _room(tiles, size)
    steps = torch.arange(size)
    rows = (top * (height + 1)).long()[:, None, None] + steps[:, None]
    columns = (left * (width + 1)).long()[:, None, None] + steps
    return _pick(tiles, rows, columns)


def flip(tiles: Tensor, mirrored: Tensor, upside_down: Tensor) -> Tensor:
    """Exchange left and right where `mirrored` says, top and bottom where `upside_down` says, each (N,)."""
    height, width = tiles.shape[-2:]
    rows, columns = torch.arange(height)[:, None], torch.arange(width)
    rows = torch.where(upside_down[:, None, None], height - 1 - rows, rows)
    columns = torch.where(mirrored[:, None, None], width - 1 - columns, columns)
    return _pick(tiles, rows, columns)


def quarter_turn(tiles: Tensor, turns: Tensor) -> Tensor:
    """Turn square tiles counter-clockwise by quarters, (N,)."""
    size = _square(tiles)
    row, column = torch.arange(size)[:, None].expand(size, size), torch.arange(size).expand(size, size)
    last = size - 1
    rows = torch.stack((row, column, last - row, last - column))[turns % 4]
    columns = torch.stack((column, last - row, last - column, row))[turns % 4]
    return _pick(tiles, rows, columns)


def rotate(tiles: Tensor, angle: Tensor) -> Tensor:
    """Turn square tiles counter-clockwise about their centre by radians (N,); what lies outside is mirrored in."""
    size = _square(tiles)
    axis = ((2 * torch.arange(size, device=tiles.device) + 1) / size - 1).to(tiles)
    cosine, sine = (part.to(tiles)[:, None, None] for part in (angle.cos(), angle.sin()))
    across, down = axis, axis[:, None]
    grid = torch.stack((cosine * across - sine * down, sine * across + cosine * down), dim=-1)
    return F.grid_sample(tiles, grid, mode="bilinear", padding_mode="reflection", align_corners=False)


def blur(tiles: Tensor, deviation: Tensor, reach: int) -> Tensor:
    """Gaussian blur by pixels (N,), 0 leaving a tile as it is, weighing pixels up to `reach` away along each side.

    Beyond the edge the tile goes on mirrored, edge pixel included, so that every pixel gives away exactly what it had:
    the mean of every band stays.
    """
    reach = min(reach, *tiles.shape[-2:])
    steps = torch.arange(-reach, reach + 1)
    weights = torch.exp(-0.5 * (steps / deviation.double().clamp_min(1e-3)[:, None]) ** 2)
    weights = (weights / weights.sum(dim=1, keepdim=True)).to(tiles)  # (N, taps)
    blurred = _along(_along(tiles, weights, reach, dim=2), weights, reach, dim=3)
    return torch.where((deviation > 0).to(tiles.device)[:, None, None, None], blurred, tiles)


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


def _pick(tiles: Tensor, rows: Tensor, columns: Tensor) -> Tensor:
    """Pixels of each tile by row and column, broadcast to (N, h, w): (N, C, H, W) to (N, C, h, w)."""
    width = tiles.shape[-1]
    flat = (rows * width + columns).to(tiles.device)  # (N, h, w)
    number, height, across = flat.shape
    index = flat.view(number, 1, -1).expand(-1, tiles.shape[1], -1)
    return tiles.flatten(2).gather(2, index).view(number, -1, height, across)


def _room(tiles: Tensor, size: int) -> tuple[int, int]:
    height, width = tiles.shape[-2:]
    if not 1 <= size <= min(height, width):
        raise DataError(f"tiles of {height} x {width} pixels cannot be cropped to {size}; choose from 1 to their side")
    return height - size, width - size


def _square(tiles: Tensor) -> int:
    height, width = tiles.shape[-2:]
    if height != width:
        raise DataError(f"tiles of {height} x {width} pixels cannot be turned; only square ones can")
    return int(height)


def _uniform(seed: int, indices: Iterable[int], view: int) -> npt.NDArray[np.float64]:
    """Numbers in [0, 1), (DRAWS, N): a hash of seed, view, place and draw, one after another."""
    places = np.fromiter(indices, dtype=np.int64).astype(np.uint64)
    state = mix(mix_seed(seed) ^ np.uint64(view % 2**64))
    return to_unit(mix(mix(state ^ places) ^ np.arange(1, DRAWS + 1, dtype=np.uint64)[:, None]))
