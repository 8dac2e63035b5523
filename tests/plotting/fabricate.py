"""A folder as a training run leaves it."""

import json
from pathlib import Path

import numpy as np
import torch

from tessearth import save
from tests.conftest import tiny_encoder


def write_run(folder: Path) -> None:
    """Weights, metrics, and the records of sites that really moved."""
    (folder / "weights").mkdir()
    save(tiny_encoder(dtype=torch.float32), folder / "weights" / "best.safetensors")
    rng = np.random.default_rng(0)
    positions = rng.normal(size=(1, 60, 3)) + np.cumsum(0.1 * rng.normal(size=(4, 60, 3)), axis=0)
    positions /= np.linalg.norm(positions, axis=-1, keepdims=True)
    np.savez(folder / "trajectories.npz", steps=np.array([0, 10, 20, 30]), positions=positions.astype(np.float32),
             sharpness=np.ones((4, 60), np.float32))  # fmt: skip
    rows = [
        {"step": step, "training": {"total": 9 / step, "contrastive": 5 / step, "alignment": 1 / step}}
        for step in (10, 20, 30)
    ]
    rows += [
        {"step": 30, "validation": {"contrastive": 0.4, **{f"{way}_top{k}": k / 20 for k in (1, 5, 10)
         for way in ("image_to_place", "place_to_image")}}}
    ]  # fmt: skip
    (folder / "metrics.jsonl").write_text("\n".join(map(json.dumps, rows)))
