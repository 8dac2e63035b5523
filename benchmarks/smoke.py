"""Does training pay? The smoke model against an untrained copy of itself and the bare coordinates, task by task.

    tessearth pretrain smoke --out RUN && .venv/bin/python benchmarks/smoke.py RUN [--out benchmarks/results/smoke.md]

Ridge protocol on the embedded benchmark: the random split of seed 42, and the mean of the first two 10 degree draws.
"""

import argparse
from datetime import date
from pathlib import Path

import numpy as np
import torch

from tessearth import Embedder, SphericalVoronoiEncoder
from tessearth.baselines import build_baseline
from tessearth.encoder.weights import load_weights
from tessearth.evaluation.probes import build_probe
from tessearth.evaluation.splits import build_splits
from tessearth.evaluation.tasks import load_task
from tessearth.files import write_bytes
from tessearth.labels import LABELS


def untrained_copy(trained, seed):
    generator = torch.Generator().manual_seed(seed)
    return SphericalVoronoiEncoder(trained.config, generator=generator).eval()


def baseline(name):
    encoder = build_baseline(name)
    return lambda latlon: encoder(torch.from_numpy(latlon)).numpy()


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("run", help="a run folder of `tessearth pretrain smoke`")
    parser.add_argument("--splits", default="random,10deg")
    parser.add_argument("--out", help="a markdown file for the table")
    arguments = parser.parse_args()
    trained = load_weights(Path(arguments.run) / "weights" / "best.safetensors")
    encoders = {
        "smoke": Embedder(trained),
        "untrained copy": Embedder(untrained_copy(trained, 0)),
        "direct": baseline("direct"),
        "cartesian3d": baseline("cartesian3d"),
    }
    lines = [
        "# The smoke model against an untrained copy and the bare coordinates",
        "",
        f"{date.today()}, two CPU cores: `tessearth pretrain smoke --out RUN && python benchmarks/smoke.py RUN`.",
        "Ridge protocol, embedded benchmark, one training seed; accuracy for classes, R2 for numbers.",
        "",
        f"| task | split | {' | '.join(encoders)} | smoke first? |",
        f"|---|---|{'---|' * (len(encoders) + 1)}",
    ]
    for name in LABELS:
        task = load_task(name)
        features = {key: np.asarray(embed(task.latlon), dtype=np.float32) for key, embed in encoders.items()}
        for split_name in arguments.splits.split(","):
            splits = build_splits(split_name, task.latlon)[:2]
            scores = {key: np.mean([score(task, x, split) for split in splits]) for key, x in features.items()}
            best = max(scores, key=scores.get) == "smoke"
            cells = " | ".join(f"{value:.3f}" for value in scores.values())
            lines.append(f"| {name} | {split_name} | {cells} | {'yes' if best else 'no'} |")
            print(lines[-1], flush=True)
    if arguments.out:
        write_bytes(Path(arguments.out), ("\n".join(lines) + "\n").encode())


def score(task, features, split):
    probe = build_probe("ridge", task.kind)
    probe.fit(features[split.train], task.target[split.train])
    return probe.score(features[split.test], task.target[split.test])


if __name__ == "__main__":
    main()
