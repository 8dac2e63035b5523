"""Random convolutional features: how strongly a tile resembles patches drawn at random from its source.

No network is trained. Small patches are cut at random from the source's own tiles, whitened and kept as filters; a
tile's features are how much each filter, and its negative, is exceeded over the tile on average.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal, Self

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders import rcf_kernel
from tessearth.imagery.image_encoders.base import ImageEncoder, Scratch, plain, tensors_sha256
from tessearth.packages import has_kernels
from tessearth.settings import from_plain
from tessearth.storage import read_sealed_tensors, seal_tensors, take_state, write_bytes

FARTHEST = 32.0
"""Pixels count as at most this many standard deviations from their band's mean: a stray fill value does not drown a
tile, and every response stays within what float16 can hold."""

TILES_AT_ONCE = 64
"""Tiles looked at together while drawing, so that large tiles need little more memory than their own."""


def band_moments(tiles: Tensor) -> tuple[Tensor, Tensor]:
    """Each band's mean and deviation, (C,) each, over all finite pixels of (N, C, H, W); 1 for a constant band."""

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
    return mean.float(), deviation.where(deviation > 1e-6 * mean.abs(), 1.0).float()


def standardise(tiles: Tensor, mean: Tensor, deviation: Tensor) -> Tensor:
    """Pixels in deviations from their band's mean; a missing one stands at the mean, an infinite one at the rim."""
    pixels = (tiles - mean[:, None, None]).div_(deviation[:, None, None])
    return pixels.nan_to_num_(nan=0.0, posinf=FARTHEST, neginf=-FARTHEST).clamp_(-FARTHEST, FARTHEST)


def pooled(pixels: Tensor, pool: int) -> Tensor:
    """Averages over squares of `pool` pixels; what does not fill a square at the right and bottom is left out."""
    return F.avg_pool2d(pixels, pool) if pool > 1 else pixels


def draw_patches(
    tiles: Tensor, moments: tuple[Tensor, Tensor], scale: tuple[int, int], number: int, generator: torch.Generator
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


def whitened_filters(patches: Tensor, num_filters: int, regulariser: float) -> Tensor:
    """The first of centred patches (P, D), whitened and of unit length, as filters of patches that are not whitened.

    The whitening is ZCA, W = V (E + regulariser * mean E)^(-1/2) V^T; a filter f is folded as <f, x W> = <f W^T, x>.
    """
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
    filters: Tensor = F.normalize(lively, dim=1) @ matrix.T
    return filters


USUAL_PIXELS = 24 * 24
"""Of the tile that `tiles_at_once` is given for."""

MORE_BY_KERNEL = 8
"""How many times as many tiles are encoded together where no responses are kept."""

MOST_TILES = 2**15
"""Tiles that are encoded together however small they are: those missing from a chunk are encoded as blanks."""

TENSOR_CORE_COLUMNS = 8
"""Half-precision matrix products run at full speed when rows are a multiple of this many numbers."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RcfSettings:
    """Everything but the source and the seed that decides what the features are."""

    num_filters: int = 384
    """How many filters each scale has; each gives two features, one per sign."""

    scales: tuple[tuple[int, int], ...] = ((3, 1), (3, 2))
    """The scales, each (patch side, pooling): tiles are first averaged over squares of `pooling` pixels."""

    threshold: float = 0.5
    """What a response must exceed to count, in standard deviations of a typical response (b)."""

    whitening: float = 0.01
    """The whitening's regulariser, as a share of the mean variance: directions below it are not blown up."""

    centring: Literal["population", "patch"] = "population"
    """What is taken off a patch: the bands' means over the source, or also the patch's own mean.

    The patch's own mean is its brightness, which tells desert from forest: taking it off costs 3 % of the climate
    classes a linear probe can read."""

    moments: bool = True
    """Whether each band's mean and deviation, over the tile and over its middle third, are features as well."""

    num_patches: int = 100_000
    """How many patches the whitening is estimated from; the first of them become the filters."""

    precision: Literal["auto", "float32", "float16", "bfloat16"] = "auto"
    """Number format of the convolution; sums stay float32. "auto" is float32: on a GPU float16 is up to .006 off."""

    def __post_init__(self) -> None:
        if not self.scales or min(min(scale) for scale in self.scales) < 1:
            raise ConfigError(f"scales are {list(self.scales)}; give at least one (patch, pooling), both at least 1")
        if not 1 <= self.num_filters <= self.num_patches:
            raise ConfigError(
                f"{self.num_filters} filters cannot be drawn from {self.num_patches} patches; "
                "num_filters must be at least 1 and num_patches at least as many"
            )
        if self.threshold < 0 or self.whitening <= 0:
            raise ConfigError(
                f"threshold is {self.threshold} and whitening {self.whitening}; "
                "the first must not be negative, the second must be above 0"
            )


class RandomConvolution(ImageEncoder):
    """Features of a tile: mean over positions of relu(r - b) and of relu(-r - b), with r = <filter, patch>, per scale.

    Pixels are standardised by their band's mean and deviation over the source (missing pixels count as the mean), and
    centring and whitening are linear, so one filter bank per scale holds them and each scale is one convolution.
    Width: 2 * num_filters per scale, and 4 * C moments in front.
    """

    title = "the image encoder rcf"
    tiles_at_once = {"cpu": 8, "cuda": 1024}  # noqa: RUF012

    def __init__(self, settings: RcfSettings, seed: int, tensors: Mapping[str, Tensor]) -> None:
        super().__init__()
        self.settings, self.seed = settings, seed
        for name, tensor in tensors.items():
            self.register_buffer(name, tensor.float().contiguous())
        self.bands = len(self.get_buffer("band_mean"))
        moments = 4 * self.bands if settings.moments else 0
        self.width = moments + 2 * settings.num_filters * len(settings.scales)

    @classmethod
    def fit(cls, tiles: Tensor, settings: RcfSettings | None = None, seed: int = 0) -> Self:
        """Draw the filters from a source's tiles (N, C, H, W); the same tiles and seed give the same filters."""
        settings = settings or RcfSettings()
        if tiles.ndim != 4 or not len(tiles):
            raise DataError(
                f"tiles have shape {tuple(tiles.shape)}, not (number, bands, height, width) of at least one"
            )
        _check_size(settings, tiles)
        moments = band_moments(tiles)
        tensors = dict(zip(("band_mean", "band_deviation"), moments, strict=True))
        generator = torch.Generator().manual_seed(seed)
        for number, scale in enumerate(settings.scales):
            drawn = _centred(draw_patches(tiles, moments, scale, settings.num_patches, generator), settings)
            bank = whitened_filters(drawn, settings.num_filters, settings.whitening)
            # Taking the mean off a filter is the same as taking it off every patch it meets.
            tensors[f"filters_{number}"] = _centred(bank, settings)
        return cls(settings, seed, tensors)

    def check_tiles(self, tiles: Tensor) -> None:
        """Refuse tiles without the bands the filters were drawn from, and such as are too small."""
        super().check_tiles(tiles)
        _check_size(self.settings, tiles)

    def chunk_size(self, tiles: Tensor) -> int:
        """Fewer tiles when they are larger: what must fit is the number of positions."""
        height, width = tiles.shape[-2:]
        usual = super().chunk_size(tiles) * (MORE_BY_KERNEL if self.by_kernel else 1)
        return min(MOST_TILES, max(1, usual * USUAL_PIXELS // (height * width)))

    def features(self, tiles: Tensor, scratch: Scratch) -> Tensor:
        """One chunk of tiles (n, C, H, W) to features (n, F)."""
        pixels = standardise(tiles, self.get_buffer("band_mean"), self.get_buffer("band_deviation"))
        if self.by_kernel:
            return self._features_by_kernel(pixels.contiguous())
        parts, threshold = _moments(pixels) if self.settings.moments else [], self.settings.threshold
        for number, (patch, pool) in enumerate(self.settings.scales):
            filters = self.get_buffer(f"filters_{number}")
            response, mean = convolve(pooled(pixels, pool), patch, filters, self.dtype, scratch)
            # relu(r - b) = max(r, b) - b, and relu(-r - b) = max(r, -b) - r, whose last term is linear and known: two
            # passes over the responses, both in place.
            below = response.clamp_min_(-threshold).mean(dim=1, dtype=torch.float32) - mean
            above = response.clamp_min_(threshold).mean(dim=1, dtype=torch.float32) - threshold
            parts += [above, below]
        return torch.cat(parts, dim=1)

    def _features_by_kernel(self, pixels: Tensor) -> Tensor:
        out = torch.empty(len(pixels), self.width, device=pixels.device)
        moments, both = 4 * self.bands if self.settings.moments else 0, 2 * self.settings.num_filters
        if moments:
            out[:, :moments] = torch.cat(_moments(pixels), dim=1)
        for number, (patch, pool) in enumerate(self.settings.scales):
            bank, columns = self.get_buffer(f"filters_{number}"), out[:, moments + both * number :]
            rcf_kernel.rectified_means(pooled(pixels, pool), patch, bank, self.settings.threshold, columns)
        return out

    @property
    def by_kernel(self) -> bool:
        """Whether responses are made by a kernel, which never writes them, instead of by matrix products."""
        return self.dtype == torch.float32 and has_kernels(self.device)

    @property
    def dtype(self) -> torch.dtype:
        """The number format of the convolution."""
        name = "float32" if self.settings.precision == "auto" else self.settings.precision
        return getattr(torch, name)  # type: ignore[no-any-return]

    def describe(self) -> dict[str, Any]:
        """What made these features, ready for JSON."""
        return {
            "name": "rcf",
            "bands": self.bands,
            "width": self.width,
            "seed": self.seed,
            "settings": plain(self.settings),
            "sha256": tensors_sha256(self.state_dict()),
        }

    def save(self, path: str | Path) -> None:
        """Write filters, settings and seed as one safetensors file."""
        record = json.dumps({"settings": plain(self.settings), "seed": self.seed})
        write_bytes(path, seal_tensors(self.state_dict(), {"rcf": record}))

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read an encoder `save` wrote; anything else is a WeightsError."""
        metadata, tensors = read_sealed_tensors(path)
        if "rcf" not in metadata:
            raise WeightsError(f"{path} holds no random convolutional features; write such a file with save()")
        record = json.loads(metadata["rcf"])
        settings = from_plain(RcfSettings, record["settings"], "settings.")
        bands = len(tensors.get("band_mean", ()))
        wanted = {"band_mean": torch.empty(bands), "band_deviation": torch.empty(bands)}
        for number, (patch, _) in enumerate(settings.scales):
            wanted[f"filters_{number}"] = torch.empty(settings.num_filters, patch * patch * bands, device="meta")
        return cls(settings, int(record["seed"]), take_state(tensors, wanted, str(path)))


def convolve(
    pixels: Tensor, patch: int, filters: Tensor, dtype: torch.dtype, scratch: Scratch
) -> tuple[Tensor, Tensor]:
    """Responses of filters (filters, patch * patch * C) to tiles (n, C, H, W): (n, positions, filters), and their mean.

    The patches are laid out as rows and meet all filters in one matrix product. With three bands that is faster than
    a library convolution, whose kernels expect many channels. The responses lie in `scratch`, the mean is float32.
    """
    pixels = pixels.to(dtype, memory_format=torch.channels_last)
    windows = pixels.unfold(2, patch, 1).unfold(3, patch, 1).permute(0, 2, 3, 4, 5, 1)
    count, height, width, _, _, channels = windows.shape
    wanted = patch * patch * channels
    filled = -wanted % TENSOR_CORE_COLUMNS if dtype != torch.float32 else 0
    rows = scratch.take("rows", (count * height * width, wanted + filled), pixels)
    rows[:, wanted:] = 0
    rows[:, :wanted].view(windows.shape).copy_(windows)
    bank = F.pad(filters, (0, filled)).to(dtype)
    response = scratch.take("response", (len(rows), len(bank)), pixels)
    torch.mm(rows, bank.T, out=response)
    mean = rows.view(count, height * width, -1).mean(dim=1, dtype=torch.float32) @ bank.float().T
    return response.view(count, height * width, -1), mean


def _moments(pixels: Tensor) -> list[Tensor]:
    """Mean and deviation of every band over the tile and over its middle third: four times (n, C)."""
    height, width = pixels.shape[-2:]
    middle = pixels[..., height // 3 : height - height // 3, width // 3 : width - width // 3]
    moments = []
    for part in (pixels, middle):
        mean = part.mean((2, 3), keepdim=True)
        moments += [mean.flatten(1), (part - mean).square_().mean((2, 3)).sqrt_()]
    return moments


def _centred(rows: Tensor, settings: RcfSettings) -> Tensor:
    return rows - rows.mean(dim=1, keepdim=True) if settings.centring == "patch" else rows


def _check_size(settings: RcfSettings, tiles: Tensor) -> None:
    height, width = tiles.shape[-2:]
    for patch, pool in settings.scales:
        if min(height, width) // pool < patch:
            raise DataError(
                f"tiles of {height} x {width} pixels are too small for patches of {patch} after pooling by {pool}; "
                f"tiles must be at least {patch * pool} pixels, or the scale must go"
            )
