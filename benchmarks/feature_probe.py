"""Do frozen features carry the land? A ridge probe from stored features to climate class and elevation.

    .venv/bin/python benchmarks/feature_probe.py [--places 20000] [--out benchmarks/results/feature_probe.md]

Places are uniform over land; random 80/20 split, features scaled to [0, 1] on the training part, ridge with alphas 0.1,
1, 10 chosen by leave-one-out (scikit-learn's default, not the protocol's folds). The relief map is drawn from a terrain
model, so elevation is reported with and without it.
"""

import argparse
import tempfile
from datetime import date
from pathlib import Path

import numpy as np
from sklearn.linear_model import RidgeClassifierCV, RidgeCV
from sklearn.model_selection import train_test_split
from sklearn.preprocessing import MinMaxScaler

from tessearth.imagery.building import build_store
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.labels import prepare_labels
from tessearth.storage.files import write_bytes

SOURCES = {
    "blue-marble": {"size": 24, "km_per_pixel": 7.4},
    "shaded-relief": {"size": 24, "km_per_pixel": 3.7},
}
ALPHAS = (0.1, 1.0, 10.0)


def probe(features, labels, kind, seed):
    known = labels >= 0 if kind == "classify" else np.isfinite(labels)
    train, test = train_test_split(np.flatnonzero(known), test_size=0.2, random_state=seed)
    scaler = MinMaxScaler().fit(features[train])
    make = RidgeClassifierCV(ALPHAS) if kind == "classify" else RidgeCV(ALPHAS)
    fitted = make.fit(scaler.transform(features[train]), labels[train])
    return fitted.score(scaler.transform(features[test]), labels[test])


def main():
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--places", type=int, default=20_000)
    parser.add_argument("--encoder", default="rcf")
    parser.add_argument("--store", help="a folder to keep the features in")
    parser.add_argument("--out", help="a markdown file for the table")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as scratch:
        recipe = FeatureRecipe(
            sources=tuple(SourceRecipe(kind=k, options=o, encoder=arguments.encoder) for k, o in SOURCES.items()),
            places=PlacesRecipe(count=arguments.places),
            dtype="float32",
        )
        store = build_store(recipe, arguments.store or f"{scratch}/store")
        features = np.array(store.features[:, 0])
        latlon = store.latlon
        widths = [entry["encoder"]["width"] for entry in store.manifest["sources"]]
    labels = prepare_labels(latlon, ("koppen", "elevation"))
    parts = {"day": features[:, : widths[0]], "relief": features[:, widths[0] :], "day + relief": features}
    lines = [
        f"# Ridge probe from frozen features ({arguments.encoder}), {arguments.places:,} land places",
        "",
        f"{date.today()}; benchmarks/feature_probe.py --places {arguments.places} --encoder {arguments.encoder};",
        "mean and spread (min to max) over split seeds 42 to 44.",
        "",
        "| features | width | Koppen accuracy | elevation R2 |",
        "|---|---|---|---|",
    ]
    for name, part in parts.items():
        cells = []
        for task, kind in (("koppen", "classify"), ("elevation", "regress")):
            scores = [probe(part, labels[task], kind, seed) for seed in (42, 43, 44)]
            cells.append(f"{np.mean(scores):.3f} ({min(scores):.3f} to {max(scores):.3f})")
        lines.append(f"| {name} | {part.shape[1]} | {' | '.join(cells)} |")
        print(lines[-1], flush=True)
    if arguments.out:
        write_bytes(Path(arguments.out), ("\n".join(lines) + "\n").encode())


if __name__ == "__main__":
    main()
