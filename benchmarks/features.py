"""How fast random convolutional features are, where the time goes, and how far they are from exact arithmetic.

Run: PYTHONPATH=src python3 benchmarks/features.py            (needs numpy, torch and safetensors only)

Tiles are made here: noise whose power falls with frequency as in pictures of the ground. Every time is the best of
several rounds, because other programs on the machine can only make a round slower.
"""

import argparse
import json
import time
from collections.abc import Callable
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.imagery.image_encoders.base import Scratch
from tessearth.imagery.image_encoders.rcf import RandomConvolution, RcfSettings, convolve, pooled, standardise


def natural_tiles(number: int, bands: int, size: int, seed: int) -> Tensor:
    """Tiles (number, bands, size, size) in [0, 1] with amplitude 1 / frequency and bands that go together."""
    generator = torch.Generator().manual_seed(seed)
    frequency = torch.hypot(torch.fft.fftfreq(size)[:, None], torch.fft.rfftfreq(size)[None, :])
    noise = torch.randn(number, bands + 1, size, size, generator=generator)
    shaped = torch.fft.irfft2(torch.fft.rfft2(noise) / frequency.clamp_min(1 / size), s=(size, size))
    together = shaped[:, :1] + 0.5 * shaped[:, 1:]
    return (0.4 + 0.1 * together / together.std()).clamp(0, 1)


def best_seconds(works: list[Callable[[], object]], rounds: int, device: torch.device) -> list[float]:
    """The shortest run of each piece of work; they take turns, so that a disturbance meets all of them alike."""
    seconds: list[list[float]] = [[] for _ in works]
    for _ in range(rounds + 1):
        for work, taken in zip(works, seconds, strict=True):
            _wait(device)
            start = time.perf_counter()
            work()
            _wait(device)
            taken.append(time.perf_counter() - start)
    return [min(taken[1:]) for taken in seconds]  # the first run only warms up


def convolution_only(encoder: RandomConvolution, tiles: Tensor) -> Callable[[], None]:
    """The convolutions of every chunk and nothing else, over tiles standardised and pooled beforehand."""
    banks = [encoder.get_buffer(f"filters_{number}") for number in range(len(encoder.settings.scales))]
    mean, deviation = encoder.get_buffer("band_mean"), encoder.get_buffer("band_deviation")
    ready = [
        (pooled(standardise(chunk, mean, deviation), pool), patch, bank)
        for chunk in tiles.split(encoder.chunk_size(tiles))
        for (patch, pool), bank in zip(encoder.settings.scales, banks, strict=True)
    ]

    scratch = Scratch()

    @torch.no_grad()
    def work() -> None:
        for pixels, patch, bank in ready:
            convolve(pixels, patch, bank, encoder.dtype, scratch)

    return work


def exact_features(encoder: RandomConvolution, tiles: Tensor) -> Tensor:
    """The same responses by a library convolution in float64 on the processor, (n, 2 * filters * scales)."""
    state = {name: tensor.double().cpu() for name, tensor in encoder.state_dict().items()}
    pixels = (tiles.double().cpu() - state["band_mean"][:, None, None]) / state["band_deviation"][:, None, None]
    threshold, found = encoder.settings.threshold, []
    for number, (patch, pool) in enumerate(encoder.settings.scales):
        bank = state[f"filters_{number}"].unflatten(1, (patch, patch, encoder.bands)).permute(0, 3, 1, 2)
        response = F.conv2d(F.avg_pool2d(pixels, pool), bank)
        found += [(sign * response - threshold).relu().mean((2, 3)) for sign in (1, -1)]
    return torch.cat(found, dim=1)


def errors(encoder: RandomConvolution, tiles: Tensor) -> dict[str, float]:
    """The largest and the usual distance from exact arithmetic, in deviations of each feature over the tiles."""
    exact = exact_features(encoder, tiles)
    moments = encoder.width - exact.shape[1]
    distance = (encoder.encode(tiles)[:, moments:].double().cpu() - exact).abs() / exact.std(0)
    return {"error_max": distance.max().item(), "error_mean": distance.mean().item()}


def measure(arguments: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    number = arguments.tiles or (65_536 if device.type == "cuda" else 1024)
    scales = tuple(tuple(map(int, scale.split("x"))) for scale in arguments.scales.split(","))
    settings = RcfSettings(num_filters=arguments.filters, scales=scales, precision=arguments.precision)
    tiles = natural_tiles(number, arguments.bands, arguments.size, arguments.seed)
    encoder = RandomConvolution.fit(tiles[:4096], settings, arguments.seed).to(device)
    there = tiles.to(device)
    works = [lambda: encoder.encode(there), convolution_only(encoder, there), lambda: encoder.encode(tiles).cpu()]
    whole, inside, travelled = best_seconds(works, arguments.rounds, device)
    return {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu",
        "threads": torch.get_num_threads(),
        "torch": torch.__version__,
        "precision": str(encoder.dtype).removeprefix("torch."),
        "tiles": number,
        "bands": arguments.bands,
        "size": arguments.size,
        "filters": arguments.filters,
        "scales": arguments.scales,
        "width": encoder.width,
        "tiles_per_s": number / whole,
        "tiles_per_s_from_host_memory": number / travelled,
        "share_inside_convolution": inside / whole,
        **errors(encoder, there[:512]),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", help="cpu or cuda; the GPU when there is one")
    parser.add_argument("--tiles", type=int, help="how many tiles a round encodes")
    parser.add_argument("--bands", type=int, default=3)
    parser.add_argument("--size", type=int, default=24, help="pixels a side")
    parser.add_argument("--filters", type=int, default=384, help="filters at each scale")
    parser.add_argument("--scales", default="3x1,3x2", help="patch side x pooling, separated by commas")
    parser.add_argument("--precision", default="auto", choices=["auto", "float32", "float16", "bfloat16"])
    parser.add_argument("--rounds", type=int, default=10)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    arguments = parser.parse_args()
    results = measure(arguments)
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:32}{value:.4g}" if isinstance(value, float) and value < 100 else f"{name:32}{_plain(value)}")


def _plain(value: object) -> str:
    return f"{value:,.0f}" if isinstance(value, float) else str(value)


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
