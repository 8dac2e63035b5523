"""How fast retrieval is against forming the whole matrix of weights, and how far from the formula in float64.

Run: PYTHONPATH=src python3 benchmarks/retrieval.py                      both modes, two threads
     PYTHONPATH=src python3 benchmarks/retrieval.py --device cuda        our side and the matrices of PyTorch on a GPU

"formula" is the published form word for word in numpy and float64; the other two are the same in PyTorch. All use the
same cores, take turns, and the best round of each counts. Keys and values are random, which no shortcut can exploit.
"""

import argparse
import json
import resource
import subprocess
import sys
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor
from turns import in_turns

from tessearth.embedding.retrieval import Database, Retriever
from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.sphere.sampling import sample_sphere
from tessearth.zoo.names import Mode

Array = np.ndarray[Any, np.dtype[Any]]


def softmax(logits: Array) -> Array:
    weights = np.exp(logits - logits.max(1, keepdims=True))
    return weights / weights.sum(1, keepdims=True)


def formula(q: Array, k: Array, x: Array, y: Array, values: Array, mode: Mode) -> Array:
    if mode == "semantic":
        return softmax(15 * q @ k.T) @ values
    return 0.5 * softmax(40 * x @ y.T) @ values + 0.5 * softmax(12 * q @ k.T) @ values


def whole_matrix(q: Tensor, k: Tensor, x: Tensor, y: Tensor, values: Tensor, mode: Mode) -> Tensor:
    if mode == "semantic":
        return torch.softmax(15 * q @ k.T, dim=1) @ values
    return 0.5 * torch.softmax(40 * x @ y.T, dim=1) @ values + 0.5 * torch.softmax(12 * q @ k.T, dim=1) @ values


def measure(arguments: argparse.Namespace, mode: Mode, device: torch.device) -> dict[str, Any]:
    rng = np.random.default_rng(arguments.seed)
    rows, width, wide = arguments.database, arguments.width, arguments.values
    keys, values = (rng.standard_normal((rows, size), dtype=np.float32) for size in (width, wide))
    queries = rng.standard_normal((arguments.queries, width), dtype=np.float32)
    queries[:8] = keys[:8]
    places, here = sample_sphere(rows, 0), sample_sphere(arguments.queries, 1)
    retriever = Retriever(Database(places, keys, values), mode, device=device)
    extra = _extra_mb(lambda: retriever.encode(queries, here), device)
    double = [F.normalize(torch.from_numpy(a).double(), dim=-1) for a in (queries, keys)]
    double += [latlon_to_xyz(torch.from_numpy(a)) for a in (here, places)] + [torch.from_numpy(values).double()]
    works: dict[str, Callable[[], Any]] = {"ours": lambda: retriever.encode(queries, here)[:, :wide]}
    for name, dtype in (("float32", torch.float32), ("float64", torch.float64)):
        there = [tensor.to(device, dtype) for tensor in double]
        works[name] = lambda there=there: whole_matrix(*there, mode).cpu().numpy()
    works["formula"] = lambda: formula(*(tensor.numpy() for tensor in double), mode)
    seconds, found = in_turns(works, arguments.rounds, device)
    difference = {name: float(np.abs(found[name] - found["formula"]).max()) for name in ("ours", "float32")}
    return {
        "mode": mode,
        "database": rows,
        "queries": arguments.queries,
        "key_width": width,
        "value_width": wide,
        "extra_mb": extra,
        "seconds": seconds["ours"],
        **{f"times_faster_than_{name}": seconds[name] / seconds["ours"] for name in ("float32", "float64", "formula")},
        "largest_difference_from_formula": difference["ours"],
        "that_of_the_float32_matrix": difference["float32"],
    }


def _extra_mb(work: Callable[[], Any], device: torch.device) -> float:
    """By how much the peak of memory rises, which a processor tells of the whole life of a process only."""
    if device.type == "cuda":
        torch.cuda.reset_peak_memory_stats(device)
        before = torch.cuda.memory_allocated(device)
        work()
        return (torch.cuda.max_memory_allocated(device) - before) / 2**20
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    work()
    return (resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before) / 1024


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("--database", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=2048)
    parser.add_argument("--width", type=int, default=256)
    parser.add_argument("--values", type=int, default=512)
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--mode", choices=["semantic", "geodesic"], help="one of them; else both, a process each")
    parser.add_argument("--device", default="cpu")
    parser.add_argument("--json", action="store_true", help="print JSON lines instead of a table")
    arguments = parser.parse_args()
    torch.set_num_threads(arguments.threads)
    if arguments.mode is None:
        for mode in ("semantic", "geodesic"):
            subprocess.run([sys.executable, *sys.argv, "--mode", mode], check=True)
        return
    results = measure(arguments, arguments.mode, torch.device(arguments.device))
    results |= {"device": arguments.device, "threads": arguments.threads, "torch": torch.__version__}
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:36}{value:.4g}" if isinstance(value, float) else f"{name:36}{value}")


if __name__ == "__main__":
    main()
