import argparse
import json
import math
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from tessearth.errors import ConfigError, DataError, WeightsError
from tessearth.imagery.image_encoders.base import tensors_sha256
from tessearth.imagery.image_encoders.vision_models import LIBRARY_NAMES, VitSettings, library_names, load_vit

BANDS, PATCH, SIDE, WIDTH, DEPTH, HEADS, HIDDEN = 13, 4, 12, 24, 3, 4, 40
TINY = VitSettings(num_heads=HEADS)


def encoder_tensors(seed: int = 0) -> dict[str, Tensor]:
    """A transformer's tensors under the names SSL4EO-S12 checkpoints use inside their prefixes."""
    generator = torch.Generator().manual_seed(seed)

    def draw(*shape: int) -> Tensor:
        return 0.3 * torch.randn(*shape, generator=generator)

    tensors = {
        "cls_token": draw(1, 1, WIDTH),
        "pos_embed": draw(1, 1 + (SIDE // PATCH) ** 2, WIDTH),
        "patch_embed.proj.weight": draw(WIDTH, BANDS, PATCH, PATCH),
        "patch_embed.proj.bias": draw(WIDTH),
        "norm.weight": 1 + draw(WIDTH),
        "norm.bias": draw(WIDTH),
    }
    for number in range(DEPTH):
        block = f"blocks.{number}."
        for name, outward, inward in (
            ("attn.qkv", 3 * WIDTH, WIDTH),
            ("attn.proj", WIDTH, WIDTH),
            ("mlp.fc1", HIDDEN, WIDTH),
            ("mlp.fc2", WIDTH, HIDDEN),
        ):
            tensors |= {f"{block}{name}.weight": draw(outward, inward), f"{block}{name}.bias": draw(outward)}
        for name in ("norm1", "norm2"):
            tensors |= {f"{block}{name}.weight": 1 + draw(WIDTH), f"{block}{name}.bias": draw(WIDTH)}
    return tensors


def mae_file(tensors: dict[str, Tensor]) -> dict[str, Any]:
    decoder = {
        "mask_token": torch.zeros(1, 1, 8),
        "decoder_embed.weight": torch.zeros(8, WIDTH),
        "decoder_blocks.0.norm1.weight": torch.zeros(8),
        "decoder_pos_embed": torch.zeros(1, 10, 8),
        "decoder_norm.bias": torch.zeros(8),
        "decoder_pred.weight": torch.zeros(4, 8),
    }
    args = argparse.Namespace(model="mae_vit", lr=1e-4)
    return {"model": {**tensors, **decoder}, "epoch": 99, "args": args, "optimizer": {"state": {}}}


def moco_file(tensors: dict[str, Tensor]) -> dict[str, Any]:
    state = {f"module.base_encoder.{name}": tensor for name, tensor in tensors.items()}
    state |= {f"module.momentum_encoder.{name}": tensor + 1 for name, tensor in tensors.items()}
    state |= {
        "module.base_encoder.head.0.weight": torch.zeros(8, WIDTH),
        "module.predictor.0.weight": torch.zeros(8, 8),
    }
    return {"state_dict": state, "epoch": 100, "arch": "vit_small"}


def dino_file(tensors: dict[str, Tensor]) -> dict[str, Any]:
    heads = {"module.head.mlp.0.weight": torch.zeros(8, WIDTH), "module.head.last_layer.weight_g": torch.zeros(9, 1)}
    teacher = {f"module.backbone.{name}": tensor for name, tensor in tensors.items()} | heads
    student = {f"module.backbone.{name}": tensor - 1 for name, tensor in tensors.items()} | heads
    return {"student": student, "teacher": teacher, "epoch": 100, "args": argparse.Namespace(arch="vit_small")}


FILES = {"mae": mae_file, "moco": moco_file, "dino": dino_file}


def plain_tokens(tensors: dict[str, Tensor], tiles: Tensor) -> Tensor:
    """The transformer written out in float64: tiles (N, 13, 12, 12) to tokens (N, 10, 24) after the last norm."""
    weights = {name: tensor.double() for name, tensor in tensors.items()}
    grid = SIDE // PATCH
    squares = tiles.double().reshape(-1, BANDS, grid, PATCH, grid, PATCH)
    patches = torch.einsum("ncyaxb,dcab->nyxd", squares, weights["patch_embed.proj.weight"])
    patches = (patches + weights["patch_embed.proj.bias"]).reshape(-1, grid * grid, WIDTH)
    tokens = torch.cat((weights["cls_token"].expand(len(tiles), 1, WIDTH), patches), dim=1) + weights["pos_embed"]

    def norm(x: Tensor, name: str) -> Tensor:
        centred = x - x.mean(-1, keepdim=True)
        scaled = centred / (centred.pow(2).mean(-1, keepdim=True) + 1e-6).sqrt()
        return scaled * weights[f"{name}.weight"] + weights[f"{name}.bias"]

    def linear(x: Tensor, name: str) -> Tensor:
        return torch.einsum("ntd,ed->nte", x, weights[f"{name}.weight"]) + weights[f"{name}.bias"]

    for number in range(DEPTH):
        block = f"blocks.{number}."
        qkv = linear(norm(tokens, f"{block}norm1"), f"{block}attn.qkv")
        query, key, value = qkv.reshape(len(tiles), -1, 3, HEADS, WIDTH // HEADS).unbind(2)
        scores = torch.einsum("nqhd,nkhd->nhqk", query, key) / math.sqrt(WIDTH // HEADS)
        mixed = torch.einsum("nhqk,nkhd->nqhd", scores.exp() / scores.exp().sum(-1, keepdim=True), value)
        tokens = tokens + linear(mixed.reshape(len(tiles), -1, WIDTH), f"{block}attn.proj")
        hidden = linear(norm(tokens, f"{block}norm2"), f"{block}mlp.fc1")
        hidden = hidden * 0.5 * (1 + torch.erf(hidden / math.sqrt(2)))
        tokens = tokens + linear(hidden, f"{block}mlp.fc2")
    return norm(tokens, "norm")


def some_tiles(number: int = 3) -> Tensor:
    return torch.rand(number, BANDS, SIDE, SIDE, generator=torch.Generator().manual_seed(1))


@pytest.fixture(params=list(FILES))
def layout(request: pytest.FixtureRequest) -> str:
    return str(request.param)


def write(content: dict[str, Any], folder: Path) -> Path:
    torch.save(content, folder / "checkpoint.pth")
    return folder / "checkpoint.pth"


@pytest.mark.parametrize("pooling", ["cls", "mean"])
def test_features_match_the_transformer_written_out(layout: str, pooling: str, tmp_path: Path) -> None:
    tensors = encoder_tensors()
    settings = VitSettings(num_heads=HEADS, pooling=pooling)  # type: ignore[arg-type]
    encoder = load_vit(write(FILES[layout](tensors), tmp_path), settings)
    assert encoder.describe()["layout"] == layout
    tokens = plain_tokens(tensors, some_tiles())
    wanted = tokens[:, 0] if pooling == "cls" else tokens[:, 1:].mean(1)
    torch.testing.assert_close(encoder.encode(some_tiles()).double(), wanted, atol=1e-4, rtol=0)


def test_class_token_is_the_default(layout: str, tmp_path: Path) -> None:
    encoder = load_vit(write(FILES[layout](encoder_tensors()), tmp_path), TINY)
    wanted = plain_tokens(encoder_tensors(), some_tiles())[:, 0]
    torch.testing.assert_close(encoder.encode(some_tiles()).double(), wanted, atol=1e-4, rtol=0)


def test_safetensors_and_bare_state_dicts_give_the_same(layout: str, tmp_path: Path) -> None:
    content = FILES[layout](encoder_tensors())
    state = next(value for key, value in content.items() if key in ("model", "state_dict", "teacher"))
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "bare.safetensors")
    first, second = load_vit(write(content, tmp_path), TINY), load_vit(tmp_path / "bare.safetensors", TINY)
    assert torch.equal(first.encode(some_tiles()), second.encode(some_tiles()))
    assert first.describe()["sha256"] == second.describe()["sha256"]


def prefix_of(layout: str) -> str:
    return {"mae": "", "moco": "module.base_encoder.", "dino": "module.backbone."}[layout]


@pytest.mark.parametrize("lost", ["blocks.1.attn.qkv.bias", "norm.weight", "pos_embed", "patch_embed.proj.weight"])
def test_a_missing_tensor_is_named(layout: str, lost: str, tmp_path: Path) -> None:
    tensors = encoder_tensors()
    del tensors[lost]
    with pytest.raises(WeightsError, match=f"missing tensor {prefix_of(layout)}{lost}"):
        load_vit(write(FILES[layout](tensors), tmp_path), TINY)


@pytest.mark.parametrize("surplus", ["blocks.1.attn.rotary", "fc_norm.weight", "blocks.x"])
def test_a_surplus_tensor_is_named(layout: str, surplus: str, tmp_path: Path) -> None:
    tensors = {**encoder_tensors(), surplus: torch.zeros(1)}
    with pytest.raises(WeightsError, match=f"surplus tensor {prefix_of(layout)}{surplus}"):
        load_vit(write(FILES[layout](tensors), tmp_path), TINY)


def test_a_stranger_beside_the_encoder_is_named(tmp_path: Path) -> None:
    for layout, inside in (("moco", "state_dict"), ("dino", "teacher")):
        content = FILES[layout](encoder_tensors())
        content[inside]["module.queue"] = torch.zeros(1)
        with pytest.raises(WeightsError, match=r"surplus tensor module\.queue"):
            load_vit(write(content, tmp_path), TINY)


def test_a_misshapen_tensor_is_named(layout: str, tmp_path: Path) -> None:
    tensors = {**encoder_tensors(), "blocks.2.mlp.fc2.bias": torch.zeros(WIDTH + 1)}
    with pytest.raises(WeightsError, match=r"has shape \(25,\), its model needs \(24,\)"):
        load_vit(write(FILES[layout](tensors), tmp_path), TINY)


def test_positions_that_form_no_square_are_refused(tmp_path: Path) -> None:
    tensors = {**encoder_tensors(), "pos_embed": torch.zeros(1, 9, WIDTH)}
    with pytest.raises(WeightsError, match="8 patches next to the class token, which is no square"):
        load_vit(write(mae_file(tensors), tmp_path), TINY)


def test_another_layout_than_asked_for_is_refused(tmp_path: Path) -> None:
    path = write(mae_file(encoder_tensors()), tmp_path)
    with pytest.raises(WeightsError, match=r"no checkpoint of layout 'dino': it holds none of module\.backbone\.cls"):
        load_vit(path, VitSettings(layout="dino", num_heads=HEADS))
    with pytest.raises(WeightsError, match="no checkpoint of layout 'auto'"):
        load_vit(write({"weights": {"a": torch.zeros(1)}}, tmp_path), TINY)


def test_files_that_run_code_or_are_damaged_are_refused(tmp_path: Path) -> None:
    class Trap:
        def __reduce__(self) -> tuple[Any, ...]:
            return Path.touch, (tmp_path / "sprung",)

    torch.save({"model": encoder_tensors(), "extra": Trap()}, tmp_path / "trap.pth")
    with pytest.raises(WeightsError, match="could run code when opened"):
        load_vit(tmp_path / "trap.pth", TINY)
    assert not (tmp_path / "sprung").exists()
    whole = write(mae_file(encoder_tensors()), tmp_path).read_bytes()
    (tmp_path / "cut.pth").write_bytes(whole[: len(whole) // 2])
    (tmp_path / "cut.safetensors").write_bytes(whole[:50])
    torch.save([1, 2], tmp_path / "list.pth")
    for name in ("cut.pth", "cut.safetensors", "list.pth", "absent.pth"):
        with pytest.raises(WeightsError, match=name):
            load_vit(tmp_path / name, TINY)


def test_both_ways_the_library_has_named_its_parts_are_known() -> None:
    tensors = encoder_tensors()
    for block, parts in LIBRARY_NAMES.items():
        own = {target: torch.zeros(1) for target in every_library_name(block, parts)}
        renamed = library_names(tensors, own)
        stacked = torch.cat([renamed[f"{block.format(1)}{part}.weight"] for part in parts["attn.qkv"]])
        assert torch.equal(stacked, tensors["blocks.1.attn.qkv.weight"])
    with pytest.raises(WeightsError, match="names its ViT in a way not known here"):
        library_names(tensors, {"stages.0.weight": torch.zeros(1)})


def every_library_name(block: str, parts: dict[str, tuple[str, ...]]) -> list[str]:
    outer = [
        "cls_token",
        "position_embeddings",
        "patch_embeddings.projection.weight",
        "patch_embeddings.projection.bias",
    ]
    inner = [
        f"{block.format(number)}{target}.{kind}"
        for number in range(DEPTH)
        for targets in parts.values()
        for target in targets
        for kind in ("weight", "bias")
    ]
    return [*(f"embeddings.{name}" for name in outer), *inner, "layernorm.weight", "layernorm.bias"]


def test_other_tile_sizes_are_resized_and_other_bands_refused(tmp_path: Path) -> None:
    encoder = load_vit(write(mae_file(encoder_tensors()), tmp_path), TINY)
    assert encoder.encode(torch.rand(2, BANDS, 20, 20)).shape == (2, WIDTH)
    flat = torch.full((1, BANDS, 1, 1), 0.2)
    small, large = flat.expand(-1, -1, 6, 6), flat.expand(-1, -1, SIDE, SIDE)
    torch.testing.assert_close(encoder.encode(small), encoder.encode(large))
    with pytest.raises(DataError, match="tiles have 12 bands, but the image encoder vit reads 13"):
        encoder.encode(torch.rand(2, 12, SIDE, SIDE))


def test_bands_are_normalised_as_set_and_missing_pixels_stand_at_the_mean(tmp_path: Path) -> None:
    path = write(mae_file(encoder_tensors()), tmp_path)
    mean, deviation = tuple(0.1 * band for band in range(BANDS)), (2.0,)
    encoder = load_vit(path, VitSettings(num_heads=HEADS, mean=mean, deviation=deviation))
    tiles = some_tiles()
    normalised = (tiles - torch.tensor(mean)[:, None, None]) / 2
    torch.testing.assert_close(encoder.encode(tiles), load_vit(path, TINY).encode(normalised))
    holed, filled = tiles.clone(), tiles.clone()
    holed[0, 3, 2], filled[0, 3, 2] = torch.nan, mean[3]
    torch.testing.assert_close(encoder.encode(holed), encoder.encode(filled))


def test_the_hash_is_of_the_checkpoints_tensors_whatever_the_library_calls_them(tmp_path: Path) -> None:
    first = load_vit(write(mae_file(encoder_tensors()), tmp_path), TINY).describe()["sha256"]
    assert first == tensors_sha256(encoder_tensors())
    assert first == load_vit(write(dino_file(encoder_tensors()), tmp_path), TINY).describe()["sha256"]
    assert first != load_vit(write(mae_file(encoder_tensors(seed=1)), tmp_path), TINY).describe()["sha256"]


def test_a_tile_has_the_same_bytes_in_any_batch(tmp_path: Path) -> None:
    encoder = load_vit(write(mae_file(encoder_tensors()), tmp_path), TINY)
    tiles = some_tiles(5)
    assert torch.equal(encoder.encode(tiles), torch.cat([encoder.encode(tile[None]) for tile in tiles]))
    assert not encoder.encode(tiles).requires_grad


def test_heads_are_one_for_every_64_features_unless_set(tmp_path: Path) -> None:
    path = write(mae_file(encoder_tensors()), tmp_path)
    assert load_vit(path).describe()["heads"] == 1
    described = json.loads(json.dumps(load_vit(path, TINY).describe()))
    assert described["heads"] == HEADS
    assert described["shape"] == {
        "bands": BANDS,
        "patch": PATCH,
        "image_size": SIDE,
        "width": WIDTH,
        "depth": DEPTH,
        "hidden": HIDDEN,
    }
    with pytest.raises(ConfigError, match="24 features cannot be shared among 7 attention heads"):
        load_vit(path, VitSettings(num_heads=7))
    with pytest.raises(ConfigError, match="mean has 2 values for 13 bands"):
        load_vit(path, VitSettings(num_heads=HEADS, mean=(0.0, 1.0)))
