"""The paper's questions as tables and as curves, from the runs of `benchmarks/study/questions.toml`.

    python benchmarks/questions.py [--results benchmarks/results/study/questions.jsonl] [--out benchmarks/results]

Writes questions.md (every run's means with their spread over seeds, and its difference from the run it is compared to)
and performance/{sites,tokens,places}.csv, which `tessearth plot performance` draws.
"""

import argparse
import csv
import json
from pathlib import Path

import numpy as np

SPLITS = {"random": "random", "10deg": "10 degrees"}
ALL_PLACES = 80_000
QUESTIONS = {
    "Do sites that move help?": ("plain", ["fixed-sites", "quick-sites"]),
    "... with few sites?": ("sites-256", ["sites-256-fixed", "sites-256-quick"]),
    "... with a thousand?": ("sites-1024", ["sites-1024-fixed"]),
    "... under the paper's objective?": ("contrastive", ["contrastive-fixed-sites"]),
    "What do the tokens and the terms about them give?": (
        "plain",
        ["no-tokens", "no-alignment", "no-reconstruction", "symmetric-attention"],
    ),
    "... under the paper's objective?  ": (
        "contrastive",
        [f"contrastive-{name}" for name in ("no-tokens", "no-alignment", "no-reconstruction", "symmetric-attention")],
    ),
    "What does distillation give?": ("contrastive", ["plain"]),
    "How many sites?": ("plain", ["sites-256", "sites-1024", "sites-8192"]),
    "How many tokens?": ("plain", ["tokens-16", "tokens-32", "tokens-128", "tokens-256"]),
    "How many places?": ("plain", ["half-data", "quarter-data", "tenth-data"]),
    "Where do sites start?": ("plain", ["land-start", "clusters-start"]),
    "Which form of the encoder?": ("plain", ["coordinates", "free-sites", "decoupled", "paper-sharpness"]),
}
INTRODUCTION = """# The paper's questions on the released features

`python benchmarks/questions.py` from `study/questions.jsonl`, the runs of `benchmarks/study/questions.toml`: an encoder
of the paper's size without coordinates beside its sites, 3,000 steps on earth's features, three seeds each, scored on
the choosing places (one random split, two draws of 10 degree blocks). Class mean / regression mean, ± the standard
deviation over seeds. Under each score stands its difference from the first row, in thousandths, and in brackets how
many standard errors that is (seeds taken as independent). With three seeds and this many comparisons, below about 4
is noise."""
CURVES = {
    "sites": {256: "sites-256", 1024: "sites-1024", 4096: "plain", 8192: "sites-8192"},
    "tokens": {0: "no-tokens", 16: "tokens-16", 32: "tokens-32", 64: "plain", 128: "tokens-128", 256: "tokens-256"},
    "places": {
        round(ALL_PLACES * share): name
        for share, name in ((0.1, "tenth-data"), (0.25, "quarter-data"), (0.5, "half-data"), (1, "plain"))
    },
}


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--results", type=Path, default=Path("benchmarks/results/study/questions.jsonl"))
    parser.add_argument("--out", type=Path, default=Path("benchmarks/results"))
    arguments = parser.parse_args()
    runs = read(arguments.results)
    (arguments.out / "questions.md").write_text(to_page(runs))
    folder = arguments.out / "performance"
    folder.mkdir(exist_ok=True)
    for name, points in CURVES.items():
        write_curve(folder / f"{name}.csv", name, points, runs)


def read(path):
    """{run: {split: [seeds, (class, regression)]}}, seeds in order."""
    lines = sorted((json.loads(line) for line in path.read_text().splitlines()), key=lambda line: line["seed"])
    runs = {}
    for line in lines:
        for split in SPLITS:
            runs.setdefault(line["run"], {}).setdefault(split, []).append(line[f"{split}-means"])
    return {run: {split: np.array(rows) for split, rows in splits.items()} for run, splits in runs.items()}


def to_page(runs):
    lines = [INTRODUCTION]
    for question, (reference, others) in QUESTIONS.items():
        lines += ["", f"## {question.strip()}", "", "| run | random | 10 degrees |", "|---|---:|---:|"]
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
        for x, run in points.items():
            for split in SPLITS:
                for accuracy, r2 in runs[run][split]:
                    writer.writerow([x, split, accuracy, r2])


if __name__ == "__main__":
    main()
