"""What limits an encoder of three levels on a CPU: the head's width and blocks, the sites, their width, the tokens, D.

    .venv/bin/python benchmarks/heads.py [--places 32768] [--threads 2] [--rounds 5] [--out benchmarks/results/heads.md]

Untrained weights, sites as recipes/levels.toml places them, sharpness from their spacing: speed does not ask what they
learned. The base is
1,024 + 8,192 + 65,536 sites, 192 + 96 + 64 wide, 64 tokens, a head 256 wide without blocks and 1,024 numbers out; each
row changes what it names and takes turns with harmonics + SIREN. The first call makes the lists of the whole sphere and
is reported apart. One place is the median of 300 calls of one place each. `--processor-time` counts a processor's time
instead of the clock's, for a machine that others use as well. `--device cuda` measures `Embedder.embed_tensor` there.
"""

import argparse
import dataclasses
import datetime
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import torch

from tessearth.embedding.bench import random_places
from tessearth.embedding.embedder import Embedder
from tessearth.encoder import EncoderConfig, SphericalVoronoiEncoder, TessellationConfig, start_sites

RIVAL = "harmonics-siren"
BASE: dict[str, Any] = {"sites": (1024, 8192, 65536), "widths": (192, 96, 64)}
HEAD = {"num_tokens": 64, "output_dim": 1024, "hidden_dim": 256, "num_blocks": 0, "exit": "linear", "leak": 0.0}
UNITS = {"num_tokens": 0, "exit": "units", "leak": 0.3}
CHANGES: dict[str, dict[str, Any]] = {
    "the base": {},
    "512 wide": {"hidden_dim": 512},
    "1,024 wide": {"hidden_dim": 1024},
    "two blocks, 1,024 wide": {"num_blocks": 2, "hidden_dim": 1024},
    "no tokens, 512 out": {"num_tokens": 0, "output_dim": 512},
    "one level of 65,536": {"sites": (65536,), "widths": (192,)},
    "1,024 units": UNITS | {"hidden_dim": 1024},
    "1,024 units, sites 208 wide": UNITS | {"hidden_dim": 1024, "widths": (96, 64, 48)},
    "1,024 units, sites 176 wide": UNITS | {"hidden_dim": 1024, "widths": (64, 64, 48)},
    "1,536 units": UNITS | {"hidden_dim": 1536, "output_dim": 1536},
    "1,536 units, sites 208 wide": UNITS | {"hidden_dim": 1536, "output_dim": 1536, "widths": (96, 64, 48)},
    "1,536 units, sites 176 wide": UNITS | {"hidden_dim": 1536, "output_dim": 1536, "widths": (64, 64, 48)},
    "1,536 units, sites 144 wide": UNITS | {"hidden_dim": 1536, "output_dim": 1536, "widths": (64, 48, 32)},
    "1,536 units, sites 176 wide, 256 broad": UNITS
    | {"hidden_dim": 1536, "output_dim": 1536, "widths": (64, 64, 48), "sites": (256, 8192, 65536)},
    "1,536 units, sites 176 wide, 262,144 in the finest": UNITS
    | {"hidden_dim": 1536, "output_dim": 1536, "widths": (64, 64, 48), "sites": (1024, 8192, 262_144)},
    "1,536 units, sites 176 wide, 1,000,000 in the finest": UNITS
    | {"hidden_dim": 1536, "output_dim": 1536, "widths": (64, 64, 48), "sites": (1024, 8192, 1_000_000)},
    "2,048 units": UNITS | {"hidden_dim": 2048, "output_dim": 2048},
    "2,048 units, sites 176 wide": UNITS | {"hidden_dim": 2048, "output_dim": 2048, "widths": (64, 64, 48)},
    "1,536 units behind 256 and a block": UNITS | {"hidden_dim": 256, "num_blocks": 1, "output_dim": 1536},
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
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--precision", default="float32")
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
        f"{datetime.datetime.now(datetime.UTC):%Y-%m-%d} (UTC), torch {torch.__version__}, {arguments.device}, "
        f"{arguments.precision}.",
        "",
        "Untrained. The base: 1,024 + 8,192 + 65,536 sites, 192 + 96 + 64 wide, 64 tokens, a head 256 wide "
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
    latlon = torch.from_numpy(random_places(arguments.places, 0)).to(arguments.device)
    ours = Embedder(build(changes), device=arguments.device, precision=arguments.precision)
    contestants = {name: ours, RIVAL: Embedder(RIVAL, device=arguments.device)}
    start = clock()
    embed_all(ours, latlon)
    first, seconds = clock() - start, dict.fromkeys(contestants, float("inf"))
    embed_all(contestants[RIVAL], latlon)
    for _ in range(arguments.rounds):
        for who, embed in contestants.items():
            start = clock()
            embed_all(embed, latlon)
            seconds[who] = min(seconds[who], clock() - start)
    one = one_place_ms(contestants[name], clock)
    row = Speed(name, first, len(latlon) / seconds[name], seconds[RIVAL] / seconds[name], one)
    print(*row, flush=True)
    return row


def embed_all(embed: Embedder, latlon: torch.Tensor) -> None:
    if latlon.is_cuda:
        embed.embed_tensor(latlon, check=False)
        torch.cuda.synchronize()
    else:
        embed.embed(latlon.numpy())


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
    spaced = TessellationConfig(logits="chord", sharpness="spacing", spacing_factor=1.0, background=-8.0)
    levels = [dataclasses.replace(spaced, num_sites=count, site_dim=width) for count, width in sizes]
    sites = [start_sites("land", count) for count, _ in sizes]
    if len(levels) > 1:  # the first is broad, over the whole sphere
        levels[0] = TessellationConfig(num_sites=sizes[0][0], site_dim=sizes[0][1], sharpness=15.0, logits="chord")
        sites[0] = start_sites("full", sizes[0][0])
    config = EncoderConfig(tessellations=tuple(levels), **{name: wanted[name] for name in HEAD})
    return SphericalVoronoiEncoder(config, sites=sites, generator=torch.Generator().manual_seed(0)).eval()


if __name__ == "__main__":
    main()
