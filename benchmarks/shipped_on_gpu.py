"""The shipped models through `Embedder` on a GPU: speed and error of every precision, plain and fast.

    PYTHONPATH=src python3 benchmarks/shipped_on_gpu.py [--models earth earth-small] [--precisions float32 ...]

"on the device" counts directions in to embeddings out, both on the GPU; "whole call" what a user of numpy arrays gets,
whose every 512th embedding is compared with float64.
"""

import argparse
import time

import numpy as np
import torch

from tessearth import Embedder

PLACES, COMPARED, ON_DEVICE = 2**21, 4096, 2**20
STRIDE = PLACES // COMPARED
DENSE_PLACES = 65536


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["earth", "earth-small"])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16", "float16"])
    arguments = parser.parse_args()
    latlon = places()
    print(
        "| model | precision | way | M places/s on the device | whole call | max error | min cosine | first call, s |"
    )
    print("|---|---|---|---:|---:|---:|---:|---:|")
    for model in arguments.models:
        exact = Embedder(model, device="cuda", precision="float64").embed(latlon[::STRIDE])
        for precision in arguments.precisions:
            for way, expected in (("plain", 0), ("fast", 10**8)):
                print(
                    f"| {model} | {precision} | {way} | {row(model, precision, expected, latlon, exact)} |", flush=True
                )


def places():
    """Random places of the whole sphere; poles and the antimeridian are among those compared."""
    rng = np.random.default_rng(0)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, PLACES)))
    latlon = np.stack([lat, rng.uniform(-180, 180, PLACES)], axis=1)
    latlon[: 4 * STRIDE : STRIDE] = [[90, 0], [-90, 0], [0, 180], [0, -180]]
    return latlon


def row(model, precision, expected, latlon, exact):
    begun = time.perf_counter()
    embedder = Embedder(model, device="cuda", precision=precision)
    embedder.embed(latlon[:COMPARED])
    first = time.perf_counter() - begun
    begun = time.perf_counter()
    got = embedder.embed(latlon)
    whole, got = PLACES / (time.perf_counter() - begun), got[::STRIDE]
    error, cosine = np.abs(got - exact).max(), (got * exact).sum(1).min()
    return f"{on_device(embedder) / 1e6:.1f} | {whole / 1e6:.2f} | {error:.1e} | {cosine:.7f} | {first:.1f}"


@torch.inference_mode()
def on_device(embedder):
    """Places a second, the better of two rounds."""
    xyz = torch.nn.functional.normalize(torch.randn(ON_DEVICE, 3, device="cuda"), dim=-1)
    seconds = []
    for _ in range(3):
        torch.cuda.synchronize()
        begun = time.perf_counter()
        run(embedder, xyz)
        torch.cuda.synchronize()
        seconds.append(time.perf_counter() - begun)
    return ON_DEVICE / min(seconds[1:])


def run(embedder, xyz):
    inside = embedder._places
    if inside.is_fast:
        return inside._fast_path().embed(xyz)
    dtype = inside.encoder.voronois()[0].directions.dtype
    return [inside.encoder.embed_xyz(part.to(dtype)) for part in xyz.split(DENSE_PLACES)]


if __name__ == "__main__":
    main()
