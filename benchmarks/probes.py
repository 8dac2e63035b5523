"""How fast the probes and retrieval are, and how far from what they must equal.

Run: PYTHONPATH=src python3 benchmarks/probes.py ridge        ridge against scikit-learn at full size
     PYTHONPATH=src python3 benchmarks/probes.py tasks        the same on the embedded tasks: penalties and scores
     PYTHONPATH=src python3 benchmarks/probes.py retrieval    against the formula with the whole matrix of weights

Both sides use the same cores and take turns, and the best round of each counts, because other programs on the machine
can only make a round slower.
"""

import argparse
import json
import resource
import time
import warnings
from collections.abc import Callable
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.evaluation.metrics import score
from tessearth.evaluation.references import RandomFeatures
from tessearth.evaluation.ridge import ALPHAS, fit_ridge_classifier, fit_ridge_regression
from tessearth.evaluation.splits import build_splits
from tessearth.evaluation.tasks import load_task
from tessearth.geometry import latlon_to_xyz
from tessearth.inference.retrieval import Database, Retriever
from tessearth.labels import LABELS
from tessearth.places import sample_sphere

Array = np.ndarray[Any, np.dtype[Any]]


def in_turns(works: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> tuple[dict[str, float], dict]:
    """The shortest time of each in seconds, and what each gave."""
    seconds: dict[str, float] = dict.fromkeys(works, float("inf"))
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for name, work in works.items():
            _wait(device)
            start = time.perf_counter()
            results[name] = work()
            _wait(device)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds, results


def scikit_classifier(x: Array, codes: Array) -> Any:
    from sklearn.linear_model import RidgeClassifierCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", "The least populated class")
        return make_pipeline(MinMaxScaler(), RidgeClassifierCV(alphas=ALPHAS, cv=10)).fit(x, codes)


def scikit_regression(x: Array, y: Array) -> Any:
    from sklearn.linear_model import RidgeCV
    from sklearn.pipeline import make_pipeline
    from sklearn.preprocessing import MinMaxScaler

    return make_pipeline(MinMaxScaler(), RidgeCV(alphas=ALPHAS, cv=3)).fit(x, y)


def ridge(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Classes by the nearest of as many centres, on features of an untrained network: correlated, as embeddings are."""
    latlon = sample_sphere(arguments.rows * 5 // 4, arguments.seed)
    x = RandomFeatures(arguments.width, seed=arguments.seed).embed(latlon).astype(np.float64)
    place, centre = (latlon_to_xyz(torch.from_numpy(p)) for p in (latlon, sample_sphere(arguments.classes, 1)))
    codes = (place @ centre.T).argmax(1).numpy()
    train, test = slice(0, arguments.rows), slice(arguments.rows, None)
    seconds, fits = in_turns(
        {
            "ours": lambda: fit_ridge_classifier(x[train], codes[train], device=device),
            "scikit-learn": lambda: scikit_classifier(x[train], codes[train]),
        },
        arguments.rounds,
        device,
    )
    theirs = fits["scikit-learn"]
    accuracy = {
        "ours": np.mean(fits["ours"].predict(x[test]) == codes[test]),
        "theirs": theirs.score(x[test], codes[test]),
    }
    return {
        "rows": arguments.rows,
        "width": arguments.width,
        "classes": len(np.unique(codes[train])),
        "seconds": seconds["ours"],
        "seconds_scikit_learn": seconds["scikit-learn"],
        "times_faster": seconds["scikit-learn"] / seconds["ours"],
        "alpha": float(fits["ours"].alpha[0]),
        "alpha_scikit_learn": float(theirs[-1].alpha_),
        "fold_score_difference": abs(fits["ours"].fold_scores.max() - theirs[-1].best_score_),
        "accuracy": float(accuracy["ours"]),
        "accuracy_difference": abs(float(accuracy["ours"] - accuracy["theirs"])),
    }


def tasks(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    """Every embedded task at random and with 10 degree blocks held out, on features of an untrained network."""
    results: dict[str, Any] = {}
    for name in LABELS:
        task = load_task(name)
        x = RandomFeatures(arguments.width, seed=arguments.seed).embed(task.latlon).astype(np.float64)
        for split in build_splits("random", task.latlon) + build_splits("10deg", task.latlon)[:1]:
            classify = task.kind == "classify"
            learn = (x[split.train], task.target[split.train])
            ours = (fit_ridge_classifier if classify else fit_ridge_regression)(*learn, device=device)
            theirs = (scikit_classifier if classify else scikit_regression)(*learn)
            target = task.target[split.test]
            found = score(task.kind, target, ours.predict(x[split.test]).reshape(len(target)))
            results[f"{name} {split.name}"] = {
                "alpha": float(ours.alpha[0]),
                "same_alpha": float(ours.alpha[0]) == float(theirs[-1].alpha_),
                "score": found,
                "difference": abs(found - score(task.kind, target, theirs.predict(x[split.test]))),
            }
            print(f"{name} {split.name}", results[f"{name} {split.name}"], flush=True)
    return {
        "problems": len(results),
        "same_alpha": sum(row["same_alpha"] for row in results.values()),
        "largest_difference": max(row["difference"] for row in results.values()),
    }


def whole_matrix(database: Database, queries: Tensor, latlon: Array, device: torch.device) -> Tensor:
    """The formula of the geodesic mode as it is written, every weight in memory, in the type of the queries."""
    keys, values, places, here = (
        torch.from_numpy(array).to(device, queries.dtype)
        for array in (database.keys, database.values, database.latlon, latlon)
    )
    near = torch.softmax(40 * latlon_to_xyz(here) @ latlon_to_xyz(places).T, dim=1) @ values
    alike = torch.softmax(12 * F.normalize(queries, dim=-1) @ F.normalize(keys, dim=-1).T, dim=1) @ values
    return 0.5 * near + 0.5 * alike


def retrieval(arguments: argparse.Namespace, device: torch.device) -> dict[str, Any]:
    rng = np.random.default_rng(arguments.seed)
    rows, width, values = arguments.database, arguments.width, 1024
    keys, pictures = (rng.standard_normal((rows, wide), dtype=np.float32) for wide in (width, values))
    database = Database(sample_sphere(rows, 0), keys, pictures)
    queries, latlon = (
        rng.standard_normal((arguments.queries, width), dtype=np.float32),
        sample_sphere(arguments.queries, 1),
    )
    retriever = Retriever(database, "geodesic", device=device)
    before = _peak_mb(device)
    retriever.encode(queries, latlon)
    extra = _peak_mb(device) - before
    there = torch.from_numpy(queries).to(device)
    seconds, found = in_turns(
        {
            "ours": lambda: retriever.encode(queries, latlon)[:, :values],
            "float32": lambda: whole_matrix(database, there, latlon, device).cpu().numpy(),
            "float64": lambda: whole_matrix(database, there.double(), latlon, device).cpu().numpy(),
        },
        arguments.rounds,
        device,
    )
    return {
        "database": rows,
        "queries": arguments.queries,
        "extra_mb": extra,
        "seconds": seconds["ours"],
        "times_faster_than_whole_matrix_float32": seconds["float32"] / seconds["ours"],
        "times_faster_than_whole_matrix_float64": seconds["float64"] / seconds["ours"],
        "largest_difference_from_float64": float(np.abs(found["ours"] - found["float64"]).max()),
    }


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["ridge", "tasks", "retrieval"])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=300)
    parser.add_argument("--database", type=int, default=100_000)
    parser.add_argument("--queries", type=int, default=1000)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu or cuda for our side; the GPU when there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    arguments = parser.parse_args()
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    results = {"ridge": ridge, "tasks": tasks, "retrieval": retrieval}[arguments.what](arguments, device)
    results |= {"device": str(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:44}{value:.4g}" if isinstance(value, float) else f"{name:44}{value}")


def _peak_mb(device: torch.device) -> float:
    if device.type == "cuda":
        return torch.cuda.max_memory_allocated(device) / 2**20
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


def _wait(device: torch.device) -> None:
    if device.type == "cuda":
        torch.cuda.synchronize(device)


if __name__ == "__main__":
    main()
