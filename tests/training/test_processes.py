"""Two processes with gathered negatives train the weights of one process with the whole batch."""

import contextlib
import json
import os
import socket
from pathlib import Path

import pytest
import torch

from tessearth.encoder.weights import load_weights
from tessearth.errors import ConfigError
from tessearth.training.loop import pretrain
from tessearth.training.recipe import Recipe
from tests.processes import run_processes
from tests.training.fabricate import toy_recipe
from tests.training.growing import growing_recipe


def exact_recipe(**training: object) -> Recipe:
    """Without what each process draws for itself: dropout and jitter."""
    return toy_recipe(
        encoder={"dropout": 0.0, "token_dropout": 0.0},
        **{"precision": "float64", "jitter_degrees": 0.0, "log_every": 20, **training},
    )


def exact_growth() -> Recipe:
    """The same, with sites that are born and die."""
    return growing_recipe(
        encoder={"dropout": 0.0, "token_dropout": 0.0}, precision="float64", jitter_degrees=0.0, log_every=20
    )


def work(rank: int, ports: tuple[int, ...], store: str, out: str) -> None:
    torch.set_num_threads(1)
    os.environ.update(MASTER_ADDR="127.0.0.1", MASTER_PORT=str(ports[0]), RANK=str(rank), WORLD_SIZE="2")
    pretrain(exact_recipe(), out, store=store, device="cpu")
    # A port of its own: the process that is done first must not find the other's first meeting point still open.
    os.environ["MASTER_PORT"] = str(ports[1])
    try:
        pretrain(exact_recipe(batch_size=33), f"{out}-odd", store=store, device="cpu")
    except ConfigError as error:
        Path(f"{out}-{rank}.txt").write_text(str(error))
    os.environ["MASTER_PORT"] = str(ports[2])
    pretrain(exact_growth(), f"{out}-grown", store=store, device="cpu")


def free_ports(count: int = 3) -> tuple[int, ...]:
    with contextlib.ExitStack() as opened:
        found = [opened.enter_context(socket.socket()) for _ in range(count)]
        for one in found:
            one.bind(("127.0.0.1", 0))
        return tuple(one.getsockname()[1] for one in found)


@pytest.fixture(scope="module")
def runs(store: Path, tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, Path]:
    folder = tmp_path_factory.mktemp("processes")
    run_processes(work, (free_ports(), str(store), str(folder / "two")))
    pretrain(exact_recipe(), folder / "one", store=store, device="cpu")
    pretrain(exact_growth(), folder / "one-grown", store=store, device="cpu")
    return folder / "one", folder / "two"


@pytest.mark.parametrize("sites", ["", "-grown"], ids=["sites move", "sites are born and die"])
def test_at_the_end_the_weights_are_the_same(sites: str, runs: tuple[Path, Path]) -> None:
    one, two = (load_weights(f"{run}{sites}/weights/last.safetensors") for run in runs)
    assert one.config == two.config
    assert one.config.num_sites == (52 if sites else 24)
    state = two.state_dict()
    assert state["head.entry.weight"].dtype == torch.float64
    for name, tensor in one.state_dict().items():
        torch.testing.assert_close(state[name], tensor, rtol=1e-6, atol=1e-9, msg=lambda text, n=name: f"{n}: {text}")


def test_the_losses_and_gradients_are_the_same(runs: tuple[Path, Path]) -> None:
    one, two = (
        next(json.loads(line)["training"] for line in (run / "metrics.jsonl").read_text().splitlines()) for run in runs
    )
    assert two == pytest.approx(one, rel=1e-9)


def test_a_batch_that_cannot_be_shared_is_refused(runs: tuple[Path, Path]) -> None:
    for rank in range(2):
        assert "33 cannot be shared by 2 processes" in Path(f"{runs[1]}-{rank}.txt").read_text()
