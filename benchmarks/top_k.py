"""What a model's scores lose when each place reads only its nearest sites (`Embedder(top_k=)`).

    python benchmarks/top_k.py [--models earth runs/earth/1 ...] [--top-k 0 256 64 16 4 1] [--table FILE.md]

Ridge on the reported places and splits, every label; 0 stands for all sites. Several models (seeds of one recipe) give
means and their spread.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from study import CLASS, NUMBER, REPORTING, task_score

from tessearth import Embedder
from tessearth.labels import benchmark_path, read_benchmark
from tessearth.storage.files import write_bytes


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--models", nargs="+", default=["earth"])
    parser.add_argument("--top-k", type=int, nargs="+", default=[0, 256, 64, 16, 4, 1])
    parser.add_argument("--draws", type=int, default=5, help="of each split, at most")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--benchmark", help="a benchmark file made elsewhere; the one in the cache if left out")
    parser.add_argument("--table", type=Path, default=Path("benchmarks/results/top_k.md"))
    arguments = parser.parse_args()
    everything = read_benchmark(arguments.benchmark or benchmark_path())
    tables = {name: table for name, table in everything.items() if name in CLASS + NUMBER}
    lines = [
        f"# `{arguments.models[0]}` by its nearest sites alone",
        "",
        f"`python benchmarks/top_k.py {' '.join(sys.argv[1:])}`, {datetime.now(UTC):%Y-%m-%d}.",
        "Class mean / regression mean, reported places and splits, ridge; trained with all sites. The cosine is",
        "the least of any place; ± is the spread over models.",
        "",
        "| sites read | least cosine with all sites | random | 10 degrees |",
        "|---:|---:|---:|---:|",
    ]
    latlon = next(iter(tables.values())).latlon
    whole = [Embedder(model, device=arguments.device).embed(latlon) for model in arguments.models]
    for top_k in arguments.top_k:
        members, cosines = [], []
        for model, all_sites in zip(arguments.models, whole, strict=True):
            embedded = Embedder(model, device=arguments.device, top_k=top_k or None).embed(latlon)
            cosines.append(float((embedded * all_sites).sum(1).min()))
            members.append([measure(embedded, tables, split, arguments) for split in REPORTING])
        cells = [cell(np.array([member[i] for member in members])) for i in range(len(REPORTING))]
        lines.append(f"| {top_k or 'all'} | {min(cosines):.4f} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    write_bytes(arguments.table, ("\n".join(lines) + "\n").encode())


def measure(embedded, tables, split, arguments):
    """[class mean, regression mean] over a split's draws."""
    seeds = REPORTING[split][: arguments.draws]
    found = {name: task_score(embedded, table, split, seeds, arguments.device) for name, table in tables.items()}
    return [np.mean([found[name] for name in names]) for names in (CLASS, NUMBER)]


def cell(scores):
    """Means over models, (models, 2), with their spread where there are several."""
    spread = [f" ± {s:.3f}" for s in scores.std(axis=0, ddof=1)] if len(scores) > 1 else ["", ""]
    return " / ".join(f"{mean:.3f}{s}" for mean, s in zip(scores.mean(axis=0), spread, strict=True))


if __name__ == "__main__":
    main()
