"""How fast a training step is, against the floor its arithmetic and memory traffic set, and a whole run by the clock.

Run: PYTHONPATH=src python3 benchmarks/pretrain.py --out DIR      (needs numpy, torch, safetensors and pyarrow)

Features are made up: a step's time does not depend on what they say. The floor is measured in the same program: all of
the step's matrix products replayed one after another, plus the bytes that must go through memory whatever the kernels
(the N x N logits and the N x K site weights do not fit a cache) at the bandwidth a large copy reaches. DIR gets
pretrain.json, pretrain.md, pretrain.png where matplotlib is installed, and profile.txt with --profile.
"""

import argparse
import dataclasses
import json
import platform
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor

from tessearth.encoder.config import EncoderConfig, TessellationConfig
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe, made_with
from tessearth.imagery.store import (
    CHUNK_PLACES,
    FEATURES,
    FORMAT,
    FORMAT_VERSION,
    FeatureStore,
    Places,
    places_sha256,
    write_manifest,
    write_places,
)
from tessearth.sphere.sampling import sample_sphere
from tessearth.storage.sealed import checksum
from tessearth.training.data import TrainingData
from tessearth.training.loop import pretrain
from tessearth.training.model import PretrainingModel
from tessearth.training.objective import ObjectiveConfig
from tessearth.training.recipe import Recipe, TrainingRecipe
from tessearth.training.sites_recipe import SitesRecipe
from tessearth.training.start import build_encoder
from tessearth.training.step import Stepper, numerics

TABLE_SITES, TABLE_BATCHES = (1024, 4096, 16384), (1596, 6384, 25536)
TARGET_MS, TARGET_RATIO, TARGET_RUN_S, TARGET_GB = 2.0, 2.5, 15.0, 12.0


@dataclasses.dataclass(frozen=True)
class Sizes:
    """What is measured; the processor gets a step it can take in a moment."""

    training: int
    validation: int
    width: int
    site_dim: int
    output: int
    hidden: int
    tokens: int
    sites: int
    batch: int
    table_sites: tuple[int, ...]
    table_batches: tuple[int, ...]
    epochs: int


GPU = Sizes(100_000, 5_000, 512, 384, 512, 512, 64, 4096, 6384, TABLE_SITES, TABLE_BATCHES, 300)
CPU = Sizes(2_000, 200, 64, 48, 64, 64, 16, 256, 256, (128, 256), (128, 256), 2)


def fabricate_store(path: Path, sizes: Sizes) -> FeatureStore:
    """A finished store of random features with a falling spectrum."""
    rng = np.random.default_rng(0)
    count = sizes.training + sizes.validation
    spectrum = (np.arange(sizes.width) + 1.0) ** -0.5
    features = (rng.normal(size=(count, 1, sizes.width)).astype(np.float32) * spectrum).astype(np.float16)
    places = Places(sample_sphere(count, 0), np.arange(count) >= sizes.training)
    recipe = FeatureRecipe(
        sources=(SourceRecipe(kind="fabricated"),), places=PlacesRecipe(where="sphere", count=count, validation=0.05)
    )
    path.mkdir(parents=True)
    write_places(path, places)
    np.save(path / FEATURES, features)
    chunks = [checksum(features[start : start + CHUNK_PLACES]) for start in range(0, count, CHUNK_PLACES)]
    manifest = {
        "format": FORMAT,
        "format_version": FORMAT_VERSION,
        "complete": True,
        "recipe": recipe.to_dict(),
        "recipe_sha256": recipe.sha256(),
        "places": count,
        "places_sha256": places_sha256(places),
        "views": 1,
        "width": sizes.width,
        "dtype": "float16",
        "chunk_places": CHUNK_PLACES,
        "chunks": chunks,
        "sources": [],
        "made_with": made_with(),
    }
    write_manifest(path, manifest)
    return FeatureStore(path)


def make_recipe(sizes: Sizes, sites: int, batch: int, precision: str, compiled: bool) -> Recipe:
    """The paper's recipe with all four terms at the given sizes."""
    return Recipe(
        encoder=EncoderConfig(
            tessellations=(TessellationConfig(num_sites=sites, site_dim=sizes.site_dim),),
            num_tokens=sizes.tokens,
            output_dim=sizes.output,
            hidden_dim=sizes.hidden,
        ),
        sites=SitesRecipe(start="full"),
        objective=ObjectiveConfig(distillation=1.0),
        training=TrainingRecipe(
            epochs=sizes.epochs,
            batch_size=batch,
            precision=precision,  # type: ignore[arg-type]
            compiled=compiled,
            log_every=500,
            evaluate_every=1500,
            checkpoint_every=4500,
            record_every=500,
        ),
    )


def wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


def forget(device: torch.device) -> None:
    """Forget what was compiled and held on a GPU, and its peak of memory."""
    if device.type == "cuda":
        torch._dynamo.reset()
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats(device)


def step_time(store: FeatureStore, recipe: Recipe, device: torch.device, rounds: int, each: int) -> dict[str, Any]:
    """The median over rounds of the mean time of a step, with what it took to get ready and its memory."""
    forget(device)
    with numerics(recipe.training.precision, device):
        began = time.perf_counter()
        stepper = build_stepper(store, recipe, device)
        for step in range(5):
            stepper.take(step)
        wait(device)
        ready = time.perf_counter() - began
        seconds = []
        for number in range(rounds):
            started = time.perf_counter()
            for step in range(each):
                stepper.take((number * each + step) % stepper.steps)
            wait(device)
            seconds.append((time.perf_counter() - started) / each)
        reported = stepper.reported()
    memory = torch.cuda.max_memory_allocated(device) / 1e9 if device.type == "cuda" else None
    return {
        "sites": recipe.encoder.num_sites,
        "batch": recipe.training.batch_size,
        "precision": recipe.training.precision,
        "compiled": recipe.training.compiled,
        "step_ms": 1e3 * statistics.median(seconds),
        "step_ms_rounds": [1e3 * value for value in seconds],
        "ready_s": ready,
        "memory_gb": memory,
        "loss": reported["total"],
    }


def build_stepper(store: FeatureStore, recipe: Recipe, device: torch.device) -> Stepper:
    training = recipe.training
    data = TrainingData(store, training, output_dim=recipe.encoder.output_dim, device=device)
    generator = torch.Generator().manual_seed(0)
    model = PretrainingModel(
        build_encoder(recipe, generator), data.moments, recipe.objective, recipe.training, generator
    ).to(device)
    return Stepper(model.train(), data, training, recipe.sites)


def products(sizes: Sizes, sites: int, batch: int) -> dict[str, list[tuple[int, int, int]]]:
    """Every matrix product of a step as (rows, inner, columns): forward, and backward towards both factors."""

    def both_ways(rows: int, inner: int, columns: int) -> list[tuple[int, int, int]]:
        return [(rows, inner, columns), (inner, rows, columns), (rows, columns, inner)]

    d, h, t, s = sizes.output, sizes.hidden, sizes.tokens, sizes.site_dim
    image = [(batch, d, t), (d, batch, t)]  # images are detached: no gradient goes on
    linear = [(s, d), (d, h), (h, h), (h, h), (h, h), (h, h), (h, d), (s, t), (t, d), (t, d), (d, sizes.width)]
    if sizes.width != d:
        image += [(batch, sizes.width, d), (sizes.width, batch, d)]
    return {
        "mixture": both_ways(batch, sites, s),
        "contrastive": both_ways(batch, d, batch),
        "layers": [shape for inner, columns in linear for shape in both_ways(batch, inner, columns)] + image,
    }


def unavoidable_bytes(sizes: Sizes, sites: int, batch: int, precision: str) -> dict[str, float]:
    """What must pass through memory besides the products' own reads and writes."""
    narrow = 2 if precision == "bf16" else 4
    parameters = sites * (4 + sizes.site_dim) + sizes.tokens * (2 * sizes.output + sizes.site_dim)
    parameters += sizes.output * (sizes.site_dim + sizes.width) + 6 * sizes.hidden * sizes.output
    return {
        "logits": 3.0 * 4 * batch * batch,  # read for their sums, read again and written as a gradient
        "site weights": 3.0 * narrow * batch * sites,  # written once, read with their gradient for the sites' own
        "optimiser": 7.0 * 4 * parameters,  # weight, gradient, two moments in; weight, two moments out
        "features": 3.0 * 2 * batch * sizes.width,
    }


def measure_floor(sizes: Sizes, sites: int, batch: int, precision: str, device: torch.device) -> dict[str, Any]:
    """The time of the products alone, and of the unavoidable bytes at the bandwidth of a copy."""
    kinds = {"contrastive": torch.float32}
    narrow = torch.bfloat16 if precision == "bf16" and device.type == "cuda" else torch.float32
    by_group = {}
    with numerics(precision, device):  # type: ignore[arg-type]
        for name, shapes in products(sizes, sites, batch).items():
            by_group[name] = 1e3 * time_products(shapes, kinds.get(name, narrow), device)
    amounts = unavoidable_bytes(sizes, sites, batch, precision)
    bandwidth = copy_bandwidth(device)
    traffic = 1e3 * sum(amounts.values()) / bandwidth
    flops = sum(2.0 * a * b * c for shapes in products(sizes, sites, batch).values() for a, b, c in shapes)
    return {
        "precision": precision,
        "products_ms": by_group,
        "gigaflops": flops / 1e9,
        "bytes": amounts,
        "bandwidth_gb_s": bandwidth / 1e9,
        "traffic_ms": traffic,
        "floor_ms": sum(by_group.values()) + traffic,
    }


def time_products(shapes: list[tuple[int, int, int]], dtype: torch.dtype, device: torch.device) -> float:
    """Seconds for one product of every shape, replayed as one graph on a GPU."""
    factors: dict[tuple[int, int, int], tuple[Tensor, Tensor, Tensor]] = {
        (a, b, c): (
            torch.randn(a, b, device=device, dtype=dtype),
            torch.randn(b, c, device=device, dtype=dtype),
            torch.empty(a, c, device=device, dtype=dtype),
        )
        for a, b, c in shapes
    }

    def work() -> None:
        for shape in shapes:
            left, right, out = factors[shape]
            torch.mm(left, right, out=out)

    return best_seconds(captured(work, device), device)


def captured(work: Callable[[], None], device: torch.device) -> Callable[[], None]:
    """The same on a GPU as one graph, which costs no launches from Python, after some rounds to compile kernels."""
    if device.type != "cuda":
        return work
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            work()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        work()
    return graph.replay


def best_seconds(work: Callable[[], object], device: torch.device, rounds: int = 5, each: int = 10) -> float:
    seconds = []
    for _ in range(rounds + 1):
        wait(device)
        started = time.perf_counter()
        for _ in range(each):
            work()
        wait(device)
        seconds.append((time.perf_counter() - started) / each)
    return min(seconds[1:])


def copy_bandwidth(device: torch.device) -> float:
    """Bytes read and written per second by a copy much larger than any cache."""
    source = torch.rand((2**29 if device.type == "cuda" else 2**25), device=device)
    target = torch.empty_like(source)
    return 2 * source.numel() * source.element_size() / best_seconds(lambda: target.copy_(source), device)


def whole_run(store: FeatureStore, recipe: Recipe, device: torch.device, folder: Path) -> dict[str, Any]:
    """`pretrain` from its call to the finished run folder, twice: kernels compiled anew, then found in the cache."""
    found: dict[str, Any] = {"places": len(store.training), "epochs": recipe.training.epochs}
    for name in ("first", "again"):
        if device.type == "cuda":
            torch._dynamo.reset()
        began = time.perf_counter()
        result = pretrain(recipe, folder / name, store=store, device=str(device))
        found |= {f"{name}_s": time.perf_counter() - began, "steps": result.steps}
        lines = [json.loads(line) for line in (folder / name / "metrics.jsonl").read_text().splitlines()]
        found[f"{name}_steps_per_second"] = [line["steps_per_second"] for line in lines if "training" in line][-1]
        found["validation"] = result.validation
    return found


def profile(store: FeatureStore, recipe: Recipe, device: torch.device) -> str:
    """Where a step's time goes, kernel by kernel."""
    from torch.profiler import ProfilerActivity
    from torch.profiler import profile as record

    with numerics(recipe.training.precision, device):
        stepper = build_stepper(store, recipe, device)
        for step in range(5):
            stepper.take(step)
        activities = [ProfilerActivity.CPU] + ([ProfilerActivity.CUDA] if device.type == "cuda" else [])
        with record(activities=activities) as found:
            for step in range(10):
                stepper.take(step)
            wait(device)
    order = "self_cuda_time_total" if device.type == "cuda" else "self_cpu_time_total"
    return str(found.key_averages().table(sort_by=order, row_limit=45, max_name_column_width=110))


def measure(arguments: argparse.Namespace, folder: Path) -> dict[str, Any]:
    began = time.monotonic()
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    sizes = GPU if device.type == "cuda" else CPU
    sizes = dataclasses.replace(sizes, width=arguments.width or sizes.width)
    rounds, each = (7, 50) if device.type == "cuda" else (3, 5)
    store = fabricate_store(folder / "store", sizes)
    results: dict[str, Any] = {
        "device": torch.cuda.get_device_name(device) if device.type == "cuda" else platform.processor() or "cpu",
        "torch": torch.__version__,
        "sizes": dataclasses.asdict(sizes),
        "paper": [],
        "floor": [],
        "table": [],
        "left_out": [],
    }

    def save() -> None:
        (arguments.out / "pretrain.json").write_text(json.dumps(results, indent=2) + "\n")
        (arguments.out / "pretrain.md").write_text(report(results))

    def late() -> bool:
        return time.monotonic() - began > arguments.budget

    precisions = ["tf32", "bf16"] if device.type == "cuda" else ["float32"]
    compilations = [True, False] if device.type == "cuda" else [False]
    for precision in precisions:
        results["floor"].append(measure_floor(sizes, sizes.sites, sizes.batch, precision, device))
        for compiled in compilations:
            recipe = make_recipe(sizes, sizes.sites, sizes.batch, precision, compiled)
            results["paper"].append(step_time(store, recipe, device, rounds, each))
            print(json.dumps(results["paper"][-1]), flush=True)
            save()
    if arguments.profile:
        recipe = make_recipe(sizes, sizes.sites, sizes.batch, arguments.precision or precisions[0], compilations[0])
        (arguments.out / "profile.txt").write_text(profile(store, recipe, device))
    chosen = arguments.precision or precisions[0]
    recipe = make_recipe(sizes, sizes.sites, sizes.batch, chosen, compilations[0])
    results["run"] = {"precision": chosen, **whole_run(store, recipe, device, folder / "runs")}
    print(json.dumps(results["run"]), flush=True)
    save()
    for compiled in reversed(compilations):
        for sites in sizes.table_sites:
            for batch in sizes.table_batches:
                if late():
                    results["left_out"].append({"sites": sites, "batch": batch, "compiled": compiled})
                    continue
                recipe = make_recipe(sizes, sites, batch, chosen, compiled)
                results["table"].append(step_time(store, recipe, device, 3, max(3, each // 2)))
                save()
    results["seconds"] = time.monotonic() - began
    save()
    draw(results, arguments.out / "pretrain.png")
    return results


def report(results: dict[str, Any]) -> str:
    """The results as markdown."""
    sizes = results["sizes"]
    lines = [
        f"# A training step on {results['device']}, torch {results['torch']}",
        "",
        f"Batch {sizes['batch']:,}, K {sizes['sites']:,}, S {sizes['site_dim']}, T {sizes['tokens']}, "
        f"D {sizes['output']}, features {sizes['width']} wide; "
        "contrastive, reconstruction (mean), alignment and distillation.",
        f"Targets on an H200: {TARGET_MS} ms, {TARGET_RATIO} x the floor, a run in {TARGET_RUN_S:.0f} s, "
        f"{TARGET_GB:.0f} GB.",
        "",
        "| precision | compiled | ms a step | floor, ms | times the floor | memory, GB | ready after, s |",
        "|---|---|---|---|---|---|---|",
    ]
    floors = {floor["precision"]: floor for floor in results["floor"]}
    for row in results["paper"]:
        floor = floors[row["precision"]]["floor_ms"]
        memory = "" if row["memory_gb"] is None else f"{row['memory_gb']:.1f}"
        lines.append(
            f"| {row['precision']} | {'yes' if row['compiled'] else 'no'} | {row['step_ms']:.3f} | {floor:.3f} | "
            f"{row['step_ms'] / floor:.2f} | {memory} | {row['ready_s']:.1f} |"
        )
    lines += [
        "",
        "| floor | mixture, ms | contrastive, ms | layers, ms | memory traffic, ms |",
        "|---|---|---|---|---|",
    ]
    for floor in results["floor"]:
        parts = " | ".join(f"{value:.3f}" for value in floor["products_ms"].values())
        lines.append(f"| {floor['precision']} | {parts} | {floor['traffic_ms']:.3f} |")
    if "run" in results:
        run = results["run"]
        lines += [
            "",
            f"{run['epochs']:.0f} epochs over {run['places']:,} places ({run['steps']:,} steps, {run['precision']}): "
            f"{run['first_s']:.1f} s the first time, {run['again_s']:.1f} s with kernels in the cache, "
            f"evaluations, trajectories and checkpoint included; {run['again_steps_per_second']:.0f} steps a second.",
        ]
    if results["table"]:
        lines += ["", "| K | batch | ms plain | ms compiled | GB plain | GB compiled |", "|---|---|---|---|---|---|"]
        lines += table_rows(results["table"])
    if results["left_out"]:
        lines += ["", f"{len(results['left_out'])} cells were left out for lack of time."]
    return "\n".join(lines) + "\n"


def table_rows(table: list[dict[str, Any]]) -> list[str]:
    cells = {(row["sites"], row["batch"], row["compiled"]): row for row in table}
    lines = []
    for sites, batch in sorted({(row["sites"], row["batch"]) for row in table}):
        pair = [cells.get((sites, batch, compiled)) for compiled in (False, True)]
        times = [f"{row['step_ms']:.2f}" if row else "" for row in pair]
        memory = [f"{row['memory_gb']:.1f}" if row and row["memory_gb"] else "" for row in pair]
        lines.append(f"| {sites:,} | {batch:,} | {' | '.join([*times, *memory])} |")
    return lines


def draw(results: dict[str, Any], path: Path) -> None:
    """Step time against the batch, a line for every number of sites."""
    try:
        from matplotlib.figure import Figure
    except ImportError:
        return
    figure = Figure(figsize=(6, 4), layout="constrained")
    axis = figure.subplots()
    for sites, compiled in sorted({(row["sites"], row["compiled"]) for row in results["table"]}):
        rows = [row for row in results["table"] if (row["sites"], row["compiled"]) == (sites, compiled)]
        label = f"K {sites:,}{'' if compiled else ', plain'}"
        axis.loglog([r["batch"] for r in rows], [r["step_ms"] for r in rows], "o-" if compiled else "o:", label=label)
    axis.set(xlabel="batch", ylabel="ms a step", title=results["device"])
    axis.legend()
    figure.savefig(path, dpi=150)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--out", type=Path, required=True, help="the folder results go to")
    parser.add_argument("--device", help="cpu or cuda; the GPU when there is one")
    parser.add_argument(
        "--precision", choices=["float32", "tf32", "bf16"], help="of the whole run, the table, the profile"
    )
    parser.add_argument("--width", type=int, help="how wide features are; other than the embedding's, they need a head")
    parser.add_argument("--budget", type=float, default=180.0, help="after so many seconds no further cell is begun")
    parser.add_argument("--profile", action="store_true", help="also write profile.txt")
    arguments = parser.parse_args()
    arguments.out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory() as folder:
        measure(arguments, Path(folder))
    print((arguments.out / "pretrain.md").read_text())


if __name__ == "__main__":
    main()
