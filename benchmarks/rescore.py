"""Weights scored as the study scores its runs, on places and splits that no reported number uses.

    python benchmarks/rescore.py MODEL [MODEL ...] --benchmark FILE [--tasks elevation ...] [--table FILE.md]

For a comparison of released weights with runs of a plan (`benchmarks/results/study`), whose own weights are not kept.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from study import CHOOSING, CLASS, NUMBER, score

from tessearth import Embedder
from tessearth.evaluation.splits import random_split, regional_split
from tessearth.files import write_bytes
from tessearth.labels import read_benchmark


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+")
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--tasks", nargs="+", default=list(CLASS + NUMBER))
    parser.add_argument("--table", type=Path)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    tables = {name: table for name, table in read_benchmark(arguments.benchmark).items() if name in arguments.tasks}
    lines = [
        f"`python benchmarks/rescore.py {' '.join(sys.argv[1:])}`, {datetime.now(UTC):%Y-%m-%d}",
        "",
        "| model | task | " + " | ".join(CHOOSING) + " |",
        "|---|---|" + "---:|" * len(CHOOSING),
    ]
    for model in arguments.models:
        embed = Embedder(model, device=device)
        for name, table in tables.items():
            x, target = torch.from_numpy(embed(table.latlon[table.known])).to(device), table.values[table.known]
            cells = [f"{mean_score(x, target, table, split, device):.4f}" for split in CHOOSING]
            lines.append(f"| {model} | {name} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    if arguments.table:
        write_bytes(arguments.table, ("\n".join(lines) + "\n").encode())


def mean_score(x, target, table, split, device):
    places, found = table.latlon[table.known], []
    for seed in CHOOSING[split]:
        cut = random_split(len(target), seed) if split == "random" else regional_split(places, 10, seed)
        found.append(score(x, target, table.kind, cut.train, cut.test, device))
    return np.mean(found)


if __name__ == "__main__":
    main()
