"""A Dask cluster gives the bytes one process gives, and loses no rows with a worker."""

import os
import signal
import threading
from pathlib import Path

import numpy as np
import pandas as pd
import pytest
import torch

from tessearth import save
from tessearth.bulk import tables
from tessearth.bulk.tables import ModelChoice, TableJob, encode_table
from tessearth.errors import ConfigError
from tessearth.sphere import Places
from tests.conftest import tiny_encoder

distributed, dask = pytest.importorskip("distributed"), pytest.importorskip("dask.base")
pytestmark = pytest.mark.filterwarnings("ignore")  # the cluster's own, when it closes


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    save(tiny_encoder(dtype=torch.float32), tmp_path / "m.safetensors")
    rng = np.random.default_rng(0)
    rows = 120_000
    frame = pd.DataFrame(
        {"id": np.arange(rows), "lat": rng.uniform(-90, 90, rows), "lon": rng.uniform(-180, 180, rows)}
    )
    frame.to_parquet(tmp_path / "p.parquet")
    return tmp_path


def job(folder: Path, output: str) -> TableJob:
    choice = ModelChoice(model=str(folder / "m.safetensors"), device="cpu")
    return TableJob(source=str(folder / "p.parquet"), output=str(folder / output), format="parquet", choice=choice)


class Guard:
    """Ends the workers of a cluster that hangs, so that a deadlock is a failure and not a suite that never ends."""

    def __init__(self, cluster: object, seconds: float) -> None:
        self.timer = threading.Timer(seconds, cluster.close)  # type: ignore[attr-defined]

    def __enter__(self) -> None:
        self.timer.start()

    def __exit__(self, *_: object) -> None:
        self.timer.cancel()


def test_two_workers_on_loopback_give_the_same_bytes_even_when_one_is_killed(folder: Path) -> None:
    encode_table(job(folder, "plain.parquet"), workers=1)
    settings = {"threads_per_worker": 1, "dashboard_address": None, "memory_limit": None, "silence_logs": 50}
    with (
        distributed.LocalCluster(n_workers=2, processes=True, host="127.0.0.1", **settings) as cluster,
        Guard(cluster, 120),
    ):
        encode_table(job(folder, "cluster.parquet"), cluster=cluster.scheduler_address)
        assert (folder / "cluster.parquet").read_bytes() == (folder / "plain.parquet").read_bytes()
        pids = [worker.pid for worker in cluster.workers.values()]
        killed: list[int] = []

        def kill_one(done: int, total: int | None) -> None:
            if done and not killed:
                killed.append(pids[0])
                os.kill(pids[0], signal.SIGKILL)

        encode_table(job(folder, "killed.parquet"), cluster=cluster.scheduler_address, progress=kill_one)
        assert killed
        assert (folder / "killed.parquet").read_bytes() == (folder / "plain.parquet").read_bytes()


def test_no_scheduler_is_one_clear_line(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessearth.storage.workers.SECONDS_TO_CONNECT", 1)
    for address in ("tcp://127.0.0.1:9", "nonsense://x"):
        with pytest.raises(ConfigError, match=f"no Dask scheduler answers at '{address}'"):
            encode_table(job(folder, "o.parquet"), cluster=address)
        assert dask.get_scheduler() is None  # or all that the process asks of Dask from now on waits for ever
    assert not list(folder.glob("o.parquet*"))


def test_one_worker_is_this_process_and_leaves_its_threads_alone(folder: Path) -> None:
    choice, before = ModelChoice(model=str(folder / "m.safetensors"), device="cpu"), torch.get_num_threads()
    torch.set_num_threads(2)
    try:
        with tables._open_workers(choice, 1, None) as pool:
            _, found = pool.call(tables._embed, tables.EmbedTask(choice, Places(np.full((3, 2), 20.0)), "float16"))
            assert torch.get_num_threads() == 1
        assert torch.get_num_threads() == 2
    finally:
        torch.set_num_threads(before)
    assert (found.dtype, found.shape) == (np.float16, (3, 18))
