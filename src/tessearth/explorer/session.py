"""The served model: the batcher in front of it, and the maps and land places prepared from it."""

import asyncio
import contextlib
import functools
import logging
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Hashable
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from pathlib import Path
from typing import Any, Generic, Literal, NamedTuple, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tessearth.embedding.cache import EmbeddingCache, places_key
from tessearth.embedding.embedder import Embedder
from tessearth.embedding.retrieval import land_places
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.encoder.sites import TRAJECTORIES, Trajectory, read_trajectory
from tessearth.errors import ConfigError, DataError, MissingExtraError, TessearthError, UnknownNameError
from tessearth.explorer.limits import ServeSettings
from tessearth.explorer.pictures import warm_base
from tessearth.explorer.probes import FittedProbe
from tessearth.explorer.schemas import MigrationAnswer
from tessearth.labels.table import LABELS, prepare_labels
from tessearth.plotting.colours import Components, fit_components
from tessearth.plotting.places import world_grid
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.geometry import EARTH_RADIUS_KM, angular_distance, fibonacci_lattice, latlon_to_xyz, xyz_to_latlon
from tessearth.sphere.land import is_land
from tessearth.sphere.voronoi_cells import Cells, build_cells
from tessearth.zoo.shipped import shipped_folder

NAMED = {"country": "country", "climate": "koppen"}
"""What we call it, and the label it is read from."""
MEASURED = {"temperature_c": "temperature", "elevation_m": "elevation"}


class Names(NamedTuple):
    """Country and climate of many places, as codes (-1 where there is none) and the words they stand for."""

    codes: dict[str, npt.NDArray[np.int64]]
    words: dict[str, tuple[str, ...]]

    def of(self, row: int) -> dict[str, str | None]:
        """The words for one place."""
        return {name: self.word(name, int(codes[row])) for name, codes in self.codes.items()}

    def word(self, name: str, code: int) -> str | None:
        """The word for a code."""
        return self.words[name][code] if code >= 0 else None


def name_places(latlon: Floats) -> Names:
    """Country and climate of places (N, 2); nothing where the label packages are not installed."""
    try:
        found = prepare_labels(latlon, NAMED.values())
        words = {label: (LABELS[label].class_names or tuple)() for label in NAMED.values()}
    except MissingExtraError:
        return Names({}, {})
    codes = {name: found[label].astype(np.int64) for name, label in NAMED.items()}
    return Names(codes, {name: words[label] for name, label in NAMED.items()})


def describe_place(latlon: Floats) -> dict[str, Any]:
    """Everything known of one place (2,), ready for JSON; empty where the label packages are not installed."""
    place = latlon[None]
    names = name_places(place)
    if not names.codes:
        return {}
    found = prepare_labels(place, MEASURED.values())
    measured = {name: float(found[label][0]) for name, label in MEASURED.items()}
    known = {name: round(value, 1) if np.isfinite(value) else None for name, value in measured.items()}
    return {**names.of(0), **known, "land": bool(is_land(place)[0])}


def land_mask(latlon: Floats) -> npt.NDArray[np.bool_]:
    """Which places (..., 2) are land; everything where the land mask is not installed."""
    try:
        return is_land(latlon)
    except MissingExtraError:
        return np.ones(latlon.shape[:-1], dtype=bool)


MOST_FRAMES = 60


def find_trajectories(model: str | PathLike[str]) -> Path | None:
    """The record beside a model's file, in its folder, or in the run whose weights it is; None when there is none."""
    path = shipped_folder(model) or Path(model)
    if not path.exists():
        return None
    beside = (
        [path / TRAJECTORIES] if path.is_dir() else [path.with_suffix(f".{TRAJECTORIES}"), path.parent / TRAJECTORIES]
    )
    if path.parent.name == "weights":
        beside.append(path.parent.parent / TRAJECTORIES)
    return next((file for file in beside if file.is_file()), None)


def read_trajectories(path: str | PathLike[str], num_sites: int) -> Trajectory:
    """Read a record and check that it is of as many sites as the model has."""
    record = read_trajectory(path)
    if len(record.steps) == 0 or record.positions.shape[1] != num_sites:
        raise DataError(f"{path} follows {record.positions.shape[1]} sites, and the model has {num_sites}")
    return record


def describe_migration(record: Trajectory, *, share: float, frames: int, seed: int) -> MigrationAnswer:
    """A seeded share of the sites over evenly chosen frames, the first and the last always among them."""
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share:g}; it must lie above 0 and be at most 1")
    if not 2 <= frames <= MOST_FRAMES:
        raise ConfigError(f"frames is {frames}; it must lie between 2 and {MOST_FRAMES}")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more")
    count = record.positions.shape[1]
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[: max(1, round(share * count))])
    shown = np.unique(np.linspace(0, len(record.steps) - 1, frames).round().astype(np.int64))
    latlon = _to_latlon(record.positions[np.ix_(shown, chosen)])
    return MigrationAnswer(
        steps=record.steps[shown].tolist(),
        sites=chosen.tolist(),
        lat=latlon[..., 0].round(3).tolist(),
        lon=latlon[..., 1].round(3).tolist(),
        moved_km=_moved_km(record.positions[:, chosen]).round(1).tolist(),
    )


def _to_latlon(positions: npt.NDArray[np.float32]) -> Floats:
    return np.asarray(xyz_to_latlon(torch.from_numpy(positions.astype(np.float64))).numpy())


def _moved_km(positions: npt.NDArray[np.float32]) -> Floats:
    first, last = (torch.nn.functional.normalize(torch.from_numpy(positions[i]).double(), dim=-1) for i in (0, -1))
    return np.asarray(angular_distance(first, last).numpy() * EARTH_RADIUS_KM)


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


FieldName = Literal["embedding", "attention", "sharpness"]
Kept = TypeVar("Kept")

STEP_DEGREES = 1.0
WORLD_ZOOM = 3
"""Tiles up to this zoom are read off the world grid; deeper ones have places of their own."""
LATTICE_STEPS = 32
"""Across a tile of a deeper zoom: 0.7 degrees at zoom 4."""
DEEPEST_FIELD_ZOOM = 8
ROWS_AT_ONCE = 1024


class NotReadyError(OverloadedError):
    """A map that is still being prepared."""


class World:
    """Fields over the whole world, (H, W, C) each, as they become ready."""

    def __init__(self) -> None:
        self.places = world_grid(STEP_DEGREES)
        self.shape = self.places.shape[:2]
        self.progress: dict[FieldName, float] = {}
        self._fields: dict[FieldName, Array] = {}

    def put(self, name: FieldName, values: Array) -> None:
        """Keep a field of all places in rows, (H W, C)."""
        self._fields[name] = values.reshape(*self.shape, -1)
        self.progress[name] = 1.0

    def get(self, name: FieldName) -> Array:
        """A field (H, W, C), or an error that says how far it is."""
        if name not in self._fields:
            share = self.progress.get(name, 0.0)
            raise NotReadyError(f"this map is being prepared ({share:.0%}); ask again in a moment")
        return self._fields[name]

    def ready(self, name: FieldName) -> bool:
        """Whether a field is there."""
        return name in self._fields


@torch.inference_mode()
def site_fields(encoder: SphericalVoronoiEncoder, latlon: Floats) -> tuple[Array | None, Array]:
    """Token attention (N, T), None without tokens, and sharpness (N, 1) of places (N, 2).

    Sharpness is the sites' own, mixed on a logarithmic scale by the place's share in them; tessellations count alike.
    """
    attention, sharpness = [], []
    device = encoder.norm.weight.device
    for start in range(0, len(latlon), ROWS_AT_ONCE):
        xyz = latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(latlon[start : start + ROWS_AT_ONCE])))
        xyz = F.normalize(xyz, dim=-1).to(device, encoder.voronois()[0].directions.dtype)
        weights = [voronoi.weights(xyz) for voronoi in encoder.voronois()]
        logs = [part @ voronoi.log_sharpness for part, voronoi in zip(weights, encoder.voronois(), strict=True)]
        sharpness.append(torch.stack(logs).mean(0).exp().float().cpu().numpy())
        if encoder.tokens is not None:
            mixtures = [part @ v.embeddings for part, v in zip(weights, encoder.voronois(), strict=True)]
            mixture = torch.cat(mixtures, dim=-1).to(encoder.norm.weight.dtype)
            attention.append(encoder.tokens.location_attention(mixture).float().cpu().numpy())
    return (np.concatenate(attention) if attention else None), np.concatenate(sharpness)[:, None]


class Recent(Generic[Kept]):
    """The results used most recently, at most so many; two threads may make the same one, and both are right."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Kept | None:
        """What is kept under a key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: Kept) -> Kept:
        """Keep a result; the one not used for longest may have to go."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return value

    def find(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What is kept, else what is made."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found


Arguments = ParamSpec("Arguments")
Result = TypeVar("Result")

PLACES_AT_ONCE = 2048
"""Given to the model while preparing, so that requests get their turn."""
SITE_PLACES_AT_ONCE = 2048
KEPT_PROBES, KEPT_TESSELLATIONS = 32, 8
FEWEST_SITES = 4
"""Fewer than these have no cells on a sphere."""
SPHERE_PLACES = 16_384
WORKERS = 2

log = logging.getLogger(__name__)


class Served:
    """A model and what is prepared from it, in the background, while requests are answered already.

    async with Served(Embedder("earth"), ServeSettings()) as served:
        await served.batcher.embed(latlon)
    """

    def __init__(
        self,
        embedder: Embedder,
        settings: ServeSettings,
        *,
        trajectories: str | PathLike[str] | None = None,
        cache: EmbeddingCache | None = None,
    ) -> None:
        """`trajectories` is a run's record of its sites, by default the one beside the model; `cache` keeps maps."""
        self.embedder, self.settings, self.cache = embedder, settings, cache
        self.fingerprint = embedder.fingerprint()
        self.batcher = Batcher(embedder.embed, embedder.dim, max_pending=settings.max_pending_points)
        self.world = World()
        self.probes: Recent[FittedProbe] = Recent(KEPT_PROBES)
        self.components: Components | None = None
        self._cells: Recent[Cells] = Recent(KEPT_TESSELLATIONS)
        self.failure = ""
        self.migration = self._open_trajectories(trajectories)
        self._land: tuple[Floats, npt.NDArray[np.float32], Names] | None = None
        self._workers = ThreadPoolExecutor(WORKERS, thread_name_prefix="work")
        self._background = ThreadPoolExecutor(1, thread_name_prefix="prepare")
        self._preparing: asyncio.Task[None] | None = None

    async def __aenter__(self) -> "Served":
        await self.batcher.__aenter__()
        self._preparing = asyncio.create_task(self._prepare())
        return self

    async def __aexit__(self, *_: object) -> None:
        if self._preparing is not None:
            self._preparing.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._preparing
        await self.batcher.__aexit__()
        for pool in (self._workers, self._background):
            pool.shutdown(wait=True, cancel_futures=True)

    @property
    def has_tokens(self) -> bool:
        """Whether places attend to semantic tokens."""
        return self.embedder.has_sites and self.embedder.encoder.tokens is not None

    @property
    def num_sites(self) -> int:
        """How many sites the model has; 0 without any."""
        return int(self.embedder.encoder.config.num_sites) if self.embedder.has_sites else 0

    @property
    def num_tokens(self) -> int:
        """How many tokens the model has."""
        return int(self.embedder.encoder.config.num_tokens) if self.has_tokens else 0

    @property
    def land(self) -> tuple[Floats, npt.NDArray[np.float32], Names]:
        """Places to compare with (N, 2), their unit embeddings (N, D) and what is known of them."""
        if self._land is None:
            raise self._unready("places to compare with are being prepared")
        return self._land

    def cells(self, tessellation: int) -> Cells:
        """The cells of one of the model's tessellations; those of a thousand sites take a third of a second."""
        positions = self.embedder.encoder.voronois()[tessellation].positions().detach().double().cpu().numpy()
        return self._cells.find(tessellation, lambda: build_cells(positions))

    def field(self, name: FieldName) -> Array:
        """A field over the world, (H, W, C), or an error that says why it is not there."""
        self.check_field(name)
        if self.failure:
            raise DataError(f"the maps could not be prepared: {self.failure}")
        return self.world.get(name)

    def check_field(self, name: FieldName) -> None:
        """Refuse a field that this model will never have."""
        if name == "sharpness" and not self.embedder.has_sites:
            raise UnknownNameError(f"{self.embedder.name} has no sites, so there is no map of their sharpness")
        if name == "attention" and not self.has_tokens:
            raise UnknownNameError(f"{self.embedder.name} has no semantic tokens")

    @property
    def ready(self) -> bool:
        """Whether everything is prepared."""
        return self._preparing is not None and self._preparing.done()

    async def work(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run what somebody waits for outside the loop."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._workers, call)

    async def _slowly(
        self, function: Callable[Arguments, Result], *args: Arguments.args, **kwargs: Arguments.kwargs
    ) -> Result:
        """Run what nobody waits for yet, in a thread of its own."""
        call = functools.partial(function, *args, **kwargs)
        return await asyncio.get_running_loop().run_in_executor(self._background, call)

    async def _prepare(self) -> None:
        try:
            await self._slowly(warm_base)
            await self._prepare_land()
            await self._prepare_world()
            await self._prepare_sites()
        except asyncio.CancelledError:
            raise
        except Exception as error:  # the API goes on without maps, and says why
            log.exception("maps could not be prepared")
            self.failure = str(error).splitlines()[0] if str(error) else type(error).__name__

    async def _prepare_land(self) -> None:
        places = await self._slowly(_places_to_compare)
        keys = await self._embed_all(places, np.float32, lambda share: None)
        with contextlib.suppress(DataError):  # fewer than three directions: nothing to colour
            self.components = await self._slowly(fit_components, keys)
        unit = keys / np.maximum(np.linalg.norm(keys, axis=1, keepdims=True), 1e-12)
        self._land = places, unit, await self._slowly(name_places, places)

    async def _prepare_world(self) -> None:
        def note(share: float) -> None:
            self.world.progress["embedding"] = share

        places = self.world.places.reshape(-1, 2)
        self.world.put("embedding", await self._embed_all(places, np.float16, note))

    async def _prepare_sites(self) -> None:
        if not self.embedder.has_sites:
            return
        attention, sharpness = [], []
        places = self.world.places.reshape(-1, 2)
        for start in range(0, len(places), SITE_PLACES_AT_ONCE):
            some = places[start : start + SITE_PLACES_AT_ONCE]
            shares, sharp = await self._slowly(site_fields, self.embedder.encoder, some)
            sharpness.append(sharp)
            if shares is not None:
                attention.append(shares.astype(np.float16))
            self.world.progress["sharpness"] = self.world.progress["attention"] = start / len(places)
        self.world.put("sharpness", np.concatenate(sharpness))
        if attention:
            self.world.put("attention", np.concatenate(attention))
        for number, voronoi in enumerate(self.embedder.encoder.voronois()):
            if voronoi.config.num_sites >= FEWEST_SITES:
                await self._slowly(self.cells, number)

    async def _embed_all(
        self, places: Floats, dtype: type[np.floating[Any]], note: Callable[[float], None]
    ) -> npt.NDArray[Any]:
        """Embeddings of many places (N, D), from the cache or through the model a few at a time."""
        key = f"explorer {np.dtype(dtype)} {places_key(places)}"
        shape = (len(places), self.embedder.dim)
        if self.cache is not None:
            kept = await self._slowly(self.cache.read, self.fingerprint, key, shape)
            if kept is not None:
                return kept
        found = np.empty(shape, dtype=dtype)
        for start in range(0, len(places), PLACES_AT_ONCE):
            some = slice(start, start + PLACES_AT_ONCE)
            found[some] = await self._embed_patiently(places[some])
            note(start / len(places))
        if self.cache is not None:
            await self._slowly(self.cache.write, self.fingerprint, key, found)
        return found

    async def _embed_patiently(self, places: Floats) -> Array:
        while True:
            try:
                return await self.batcher.embed(places)
            except OverloadedError:
                await asyncio.sleep(0.2)

    def _unready(self, words: str) -> Exception:
        if self.failure:
            return DataError(f"the maps could not be prepared: {self.failure}")
        return NotReadyError(f"{words}; ask again in a moment")

    def _open_trajectories(self, given: str | PathLike[str] | None) -> Trajectory | None:
        if given is not None and not self.embedder.has_sites:
            raise ConfigError(f"{self.embedder.name} has no sites whose ways {given} could hold")
        found = given if given is not None else find_trajectories(self.embedder.name)
        if found is None or not self.embedder.has_sites:
            return None
        return read_trajectories(found, self.num_sites)


def _places_to_compare() -> Floats:
    """Land, where we know what is land; else the whole sphere."""
    try:
        return land_places()
    except MissingExtraError:
        return np.asarray(xyz_to_latlon(fibonacci_lattice(SPHERE_PLACES)).numpy())
