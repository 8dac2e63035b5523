import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers
from safetensors.torch import load, save_file
from torch import Tensor

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders import build_image_encoder
from tessearth.imagery.image_encoders.vision_models import FolderSettings, load_model_folder

TINY: dict[str, Any] = {
    "hidden_size": 24,
    "num_hidden_layers": 2,
    "num_attention_heads": 3,
    "intermediate_size": 40,
    "image_size": 16,
    "patch_size": 8,
}


def vit_folder(folder: Path, **changes: Any) -> tuple[Path, Any]:
    torch.manual_seed(0)
    model = transformers.ViTModel(transformers.ViTConfig(**{**TINY, **changes})).eval()
    model.save_pretrained(folder)
    return folder, model


def some_tiles(bands: int = 3, size: int = 16) -> Tensor:
    return torch.rand(3, bands, size, size, generator=torch.Generator().manual_seed(0))


@pytest.mark.parametrize("pooling", ["auto", "cls", "mean", "pooler"])
def test_features_are_the_models_own(pooling: str, tmp_path: Path) -> None:
    folder, model = vit_folder(tmp_path / "vit", num_channels=5)
    encoder = build_image_encoder(folder, pooling=pooling)
    tiles = some_tiles(5)
    with torch.no_grad():
        output = model(pixel_values=tiles)
    hidden = output.last_hidden_state
    wanted = {"mean": hidden[:, 1:].mean(1), "pooler": output.pooler_output}.get(pooling, hidden[:, 0])
    assert encoder.width == 24
    torch.testing.assert_close(encoder.encode(tiles), wanted, atol=1e-5, rtol=0)


def test_preprocessor_says_how_pixels_are_normalised_and_settings_say_it_louder(tmp_path: Path) -> None:
    folder, model = vit_folder(tmp_path / "vit")
    said = {"image_mean": [0.4, 0.5, 0.6], "image_std": [0.2, 0.2, 0.25]}
    (folder / "preprocessor_config.json").write_text(json.dumps(said))
    mean, deviation = (torch.tensor(values)[:, None, None] for values in said.values())
    with torch.no_grad():
        wanted = model(pixel_values=(some_tiles() - mean) / deviation).last_hidden_state[:, 0]
        raw = model(pixel_values=some_tiles()).last_hidden_state[:, 0]
    torch.testing.assert_close(load_model_folder(folder).encode(some_tiles()), wanted, atol=1e-5, rtol=0)
    plain = load_model_folder(folder, FolderSettings(mean=(0.0,), deviation=(1.0,)))
    torch.testing.assert_close(plain.encode(some_tiles()), raw, atol=1e-5, rtol=0)
    assert plain.describe()["mean"] == [0.0, 0.0, 0.0]


def test_convolutional_networks_give_the_mean_of_their_feature_map(tmp_path: Path) -> None:
    torch.manual_seed(0)
    config = transformers.ResNetConfig(embedding_size=8, hidden_sizes=[8, 12], depths=[1, 1], num_channels=4)
    model = transformers.ResNetModel(config).eval()
    model.save_pretrained(tmp_path / "resnet")
    encoder = load_model_folder(tmp_path / "resnet", FolderSettings(resolution=32))
    with torch.no_grad():
        wanted = model(pixel_values=some_tiles(4, 32)).last_hidden_state.mean((2, 3))
    assert encoder.width == 12
    torch.testing.assert_close(encoder.encode(some_tiles(4, 32)), wanted, atol=1e-5, rtol=0)
    with pytest.raises(ConfigError, match="set pooling to mean"):
        load_model_folder(tmp_path / "resnet", FolderSettings(resolution=32, pooling="cls"))


def test_masked_autoencoders_see_the_whole_picture(tmp_path: Path) -> None:
    torch.manual_seed(0)
    transformers.ViTMAEModel(transformers.ViTMAEConfig(**TINY)).save_pretrained(tmp_path / "mae")
    encoder = load_model_folder(tmp_path / "mae")
    torch.testing.assert_close(encoder.encode(some_tiles()), encoder.encode(some_tiles()), atol=1e-5, rtol=0)


def test_of_a_model_of_text_and_images_the_half_that_sees_is_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    text = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 20,
    }
    both = transformers.CLIPConfig(text_config=text, vision_config=TINY, projection_dim=6)
    model = transformers.CLIPModel(both).eval()
    model.save_pretrained(tmp_path / "clip")
    encoder = load_model_folder(tmp_path / "clip")
    with torch.no_grad():
        wanted = model.vision_model(pixel_values=some_tiles()).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder.encode(some_tiles()), wanted, atol=1e-5, rtol=0)


def test_a_classifiers_head_is_left_behind_but_never_a_random_pooler_used(tmp_path: Path) -> None:
    torch.manual_seed(0)
    model = transformers.ViTForImageClassification(transformers.ViTConfig(**TINY)).eval()
    model.save_pretrained(tmp_path / "classifier")
    encoder = load_model_folder(tmp_path / "classifier")
    with torch.no_grad():
        wanted = model.vit(pixel_values=some_tiles()).last_hidden_state[:, 0]
    torch.testing.assert_close(encoder.encode(some_tiles()), wanted, atol=1e-5, rtol=0)
    with pytest.raises(WeightsError, match=r"lacks tensors, 2 in all: pooler\.dense"):
        load_model_folder(tmp_path / "classifier", FolderSettings(pooling="pooler"))


def test_incomplete_and_strange_folders_are_named(tmp_path: Path) -> None:
    folder, _ = vit_folder(tmp_path / "vit")
    tensors = load((folder / "model.safetensors").read_bytes())  # a mapped file could not be written over
    save_file(
        {k: v for k, v in tensors.items() if k != "layernorm.weight"}, folder / "model.safetensors", {"format": "pt"}
    )
    with pytest.raises(WeightsError, match=r"lacks tensors, 1 in all: layernorm\.weight"):
        load_model_folder(folder)
    save_file({**tensors, "adapter.weight": torch.zeros(1)}, folder / "model.safetensors", {"format": "pt"})
    with pytest.raises(WeightsError, match=r"holds unknown tensors, 1 in all: adapter\.weight"):
        load_model_folder(folder)
    (folder / "model.safetensors").unlink()
    torch.save(tensors, folder / "pytorch_model.bin")
    with pytest.raises(WeightsError, match="cannot be read as a transformers model"):
        load_model_folder(folder)
    with pytest.raises(WeightsError, match=r"there is no config\.json in it"):
        load_model_folder(tmp_path)


def test_a_model_that_reads_text_is_refused(tmp_path: Path) -> None:
    small = {
        "hidden_size": 8,
        "num_hidden_layers": 1,
        "num_attention_heads": 2,
        "intermediate_size": 8,
        "vocab_size": 20,
    }
    transformers.BertModel(transformers.BertConfig(**small)).save_pretrained(tmp_path / "bert")
    with pytest.raises(WeightsError, match="BertModel, which does not read images"):
        load_model_folder(tmp_path / "bert")


def test_other_band_counts_are_named_and_one_band_is_grey(tmp_path: Path) -> None:
    encoder = load_model_folder(vit_folder(tmp_path / "vit")[0])
    grey = some_tiles(1)
    assert torch.equal(encoder.encode(grey), encoder.encode(grey.repeat(1, 3, 1, 1)))
    with pytest.raises(DataError, match="tiles have 4 bands, but the model in vit reads 3"):
        encoder.encode(some_tiles(4))


def test_description_is_json(tmp_path: Path) -> None:
    described, wider = (
        json.loads(json.dumps(load_model_folder(vit_folder(tmp_path / name, intermediate_size=size)[0]).describe()))
        for name, size in (("vit", 40), ("wide", 48))
    )
    assert described["architecture"] == "ViTModel"
    assert described["resolution"] == 16
    assert len(described["sha256"]) == 64
    assert described["sha256"] != wider["sha256"]
