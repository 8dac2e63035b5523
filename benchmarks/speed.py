"""Encoding speed and error, every way there is on a device, in one run.

    PYTHONPATH=src python benchmarks/speed.py --device cuda --out FOLDER     on a GPU: a little over a minute
    .venv/bin/python benchmarks/speed.py --out benchmarks/results            on a CPU: what `tessearth bench` measures

On a GPU every contestant stands alone: one that fails prints why and the rest goes on. What is fastest among those of a
cosine with float64 of 0.9999 or more belongs into `fast.gpu.SHAPES`. Only ratios within a run mean much.
"""

import argparse
import copy
import datetime
import json
import platform
import sys
import time
import traceback
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import torch
from scaling import build_paper_shaped
from torch import Tensor

from tessearth.embedding.fast.gpu import GpuVoronoi, prepare_on_gpu
from tessearth.embedding.fast.triton_kernels import Shape
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.zoo.names import load_base

PLACES = 2**20
DENSE_PLACES = 2**16
COMPARED = 4096
ROUNDS = 5
STARTED = time.perf_counter()
SHAPES = [Shape(64, 64, 4, 3), Shape(128, 128, 8, 2), Shape(64, 128, 4, 2)]
WIDE_SHAPES = [Shape(64, 64, 4, 1), Shape(128, 64, 8, 1)]
LINEAR_SHAPES = [Shape(128, 128, 8, 3), Shape(128, 128, 8, 2), Shape(128, 64, 4, 3), Shape(64, 128, 4, 3)]

Embed = Callable[[Tensor], Tensor]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--model", default="untrained", help="any model; random weights of the paper's size by default")
    parser.add_argument("--places", type=int, help="places per round")
    parser.add_argument("--seconds", type=float, default=90, help="no contestant starts later than this (GPU)")
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    run = run_on_cpu if arguments.device == "cpu" else run_on_gpu
    found = {"command": " ".join(sys.argv), "when": str(datetime.datetime.now(datetime.UTC))[:19], **run(arguments)}
    path = arguments.out / f"speed-{arguments.device.split(':')[0]}.json"
    path.write_text(json.dumps(found, indent=1) + "\n")
    print(f"\n{path}; {time.perf_counter() - STARTED:.0f} s")


def run_on_cpu(arguments: argparse.Namespace) -> dict[str, Any]:
    from tessearth.cli.bench import _lines
    from tessearth.embedding.bench import Bench, compare, single_place_ms

    bench = Bench(model=arguments.model, places=arguments.places or 32768)
    rows, single = compare(bench), single_place_ms(bench)
    print("\n".join(_lines(rows)), f"\none place at a time: {single:.2f} ms")
    about = {"machine": f"{platform.processor() or platform.machine()}, torch {torch.__version__}", "threads": 2}
    return {**about, "rows": [row._asdict() for row in rows], "single_place_ms": single}


def run_on_gpu(arguments: argparse.Namespace) -> dict[str, Any]:
    device = torch.device(arguments.device)
    name = torch.cuda.get_device_name(device) if device.type == "cuda" else "cpu"
    print(f"{name}, torch {torch.__version__}", flush=True)
    encoder = find_model(arguments.model).to(device)
    places = arguments.places or PLACES
    xyz = random_directions(places, device)
    exact = encoder.double().embed_xyz(xyz[:COMPARED].double()).detach()
    encoder.float()
    rows: list[dict[str, Any]] = []
    print(f"{'':<44}{'M places/s':>11}{'x dense':>9}{'max error':>11}{'min cosine':>12}", flush=True)
    for label, build in contestants(encoder, device):
        if time.perf_counter() - STARTED > arguments.seconds:
            print(f"{label:<44}not started: out of time", flush=True)
            continue
        rows.append(measure(label, build, xyz, exact, rows))
    best = [row for row in rows if row.get("min_cosine", 0) >= 0.9999]
    for what, wanted in (("at cosine 0.9999", best), ("within 1e-5", [r for r in best if r["max_error"] <= 1e-5])):
        if wanted:
            first = max(wanted, key=lambda row: float(row["places_per_second"]))
            print(f"fastest {what}: {first['name']} ({first['times_dense']:.1f} x dense)")
    found = {"machine": f"{name}, torch {torch.__version__}", "places": places, "rows": rows}
    return {**found, "steps": time_steps(encoder, device, xyz), "sizes": sizes(device, arguments.seconds)}


def contestants(encoder: SphericalVoronoiEncoder, device: torch.device) -> Iterator[tuple[str, Callable[[], Embed]]]:
    """Names and how to make each; the plain dense form comes first."""
    yield "plain dense float32", lambda: in_parts(encoder.embed_xyz)
    for shape in WIDE_SHAPES:
        yield (
            f"series float32, the library's head {tuple(shape)}",
            lambda shape=shape: without_halves(encoder, device, shape),
        )
    for shape in LINEAR_SHAPES:
        yield f"series float32, head by halves {tuple(shape)}", lambda shape=shape: by_halves(encoder, device, shape)
    for shape in SHAPES:
        yield f"series bfloat16 {tuple(shape)}", lambda shape=shape: ours(encoder, device, torch.bfloat16, shape)
    yield "series float16", lambda: ours(encoder, device, torch.float16)
    yield "series without kernels, bfloat16", lambda: without_kernels(encoder, device, torch.bfloat16)
    yield "series without kernels, float32", lambda: without_kernels(encoder, device, torch.float32)
    yield "series bfloat16, head compiled", lambda: compiled(ours(encoder, device, torch.bfloat16))
    yield "plain dense float32 with TF32", lambda: with_tf32(in_parts(encoder.embed_xyz))
    yield "series float32 with TF32", lambda: with_tf32(ours(encoder, device, torch.float32))
    yield "attention kernel float32", lambda: in_parts(by_attention(encoder))


MADE: dict[Any, GpuVoronoi] = {}
"""By precision: series are made once, however the kernels are cut afterwards."""


def ours(
    encoder: SphericalVoronoiEncoder, device: torch.device, dtype: torch.dtype, shape: Shape | None = None
) -> Embed:
    key = (id(encoder), dtype)
    if key not in MADE:
        prepared = prepare_on_gpu(encoder, device, dtype)
        assert prepared is not None, "this model has no fast form on a GPU"
        MADE[key] = prepared
    made = copy.copy(MADE[key])
    made.shape = shape or made.shape
    return made.embed


def by_halves(encoder: SphericalVoronoiEncoder, device: torch.device, shape: Shape) -> Embed:
    made: Any = ours(encoder, device, torch.float32).__self__  # type: ignore[attr-defined]
    made.linear_shape = shape
    return made.embed  # type: ignore[no-any-return]


def without_halves(encoder: SphericalVoronoiEncoder, device: torch.device, shape: Shape) -> Embed:
    made: Any = ours(encoder, device, torch.float32, shape).__self__  # type: ignore[attr-defined]
    made.halves = None
    return made.embed  # type: ignore[no-any-return]


def without_kernels(encoder: SphericalVoronoiEncoder, device: torch.device, dtype: torch.dtype) -> Embed:
    made: Any = ours(encoder, device, dtype).__self__  # type: ignore[attr-defined]
    made._has_kernel = lambda: False
    made.halves = None
    return made.embed  # type: ignore[no-any-return]


def in_parts(embed: Embed) -> Embed:
    @torch.inference_mode()
    def run(xyz: Tensor) -> Tensor:
        return torch.cat([embed(part) for part in xyz.split(DENSE_PLACES)])

    return run


def with_tf32(embed: Embed) -> Embed:
    def run(xyz: Tensor) -> Tensor:
        torch.set_float32_matmul_precision("high")
        try:
            return embed(xyz)
        finally:
            torch.set_float32_matmul_precision("highest")

    return run


def compiled(embed: Embed) -> Embed:
    made: Any = embed.__self__  # type: ignore[attr-defined]
    made._head = torch.compile(made._head, dynamic=False)
    return embed


def by_attention(encoder: SphericalVoronoiEncoder) -> Embed:
    """Sites as keys and their rows as values of the library's attention; float32, since logits need the digits."""
    voronoi = encoder.voronois()[0]
    slopes = (voronoi.positions() * voronoi.sharpness()[:, None]).detach()
    heads = 3
    keys = torch.nn.functional.pad(slopes, (0, 5))[None, None].expand(1, heads, -1, -1).contiguous()
    values = voronoi.embeddings.detach().unflatten(1, (heads, -1)).transpose(0, 1)[None].contiguous()

    def run(xyz: Tensor) -> Tensor:
        queries = torch.nn.functional.pad(xyz, (0, 5))[None, None].expand(1, heads, -1, -1)
        mixture = torch.nn.functional.scaled_dot_product_attention(queries, keys, values, scale=1.0)
        mixture = mixture[0].transpose(0, 1).flatten(1)
        blend = encoder.projection(mixture)
        tokens, gate = encoder.tokens, encoder.config.token_gate
        if tokens is not None:
            blend = (1 - gate) * blend + gate * tokens.attend(tokens.location_attention(mixture))
        return torch.nn.functional.normalize(encoder.head(encoder.norm(blend)), dim=-1)

    return run


def measure(label: str, build: Callable[[], Embed], xyz: Tensor, exact: Tensor, before: list[Any]) -> dict[str, Any]:
    try:
        start = time.perf_counter()
        embed = build()
        got = embed(xyz)[:COMPARED].double()
        wait(xyz)
        making = time.perf_counter() - start
        seconds = min(timed(embed, xyz) for _ in range(ROUNDS))
    except Exception as error:  # one that fails must not stop the others
        print(f"{label:<44}failed: {type(error).__name__}: {str(error).splitlines()[:1]}", flush=True)
        traceback.print_exc(limit=3)
        return {"name": label, "failed": f"{type(error).__name__}: {error}"[:500]}
    plain = before[0]["seconds"] if before and "seconds" in before[0] else seconds
    cosine = torch.nn.functional.cosine_similarity(got, exact).min().item()
    worst = (got - exact).abs().max().item()
    speed = len(xyz) / seconds
    print(f"{label:<44}{speed / 1e6:>11.2f}{plain / seconds:>9.2f}{worst:>11.1e}{cosine:>12.7f}", flush=True)
    row = {"name": label, "seconds": seconds, "places_per_second": speed, "times_dense": plain / seconds}
    return {**row, "max_error": worst, "min_cosine": cosine, "first_call_seconds": making}


def timed(work: Callable[[Tensor], Any], given: Tensor) -> float:
    wait(given)
    start = time.perf_counter()
    work(given)
    wait(given)
    return time.perf_counter() - start


def time_steps(encoder: SphericalVoronoiEncoder, device: torch.device, xyz: Tensor) -> dict[str, Any]:
    """Where the time of the bfloat16 path goes, in nanoseconds per place."""
    try:
        made: Any = ours(encoder, device, torch.bfloat16).__self__  # type: ignore[attr-defined]
        with torch.inference_mode():
            blocks = made.series.sort(xyz, made.shape.places)
            first = made._activate(blocks)
            steps = {
                "sort": lambda _: made.series.sort(xyz, made.shape.places),
                "first activation": lambda _: made._activate(blocks),
                "head": lambda _: made._head(first),
                "whole": made.embed,
            }
            found = {name: min(timed(step, xyz) for _ in range(3)) * 1e9 / len(xyz) for name, step in steps.items()}
        print("ns per place:", {name: round(value, 2) for name, value in found.items()}, f"{len(first)} slots")
    except Exception as error:
        found = {"failed": str(error)[:500]}
        print("steps failed:", found)
    return found


def sizes(device: torch.device, seconds: float) -> list[dict[str, Any]]:
    """More sites, as much sharper as they are denser."""
    found: list[dict[str, Any]] = []
    for num_sites in (4096, 16384, 65536):
        if time.perf_counter() - STARTED > seconds:
            print(f"{num_sites} sites: not started, out of time")
            continue
        try:
            encoder = build_paper_shaped(num_sites).requires_grad_(False).to(device)
            xyz = random_directions(2**22 if device.type == "cuda" else 4096, device)
            start = time.perf_counter()
            embed = ours(encoder, device, torch.bfloat16)
            embed(xyz)
            wait(xyz)
            making = time.perf_counter() - start
            speed = len(xyz) / min(timed(embed, xyz) for _ in range(3))
            found.append({"num_sites": num_sites, "places_per_second": speed, "first_call_seconds": making})
            print(f"{num_sites:>6} sites: {speed / 1e6:.1f} M places/s (first call {making:.1f} s)", flush=True)
        except Exception as error:
            print(f"{num_sites} sites failed: {str(error)[:300]}", flush=True)
    return found


def find_model(name: str) -> SphericalVoronoiEncoder:
    if name == "untrained":
        return build_paper_shaped(4096).requires_grad_(False)
    encoder = load_base(name)
    if not isinstance(encoder, SphericalVoronoiEncoder):
        raise SystemExit(f"{name} is no Voronoi encoder")
    return encoder.eval().requires_grad_(False)


def random_directions(count: int, device: torch.device) -> Tensor:
    generator = torch.Generator(device=device).manual_seed(0)
    return torch.nn.functional.normalize(torch.randn(count, 3, generator=generator, device=device), dim=-1)


def wait(tensor: Tensor) -> None:
    if tensor.is_cuda:
        torch.cuda.synchronize(tensor.device)


if __name__ == "__main__":
    main()
