"""What the first numbers of a model are worth on the embedded benchmark: prefixes at unit length, by a ridge probe.

    PYTHONPATH=src python3 benchmarks/prefixes.py NAME=MODEL ... [--dims 8 16 32 64] [--benchmark FILE] [--device cuda]

--benchmark is a file of the embedded labels made elsewhere (labels.benchmark_path()). Class is the mean of climate
class and country, regression that of temperature, elevation, rain and population.
"""

import argparse
from collections import defaultdict

import numpy as np
import torch

from tessearth.encoder import LocationEncoder
from tessearth.evaluation.runner import evaluate
from tessearth.zoo import load_base

MEANS = {"class": ("koppen", "country"), "regression": ("temperature", "elevation", "rain", "population")}
SPLITS = ("random", "10deg")


class Prefix(LocationEncoder):
    """The first numbers of an encoder, at unit length."""

    def __init__(self, model: str, dims: int) -> None:
        super().__init__()
        self.inner, self.output_dim, self.name = load_base(model), dims, f"first {dims}"

    def forward(self, latlon: torch.Tensor) -> torch.Tensor:
        return torch.nn.functional.normalize(self.inner(latlon)[:, : self.output_dim], dim=-1)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="+", metavar="NAME=MODEL")
    parser.add_argument("--dims", type=int, nargs="+", default=[8, 16, 32, 64])
    parser.add_argument("--benchmark")
    parser.add_argument("--device")
    chosen = parser.parse_args()
    named = dict(text.split("=", 1) for text in chosen.models)
    widths = {name: [*chosen.dims, load_base(path).output_dim] for name, path in named.items()}
    models = {f"{name}, {k}": Prefix(named[name], k) for name in named for k in widths[name]}
    tasks = [task for several in MEANS.values() for task in several]
    options = {"references": False, "benchmark": chosen.benchmark, "device": chosen.device, "cache": False}
    results = evaluate(models, tasks, list(SPLITS), **options)
    scores: defaultdict[tuple[str, str, str], list[float]] = defaultdict(list)
    for row in results.scores:
        scores[row.model, row.split, row.task].append(row.score)
    print("| model, numbers | " + " | ".join(f"{what}, {split}" for split in SPLITS for what in MEANS) + " |")
    print("|---|" + "---:|" * (len(SPLITS) * len(MEANS)))
    for model in models:
        cells = [
            np.mean([np.mean(scores[model, split, task]) for task in MEANS[what]]) for split in SPLITS for what in MEANS
        ]
        print(f"| {model} | " + " | ".join(f"{cell:.3f}" for cell in cells) + " |")


if __name__ == "__main__":
    main()
