"""How fast the ridge probe is, and how far from what it must equal.

Run: PYTHONPATH=src python3 benchmarks/probes.py ridge        ridge against scikit-learn at full size
     PYTHONPATH=src python3 benchmarks/probes.py tasks        the same on the embedded tasks: penalties and scores

Both sides use the same cores and take turns, and the best round of each counts, because other programs on the machine
can only make a round slower.
"""

import argparse
import json
import warnings
from typing import Any

import numpy as np
import torch
from turns import in_turns

from tessearth.evaluation.plan import build_splits
from tessearth.evaluation.probes import RandomFeatures, score
from tessearth.evaluation.tasks import load_task
from tessearth.labels import LABELS
from tessearth.ridge import ALPHAS, fit_ridge_classifier, fit_ridge_regression
from tessearth.sphere.geometry import latlon_to_xyz
from tessearth.sphere.sampling import sample_sphere

Array = np.ndarray[Any, np.dtype[Any]]


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


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])  # type: ignore[union-attr]
    parser.add_argument("what", choices=["ridge", "tasks"])
    parser.add_argument("--rows", type=int, default=30_000)
    parser.add_argument("--width", type=int, default=512)
    parser.add_argument("--classes", type=int, default=300)
    parser.add_argument("--rounds", type=int, default=2)
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--device", help="cpu or cuda for our side; the GPU when there is one")
    parser.add_argument("--json", action="store_true", help="print one JSON line instead of a table")
    arguments = parser.parse_args()
    device = torch.device(arguments.device or ("cuda" if torch.cuda.is_available() else "cpu"))
    results = {"ridge": ridge, "tasks": tasks}[arguments.what](arguments, device)
    results |= {"device": str(device), "threads": torch.get_num_threads(), "torch": torch.__version__}
    if arguments.json:
        print(json.dumps(results))
        return
    for name, value in results.items():
        print(f"{name:44}{value:.4g}" if isinstance(value, float) else f"{name:44}{value}")


if __name__ == "__main__":
    main()
