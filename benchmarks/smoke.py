"""Does training pay? Smoke models against untrained copies of themselves and the bare coordinates, task by task.

    for seed in 0 1 2; do
        tessearth pretrain smoke --set training.seed=$seed --set features.places.seed=$seed --out runs/smoke-$seed
    done
    .venv/bin/python benchmarks/smoke.py runs/smoke-0 runs/smoke-1 runs/smoke-2 [--table benchmarks/results/smoke.md]

Ridge protocol on the embedded benchmark: the published random split (seed 42) and five 10 degree draws, mean over runs
and draws.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch

from tessearth import SphericalVoronoiEncoder, evaluate
from tessearth.encoder.contract import LocationEncoder
from tessearth.encoder.weights import load_weights
from tessearth.storage.files import write_bytes
from tessearth.training.recipe import read_recipe
from tessearth.training.start import build_start

SPLITS = ("random", "10deg")
RIVALS = ("untrained copy", "its own start", "direct", "cartesian3d")


def untrained_copy(trained: SphericalVoronoiEncoder, seed: int) -> SphericalVoronoiEncoder:
    """The same sizes and the same start of the sites, all weights as the paper draws them."""
    return SphericalVoronoiEncoder(trained.config, generator=torch.Generator().manual_seed(seed)).eval()


def own_start(run: Path, seed: int) -> LocationEncoder:
    """What a run began with, by its recipe: a harder rival, because a centred start tells more places apart."""
    return build_start(read_recipe(str(run / "recipe.toml")), torch.Generator().manual_seed(seed)).eval()


def main() -> None:
    parser = argparse.ArgumentParser(description="Smoke models against untrained copies and the bare coordinates.")
    parser.add_argument("runs", nargs="+", help="run folders of `tessearth pretrain smoke`")
    parser.add_argument("--table", help="a markdown file for the table")
    arguments = parser.parse_args()
    runs = [Path(run) for run in arguments.runs]
    trained = [load_weights(run / "weights" / "best.safetensors") for run in runs]
    models = {
        "smoke": trained,
        "untrained copy": [untrained_copy(encoder, seed) for seed, encoder in enumerate(trained)],
        "its own start": [own_start(run, seed) for seed, run in enumerate(runs)],
        "direct": "direct",
        "cartesian3d": "cartesian3d",
    }
    results = evaluate(models, splits=SPLITS, references=False, maps=[])
    scores: dict[tuple[str, str, str], list[float]] = {}
    for score in results.scores:
        scores.setdefault((score.task, score.split, score.model), []).append(score.score)
    lines = [
        "# The smoke model against an untrained copy and the bare coordinates",
        "",
        f"{datetime.now(UTC):%Y-%m-%d}, two CPU cores: `python benchmarks/smoke.py {' '.join(sys.argv[1:])}`",
        f"({len(trained)} training seeds; ridge protocol; accuracy for classes, R2 for numbers; mean over seeds and",
        "draws, in brackets the smoke models' standard deviation over both).",
        "",
        f"| task | split | smoke | {' | '.join(RIVALS)} | ahead of all |",
        f"|---|---|---|{'---|' * (len(RIVALS) + 1)}",
    ]
    for task, split in dict.fromkeys((score.task, score.split) for score in results.scores):
        own, others = scores[task, split, "smoke"], [np.mean(scores[task, split, name]) for name in RIVALS]
        ahead = "yes" if np.mean(own) > max(others) else "no"
        cells = " | ".join(f"{value:.3f}" for value in others)
        lines.append(f"| {task} | {split} | {np.mean(own):.3f} ({np.std(own):.3f}) | {cells} | {ahead} |")
    print("\n".join(lines))
    if arguments.table:
        write_bytes(Path(arguments.table), ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
