"""What a linear map after the last layer changes: the same numbers, turned, stretched, or with a summary in front.

    python benchmarks/geometry.py WEIGHTS --benchmark FILE --out FOLDER

A linear map of the embedding costs nothing, because it can be folded into the head's last layer, and it decides what a
penalised linear probe finds easy. The maps are made from the embeddings of places alone, without labels, and scored as
in `benchmarks/study.py`, on places and splits that no reported number uses.
"""

import argparse
import json
from pathlib import Path

import numpy as np
import torch
from study import CHOOSING, score_all, shown

from tessearth import Embedder
from tessearth.labels import read_benchmark
from tessearth.sphere.sampling import sample_land

PLACES = 50_000


def principal(embedding):
    """Directions (D, D) by falling variance, and that variance relative to the largest, (D,)."""
    centred = (embedding - embedding.mean(0)).double()
    variance, directions = torch.linalg.eigh(centred.T @ centred / len(centred))
    return directions.flip(1), (variance.flip(0) / variance.max()).clamp_min(1e-9)


def rotation(width, seed=0):
    drawn = torch.from_numpy(np.random.default_rng(seed).normal(size=(width, width)))
    return torch.linalg.qr(drawn)[0]


def in_front(directions, counts, heights):
    """Rotated leading directions first, a group per count, then a rotation of everything that still fits."""
    parts = [height * directions[:, :n] @ rotation(n) for n, height in zip(counts, heights, strict=True)]
    rest = directions.shape[0] - sum(counts)
    return torch.cat((*parts, directions[:, :rest] @ rotation(rest, 1)), dim=1)


def maps(directions, variance):
    width = len(variance)
    turned = rotation(width)
    yield "as it is", torch.eye(width, dtype=torch.float64)
    yield "turned", directions @ turned
    for power in (-0.25, 0.25, 0.5):
        yield f"steeper {power}", (directions * variance ** (power / 2)) @ turned
    for height in (1.0, 2.0):
        yield f"64 in front x {height}", in_front(directions, (64,), (height,))
    yield "64, 64, 128 in front", in_front(directions, (64, 64, 128), (1.0, 1.0, 1.0))


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("weights")
    parser.add_argument("--benchmark", required=True)
    parser.add_argument("--out", required=True)
    arguments = parser.parse_args()
    device = "cuda" if torch.cuda.is_available() else "cpu"
    embed, tables = Embedder(arguments.weights, device=device), read_benchmark(arguments.benchmark)
    directions, variance = principal(torch.from_numpy(np.asarray(embed(sample_land(PLACES, 0)))))
    known = {}
    with open(Path(arguments.out) / "geometry.jsonl", "w") as log:
        for name, change in maps(directions, variance):

            def changed(latlon, change=change):
                if id(latlon) not in known:
                    known[id(latlon)] = torch.from_numpy(np.asarray(embed(latlon))).double()
                return torch.nn.functional.normalize(known[id(latlon)] @ change, dim=-1).float().numpy()

            line = {"run": name, "seed": 0, "train_s": 0, **score_all(changed, tables, CHOOSING, device)}
            log.write(json.dumps(line) + "\n")
            print(shown(line), flush=True)


if __name__ == "__main__":
    main()
