"""What other numbers would add to a model's embedding: smooth waves of the position, other seeds, random features.

    python benchmarks/joined.py MODEL [MODEL ...] --benchmark FILE --table FILE.md

The first model is joined in turn to what may be missing in it, each part with a share of the variance; the join is
rotated, so that no part is favoured by the probe's scaling, and brought to unit length. Scored by ridge on places and
splits that no reported number uses (`study.CHOOSING`, and regional draws 9 to 12).
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from study import CLASS, NUMBER, task_score

from tessearth import Embedder
from tessearth.evaluation.probes import RandomFeatures
from tessearth.labels import read_benchmark
from tessearth.storage.files import write_bytes
from tessearth.training.model import PositionWaves
from tessearth.training.objective import ObjectiveConfig

DRAWS = {"random": (7,), "10deg": (7, 8, 9, 10, 11, 12)}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--table", type=Path, required=True)
    parser.add_argument("--models-only", action="store_true", help="join the models alone, one more at a time")
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tables = {n: table for n, table in read_benchmark(arguments.benchmark).items() if n in CLASS + NUMBER}
    latlon = next(iter(tables.values())).latlon
    lines = [
        f"`python benchmarks/joined.py {' '.join(sys.argv[1:])}`, {datetime.now(UTC):%Y-%m-%d}",
        "",
        "| embedding | numbers | random | 10 degrees | Koppen, country at 10 degrees |",
        "|---|---:|---:|---:|---:|",
    ]
    for name, x in joins(arguments.models, latlon, device, arguments.models_only):
        found = {
            split: {task: task_score(x.cpu(), table, split, seeds, device) for task, table in tables.items()}
            for split, seeds in DRAWS.items()
        }
        means = [
            " / ".join(f"{np.mean([scores[task] for task in tasks]):.3f}" for tasks in (CLASS, NUMBER))
            for scores in found.values()
        ]
        classes = ", ".join(f"{found['10deg'][n]:.3f}" for n in CLASS)
        lines.append(f"| {name} | {x.shape[1]} | " + " | ".join(means) + f" | {classes} |")
        print(lines[-1], flush=True)
    write_bytes(arguments.table, ("\n".join(lines) + "\n").encode())


def joins(models, latlon, device, models_only):
    embedded = [torch.from_numpy(Embedder(model, device=device).embed(latlon)).to(device) for model in models]
    first = embedded[0]
    yield "as it is", first
    if models_only:
        for count in range(2, len(models) + 1):
            yield f"{count} models", join([(x, 1.0) for x in embedded[:count]])
        return
    for degree, decay in ((8, 1.0), (20, 1.0), (20, 0.5)):
        waves = harmonics(latlon, degree, decay).to(device)
        for share in (0.1, 0.3, 1.0):
            yield f"harmonics to {degree}, decay {decay}, x {share}", join([(first, 1.0), (waves, share)])
    random = torch.from_numpy(RandomFeatures().embed(latlon)).to(device)
    for share in (0.1, 0.3, 1.0):
        yield f"random features x {share}", join([(first, 1.0), (random, share)])
    if len(models) > 1:
        yield f"{len(models)} seeds", join([(x, 1.0) for x in embedded])


def harmonics(latlon, degree, decay):
    objective = ObjectiveConfig(distillation=1.0, position=1.0, position_degrees=degree, position_decay=decay)
    return PositionWaves(objective, feature_width=1)(torch.from_numpy(latlon.copy())).float()


def join(parts):
    """Centred parts, each with its share of the variance, side by side, rotated, of unit length."""
    centred = [x - x.mean(0) for x, _ in parts]
    scaled = [c / c.square().sum(1).mean().sqrt() * share**0.5 for c, (_, share) in zip(centred, parts, strict=True)]
    joined = torch.cat(scaled, dim=1)
    drawn = torch.randn(joined.shape[1], joined.shape[1], generator=torch.Generator().manual_seed(0))
    return torch.nn.functional.normalize(joined @ torch.linalg.qr(drawn)[0].to(joined.device), dim=-1)


if __name__ == "__main__":
    main()
