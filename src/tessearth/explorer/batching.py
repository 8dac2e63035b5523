"""Many requests, one model: what waits is embedded together, each request getting its fair share of every round."""

import asyncio
import contextlib
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import TessearthError
from tessearth.sphere.coordinates import Floats

Array = npt.NDArray[Any]

ROUND_POINTS = 8192
"""Places embedded in one call of the model: enough to fill it, few enough that nobody waits a second behind a table."""
AT_LEAST = 256
"""Of a round, what any one request gets while others wait."""


class OverloadedError(TessearthError, RuntimeError):
    """More is waiting than the server takes on; the same request may pass in a moment."""


class StoppedError(OverloadedError):
    """The server is going down."""


class _Job:
    """One request's places, and its embeddings as far as they are known."""

    __slots__ = ("done", "embeddings", "future", "latlon")

    def __init__(self, latlon: Floats, dim: int, future: "asyncio.Future[Array]") -> None:
        self.latlon, self.future, self.done = latlon, future, 0
        self.embeddings = np.empty((len(latlon), dim), dtype=np.float32)


class Batcher:
    """Embeds places for many requests through one model that runs in one thread.

    async with Batcher(embedder.embed, embedder.dim, max_pending=131_072) as batcher:
        embeddings = await batcher.embed(latlon)
    """

    def __init__(self, embed: Callable[[Floats], Array], dim: int, *, max_pending: int) -> None:
        self.dim, self.max_pending = dim, max_pending
        self.pending = 0
        """Places that wait or are being embedded."""
        self.rounds = 0
        """How many times the model was called."""
        self._embed = embed
        self._jobs: deque[_Job] = deque()
        self._wake = asyncio.Event()
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Batcher":
        self._runner = asyncio.create_task(self._run())
        return self

    async def __aexit__(self, *_: object) -> None:
        runner, self._runner = self._runner, None
        if runner is not None:
            runner.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await runner
        for job in self._jobs:
            if not job.future.done():
                job.future.set_exception(StoppedError("the server is stopping; ask again in a moment"))
        self._jobs.clear()
        self._model_thread.shutdown(wait=True, cancel_futures=True)

    async def embed(self, latlon: Floats) -> Array:
        """Embeddings (N, D) float32 of checked places (N, 2), in the order given."""
        if self._runner is None:
            raise StoppedError("the server is stopping; ask again in a moment")
        if self.pending + len(latlon) > self.max_pending:
            raise OverloadedError(
                f"{self.pending} places are waiting already and {len(latlon)} more are too many; ask again in a moment"
            )
        if len(latlon) == 0:
            return np.empty((0, self.dim), dtype=np.float32)
        job = _Job(latlon, self.dim, asyncio.get_running_loop().create_future())
        self._jobs.append(job)
        self.pending += len(latlon)
        self._wake.set()
        try:
            return await job.future
        finally:
            self.pending -= len(latlon)

    async def _run(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while parts := self._next_round():
                places = np.concatenate([job.latlon[start:stop] for job, start, stop in parts])
                try:
                    found = await loop.run_in_executor(self._model_thread, self._embed, places)
                except Exception as error:
                    self._fail(parts, error)
                else:
                    self._hand_out(parts, found)
                self.rounds += 1

    def _next_round(self) -> list[tuple[_Job, int, int]]:
        """Parts of waiting jobs as (job, start, stop); a job nobody waits for any more is dropped."""
        waiting = [job for job in self._jobs if not job.future.done()]
        self._jobs = deque(waiting)
        share = max(AT_LEAST, ROUND_POINTS // max(1, len(waiting)))
        parts, room = [], ROUND_POINTS
        for job in waiting:
            take = min(share, room, len(job.latlon) - job.done)
            if take > 0:
                parts.append((job, job.done, job.done + take))
                room -= take
        return parts

    def _hand_out(self, parts: list[tuple[_Job, int, int]], found: Array) -> None:
        at = 0
        for job, start, stop in parts:
            job.embeddings[start:stop] = found[at : at + stop - start]
            at += stop - start
            job.done = stop
            if job.done == len(job.latlon) and not job.future.done():
                job.future.set_result(job.embeddings)

    def _fail(self, parts: list[tuple[_Job, int, int]], error: Exception) -> None:
        for job, _, _ in parts:
            if not job.future.done():
                job.future.set_exception(error)
