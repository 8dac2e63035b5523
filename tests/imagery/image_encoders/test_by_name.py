from pathlib import Path

import pytest
import torch
from torch import Tensor

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.imagery.image_encoders import (
    IMAGE_ENCODERS,
    ImageEncoder,
    RandomConvolution,
    build_image_encoder,
)
from tessearth.imagery.image_encoders.base import Scratch


def some_tiles() -> Tensor:
    return torch.rand(20, 3, 12, 12, generator=torch.Generator().manual_seed(0))


def test_names_are_these() -> None:
    assert list(IMAGE_ENCODERS) == ["rcf", "vit"]


def test_rcf_by_name_is_rcf_by_hand() -> None:
    by_name = build_image_encoder("rcf", tiles=some_tiles(), seed=4, num_filters=5, scales=[[3, 1]], num_patches=100)
    assert isinstance(by_name, ImageEncoder)
    by_hand = RandomConvolution.fit(some_tiles(), by_name.settings, seed=4)  # type: ignore[arg-type]
    assert by_name.describe() == by_hand.describe()


def test_a_saved_rcf_is_built_by_its_path(tmp_path: Path) -> None:
    encoder = build_image_encoder("rcf", tiles=some_tiles(), num_filters=5, num_patches=100)
    encoder.save(tmp_path / "kept.safetensors")
    again = build_image_encoder(tmp_path / "kept.safetensors")
    assert again.describe() == encoder.describe()
    with pytest.raises(ConfigError, match="carries its own settings; leave out num_filters"):
        build_image_encoder(tmp_path / "kept.safetensors", num_filters=6)


def test_what_is_missing_or_misspelt_is_said() -> None:
    with pytest.raises(UnknownNameError, match="did you mean 'vit'"):
        build_image_encoder("vitt")
    with pytest.raises(ConfigError, match="give it tiles="):
        build_image_encoder("rcf")
    with pytest.raises(ConfigError, match="needs weights=PATH"):
        build_image_encoder("vit")
    with pytest.raises(ConfigError, match="num_filter; did you mean 'num_filters'"):
        build_image_encoder("rcf", tiles=some_tiles(), num_filter=3)
    with pytest.raises(ConfigError, match="precision is 'float8'"):
        build_image_encoder("rcf", tiles=some_tiles(), precision="float8")


def test_scratch_is_used_again_only_in_the_same_shape_and_type() -> None:
    scratch, like = Scratch(), torch.zeros(1)
    first = scratch.take("rows", (2, 3), like)
    assert scratch.take("rows", (2, 3), like) is first
    assert scratch.take("rows", (3, 3), like) is not first
    assert scratch.take("rows", (2, 3), like.half()).dtype == torch.float16
    assert scratch.take("rows", (2, 3), like) is first
