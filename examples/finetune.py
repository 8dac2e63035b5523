"""A label of your own from a few hundred places: ridge on the frozen encoder, a trained head, the whole encoder.

python examples/finetune.py [--model NAME|PATH] [--task temperature] [--labels 400]

The task is one of the package's own benchmark, of which only a few labels are shown to the model; 5,000 other places
say what was learned. A model that knows the Earth needs few labels; one with random weights shows how far mere
smoothness goes.
"""

import argparse
import time

import numpy as np

from tessearth.labels import LABELS, load_benchmark
from tessearth.training.finetuned import FineTuned
from tessearth.training.finetuning import finetune
from tessearth.zoo.names import is_untrained
from tessearth.zoo.shipped import DEFAULT_MODEL

TEST_PLACES = 5000
WAYS = {
    "ridge on the frozen encoder": {"frozen": True, "epochs": 0},
    "head trained, encoder frozen": {"frozen": True, "epochs": 40, "hidden_dim": 64},
    "head and encoder trained": {"epochs": 15, "batch_size": 64},
}


def score(tuned: FineTuned, latlon: np.ndarray, target: np.ndarray) -> float:
    """Accuracy for classes, R2 for numbers."""
    predicted = tuned.predict(latlon)
    if tuned.kind == "classify":
        return float(np.mean(predicted == target))
    return float(1 - np.square(predicted - target).sum() / np.square(target - target.mean()).sum())


def main() -> None:
    parser = argparse.ArgumentParser(description="Fine-tune on few labels of the embedded benchmark.")
    parser.add_argument("--model", default=DEFAULT_MODEL)
    parser.add_argument("--task", default="temperature", choices=list(LABELS))
    parser.add_argument("--labels", type=int, default=400)
    asked = parser.parse_args()

    table = load_benchmark()[asked.task]
    rows = np.random.default_rng(0).permutation(np.flatnonzero(table.known))
    shown, tested = rows[: asked.labels], rows[asked.labels : asked.labels + TEST_PLACES]
    target = np.array(table.classes, dtype=object)[table.values] if table.classes else table.values

    print(f"{asked.task} ({table.unit}) from {len(shown)} labels, judged on {len(tested)} other places")
    print(f"model {asked.model!r}" + (", whose weights are RANDOM" if is_untrained(asked.model) else ""))
    print(f"{'':<30} {'held out':>9} {'elsewhere':>9} {'seconds':>8}")
    for name, settings in WAYS.items():
        begun = time.perf_counter()
        tuned = finetune(asked.model, table.latlon[shown], target[shown], kind=table.kind, **settings)
        elsewhere = score(tuned, table.latlon[tested], target[tested])
        print(f"{name:<30} {tuned.about['finetuned']:>9.3f} {elsewhere:>9.3f} {time.perf_counter() - begun:>8.1f}")
    print(
        f"\nScores are {tuned.about['metric']}. The best epoch is chosen by the fifth of the labels that is held out,\n"
        "so the first column flatters; the second does not. Training the whole encoder pays when its embedding\n"
        "misses what the label needs; when it does not, the ridge is hard to beat with so few labels."
    )


if __name__ == "__main__":
    main()
