"""Few labels and few dimensions: the released model beside GeoCLIP and inverse distance on the reported places.

    python benchmarks/few_labels.py LABEL:MODEL|MODEL ... [--table benchmarks/results/few_labels.md]

Each model is probed by ridge on every split's whole training part, on 3,000 and on 300 places of it, and on its first
64, 128 and 256 dimensions with all places; means over class tasks and regression tasks, over splits, then over a
label's models. A model may also be a .npy file: its embeddings of the benchmark's places, from a machine that has it
(`--embed MODEL FILE.npy` writes one).
"""

import argparse
import sys
from concurrent.futures import ProcessPoolExecutor
from datetime import UTC, datetime
from multiprocessing import get_context
from pathlib import Path

import numpy as np
import torch
from study import CLASS, FEW, NUMBER, REPORTING, cut_by, score

from tessearth import Embedder
from tessearth.errors import TessearthError
from tessearth.evaluation.probes import REFERENCES
from tessearth.labels import benchmark_path, read_benchmark
from tessearth.storage.files import write_bytes

PREFIXES = (64, 128, 256)
INVERSE_DISTANCE = "inverse-distance"


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("models", nargs="*", metavar="LABEL:MODEL|MODEL")
    parser.add_argument("--embed", nargs=2, metavar=("MODEL", "FILE"), help="write a model's embeddings and stop")
    parser.add_argument("--table", default="benchmarks/results/few_labels.md")
    parser.add_argument("--device", default="cuda" if torch.cuda.is_available() else "cpu")
    parser.add_argument("--benchmark", help="a benchmark file made elsewhere; the one in the cache if left out")
    parser.add_argument("--few-only", action="store_true", help="leave out what needs every label")
    parser.add_argument("--workers", type=int, default=1, help="models probed side by side")
    arguments = parser.parse_args()
    everything = read_benchmark(arguments.benchmark or benchmark_path())
    tables = {name: table for name, table in everything.items() if name in CLASS + NUMBER}
    if arguments.embed:
        model, path = arguments.embed
        np.save(path, embed(model, next(iter(tables.values())).latlon, arguments.device).astype(np.float16))
        return
    labelled = [model.partition(":") for model in arguments.models]
    names = {label: (names or label).split("|") for label, _, names in labelled}
    rows = {}
    with ProcessPoolExecutor(arguments.workers, get_context("spawn")) as pool:
        waiting = {
            label: [pool.submit(measure, name, tables, arguments.device, arguments.few_only) for name in members]
            for label, members in names.items()
        }
        for label, members in waiting.items():
            rows[label] = [member.result() for member in members]
            print(label, show(rows[label]), flush=True)
    write_bytes(Path(arguments.table), to_table(rows, " ".join(sys.argv[1:])).encode())


def measure(model, tables, device, few_only):
    """{column: [class mean, regression mean]} of one model, or of inverse distance."""
    latlon = next(iter(tables.values())).latlon
    embedding = None
    if model != INVERSE_DISTANCE:
        embedding = torch.from_numpy(embed(model, latlon, device)).to(device)
    scores = {}
    for name, table in tables.items():
        known, places, target = np.flatnonzero(table.known), table.latlon[table.known], table.values[table.known]
        for split, seeds in REPORTING.items():
            for seed in seeds:
                cut = cut_by(split, places, seed)
                for column, value in columns(embedding, known, places, target, table.kind, cut, seed, device, few_only):
                    scores.setdefault((split, column), {}).setdefault(name, []).append(value)
    return {
        key: [float(np.mean([np.mean(tasks[name]) for name in names])) for names in (CLASS, NUMBER)]
        for key, tasks in scores.items()
    }


def embed(model, latlon, device):
    if model.endswith(".npy"):
        return np.load(model).astype(np.float32)
    return np.asarray(Embedder(model, device=device)(latlon), dtype=np.float32)


def columns(embedding, known, places, target, kind, cut, seed, device, few_only):
    """What one split gives: few labels, then prefixes, by name."""
    order = np.random.default_rng(seed).permutation(cut.train)
    chosen = {} if few_only else {"all labels": cut.train}
    chosen |= {f"{count} labels": order[:count] for count in FEW}
    if embedding is None:
        for name, rows in chosen.items():
            reference = REFERENCES[INVERSE_DISTANCE](kind).fit(places[rows], target[rows])
            yield name, reference.score(places[cut.test], target[cut.test])
        return
    x = embedding[torch.from_numpy(known).to(embedding.device)]
    for name, rows in chosen.items():
        yield name, score(x, target, kind, rows, cut.test, device)
    for width in (n for n in PREFIXES if n < x.shape[1] and not few_only):
        yield f"first {width}", score(x[:, :width], target, kind, cut.train, cut.test, device)


def show(members):
    return {" ".join(key): [round(float(v), 3) for v in mean(members, key)] for key in members[0]}


def mean(members, key):
    return np.mean([member[key] for member in members], axis=0)


def to_table(rows, command):
    keys = [*dict.fromkeys(key for members in rows.values() for key in members[0])]
    lines = [
        "# Few labels, few dimensions",
        "",
        f"`python benchmarks/few_labels.py {command}`, {datetime.now(UTC):%Y-%m-%d}.",
        "Class mean / regression mean on the reported places; ± is the spread over a label's models.",
        "",
        "| split | probed with | " + " | ".join(rows) + " |",
        "|---|---|" + "---:|" * len(rows),
    ]
    for key in keys:
        cells = [cell(members, key) if key in members[0] else "" for members in rows.values()]
        lines.append(f"| {key[0]} | {key[1]} | " + " | ".join(cells) + " |")
    return "\n".join(lines) + "\n"


def cell(members, key):
    values = np.array([member[key] for member in members])
    spread = values.std(axis=0, ddof=1) if len(values) > 1 else None
    parts = [
        f"{value:.3f}" + ("" if spread is None else f" ± {spread[i]:.3f}")
        for i, value in enumerate(values.mean(axis=0))
    ]
    return " / ".join(parts)


if __name__ == "__main__":
    try:
        main()
    except TessearthError as error:
        sys.exit(f"error: {error}")
