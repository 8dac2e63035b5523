"""Encoding speed as sites grow in number, and as much sharper as denser; and that memory does not grow with places.

    .venv/bin/python benchmarks/scaling.py [--sizes 4096,16384,65536] [--places 65536] [--threads 2] [--out FILE.md]

Paper-shaped encoders with random weights. The first call makes the cells' tables and is reported apart; rounds take
turns. Memory is the highest a process of its own held while it embeds the places in parts, and four times as many.
"""

import argparse
import datetime
import multiprocessing
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tessearth.embedding.bench import random_places
from tessearth.embedding.embedder import Embedder
from tessearth.encoder import EncoderConfig, SphericalVoronoiEncoder, TessellationConfig

PART = 16384
PAPER_SITES, PAPER_SHARPNESS = 4096, 45.0


class Size(NamedTuple):
    num_sites: int
    sharpness: float
    first_call_s: float
    places_per_second: float
    times_slower: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--sizes", default="4096,16384,65536")
    parser.add_argument("--places", type=int, default=65536)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/scaling.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    rows = compare([int(size) for size in arguments.sizes.split(",")], arguments.places, arguments.rounds)
    memory = [peak_mb(times * arguments.places, arguments.threads) for times in (1, 4)]
    lines = [
        "# Encoding speed as sites grow in number",
        "",
        f"`python benchmarks/scaling.py --sizes {arguments.sizes} --places {arguments.places} "
        f"--rounds {arguments.rounds} --threads {arguments.threads}`",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} (UTC), CPU, {arguments.threads} thread(s), a machine shared "
        "with other work; seconds of processor time. Float32; sharpness 45 at 4,096 sites, in step with their density.",
        "",
        "| sites | sharpness | first call (s) | places/s after | times slower |",
        "| ---: | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.num_sites:,} | {row.sharpness:.0f} | {row.first_call_s:.1f} | {row.places_per_second:,.0f} | "
        f"{row.times_slower:.2f} |"
        for row in rows
    ]
    lines += [
        "",
        f"Highest memory held at {PAPER_SITES:,} sites: {memory[0]:,.0f} MB for {arguments.places:,} places, ",
    ]
    lines[-1] += f"{memory[1]:,.0f} MB for {4 * arguments.places:,}, embedded {PART:,} at a time."
    arguments.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def compare(sizes: list[int], places: int, rounds: int) -> list[Size]:
    latlon = random_places(places, 0)
    embedders = {size: Embedder(build_paper_shaped(size), device="cpu") for size in sizes}
    first: dict[int, float] = {}
    for size, embed in embedders.items():
        start = time.perf_counter()
        embed(latlon)
        first[size] = time.perf_counter() - start
        print(f"{size} sites: first call {first[size]:.1f} s", flush=True)
    seconds = processor_seconds({str(size): lambda e=embed: e(latlon) for size, embed in embedders.items()}, rounds)
    return [
        Size(
            size,
            paper_sharpness(size),
            first[size],
            places / seconds[str(size)],
            seconds[str(size)] / seconds[str(sizes[0])],
        )
        for size in sizes
    ]


def paper_sharpness(num_sites: int) -> float:
    """Sharpness in step with the density of the sites."""
    return PAPER_SHARPNESS * num_sites / PAPER_SITES


def build_paper_shaped(num_sites: int) -> SphericalVoronoiEncoder:
    """An encoder of the paper's widths with random weights and this many sites on land."""
    tessellation = TessellationConfig(
        num_sites=num_sites, sharpness=paper_sharpness(num_sites), sharpness_range=(0.5, 1e6)
    )
    config = EncoderConfig(tessellations=(tessellation,))
    return SphericalVoronoiEncoder(config, sites="land", generator=torch.Generator().manual_seed(0)).eval()


def processor_seconds(works: dict[str, Callable[[], Any]], rounds: int) -> dict[str, float]:
    """The least of each over some rounds, of time on the processor: other programs lengthen the clock's more."""
    least = dict.fromkeys(works, float("inf"))
    for _ in range(rounds):
        for name, work in works.items():
            start = time.process_time()
            work()
            least[name] = min(least[name], (time.process_time() - start) / torch.get_num_threads())
    return least


def peak_mb(places: int, threads: int) -> float:
    """The most memory a fresh process held while it embedded so many places, in parts."""
    context = multiprocessing.get_context("spawn")
    with context.Pool(1) as pool:
        return pool.apply(_embed_in_parts, (places, threads))


def _embed_in_parts(places: int, threads: int) -> float:
    torch.set_num_threads(threads)
    embed = Embedder(build_paper_shaped(PAPER_SITES), device="cpu")
    total = np.zeros(embed.dim)
    for part in range(places // PART):
        total += embed(random_places(PART, part)).sum(axis=0)
    # The kernel's own high-water mark of this program; getrusage would also count the process that started it.
    status = Path("/proc/self/status").read_text()
    return int(next(line for line in status.splitlines() if line.startswith("VmHWM")).split()[1]) / 1024


if __name__ == "__main__":
    main()
