"""Filters for random convolutional features: patches cut from a source's tiles, whitened."""

from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import DataError

FARTHEST = 32.0
"""Pixels count as at most this many standard deviations from their band's mean: a stray fill value cannot drown a
tile, and every response stays within what float16 can hold."""

TILES_AT_ONCE = 64
"""Tiles looked at together while drawing, so that large tiles need little memory beside their own."""


class BandMoments(NamedTuple):
    """Each band's mean and standard deviation over a source, (C,) each."""

    mean: Tensor
    deviation: Tensor


class Whitening(NamedTuple):
    """What `whiten` finds: filters among whitened patches, and the matrix that whitens."""

    filters: Tensor
    """Unit vectors among whitened patches, (filters, D)."""
    matrix: Tensor
    """The whitening W, (D, D): patch @ W has about unit variance in every direction."""

    def folded(self) -> Tensor:
        """Filters for unwhitened patches: <f, x W> = <f W^T, x>."""
        return self.filters @ self.matrix.T


def band_moments(tiles: Tensor) -> BandMoments:
    """Mean and deviation of each band over all finite pixels of (N, C, H, W); a constant band gets deviation 1."""

    def total(power: int, centre: Tensor) -> Tensor:
        """The sum over finite pixels of (pixel - centre) ** power, (C,)."""
        sums = torch.zeros(tiles.shape[1], dtype=torch.float64)
        for some in torch.split(tiles, TILES_AT_ONCE):
            pixels = some.detach().cpu().double()
            distance = (pixels - centre[:, None, None]) ** power
            sums += distance.where(pixels.isfinite(), 0.0).sum((0, 2, 3))
        return sums

    nowhere = torch.zeros(tiles.shape[1], dtype=torch.float64)
    number = total(0, nowhere).clamp_min(1)
    mean = total(1, nowhere) / number
    deviation = (total(2, mean) / number).sqrt()
    return BandMoments(mean.float(), deviation.where(deviation > 1e-6 * mean.abs(), 1.0).float())


def standardise(tiles: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Pixels in deviations from their band's mean; a missing one stands at the mean, an infinite one at the rim."""
    pixels = (tiles - mean[:, None, None]).div_(deviation[:, None, None])
    return pixels.nan_to_num_(nan=0.0, posinf=FARTHEST, neginf=-FARTHEST).clamp_(-FARTHEST, FARTHEST)


def pooled(pixels: Tensor, pool: int) -> Tensor:
    """Averages over squares of `pool` pixels; what does not fill a square at the right and bottom is left out."""
    return F.avg_pool2d(pixels, pool) if pool > 1 else pixels


def draw_patches(
    tiles: Tensor, moments: BandMoments, scale: tuple[int, int], number: int, generator: torch.Generator
) -> Tensor:
    """Squares cut at random from standardised, pooled tiles (N, C, H, W): (number, patch * patch * C) in float64."""
    patch, pool = scale
    count, bands, height, width = tiles.shape
    tile = torch.randint(count, (number,), generator=generator)
    top = torch.randint(height // pool - patch + 1, (number, 1, 1), generator=generator)
    left = torch.randint(width // pool - patch + 1, (number, 1, 1), generator=generator)
    step = torch.arange(patch)
    patches = torch.empty(number, patch * patch * bands, dtype=torch.float64)
    for start in range(0, count, TILES_AT_ONCE):
        here = ((tile >= start) & (tile < start + TILES_AT_ONCE)).nonzero()[:, 0]
        some = tiles[start : start + TILES_AT_ONCE].detach().cpu().float()
        pixels = pooled(standardise(some, *moments), pool)
        # Indexed dimensions come first, so the bands end up last: (here, patch, patch, C).
        cut = pixels[(tile[here] - start)[:, None, None], :, top[here] + step[:, None], left[here] + step]
        patches[here] = cut.flatten(1).double()
    return patches


def whiten(patches: Tensor, num_filters: int, regulariser: float) -> Whitening:
    """ZCA of centred patches (P, D), W = V (E + regulariser * mean E)^(-1/2) V^T; the first patches become filters."""
    variance, directions = torch.linalg.eigh(patches.T @ patches / len(patches))
    variance = variance.clamp_min(0)
    if not variance.sum() > 0:
        raise DataError("the tiles do not vary at all, so no filters can be drawn; give tiles of other places")
    gain = (variance + regulariser * variance.mean()).rsqrt()
    matrix = (directions * gain) @ directions.T
    whitened = patches @ matrix
    lively = whitened[whitened.norm(dim=1) > 1e-6][:num_filters]
    if len(lively) < num_filters:
        raise DataError(
            f"only {len(lively)} of {len(patches)} patches differ from the mean, fewer than the {num_filters} "
            "filters wanted; give more varied tiles or a larger num_patches"
        )
    return Whitening(filters=F.normalize(lively, dim=1), matrix=matrix)
