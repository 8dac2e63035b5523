"""The folder of a run stands for the encoder in it."""

from pathlib import Path

import pytest
import torch

from tessearth import save
from tessearth.embedding import Embedder, describe_model
from tessearth.encoder import LocationEncoder
from tessearth.errors import ConfigError, DataError
from tessearth.zoo import build_baseline, load, load_base, weights_of_run
from tests.conftest import tiny_encoder

PLACE = (48.86, 2.35)


def made(folder: Path, *files: str) -> LocationEncoder:
    """An encoder saved under several names of a folder."""
    encoder = tiny_encoder(dtype=torch.float32)
    for file in files:
        (folder / file).parent.mkdir(parents=True, exist_ok=True)
        save(encoder, folder / file)
    return encoder


@pytest.mark.parametrize(
    ("files", "taken"),
    [
        (("encoder.safetensors",), "encoder.safetensors"),
        (("weights/last.safetensors", "weights/best.safetensors"), "weights/best.safetensors"),
        (("weights/last.safetensors",), "weights/last.safetensors"),
    ],
)
def test_a_run_is_a_model_wherever_one_is_named(tmp_path: Path, files: tuple[str, ...], taken: str) -> None:
    expected = Embedder(made(tmp_path, *files), device="cpu").embed(PLACE)
    assert weights_of_run(str(tmp_path)) == str(tmp_path / taken)
    for model in (tmp_path, str(tmp_path)):
        assert (Embedder(model, device="cpu").embed(PLACE) == expected).all()
    assert torch.equal(load(tmp_path)(torch.tensor([PLACE])), load_base(str(tmp_path))(torch.tensor([PLACE])))
    assert describe_model(tmp_path)["sites"] == 40


def test_a_run_of_a_baseline_is_one_too(tmp_path: Path) -> None:
    encoder = build_baseline("sphereM", {"num_scales": 4, "network": {"hidden_dim": 8, "num_blocks": 1}})
    encoder.save(tmp_path / "encoder.safetensors", provenance={"finetuned": {"metric": "R2"}})
    assert load_base(str(tmp_path)).output_dim == encoder.output_dim
    described = describe_model(tmp_path)
    assert described["baseline"] == "sphereM"
    assert described["provenance"]["finetuned"] == {"metric": "R2"}


def test_a_folder_of_several_models_or_of_none_yet_is_one_line(tmp_path: Path) -> None:
    made(tmp_path, "encoder.safetensors", "weights/best.safetensors")
    with pytest.raises(ConfigError, match=r"several models: name one of its files, encoder\.safetensors and weights"):
        load_base(str(tmp_path))
    (tmp_path / "new").mkdir()
    (tmp_path / "new" / "recipe.toml").touch()
    with pytest.raises(DataError, match=r"a run without weights yet; tessearth pretrain --resume .*new continues it"):
        Embedder(tmp_path / "new")
