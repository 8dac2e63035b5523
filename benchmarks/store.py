"""What the feature store costs beside the encoder: writing, checksums, journal, disk.

    PYTHONPATH=src python3 benchmarks/store.py [--places 20000] [--device cuda]

The same tiles are encoded twice in one run: straight from memory, and through `build_store` from a source that hands
out the very same tiles from memory, so that only what the store adds differs. The best of several rounds counts. On a
CPU processor time is compared, which other programs on the machine do not stretch; on a GPU the clock on the wall.
"""

import argparse
import tempfile
import time

import numpy as np
import torch

from tessearth.imagery.building import build_store
from tessearth.imagery.image_encoders import RandomConvolution, RcfSettings
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.imagery.sources import SOURCES
from tessearth.imagery.store import CHUNK_PLACES
from tessearth.settings import find_device
from tessearth.sphere.sampling import place_keys, sample_sphere

SIZE, BANDS = 24, 3


class MemoryTiles:
    """Tiles held in memory, found again by their place."""

    bands = ("red", "green", "blue")

    def __init__(self, latlon, tiles):
        self._keys = place_keys(latlon)
        self._order = np.argsort(self._keys)
        self._tiles = tiles

    def tiles(self, latlon):
        rows = self._order[np.searchsorted(self._keys[self._order], place_keys(latlon))]
        first = int(rows[0])
        return self._tiles[first : first + len(rows)]  # the store asks for consecutive places

    def describe(self):
        return {"kind": "memory"}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=int, default=20_000)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--device")
    arguments = parser.parse_args()
    device = find_device(arguments.device)
    latlon = sample_sphere(arguments.places, 0)
    noise = torch.randn(arguments.places, BANDS, SIZE, SIZE, generator=torch.Generator().manual_seed(0))
    tiles = torch.nn.functional.avg_pool2d(noise, 3, stride=1, padding=1).numpy()
    SOURCES.register("memory", lambda: MemoryTiles(latlon, tiles))
    recipe = FeatureRecipe(
        sources=(SourceRecipe(kind="memory"),),
        places=PlacesRecipe(where="sphere", count=arguments.places, validation=0.0),
        dtype="float16",
    )
    encoder = RandomConvolution.fit(torch.from_numpy(tiles[:2048]), RcfSettings(), 0).to(device)
    clock = time.perf_counter if device.type == "cuda" else time.process_time
    alone = min(seconds(lambda: encode_all(encoder, tiles), clock) for _ in range(arguments.rounds))
    stored = min(seconds_in_store(recipe, device, clock) for _ in range(arguments.rounds))
    print(f"device {device}; {arguments.places:,} tiles of {SIZE} px, {encoder.width:,} features each")
    print(f"encoding alone        {alone:8.2f} s  {arguments.places / alone:12,.0f} tiles/s")
    print(f"through the store     {stored:8.2f} s  {arguments.places / stored:12,.0f} tiles/s")
    print(f"the store adds        {stored / alone - 1:8.1%} (from the first chunk to the opened store)")


def encode_all(encoder, tiles):
    for first in range(0, len(tiles), CHUNK_PLACES):
        encoder.encode(torch.from_numpy(tiles[first : first + CHUNK_PLACES])).half().cpu()


def seconds(work, clock):
    start = clock()
    work()
    return clock() - start


def seconds_in_store(recipe, device, clock):
    """From the first chunk on: fitting the encoder is not the store's."""
    marks = []
    with tempfile.TemporaryDirectory() as folder:
        build_store(recipe, f"{folder}/store", device=device, progress=lambda done, total: marks.append(clock()))
        return clock() - marks[0]


if __name__ == "__main__":
    main()
