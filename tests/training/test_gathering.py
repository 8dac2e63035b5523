"""Two processes with gathered negatives are one process with the whole batch."""

import os
import socket
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor

from tessearth.training.objective import contrastive
from tests.processes import run_processes

PAIRS = 12


def inputs() -> tuple[Tensor, Tensor, Tensor]:
    generator = torch.Generator().manual_seed(0)
    location, image = torch.randn(2, PAIRS, 5, generator=generator, dtype=torch.float64)
    return location, image, torch.tensor(6.0, dtype=torch.float64)


def gradients(rows: slice, negatives: str, world: int) -> dict[str, Tensor]:
    location, image, scale = (tensor.clone().requires_grad_() for tensor in inputs())
    mine = (F.normalize(side[rows], dim=-1) for side in (location, image))
    loss = contrastive(*mine, scale, negatives=negatives)  # type: ignore[arg-type]
    loss.backward()
    found = {"loss": loss.detach(), "location": location.grad, "image": image.grad, "scale": scale.grad}
    for tensor in found.values():
        if world > 1:
            dist.all_reduce(tensor)
    return {name: tensor / world for name, tensor in found.items() if tensor is not None}


def work(rank: int, port: int, folder: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port))
    dist.init_process_group("gloo", rank=rank, world_size=2)
    half = slice(rank * PAIRS // 2, (rank + 1) * PAIRS // 2)
    found = {negatives: gradients(half, negatives, 2) for negatives in ("gathered", "local")}
    if rank == 0:
        torch.save(found, Path(folder) / "found.pt")
    dist.destroy_process_group()


@pytest.fixture(scope="module")
def found(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict[str, Tensor]]:
    folder = tmp_path_factory.mktemp("gathered")
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = free.getsockname()[1]
    run_processes(work, (port, str(folder)))
    loaded: dict[str, dict[str, Tensor]] = torch.load(folder / "found.pt", weights_only=True)
    return loaded


def test_gathered_negatives_give_the_whole_batch(found: dict[str, dict[str, Tensor]]) -> None:
    torch.testing.assert_close(found["gathered"], gradients(slice(None), "gathered", 1), rtol=1e-12, atol=1e-14)


def test_local_negatives_give_the_mean_of_the_halves(found: dict[str, dict[str, Tensor]]) -> None:
    halves = [gradients(half, "local", 1) for half in (slice(0, PAIRS // 2), slice(PAIRS // 2, PAIRS))]
    torch.testing.assert_close(found["local"]["loss"], (halves[0]["loss"] + halves[1]["loss"]) / 2)
    assert float(found["gathered"]["loss"]) > float(found["local"]["loss"])
