"""Windows computed by a Dask cluster: workers compute, the caller alone writes, so that they share no disk but models.

A window belongs to no worker. When one dies, Dask hands its windows to another; the numbers are those of a plain run.
"""

import contextlib
import functools
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch

from tessearth.bulk.raster_values import Stored, StoredWindow, compute_window
from tessearth.embedding.embedder import Embedder, Precision
from tessearth.errors import ConfigError, DataError
from tessearth.packages import require
from tessearth.sphere.grids import Layout

LOCAL = "local"
WINDOWS_PER_WORKER = 2
"""Handed out at once: one in work, one waiting, and memory bounded whatever the raster's size."""
CONNECT_SECONDS = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class WindowWork:
    """Everything a worker needs beside the number of a window."""

    model: str
    fingerprint: str
    device: str | None
    precision: Precision
    threads: int
    """As many as the caller's: sums depend on how many threads share them."""
    layout: Layout
    stored: Stored


def cluster_windows(address: str, work: WindowWork, numbers: list[int]) -> Iterator[tuple[int, StoredWindow]]:
    """Compute windows on the cluster at an address ("local" starts one here), in the order they become ready."""
    if not numbers:
        return
    distributed = require("distributed", extra="cluster", what="a cluster")
    with _open_client(distributed, address) as client:
        workers = max(1, len(client.scheduler_info(n_workers=-1)["workers"]))
        waiting = iter(numbers)
        ready = distributed.as_completed(loop=client.loop)
        for number in _take(waiting, WINDOWS_PER_WORKER * workers):
            ready.add(client.submit(_compute, work, number, pure=False))
        for future in ready:
            try:
                yield future.result()
            except distributed.KilledWorker as error:
                raise DataError(f"workers of {address} keep dying over one window: have they memory enough?") from error
            future.release()
            for number in _take(waiting, 1):
                ready.add(client.submit(_compute, work, number, pure=False))


def _compute(work: WindowWork, number: int) -> tuple[int, StoredWindow]:
    torch.set_num_threads(work.threads)
    embedder = _embedder(work.model, work.device, work.precision, work.fingerprint)
    return number, compute_window(embedder, work.layout, work.stored, number)


@functools.lru_cache(maxsize=1)
def _embedder(model: str, device: str | None, precision: Precision, fingerprint: str) -> Embedder:
    """The caller's embedder on this worker, loaded once."""
    embedder = Embedder(model, device=device, precision=precision)
    if embedder.fingerprint() != fingerprint:
        raise DataError(f"a worker reads other weights under {model} than the caller; give all of them the same file")
    return embedder


@contextlib.contextmanager
def _open_client(distributed: Any, address: str) -> Iterator[Any]:
    if address == LOCAL:
        count = max(1, (os.cpu_count() or 1) // torch.get_num_threads())
        with (
            distributed.LocalCluster(n_workers=count, threads_per_worker=1, dashboard_address=None) as cluster,
            distributed.Client(cluster, set_as_default=False) as client,
        ):
            yield client
        return
    try:
        client = distributed.Client(address, timeout=CONNECT_SECONDS, set_as_default=False)
    except (OSError, ValueError, TimeoutError) as error:
        raise ConfigError(
            f"no Dask scheduler answers at {address!r}; give its address such as tcp://host:8786, or local"
        ) from error
    with client:
        yield client


def absolute_name(model: str) -> str:
    """A model's name as workers understand it too: paths from the root, other names as they are."""
    return str(Path(model).resolve()) if Path(model).exists() else model


def _take(numbers: Iterator[int], count: int) -> list[int]:
    return [number for _, number in zip(range(count), numbers, strict=False)]
