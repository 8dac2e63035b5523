"""What limits an encoder of three levels on a CPU: the head's width and blocks, the sites, their width, the tokens, D.

    .venv/bin/python benchmarks/heads.py [--places 32768] [--threads 2] [--rounds 5] [--out benchmarks/results/heads.md]

Untrained weights, sites spread evenly, sharpness from their spacing: speed does not ask what they learned. The base is
1,024 + 8,192 + 65,536 sites, 192 + 96 + 64 wide, 64 tokens, a head 256 wide without blocks and 1,024 numbers out; each
row changes what it names and takes turns with harmonics + SIREN. The first call makes the lists of the whole sphere and
is reported apart. One place is the median of 300 calls of one place each. `--processor-time` counts a processor's time
instead of the clock's, for a machine that others use as well.
"""

import argparse
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tessearth.embedding.bench import random_places
from tessearth.embedding.embedder import Embedder
from tessearth.encoder import EncoderConfig, SphericalVoronoiEncoder, TessellationConfig
from tessearth.sphere import fibonacci_lattice

RIVAL = "harmonics-siren"
BASE: dict[str, Any] = {"sites": (1024, 8192, 65536), "widths": (192, 96, 64)}
HEAD = {"num_tokens": 64, "output_dim": 1024, "hidden_dim": 256, "num_blocks": 0}
CHANGES: dict[str, dict[str, Any]] = {
    "the base": {},
    "512 numbers out": {"output_dim": 512},
    "no tokens": {"num_tokens": 0},
    "no tokens, 512 out": {"num_tokens": 0, "output_dim": 512},
    "128 wide": {"hidden_dim": 128},
    "512 wide": {"hidden_dim": 512},
    "1,024 wide": {"hidden_dim": 1024},
    "one block": {"num_blocks": 1},
    "two blocks, 1,024 wide": {"num_blocks": 2, "hidden_dim": 1024},
    "sites 64 wide": {"widths": (64, 64, 64)},
    "sites 384 + 192 + 128 wide": {"widths": (384, 192, 128)},
    "one level of 65,536": {"sites": (65536,), "widths": (192,)},
    "262,144 in the finest": {"sites": (1024, 8192, 262144)},
    "1,000,000 in the finest": {"sites": (1024, 8192, 1_000_000)},
}


class Speed(NamedTuple):
    name: str
    first_call_s: float
    places_per_second: float
    times_rival: float
    one_place_ms: float


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--places", type=int, default=32768)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--processor-time", action="store_true")
    parser.add_argument("--only", nargs="*", help="rows by name")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results/heads.md"))
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    chosen = {name: CHANGES[name] for name in arguments.only or CHANGES}
    clock = time.process_time if arguments.processor_time else time.perf_counter
    rows = [measure(name, changes, arguments, clock) for name, changes in chosen.items()]
    lines = [
        "# Three levels and a small head on a CPU",
        "",
        f"`python benchmarks/heads.py --places {arguments.places} --threads {arguments.threads} "
        f"--rounds {arguments.rounds}{' --processor-time' if arguments.processor_time else ''}`",
        "",
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} (UTC), torch {torch.__version__}.",
        "",
        "Float32, untrained. The base: 1,024 + 8,192 + 65,536 sites, 192 + 96 + 64 wide, 64 tokens, a head 256 wide "
        "without blocks, 1,024 numbers out.",
        "",
        f"| | first call (s) | places/s after | times {RIVAL} | one place (ms) |",
        "| --- | ---: | ---: | ---: | ---: |",
    ]
    lines += [
        f"| {row.name} | {row.first_call_s:.1f} | {row.places_per_second:,.0f} | {row.times_rival:.2f} | "
        f"{row.one_place_ms:.2f} |"
        for row in rows
    ]
    arguments.out.write_text("\n".join(lines) + "\n")
    print("\n".join(lines))


def measure(name: str, changes: dict[str, Any], arguments: argparse.Namespace, clock: Callable[[], float]) -> Speed:
    latlon = random_places(arguments.places, 0)
    contestants = {name: Embedder(build(changes), device="cpu"), RIVAL: Embedder(RIVAL, device="cpu")}
    start = clock()
    contestants[name].embed(latlon)
    first, seconds = clock() - start, dict.fromkeys(contestants, float("inf"))
    contestants[RIVAL].embed(latlon)
    for _ in range(arguments.rounds):
        for who, embed in contestants.items():
            start = clock()
            embed.embed(latlon)
            seconds[who] = min(seconds[who], clock() - start)
    one = one_place_ms(contestants[name], clock)
    row = Speed(name, first, len(latlon) / seconds[name], seconds[RIVAL] / seconds[name], one)
    print(*row, flush=True)
    return row


def one_place_ms(embed: Embedder, clock: Callable[[], float]) -> float:
    taken = []
    for place in random_places(600, 1):
        start = clock()
        embed.embed(*place)
        taken.append(clock() - start)
    return float(np.median(taken[300:])) * 1e3


def build(changes: dict[str, Any]) -> SphericalVoronoiEncoder:
    wanted = BASE | HEAD | changes
    sizes = list(zip(wanted["sites"], wanted["widths"], strict=True))
    levels = [
        TessellationConfig(
            num_sites=count, site_dim=width, logits="chord", sharpness="spacing", sharpness_range=(0.5, 8.0)
        )
        for count, width in sizes
    ]
    config = EncoderConfig(tessellations=tuple(levels), **{name: wanted[name] for name in HEAD})
    sites = [fibonacci_lattice(count) for count, _ in sizes]
    return SphericalVoronoiEncoder(config, sites=sites, generator=torch.Generator().manual_seed(0)).eval()


if __name__ == "__main__":
    main()
