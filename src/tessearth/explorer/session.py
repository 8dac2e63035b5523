"""The served model: a batcher in front of it, and the maps and places prepared from it in the background."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Any, Literal

import numpy as np
import numpy.typing as npt

from tessearth.embedding import Embedder, EmbeddingCache, land_places, places_key
from tessearth.encoder import SoftVoronoi, Trajectory, read_trajectory
from tessearth.errors import ConfigError, DataError, TessearthError, UnknownNameError
from tessearth.explorer.answers import Land, answer_place, explain_places, find_labels, find_trajectory, site_fields
from tessearth.explorer.limits import Recent, ServeSettings
from tessearth.explorer.pictures import warm_base
from tessearth.explorer.probes import FittedProbe
from tessearth.plotting import Components, fit_components
from tessearth.sphere import EARTH_RADIUS_KM, Cells, Floats, build_cells, world_grid

Array = npt.NDArray[Any]
FieldName = Literal["embedding", "attention", "sharpness"]

ROUND_POINTS = 8192
"""Places in one call of the model: enough to fill it, few enough that no request waits a second for a table."""
AT_LEAST = 256
"""Places of a round that each request gets while others wait."""

log = logging.getLogger(__name__)


class OverloadedError(TessearthError, RuntimeError):
    """The server cannot take the request now; the same request may pass in a moment."""


class _Job:
    """The places of one request, and the rows known of them so far."""

    def __init__(self, function: Callable[[Floats], Array], latlon: Floats) -> None:
        self.function, self.latlon, self.done = function, latlon, 0
        self.parts: list[Array] = []
        self.future: asyncio.Future[Array] = asyncio.get_running_loop().create_future()

    def put(self, rows: Array) -> None:
        """Take the rows of the next places."""
        self.parts.append(rows)
        self.done += len(rows)
        if self.done == len(self.latlon) and not self.future.done():
            self.future.set_result(np.concatenate(self.parts))


class Batcher:
    """Runs functions of places for many requests on one thread, the places of several requests in one call.

    async with Batcher(max_pending=131_072) as batcher:
        embeddings = await batcher.run(embedder.embed, latlon)
    """

    def __init__(self, *, max_pending: int) -> None:
        self.max_pending = max_pending
        self.pending = 0
        """Places that wait or are being computed."""
        self.rounds = 0
        """Calls of the model."""
        self._jobs: list[_Job] = []
        self._wake = asyncio.Event()
        self._model_thread = ThreadPoolExecutor(1, thread_name_prefix="model")
        self._runner: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Batcher":
        self._runner = asyncio.create_task(self._run_rounds())
        return self

    async def __aexit__(self, *_: object) -> None:
        runner, self._runner = self._runner, None
        await _cancel(runner)
        for job in self._jobs:
            if not job.future.done():
                job.future.set_exception(OverloadedError("the server is stopping; ask again in a moment"))
        self._jobs.clear()
        self._model_thread.shutdown(wait=True, cancel_futures=True)

    async def run(self, function: Callable[[Floats], Array], latlon: Floats) -> Array:
        """Rows (N, ...) that a function gives for checked places (N, 2), in their order."""
        if self._runner is None:
            raise OverloadedError("the server is stopping; ask again in a moment")
        if self.pending + len(latlon) > self.max_pending:
            raise OverloadedError(
                f"{self.pending} places are waiting already and {len(latlon)} more are too many; ask again in a moment"
            )
        if len(latlon) == 0:
            return function(latlon)
        job = _Job(function, latlon)
        self._jobs.append(job)
        self.pending += len(latlon)
        self._wake.set()
        try:
            return await job.future
        finally:
            self.pending -= len(latlon)

    async def _run_rounds(self) -> None:
        loop = asyncio.get_running_loop()
        while True:
            await self._wake.wait()
            self._wake.clear()
            while parts := self._next_round():
                places = np.concatenate([job.latlon[job.done : job.done + count] for job, count in parts])
                try:
                    rows = await loop.run_in_executor(self._model_thread, parts[0][0].function, places)
                except Exception as error:
                    for job, _ in parts:
                        if not job.future.done():
                            job.future.set_exception(error)
                else:
                    ends = np.cumsum([count for _, count in parts])
                    for (job, _), some in zip(parts, np.split(rows, ends[:-1]), strict=True):
                        job.put(some)
                self.rounds += 1

    def _next_round(self) -> list[tuple[_Job, int]]:
        """The next call: jobs of one function, and the number of places of each; cancelled jobs are dropped.

        Jobs of this function are the last in line for the next round, so that no function waits for another.
        """
        waiting = [job for job in self._jobs if not job.future.done()]
        same = [job for job in waiting if job.function == waiting[0].function]
        self._jobs = [job for job in waiting if job.function != waiting[0].function] + same
        share = max(AT_LEAST, ROUND_POINTS // max(1, len(same)))
        parts, room = [], ROUND_POINTS
        for job in same:
            count = min(share, room, len(job.latlon) - job.done)
            if count > 0:
                parts.append((job, count))
                room -= count
        return parts


async def _cancel(task: "asyncio.Task[None] | None") -> None:
    if task is not None:
        task.cancel()
        with contextlib.suppress(asyncio.CancelledError):
            await task


STEP_DEGREES = 1.0
"""Cells of the world maps."""
PLACES_AT_ONCE = 2048
"""Places per call of the model while maps are prepared, so that requests get their turn."""
KEPT_PROBES = 32
FEWEST_SITES = 4
"""Fewer sites have no cells on a sphere."""
WORKERS = 3
"""Threads for the slow parts of answers (`asyncio.to_thread`) and for the preparation."""


class Served:
    """A model and everything prepared from it in the background while requests are answered already.

    async with Served(Embedder("earth"), ServeSettings()) as served:
        await served.embed(latlon)
    """

    def __init__(
        self,
        embedder: Embedder,
        settings: ServeSettings,
        *,
        trajectories: str | PathLike[str] | None = None,
        cache: EmbeddingCache | None = None,
    ) -> None:
        """`trajectories` is a run's record of its sites, by default the one next to the model; `cache` keeps maps."""
        self.embedder, self.settings, self.cache = embedder, settings, cache
        self.fingerprint = embedder.fingerprint()
        self.batcher = Batcher(max_pending=settings.max_pending_points)
        self.places = world_grid(STEP_DEGREES)
        """The cells of the world maps, (H, W, 2)."""
        self.fields: dict[FieldName, Array] = {}
        """World maps (H, W, C) that are ready."""
        self.progress: dict[FieldName, float] = {}
        """The share of each map that is ready, 0 to 1."""
        self.probes: Recent[FittedProbe] = Recent(KEPT_PROBES)
        self.components: Components | None = None
        self.failure = ""
        self.migration = self._open_trajectory(trajectories)
        self._explain = functools.partial(explain_places, embedder.few_sites) if embedder.has_sites else None
        self._land: Land | None = None
        self._cells: dict[int, Cells] = {}
        self._preparing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Served":
        asyncio.get_running_loop().set_default_executor(ThreadPoolExecutor(WORKERS, thread_name_prefix="work"))
        await self.batcher.__aenter__()
        self._preparing = asyncio.create_task(self._prepare())
        return self

    async def __aexit__(self, *_: object) -> None:
        await _cancel(self._preparing)
        await self.batcher.__aexit__()

    async def embed(self, latlon: Floats) -> Array:
        """Embeddings (N, D) of checked places (N, 2)."""
        return await self.batcher.run(self.embedder.embed, latlon)

    async def explain(self, place: Floats) -> Any:
        """The row of `explain_places` for one place (2,); None for a model without sites."""
        return None if self._explain is None else (await self.batcher.run(self._explain, place[None]))[0]

    @property
    def num_sites(self) -> int:
        """Sites of all tessellations; 0 for a model without sites."""
        return int(self.embedder.encoder.config.num_sites) if self.embedder.has_sites else 0

    @property
    def num_tokens(self) -> int:
        """Semantic tokens; 0 for a model without tokens."""
        return int(self.embedder.encoder.config.num_tokens) if self.embedder.has_sites else 0

    @property
    def ready(self) -> bool:
        """Whether everything is prepared."""
        return self._preparing is not None and self._preparing.done()

    @property
    def land(self) -> Land:
        """The places to compare with, or an error while they are being prepared."""
        if self._land is None:
            raise self._unready("places to compare with are being prepared")
        return self._land

    @property
    def voronois(self) -> list[SoftVoronoi]:
        """The model's tessellations, or an error without any."""
        if not self.embedder.has_sites:
            raise UnknownNameError(f"{self.embedder.name} has no sites")
        return list(self.embedder.encoder.voronois())

    def cells(self, tessellation: int) -> Cells:
        """The cells of one tessellation; those of a thousand sites take a third of a second."""
        voronois = self.voronois
        if not 0 <= tessellation < len(voronois):
            raise UnknownNameError(f"there is no tessellation {tessellation}: the model has {len(voronois)}, from 0")
        if tessellation not in self._cells:
            positions = voronois[tessellation].positions().detach().double().cpu().numpy()
            self._cells[tessellation] = build_cells(positions)
        return self._cells[tessellation]

    def areas_km2(self) -> list[Floats]:
        """The areas of every tessellation's cells."""
        counts = [voronoi.config.num_sites for voronoi in self.voronois]
        return [
            EARTH_RADIUS_KM**2 * (self.cells(i).areas() if count >= FEWEST_SITES else np.full(count, 4 * np.pi / count))
            for i, count in enumerate(counts)
        ]

    def field(self, name: FieldName) -> Array:
        """A world map (H, W, C), or an error that says why it is not there."""
        self.check_field(name)
        if name not in self.fields:
            raise self._unready(f"this map is being prepared ({self.progress.get(name, 0.0):.0%})")
        return self.fields[name]

    def check_field(self, name: FieldName) -> None:
        """Refuse a map that this model will never have."""
        if name == "sharpness" and not self.num_sites:
            raise UnknownNameError(f"{self.embedder.name} has no sites, so there is no map of their sharpness")
        if name == "attention" and not self.num_tokens:
            raise UnknownNameError(f"{self.embedder.name} has no semantic tokens")

    def _unready(self, words: str) -> TessearthError:
        if self.failure:
            return DataError(f"the maps could not be prepared: {self.failure}")
        return OverloadedError(f"{words}; ask again in a moment")

    async def _prepare(self) -> None:
        try:
            await asyncio.to_thread(warm_base)
            await self._prepare_land()
            places = self.places.reshape(-1, 2)
            self._put("embedding", await self._embed_all(places, np.float16, "embedding"))
            if self.embedder.has_sites:
                await self._prepare_sites(places)
        except Exception as error:  # the API goes on without maps, and says why
            log.exception("maps could not be prepared")
            self.failure = str(error).splitlines()[0] if str(error) else type(error).__name__

    async def _prepare_land(self) -> None:
        places = await asyncio.to_thread(land_places)
        keys = await self._embed_all(places, np.float32)
        with contextlib.suppress(DataError):  # fewer than three directions: nothing to colour
            self.components = await asyncio.to_thread(fit_components, keys)
        unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-12)
        self._land = Land(places, unit, await asyncio.to_thread(find_labels, places))
        await asyncio.to_thread(answer_place, places[0])  # opens the other labels for the first request

    async def _prepare_sites(self, places: Floats) -> None:
        attention, sharpness = [], []
        for start in range(0, len(places), PLACES_AT_ONCE):
            some = places[start : start + PLACES_AT_ONCE]
            shares, sharp = await asyncio.to_thread(site_fields, self.embedder.few_sites, some)
            sharpness.append(sharp)
            attention.append(shares.astype(np.float16))
            self.progress["sharpness"] = self.progress["attention"] = start / len(places)
        self._put("sharpness", np.concatenate(sharpness))
        if self.num_tokens:
            self._put("attention", np.concatenate(attention))
        await asyncio.to_thread(self.areas_km2)

    def _put(self, name: FieldName, rows: Array) -> None:
        self.fields[name], self.progress[name] = rows.reshape(*self.places.shape[:2], -1), 1.0

    async def _embed_all(self, places: Floats, dtype: type[np.floating[Any]], name: FieldName | None = None) -> Array:
        """Embeddings (N, D) from the cache or through the model a few at a time, as progress of a map."""
        key = f"explorer {np.dtype(dtype)} {places_key(places)}"
        shape = (len(places), self.embedder.dim)
        if self.cache is not None:
            kept = await asyncio.to_thread(self.cache.read, self.fingerprint, key, shape)
            if kept is not None:
                return kept
        found = np.empty(shape, dtype=dtype)
        start = 0
        while start < len(places):
            if name is not None:
                self.progress[name] = start / len(places)
            some = slice(start, start + PLACES_AT_ONCE)
            try:
                found[some] = await self.embed(places[some])
                start = some.stop
            except OverloadedError:  # requests come first
                await asyncio.sleep(0.2)
        if self.cache is not None:
            await asyncio.to_thread(self.cache.write, self.fingerprint, key, found)
        return found

    def _open_trajectory(self, given: str | PathLike[str] | None) -> Trajectory | None:
        if not self.embedder.has_sites:
            if given is None:
                return None
            raise ConfigError(f"{self.embedder.name} has no sites whose trajectories {given} could hold")
        path = given or find_trajectory(self.embedder.name)
        if path is None:
            return None
        record = read_trajectory(path)
        if record.positions.shape[1] != self.num_sites:
            if given is None:  # the best weights of a run whose sites became more afterwards
                return None
            raise DataError(f"{path} follows {record.positions.shape[1]} sites, and the model has {self.num_sites}")
        return record
