"""The shipped models through `Embedder` on a GPU: speed and error of every precision, by each strategy.

    PYTHONPATH=src python3 benchmarks/shipped_on_gpu.py [--models earth earth-small] [--precisions float32 ...]

"embed" takes and gives numpy arrays, "embed_tensor" tensors that are on the GPU already; the better of two rounds after
a first one counts. Every 512th embedding of each is compared with float64. "prepared" is the time until the first 4,096
embeddings. --device cpu --places 65536 tries the program without a GPU.
"""

import argparse
import time

import numpy as np
import torch

from tessearth import Embedder

COMPARED, ROUNDS = 4096, 3


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["earth", "earth-small"])
    parser.add_argument("--precisions", nargs="+", default=["float32", "bfloat16", "float16"])
    parser.add_argument("--places", type=int, default=2**21)
    parser.add_argument("--device", default="cuda")
    arguments = parser.parse_args()
    latlon = places(arguments.places)
    on_device = torch.from_numpy(latlon).to(arguments.device)
    print(f"{arguments.device}, torch {torch.__version__}, {arguments.places:,} places\n")
    heads = ("model", "precision", "strategy", "embed, M places/s", "embed_tensor", "times", "x plain embed")
    print(f"| {' | '.join(heads)} | max error | min cosine | prepared, s |\n|---|---|---|{'---:|' * 7}")
    for model in arguments.models:
        exact = Embedder(model, device=arguments.device, precision="float64").embed(latlon[:: stride(latlon)])
        for precision in arguments.precisions:
            plain_embed = None
            for strategy in ("plain", "fast"):
                begun = time.perf_counter()
                embedder = Embedder(model, device=arguments.device, precision=precision, strategy=strategy)
                embedder.embed(latlon[:COMPARED])
                prepared = time.perf_counter() - begun
                by_array, array = measure(lambda embedder=embedder: embedder.embed(latlon))
                by_tensor, tensor = measure(lambda embedder=embedder: embedder.embed_tensor(on_device))
                plain_embed = plain_embed or by_array
                got = np.stack([array[:: stride(latlon)], tensor[:: stride(latlon)].cpu().numpy()])
                error, cosine = np.abs(got - exact).max(), (got * exact).sum(-1).min()
                speeds = f"{by_array / 1e6:.2f} | {by_tensor / 1e6:.2f} | {by_tensor / by_array:.1f}"
                cells = f"{speeds} | {by_tensor / plain_embed:.1f} | {error:.1e} | {cosine:.7f} | {prepared:.1f}"
                print(f"| {model} | {precision} | {embedder.strategy} | {cells} |", flush=True)


def places(count):
    """Random places of the whole sphere; poles and the antimeridian are among those compared."""
    rng = np.random.default_rng(0)
    lat = np.degrees(np.arcsin(rng.uniform(-1, 1, count)))
    latlon = np.stack([lat, rng.uniform(-180, 180, count)], axis=1)
    latlon[: 4 * stride(latlon) : stride(latlon)] = [[90, 0], [-90, 0], [0, 180], [0, -180]]
    return latlon


def stride(latlon):
    return max(1, len(latlon) // COMPARED)


def measure(work):
    """Places a second, and what the work gave."""
    seconds = []
    for _ in range(ROUNDS):
        wait()
        begun = time.perf_counter()
        got = work()
        wait()
        seconds.append(time.perf_counter() - begun)
    return len(got) / min(seconds[1:]), got


def wait():
    if torch.cuda.is_available():
        torch.cuda.synchronize()


if __name__ == "__main__":
    main()
