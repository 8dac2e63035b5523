"""One small model, served for the whole folder."""

from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
import torch

from tessearth import Embedder, save
from tessearth.explorer.limits import ServeSettings
from tessearth.explorer.session import Served
from tests.conftest import tiny_encoder
from tests.explorer.serving import Client, serving

MAX_POINTS = 3000


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A run's folder: weights, and the record of where their sites were."""
    folder = tmp_path_factory.mktemp("run")
    encoder = tiny_encoder(dtype=torch.float32)
    (folder / "weights").mkdir()
    save(encoder, folder / "weights" / "best.safetensors", provenance={"recipe": "none"})
    last = encoder.sites().positions.detach().numpy()
    first = np.roll(last, 1, axis=0)
    between = [(1 - share) * first + share * last for share in (0, 0.3, 0.6, 1)]
    positions = np.stack([frame / np.linalg.norm(frame, axis=1, keepdims=True) for frame in between]).astype(np.float32)
    np.savez(
        folder / "trajectories.npz",
        steps=np.array([0, 10, 20, 30]),
        positions=positions,
        sharpness=np.full((4, len(last)), 20, np.float32),
    )
    return folder / "weights" / "best.safetensors"


@pytest.fixture(scope="session")
def embedder(model: Path) -> Embedder:
    return Embedder(model, device="cpu")


@pytest.fixture(scope="session")
def client(embedder: Embedder) -> Iterator[Client]:
    settings = ServeSettings(rate=0, max_points=MAX_POINTS, max_body_bytes=300_000, max_labels=500)
    with serving(Served(embedder, settings)) as client:
        client.wait_until_ready()
        yield client
