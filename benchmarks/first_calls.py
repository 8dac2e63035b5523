"""What a first call costs next to the second one, and next to the plain strategy, over scattered places.

    .venv/bin/python benchmarks/first_calls.py [--calls untrained:6000,12000,16384 earth:6000]

A first call may make the cells' tables, which later ones use; whether it does depends on the places alone. Processor
seconds of one thread. Before the first call a few places are embedded, so that loading is no part of it. Prints a
table in markdown.
"""

import argparse
import time
from typing import NamedTuple

import torch

from tessearth.embedding.bench import random_places
from tessearth.embedding.embedder import Embedder, Strategy
from tessearth.sphere.coordinates import Floats

DEFAULT = ("untrained:6000,12000,16384", "earth:6000")
FEW = 6
"""Places that warm an embedder up: too few for tables to be made."""


class Calls(NamedTuple):
    """Processor seconds of a call and of the same call again."""

    first: float
    again: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--calls", nargs="+", default=DEFAULT, metavar="MODEL:PLACES,...")
    calls = parser.parse_args().calls
    torch.set_num_threads(1)
    print("Processor seconds, one thread, places over the whole sphere:\n")
    print("| model | places | first call | again | plain | first / plain | again / plain |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: |")
    for model, counts in (call.rsplit(":", 1) for call in calls):
        for count in map(int, counts.split(",")):
            ours, plain = two_calls(model, count), two_calls(model, count, "plain").first
            numbers = (*ours, plain, ours.first / plain, ours.again / plain)
            print(f"| {model} | {count:,} | {' | '.join(f'{number:.2f}' for number in numbers)} |", flush=True)


def two_calls(model: str, count: int, strategy: Strategy = "auto") -> Calls:
    """Both calls of an embedder of its own, so that no table is there before the first."""
    embed = Embedder(model, device="cpu", strategy=strategy)
    places = random_places(count, 0)
    embed.embed(places[:FEW])
    return Calls(*(_seconds(embed, places) for _ in range(2)))


def _seconds(embed: Embedder, places: Floats) -> float:
    start = time.thread_time()
    embed.embed(places)
    return time.thread_time() - start


if __name__ == "__main__":
    main()
