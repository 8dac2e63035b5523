"""The model that is served, with everything prepared from it: places on land to compare with, fields over the world."""

import asyncio
import contextlib
import functools
import logging
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from os import PathLike
from typing import Any, ParamSpec, TypeVar

import numpy as np
import numpy.typing as npt

from tessearth.embedding.cache import EmbeddingCache, places_key
from tessearth.embedding.databases import land_places
from tessearth.embedding.embedder import Embedder
from tessearth.errors import ConfigError, DataError, MissingExtraError, UnknownNameError
from tessearth.explorer.batching import Batcher, OverloadedError
from tessearth.explorer.fields import FieldName, NotReadyError, Recent, World, site_fields
from tessearth.explorer.known import Names, name_places
from tessearth.explorer.migration import Trajectories, find_trajectories, read_trajectories
from tessearth.explorer.pictures import warm_base
from tessearth.explorer.probes import FittedProbe
from tessearth.explorer.settings import ServeSettings
from tessearth.plotting.colours import Components, fit_components
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.geometry import fibonacci_lattice, xyz_to_latlon
from tessearth.sphere.voronoi_cells import Cells, build_cells

Array = npt.NDArray[Any]
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

    def _open_trajectories(self, given: str | PathLike[str] | None) -> Trajectories | None:
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
