"""How fast tiles are read, without encoding them: by threads and by processes.

    python benchmarks/reading.py [RECIPE] [--places 20000] [--threads 1 2 4] [--processes 2 4] [--table FILE.md]

Places and sources are the recipe's (`earth` reads what tools/imagery fetched). Starting processes counts, since whoever
makes a store waits for it; the time before the first chunk (imports, decoding whole rasters) is given apart.
"""

import argparse
import dataclasses
import sys
import time
from datetime import UTC, datetime
from functools import partial
from pathlib import Path

import numpy as np
import torch

from tessearth.imagery.reading import build_places, build_source, read_ahead, read_tiles
from tessearth.imagery.recipe import load_recipe
from tessearth.imagery.store import CHUNK_PLACES
from tessearth.storage.files import write_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("recipe", nargs="?", default="earth")
    parser.add_argument("--places", type=int, default=20_000)
    parser.add_argument("--threads", type=int, nargs="*", default=[1, 2, 4])
    parser.add_argument("--processes", type=int, nargs="*", default=[2, 4])
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    torch.set_num_threads(1)
    recipe = load_recipe(arguments.recipe)
    sources = [build_source(each) for each in recipe.sources]
    drawn = dataclasses.replace(recipe.places, count=arguments.places)
    latlon = build_places(drawn, sources[0], recipe.sources[0].kind).latlon
    latlon = latlon[np.random.default_rng(0).permutation(len(latlon))]  # a part read is as the whole
    lines = [
        f"`python benchmarks/reading.py {' '.join(sys.argv[1:])}`, {datetime.now(UTC):%Y-%m-%d}: "
        f"{arguments.places:,} places, {len(sources)} sources.",
        "",
        "| source | ms a place, one thread |",
        "|---|---:|",
    ]
    few = latlon[:2000]
    for number, (source, made_by) in enumerate(zip(sources, recipe.sources, strict=True)):
        source.tiles(few[:64])
        begun = time.perf_counter()
        for start in range(0, len(few), CHUNK_PLACES):
            source.tiles(few[start : start + CHUNK_PLACES])
        spent = (time.perf_counter() - begun) / len(few) * 1000
        lines.append(f"| {number} {made_by.kind}, {source.size} px of {source.km_per_pixel} km | {spent:.3f} |")
    read = partial(read_tiles, sources, latlon, recipe)
    lines += ["", "| read by | places a second | seconds before the first chunk |", "|---|---:|---:|"]
    ways = [("threads", n) for n in arguments.threads] + [("processes", n) for n in arguments.processes]
    for kind, number in ways:
        rate, first = measure(read, len(latlon), kind, number)
        lines.append(f"| {number} {kind} | {rate:,.0f} | {first:.1f} |")
        print(lines[-1], flush=True)
    text = "\n".join(lines) + "\n"
    print(text)
    if arguments.table:
        write_bytes(arguments.table, f"# Reading tiles\n\n{text}".encode())


def measure(read, count, kind, number):
    """Places a second from start to end, and when the first chunk was there."""
    begun = time.perf_counter()
    starts = range(0, count, CHUNK_PLACES)
    chunks = [(start, range(start, min(start + CHUNK_PLACES, count))) for start in starts]
    first = None
    for _ in read_ahead(read, chunks, **{kind: number}):
        first = first or time.perf_counter() - begun
    return count / (time.perf_counter() - begun), first


if __name__ == "__main__":
    main()
