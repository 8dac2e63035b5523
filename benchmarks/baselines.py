"""The other architectures trained on the released features, as a table, from the runs of `study/baselines.toml`.

python benchmarks/baselines.py [--results benchmarks/results/study/baselines.jsonl] [--out benchmarks/results]
"""

import argparse
import json
from pathlib import Path

import numpy as np

SPLITS = {"random": "random splits", "10deg": "10 degree blocks held out"}
INTRODUCTION = """# Other architectures, the same features and objective

`python benchmarks/baselines.py` from `study/baselines.jsonl`: `study.py study/baselines.toml --report --store
...` on one H200, three seeds each (± their standard deviation), reported places and splits, ridge. Every
recipe is earth's but for the encoder. `earth` itself, by the same protocol, stands in embedded.md."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/study/baselines.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    lines = [json.loads(line) for line in arguments.results.read_text().splitlines()]
    (arguments.out / "baselines.md").write_text(to_page(lines))


def to_page(lines):
    page = [INTRODUCTION]
    for split, title in SPLITS.items():
        tasks = list(lines[0][split])
        page += ["", f"## {title.capitalize()}", ""]
        page.append("| | class mean | regression mean | " + " | ".join(tasks) + " |")
        page.append("|---|" + "---:|" * (2 + len(tasks)))
        for run, members in sorted(by_run(lines).items(), key=lambda item: -mean_of(item[1], split)):
            rows = np.array([[*m[f"{split}-means"], *(m[split][task] for task in tasks)] for m in members])
            cells = [f"{m:.3f} ± {s:.3f}" for m, s in zip(rows.mean(0), rows.std(0, ddof=1), strict=True)]
            page.append(f"| {run} | " + " | ".join(cells) + " |")
    return "\n".join(page) + "\n"


def by_run(lines):
    runs = {}
    for line in lines:
        runs.setdefault(line["run"], []).append(line)
    return runs


def mean_of(members, split):
    return np.mean([member[f"{split}-means"] for member in members])


if __name__ == "__main__":
    main()
