"""The other architectures trained on the released features, as a table, from the runs of `study/baselines.toml`.

python benchmarks/baselines.py [baselines] [baselines-80000] [--results benchmarks/results]
"""

import argparse
import json
from pathlib import Path

import numpy as np

SPLITS = {"random": "random splits", "10deg": "10 degree blocks held out"}
INTRODUCTION = """# Other architectures, the same features and objective

`python benchmarks/baselines.py {name}` from `study/{name}.jsonl`: `study.py study/baselines.toml --report --store ...`
on one H200; reported places and splits, ridge, ± the standard deviation over seeds. Every recipe is earth's but for the
encoder. {about}"""
ABOUT = {
    "baselines": "`earth` itself, by the same protocol, stands in embedded.md.",
    "baselines-80000": "The store is `study/store-80000.toml`; `earth` trained on it stands in embedded-80000.md.",
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("names", nargs="*", default=list(ABOUT), help="files of results/study")
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    for name in arguments.names:
        text = (arguments.results / "study" / f"{name}.jsonl").read_text()
        page = to_page(name, [json.loads(line) for line in text.splitlines()])
        (arguments.results / f"{name}.md").write_text(page)


def to_page(name, lines):
    page = [INTRODUCTION.format(name=name, about=ABOUT.get(name, ""))]
    for split, title in SPLITS.items():
        tasks = list(lines[0][split])
        page += ["", f"## {title.capitalize()}", ""]
        page.append("| | seeds | class mean | regression mean | " + " | ".join(tasks) + " |")
        page.append("|---|" + "---:|" * (3 + len(tasks)))
        for run, members in sorted(by_run(lines).items(), key=lambda item: -mean_of(item[1], split)):
            rows = np.array([[*m[f"{split}-means"], *(m[split][task] for task in tasks)] for m in members])
            page.append(f"| {run} | {len(members)} | " + " | ".join(map(shown, rows.T)) + " |")
    return "\n".join(page) + "\n"


def shown(scores):
    """The mean of the seeds' scores and, of several, their spread."""
    return f"{scores.mean():.3f}" + (f" ± {scores.std(ddof=1):.3f}" if len(scores) > 1 else "")


def by_run(lines):
    runs = {}
    for line in lines:
        runs.setdefault(line["run"], []).append(line)
    return runs


def mean_of(members, split):
    return np.mean([member[f"{split}-means"] for member in members])


if __name__ == "__main__":
    main()
