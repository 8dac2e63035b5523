"""A plan's questions as tables and as curves, from the lines of its runs.

    python benchmarks/questions.py benchmarks/study/questions.toml [--out benchmarks/results]

A plan has a `title`, what it is `about`, `[[question]]` tables (`ask`, the `runs`, and `than`, their reference) and
`[curves.NAME]`, a number for each run. Writes PLAN.md (every run's means with their spread over seeds, and its
difference from the run it is compared to) and performance/NAME.csv, which `tessearth plot performance` draws.
"""

import argparse
import csv
import json
import textwrap
import tomllib
from pathlib import Path

import numpy as np

SPLITS = {"random": "random", "10deg": "10 degrees"}
RESULTS = Path("benchmarks/results")
LEGEND = """Class mean / regression mean, ± the standard
deviation over seeds. Under each score stands its difference from the first row, in thousandths, and in brackets how
many standard errors that is (seeds taken as independent). With three seeds and this many comparisons, below about 4
is noise."""


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("plan", type=Path)
    parser.add_argument("--out", type=Path, default=RESULTS)
    arguments = parser.parse_args()
    name, plan = arguments.plan.stem, tomllib.loads(arguments.plan.read_text())
    runs = read(RESULTS / "study" / f"{name}.jsonl")
    (arguments.out / f"{name}.md").write_text(to_page(name, plan, runs))
    folder = arguments.out / "performance"
    folder.mkdir(exist_ok=True)
    for curve, points in plan["curves"].items():
        write_curve(folder / f"{curve}.csv", curve, points, runs)


def read(path):
    """{run: {split: [seeds, (class, regression)]}}, seeds in order."""
    lines = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda line: line["seed"])
    runs = {}
    for line in lines:
        for split in SPLITS:
            runs.setdefault(line["run"], {}).setdefault(split, []).append(line[f"{split}-means"])
    return {run: {split: np.array(rows) for split, rows in splits.items()} for run, splits in runs.items()}


def to_page(name, plan, runs):
    command = f"`python benchmarks/questions.py benchmarks/study/{name}.toml` from `study/{name}.jsonl`."
    lines = [f"# {plan['title']}", "", *textwrap.wrap(f"{command} {plan['about'].strip()} {LEGEND}", 120)]
    for question in plan["question"]:
        reference, others = question["than"], question["runs"]
        lines += ["", f"## {question['ask']}", "", "| run | random | 10 degrees |", "|---|---:|---:|"]
        lines.append(f"| {reference} | " + " | ".join(cell(runs[reference][split]) for split in SPLITS) + " |")
        for other in others:
            cells = [
                f"{cell(runs[other][split])}<br>{difference(runs[other][split], runs[reference][split])}"
                for split in SPLITS
            ]
            lines.append(f"| {other} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(rows):
    return " / ".join(
        f"{mean:.3f} ± {spread:.3f}" for mean, spread in zip(rows.mean(0), rows.std(0, ddof=1), strict=True)
    )


def difference(rows, reference):
    gap = rows.mean(0) - reference.mean(0)
    error = np.sqrt(rows.var(0, ddof=1) / len(rows) + reference.var(0, ddof=1) / len(reference))
    return " / ".join(f"{1000 * g:+.0f} ({g / e:+.1f})" for g, e in zip(gap, error, strict=True))


def write_curve(path, name, points, runs):
    with path.open("w", newline="") as file:
        writer = csv.writer(file)
        writer.writerow([name, "split", "accuracy", "r2"])
        for run, x in points.items():
            for split in SPLITS:
                for accuracy, r2 in runs[run][split]:
                    writer.writerow([x, split, accuracy, r2])


if __name__ == "__main__":
    main()
