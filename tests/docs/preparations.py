"""What a page takes for granted: files a reader has, which a test must make first, in their true format."""

from collections.abc import Callable
from pathlib import Path

import numpy as np
import torch

from tessearth.embedding.retrieval import Database, save_database
from tessearth.sphere.sampling import sample_land

WIDTH, HIDDEN, PATCH, PATCHES = 64, 32, 16, 14 * 14


def _published_csv(folder: Path) -> None:
    """temp.csv as published, of made-up values."""
    (folder / "data").mkdir()
    rows = [f"{lon},{lat},{25 - abs(lat) / 2}" for lat, lon in sample_land(200, seed=0)]
    (folder / "data" / "temp.csv").write_text("\n".join(["Lon,Lat,meanT", *rows]) + "\n", "utf-8")


def _transformer_checkpoint(folder: Path) -> None:
    """An SSL4EO-S12 checkpoint of MAE for 13 bands of 224 pixels, one narrow block deep."""
    generator = torch.Generator().manual_seed(0)
    shapes = {
        "cls_token": (1, 1, WIDTH),
        "pos_embed": (1, 1 + PATCHES, WIDTH),
        "patch_embed.proj.weight": (WIDTH, 13, PATCH, PATCH),
        "patch_embed.proj.bias": (WIDTH,),
        "norm.weight": (WIDTH,),
        "norm.bias": (WIDTH,),
        "blocks.0.norm1.weight": (WIDTH,),
        "blocks.0.norm1.bias": (WIDTH,),
        "blocks.0.norm2.weight": (WIDTH,),
        "blocks.0.norm2.bias": (WIDTH,),
        "blocks.0.attn.qkv.weight": (3 * WIDTH, WIDTH),
        "blocks.0.attn.qkv.bias": (3 * WIDTH,),
        "blocks.0.attn.proj.weight": (WIDTH, WIDTH),
        "blocks.0.attn.proj.bias": (WIDTH,),
        "blocks.0.mlp.fc1.weight": (HIDDEN, WIDTH),
        "blocks.0.mlp.fc1.bias": (HIDDEN,),
        "blocks.0.mlp.fc2.weight": (WIDTH, HIDDEN),
        "blocks.0.mlp.fc2.bias": (WIDTH,),
    }
    decoder = {"mask_token": torch.zeros(1, 1, 8), "decoder_pred.weight": torch.zeros(4, 8)}
    tensors = {name: 0.2 * torch.randn(shape, generator=generator) for name, shape in shapes.items()}
    torch.save({"model": {**tensors, **decoder}}, folder / "B13_vitl16_mae_ep99.pth")


def _database(folder: Path) -> None:
    rng = np.random.default_rng(0)
    keys, values = rng.normal(size=(10, 256)).astype(np.float32), rng.normal(size=(10, 8)).astype(np.float32)
    save_database(Database(sample_land(10, seed=0), keys, values), folder / "database.npz")


PREPARATIONS: dict[str, Callable[[Path], object]] = {
    "docs/how-to/evaluate.md": _published_csv,
    "docs/how-to/train-on-s2-100k.md": _transformer_checkpoint,
    "docs/reference/formats.md": _database,
}
