"""How fast a training step with levels is: 1,024 broad sites, 8,192 and 65,536 spaced ones, growing too; and with 10^6.

Run: PYTHONPATH=src python3 benchmarks/level_steps.py --out FILE.json      (needs numpy, torch, safetensors and pyarrow)

Features are made up: a step's time does not depend on what they say. Steps between two measurements of spacing are
replayed as one graph on a GPU; a measurement and an event are timed on their own. On a processor everything is small.
Levels are mixed by lists from 4,096 sites on, as recipes/levels.toml has it; --sparse-from changes that.
"""

import argparse
import dataclasses
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from pretrain import CPU, GPU, Sizes, build_stepper, fabricate_store, forget, wait

from tessearth.encoder import EncoderConfig, TessellationConfig
from tessearth.imagery import FeatureStore
from tessearth.training.objective import ObjectiveConfig
from tessearth.training.recipe import Recipe, TrainingRecipe
from tessearth.training.sites_recipe import GrowthRecipe, SitesRecipe
from tessearth.training.step import numerics

STEPS = 4000


def make_recipe(sizes: Sizes, counts: tuple[int, ...], *, growing: bool, sparse_from: int) -> Recipe:
    """Levels of so many sites with the head and the terms of `earth`; growing, the finest begins with an eighth."""
    widths = (192, 96, 64)
    broad = TessellationConfig(num_sites=counts[0], site_dim=widths[0], sharpness=15.0, logits="chord")
    spaced = TessellationConfig(sharpness="spacing", logits="chord", background=-8.0)
    fine = [dataclasses.replace(spaced, num_sites=n, site_dim=w) for n, w in zip(counts[1:], widths[1:], strict=True)]
    start = (*counts[:-1], counts[-1] // 8)
    return Recipe(
        encoder=EncoderConfig(
            tessellations=(broad, *fine),
            num_tokens=sizes.tokens,
            output_dim=sizes.output,
            hidden_dim=sizes.hidden,
            dropout=0.1,
        ),
        sites=SitesRecipe(
            start="full", growth=GrowthRecipe(start=start, every=500) if growing else None, sparse_from=sparse_from
        ),
        objective=ObjectiveConfig(reconstruction=0.0, alignment=0.0, distillation=30.0, distil_from="unit"),
        training=TrainingRecipe(steps=STEPS, batch_size=sizes.batch, precision="bf16", jitter_degrees=0.002),
    )


def measure(store: FeatureStore, recipe: Recipe, device: torch.device, rounds: int) -> dict[str, Any]:
    """Milliseconds of a step, of a measurement and of adding up residuals, and memory."""
    on_gpu = device.type == "cuda"
    forget(device)
    with numerics(recipe.training.precision, device):
        began = time.perf_counter()
        stepper = build_stepper(store, recipe, device)
        wait(device)
        ready, step, found = time.perf_counter() - began, 1, []
        for _ in range(rounds):
            while step % recipe.sites.refresh_every != 1:
                step += 1
            seconds = []
            for _ in range(recipe.sites.refresh_every - 2):
                started = time.perf_counter()
                stepper.take(step)
                wait(device)
                seconds.append(time.perf_counter() - started)
                step += 1
            found.append(statistics.median(seconds))
        started = time.perf_counter()
        stepper.levels.refresh_()
        wait(device)
        measured = time.perf_counter() - started
        added = None
        if stepper.growth is not None:
            started = time.perf_counter()
            stepper._add_up_residual(stepper.growth)
            wait(device)
            added = 1e3 * (time.perf_counter() - started)
    return {
        "sites": [t.num_sites for t in recipe.encoder.tessellations],
        "growing": recipe.sites.growth is not None,
        "batch": recipe.training.batch_size,
        "ready_s": ready,
        "step_ms": 1e3 * statistics.median(found),
        "measurement_ms": 1e3 * measured,
        "residual_ms": added,
        "memory_gb": torch.cuda.max_memory_allocated(device) / 1e9 if on_gpu else None,
        "loss": stepper.reported()["total"],
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--out", type=Path, help="a JSON file for the results")
    parser.add_argument("--device", help="cpu or cuda [default: a GPU when there is one]")
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--sparse-from", type=int, default=4096, help="levels of so many sites are mixed by lists")
    parser.add_argument("--finest", type=int, nargs="+", help="sites of the finest level [default: 65536 1000000]")
    arguments = parser.parse_args()
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    on_gpu = device.type == "cuda"
    sizes = dataclasses.replace(GPU, width=1024, output=1024, hidden=1024) if on_gpu else CPU
    coarse = (1024, 8192) if on_gpu else (32, 128)
    results = []
    with tempfile.TemporaryDirectory() as folder:
        store = fabricate_store(Path(folder) / "store", sizes)
        for finest in arguments.finest or ((65_536, 1_000_000) if on_gpu else (512,)):
            for growing in (False, True):
                counts = (*coarse, finest)
                recipe = make_recipe(sizes, counts, growing=growing, sparse_from=arguments.sparse_from)
                results.append(measure(store, recipe, device, arguments.rounds))
                print(json.dumps(results[-1]), flush=True)
    if arguments.out:
        arguments.out.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
