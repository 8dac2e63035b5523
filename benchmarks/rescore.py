"""Weights scored as the study scores its runs, on places and splits that no reported number uses.

    python benchmarks/rescore.py MODEL [MODEL ...] --benchmark FILE [--tasks elevation ...] [--table FILE.md]

For a comparison of released weights with runs of a plan (`benchmarks/results/study`), whose own weights are not kept.
"""

import argparse
import sys
from datetime import UTC, datetime
from pathlib import Path

import torch
from study import CHOOSING, CLASS, NUMBER, task_score

from tessearth import Embedder
from tessearth.labels import read_benchmark
from tessearth.storage.files import write_bytes


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
            x = embed(table.latlon)
            cells = [f"{task_score(x, table, split, seeds, device):.4f}" for split, seeds in CHOOSING.items()]
            lines.append(f"| {model} | {name} | " + " | ".join(cells) + " |")
            print(lines[-1], flush=True)
    if arguments.table:
        write_bytes(arguments.table, ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
