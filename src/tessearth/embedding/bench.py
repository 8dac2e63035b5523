"""Encoding speed on this machine: our precisions, the plain dense form, and other encoders, taking turns in one run.

Other programs can only make a round slower, so the best round of each counts, and only ratios within a run mean much.
"""

import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.embedding.embedder import Embedder
from tessearth.embedding.fast.head import Precision
from tessearth.errors import ConfigError, TessearthError
from tessearth.settings import check_at_least, places_at_once
from tessearth.sphere import xyz_to_latlon
from tessearth.zoo import load_base

PLAIN = "plain dense"
PLAIN_BATCH = 4096
"""The most places whose N x K weights are written at once by the dense form."""
MOST_WEIGHTS = 2**28
"""The dense form of an encoder with many sites takes fewer places a round: as many as have these weights."""
PRECISIONS: tuple[Precision, ...] = ("float32", "bfloat16")
RIVALS = ("geoclip", "harmonics-siren")
COMPARED_PLACES = 2048
"""Places at which errors are measured against float64."""
SINGLE_CALLS = 300

Array = npt.NDArray[Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class Bench:
    """The settings of a measurement."""

    model: str = "untrained"
    places: int = 32768
    threads: int = 2
    rounds: int = 5
    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "places", "threads", "rounds")


class Row(NamedTuple):
    """One contestant."""

    name: str
    places_per_second: float
    times_plain: float
    """How many times as fast as the plain dense form."""
    largest_error: float | None
    """Of any number of an embedding, against float64; None for encoders of another kind."""
    least_cosine: float | None
    note: str = ""


def compare(bench: Bench) -> list[Row]:
    """Our precisions, the plain dense form and the installed rivals, taking turns."""
    encoder = load_base(bench.model)
    if encoder.sites() is None:
        raise ConfigError(f"bench measures a Voronoi encoder against others, and {bench.model} is none")
    latlon = random_places(bench.places, bench.seed)
    few = latlon[: max(1, MOST_WEIGHTS // encoder.widest)]
    batch = min(PLAIN_BATCH, places_at_once("cpu", encoder.widest))
    ours = {PLAIN: Embedder(encoder, device="cpu", strategy="plain", batch_size=batch)}
    ours |= {f"ours {precision}": Embedder(encoder, device="cpu", precision=precision) for precision in PRECISIONS}
    rivals, missing = _load_rivals()
    works = {name: (embed, few if name == PLAIN else latlon) for name, embed in (ours | rivals).items()}
    with _threads(bench.threads):
        seconds = in_turns({name: partial(embed.embed, given) for name, (embed, given) in works.items()}, bench.rounds)
        exact = Embedder(encoder, device="cpu", precision="float64").embed(few[:COMPARED_PLACES])
        errors = {name: _errors(embed.embed(works[name][1])[: len(exact)], exact) for name, embed in ours.items()}
    each = {name: time / len(works[name][1]) for name, time in seconds.items()}
    rows = [Row(name, 1 / time, each[PLAIN] / time, *errors.get(name, (None, None))) for name, time in each.items()]
    return rows + [Row(name, 0.0, 0.0, None, None, note) for name, note in missing.items()]


def single_place_ms(bench: Bench) -> float:
    """Median time of `Embedder.embed` of one place after warm-up, in milliseconds, another place each time."""
    embed = Embedder(bench.model, device="cpu")
    taken = []
    places = random_places(2 * SINGLE_CALLS, bench.seed)
    places = places[np.abs(places[:, 0]) > 2]  # a single place near (0, 0) would be taken for radians
    with _threads(bench.threads):
        for place in places:
            start = time.perf_counter()
            embed.embed(place)
            taken.append(time.perf_counter() - start)
    return float(np.median(taken[len(taken) // 2 :])) * 1e3


def in_turns(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The shortest time of each in seconds; the first call of each warms up and does not count."""
    for work in works.values():
        work()
    seconds = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.perf_counter()
            work()
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds


def random_places(count: int, seed: int) -> Array:
    """Places spread evenly at random over the sphere, degrees (N, 2)."""
    generator = torch.Generator().manual_seed(seed)
    return xyz_to_latlon(torch.randn(count, 3, dtype=torch.float64, generator=generator)).numpy()


def _load_rivals() -> tuple[dict[str, Embedder], dict[str, str]]:
    """The rivals that can be loaded, and the reason for each of the others."""
    rivals: dict[str, Embedder] = {}
    missing: dict[str, str] = {}
    for name in RIVALS:
        try:
            rivals[name] = Embedder(name, device="cpu")
        except TessearthError as error:
            missing[name] = str(error)
    return rivals, missing


def _errors(got: Array, exact: Array) -> tuple[float, float]:
    unit = exact / np.linalg.norm(exact, axis=1, keepdims=True)
    cosine = (got * unit).sum(axis=1) / np.linalg.norm(got, axis=1)
    return float(np.abs(got - exact).max()), float(cosine.min())


@contextmanager
def _threads(count: int) -> Iterator[None]:
    before = torch.get_num_threads()
    torch.set_num_threads(count)
    try:
        yield
    finally:
        torch.set_num_threads(before)
