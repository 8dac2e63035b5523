"""What a model's scores lose when each place reads only its nearest sites (`Embedder(top_k=)`).

    python benchmarks/top_k.py [--model earth] [--top-k 1 4 16 64 256] [--table benchmarks/results/top_k.md]

Ridge on the reported places, every label; 0 stands for all sites.
"""

import argparse
from datetime import UTC, datetime
from pathlib import Path

import numpy as np
import torch
from study import CLASS, NUMBER, REPORTING, score

from tessearth import Embedder
from tessearth.evaluation.splits import random_split, regional_split
from tessearth.files import write_bytes
from tessearth.labels import benchmark_path, read_benchmark


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--model", default="earth")
    parser.add_argument("--top-k", type=int, nargs="+", default=[0, 256, 64, 16, 4, 1])
    parser.add_argument("--draws", type=int, default=5, help="of each split, at most")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--table", type=Path, default=Path("benchmarks/results/top_k.md"))
    arguments = parser.parse_args()
    tables = {name: table for name, table in read_benchmark(benchmark_path()).items() if name in CLASS + NUMBER}
    options = f"--model {arguments.model} --top-k {' '.join(map(str, arguments.top_k))} --draws {arguments.draws}"
    lines = [
        f"# `{arguments.model}` by its nearest sites alone",
        "",
        f"`python benchmarks/top_k.py {options}`, {datetime.now(UTC):%Y-%m-%d}.",
        "Class mean / regression mean, reported places and splits, ridge; the model was trained with all sites.",
        "",
        "| sites read | least cosine with all sites | random | 10 degrees |",
        "|---:|---:|---:|---:|",
    ]
    whole = None
    for top_k in arguments.top_k:
        embedder = Embedder(arguments.model, device=arguments.device, top_k=top_k or None)
        embedded = embedder.embed(next(iter(tables.values())).latlon)
        whole = embedded if whole is None else whole
        cosine = (embedded * whole).sum(1).min()
        cells = [measure(embedded, tables, split, arguments.draws, arguments.device) for split in REPORTING]
        lines.append(f"| {top_k or 'all'} | {cosine:.4f} | " + " | ".join(cells) + " |")
        print(lines[-1], flush=True)
    write_bytes(arguments.table, ("\n".join(lines) + "\n").encode())


def measure(embedded, tables, split, draws, device):
    """Class mean / regression mean over a split's draws."""
    found = {}
    for name, table in tables.items():
        known = table.known
        x, target = torch.from_numpy(embedded[known]).to(device), table.values[known]
        for seed in REPORTING[split][:draws]:
            cut = (
                random_split(len(target), seed) if split == "random" else regional_split(table.latlon[known], 10, seed)
            )
            found.setdefault(name, []).append(score(x, target, table.kind, cut.train, cut.test, device))
    return " / ".join(f"{np.mean([np.mean(found[name]) for name in names]):.3f}" for names in (CLASS, NUMBER))


if __name__ == "__main__":
    main()
