"""The embeddings of one encoder at every set of places of a plan: from the cache, or made and kept there."""

import time
from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.embedding.cache import EmbeddingCache
from tessearth.embedding.embedder import Embedder
from tessearth.evaluation.plan import Plan

Array = npt.NDArray[Any]


class Embeddings(NamedTuple):
    """What was found for all places, and how."""

    fingerprint: str
    at: dict[str, Array]
    """Embeddings (N, D) by the key of their places."""
    how: str
    """"made", "from the cache" or "some of both"."""
    seconds: float


def find_embeddings(embedder: Embedder, plan: Plan, cache: EmbeddingCache | None) -> Embeddings:
    """Embed every set of places of a plan, or read what was embedded before."""
    start, fingerprint = time.perf_counter(), embedder.fingerprint()
    ways: list[str] = []

    def find(key: str) -> Array:
        latlon = plan.places[key].latlon
        kept = cache.read(fingerprint, key, (len(latlon), embedder.dim)) if cache else None
        ways.append("made" if kept is None else "from the cache")
        if kept is not None:
            return kept
        made = np.asarray(embedder.embed(latlon), dtype=np.float32)
        if cache:
            cache.write(fingerprint, key, made)
        return made

    found = embed_places(plan, find)
    how = ways[0] if len(set(ways)) == 1 else "some of both"
    return Embeddings(fingerprint, found, how, time.perf_counter() - start)


def embed_places(plan: Plan, embed: Callable[[str], Array]) -> dict[str, Array]:
    """Every set of places by its key, each place embedded once: a set within a larger one takes its rows from it."""
    found: dict[str, Array] = {}
    for key, places in plan.places.items():  # larger sets come before those within them
        found[key] = embed(key) if places.within is None else found[places.within[0]][places.within[1]]
    return found
