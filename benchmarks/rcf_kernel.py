"""How long random convolutions of 3,000,000 tiles take on a GPU by the kernel, cut in several ways, and without it.

    PYTHONPATH=src python3 benchmarks/rcf_kernel.py

It needs torch with Triton, numpy and safetensors. The last column is the largest difference from the plain path.
"""

import argparse
import itertools
import time

import torch

from tessearth.imagery.image_encoders import RandomConvolution, RcfSettings, rcf, rcf_kernel
from tessearth.imagery.image_encoders.rcf_kernel import Shape

PLACES = 3_000_000


def measure(encoder: RandomConvolution, tiles: torch.Tensor) -> tuple[float, torch.Tensor]:
    """Seconds for all places, and the features of the tiles."""
    found = encoder.encode(tiles)
    torch.cuda.synchronize()
    start = time.perf_counter()
    for _ in range(3):
        encoder.encode(tiles)
    torch.cuda.synchronize()
    return (time.perf_counter() - start) / 3 * PLACES / len(tiles), found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--tiles", type=int, default=2**15)
    parser.add_argument("--size", type=int, default=24)
    parser.add_argument("--bands", type=int, default=3)
    parser.add_argument("--filters", type=int, default=128)
    arguments = parser.parse_args()
    shape, asked = (arguments.tiles, arguments.bands, arguments.size, arguments.size), rcf.has_kernels
    tiles = torch.rand(shape, device="cuda").contiguous(memory_format=torch.channels_last)
    encoder = RandomConvolution.fit(tiles[:2048].cpu(), RcfSettings(num_filters=arguments.filters)).to("cuda")
    rcf.has_kernels = lambda _: False
    plain, expected = measure(encoder, tiles)
    rcf.has_kernels = asked
    print(f"{'plain':64}{plain:8.3f} s")
    for positions, filters, warps, stages in itertools.product((64, 128), (32, 64, 128), (4, 8), (1, 2)):
        rcf_kernel.SHAPE = Shape(positions, filters, rcf_kernel.SHAPE.inner, warps, stages)
        taken, found = measure(encoder, tiles)
        print(f"{rcf_kernel.SHAPE!s:64}{taken:8.3f} s{float((found - expected).abs().max()):12.2e}", flush=True)


if __name__ == "__main__":
    main()
