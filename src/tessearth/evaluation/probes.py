"""Probes, small models that learn a target from embeddings, all with one contract, and the scores of what they predict.

    probe = build_probe("ridge", "classify")
    probe.fit(embeddings, codes)
    probe.predict(others), probe.score(others, their_codes), probe.describe()

Features are (N, D) and finite; a target is codes (whole numbers) or numbers, (N,). References are probes of places:
what can be had from the coordinates alone, shown in every table next to the encoders. An encoder that does not beat
inverse distance has learned a map of its labels' neighbourhood; one that does not beat the untrained network owes its
score to the probe.
"""

import abc
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple, Self

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.errors import ConfigError, DataError, TessearthError
from tessearth.evaluation.tasks import Split, Task
from tessearth.packages import require
from tessearth.ridge import (
    ALPHAS,
    CLASSIFIER_FOLDS,
    REGRESSION_FOLDS,
    RidgeFit,
    fit_ridge_classifier,
    fit_ridge_regression,
)
from tessearth.settings import Kind, Registry
from tessearth.sphere import Floats, as_places, latlon_to_xyz

Array = npt.NDArray[Any]

DISTANCES_AT_ONCE = 2**24
"""Distances held at once: 64 MB of float32."""
COINCIDENT = 1e-9
"""Radians (6 mm): the least distance that a neighbour counts with."""


def accuracy(target: Array, prediction: Array) -> float:
    """The share of rows whose class is right."""
    _check_lengths(target, prediction)
    return float(np.mean(target == prediction))


def r2(target: Array, prediction: Array) -> float:
    """1 - sum (y - p)^2 / sum (y - mean y)^2: 1 is perfect, 0 the mean's own score, below 0 worse than the mean.

    A target that does not vary scores 1 when it is met exactly, else 0.
    """
    _check_lengths(target, prediction)
    residual = float(np.square(target - prediction, dtype=np.float64).sum())
    total = float(np.square(target - target.mean(dtype=np.float64), dtype=np.float64).sum())
    if total == 0:
        return 1.0 if residual == 0 else 0.0
    return 1 - residual / total


METRICS: dict[Kind, tuple[str, Callable[[Array, Array], float]]] = {
    "classify": ("accuracy", accuracy),
    "regress": ("R2", r2),
}
"""The name and the function of the score of each kind of task."""


def score(kind: Kind, target: Array, prediction: Array) -> float:
    """The score of a kind of task."""
    return METRICS[kind][1](target, prediction)


def _check_lengths(target: Array, prediction: Array) -> None:
    if target.shape != prediction.shape or target.ndim != 1 or len(target) == 0:
        raise DataError(f"a target of shape {target.shape} cannot be scored against one of {prediction.shape}")


class Probe(abc.ABC):
    """Features and a target in, predictions out.

    With `few`, a probe that is cross-validated takes fewer folds than the protocol's where labels are too few.
    """

    def __init__(self, kind: Kind, *, few: bool = False, seed: int = 0, device: torch.device | str = "cpu") -> None:
        self.kind, self.few, self.seed = kind, few, seed
        self.device = torch.device(device)

    @abc.abstractmethod
    def fit(self, features: Array, target: Array) -> Self:
        """Learn the target (N,) from features (N, D)."""

    @abc.abstractmethod
    def predict(self, features: Array) -> Array:
        """Features (M, D) to codes or numbers (M,)."""

    @abc.abstractmethod
    def describe(self) -> dict[str, Any]:
        """The settings, and what fitting chose, ready for JSON."""

    def score(self, features: Array, target: Array) -> float:
        """Accuracy for classes, R2 for numbers."""
        return score(self.kind, np.asarray(target), self.predict(features))


class RidgeProbe(Probe):
    """The protocol's probe: features to [0, 1], the penalty by cross-validation (`ridge`).

    With few labels the protocol's folds may not exist; `few` then takes as many as there are rows of the largest class,
    and the middle penalty without any folds when even two are too many. `describe` says what was used.
    """

    fitted: RidgeFit | None = None
    folds = 0

    def fit(self, features: Array, target: Array) -> Self:
        """Learn the target (N,) from features (N, D)."""
        self.folds = CLASSIFIER_FOLDS if self.kind == "classify" else REGRESSION_FOLDS
        alphas: tuple[float, ...] = ALPHAS
        if self.few:
            counts = np.unique(target, return_counts=True)[1]
            self.folds = min(self.folds, int(counts.max()) if self.kind == "classify" else len(target) // 2)
            if self.folds < 2:
                self.folds, alphas = 1, ALPHAS[1:2]
        fit = fit_ridge_classifier if self.kind == "classify" else fit_ridge_regression
        self.fitted = fit(features, target, alphas=alphas, folds=self.folds, device=self.device)
        return self

    def predict(self, features: Array) -> Array:
        """Features (M, D) to codes or numbers (M,)."""
        ridge: RidgeFit = fitted(self.fitted)
        return ridge.predict(features).reshape(len(features))

    def describe(self) -> dict[str, Any]:
        """The penalty chosen and the score of every penalty in cross-validation."""
        return _describe_ridge(fitted(self.fitted), 0, self.folds)


class NeighbourProbe(Probe):
    """The nearest rows by Euclidean distance: their most frequent class (the lowest code of several), or their mean."""

    neighbours = 8
    rows: tuple[Tensor, Array] | None = None

    def fit(self, features: Array, target: Array) -> Self:
        """Keep the rows."""
        if len(features) < self.neighbours:
            raise DataError(f"{len(features)} rows to learn from are fewer than {self.neighbours} neighbours")
        self.rows = self._move(features), np.asarray(target)
        return self

    def predict(self, features: Array) -> Array:
        """Features (M, D) to codes or numbers (M,)."""
        known, target = fitted(self.rows)
        at_once = max(1, DISTANCES_AT_ONCE // len(known))
        parts = torch.split(self._move(features), at_once)
        nearest = [torch.cdist(part, known).topk(self.neighbours, largest=False).indices for part in parts]
        values = target[torch.cat(nearest).cpu().numpy()]
        return values.mean(1) if self.kind == "regress" else vote(values, np.ones(values.shape))

    def describe(self) -> dict[str, Any]:
        """The number of neighbours."""
        return {"probe": "knn", "neighbours": self.neighbours}

    def _move(self, features: Array) -> Tensor:
        return torch.as_tensor(features, dtype=torch.float32, device=self.device)


class MlpProbe(Probe):
    """A network of one hidden layer on standardised features, trained by Adam for a fixed number of epochs.

    With few rows there are more epochs, so that there are at least `fewest_steps`.
    """

    hidden = 256
    epochs = 30
    fewest_steps = 600
    batch = 512
    learning_rate = 1e-3
    weight_decay = 1e-4
    dropout = 0.1
    model: nn.Sequential | None = None

    def fit(self, features: Array, target: Array) -> Self:
        """Learn the target (N,) from features (N, D); the same seed gives the same network."""
        x = torch.as_tensor(features, dtype=torch.float32, device=self.device)
        self.middle, self.spread = x.mean(0), x.std(0).clamp_min(1e-6) if len(x) > 1 else torch.ones_like(x[0])
        y = self._read_target(np.asarray(target))
        outputs = len(self.classes) if self.kind == "classify" else 1
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.seed)
            layers = (nn.Linear(x.shape[1], self.hidden), nn.ReLU(), nn.Dropout(self.dropout))
            self.model = nn.Sequential(*layers, nn.Linear(self.hidden, outputs)).to(self.device)
            self._train(self.model, (x - self.middle) / self.spread, y)
        return self

    def predict(self, features: Array) -> Array:
        """Features (M, D) to codes or numbers (M,)."""
        model = fitted(self.model)
        x = torch.as_tensor(features, dtype=torch.float32, device=self.device)
        with torch.inference_mode():
            value = model((x - self.middle) / self.spread)
        if self.kind == "classify":
            return np.asarray(self.classes[value.argmax(1).cpu().numpy()])
        return np.asarray(value[:, 0].double().cpu().numpy() * self.target_spread + self.target_middle)

    def describe(self) -> dict[str, Any]:
        """The network's settings."""
        names = ("hidden", "epochs", "fewest_steps", "batch", "learning_rate", "weight_decay", "dropout", "seed")
        return {"probe": "mlp", **{name: getattr(self, name) for name in names}}

    def _read_target(self, target: Array) -> Tensor:
        """Codes counted from 0, or numbers of mean 0 and deviation 1, on the device."""
        if self.kind == "classify":
            self.classes, code = np.unique(target, return_inverse=True)
            return torch.from_numpy(code).to(self.device)
        self.target_middle, self.target_spread = float(target.mean()), float(target.std()) or 1.0
        scaled = (target - self.target_middle) / self.target_spread
        return torch.as_tensor(scaled, dtype=torch.float32, device=self.device)

    def _train(self, model: nn.Sequential, x: Tensor, y: Tensor) -> None:
        classify = self.kind == "classify"
        optimiser = torch.optim.AdamW(model.parameters(), self.learning_rate, weight_decay=self.weight_decay)
        batches = -(-len(x) // self.batch)
        epochs = max(self.epochs, -(-self.fewest_steps // batches))
        schedule = torch.optim.lr_scheduler.CosineAnnealingLR(optimiser, epochs * batches)
        model.train()
        for _ in range(epochs):
            for rows in torch.split(torch.randperm(len(x), device=self.device), self.batch):
                optimiser.zero_grad()
                value = model(x[rows])
                loss = F.cross_entropy(value, y[rows]) if classify else F.mse_loss(value[:, 0], y[rows])
                torch.autograd.backward(loss)
                optimiser.step()
                schedule.step()
        model.eval()


class Majority(Probe):
    """The most frequent class, or the mean, everywhere."""

    value: Any = None

    def fit(self, latlon: Floats, target: Array) -> Self:
        """Learn the one value of the target (N,)."""
        if self.kind == "classify":
            classes, counts = np.unique(target, return_counts=True)
            self.value = classes[counts.argmax()]
        else:
            self.value = np.mean(target)
        return self

    def predict(self, latlon: Floats) -> Array:
        """The same value for all places (M, 2), (M,)."""
        return np.full(len(latlon), fitted(self.value))

    def describe(self) -> dict[str, Any]:
        """The value itself."""
        return {"reference": "majority" if self.kind == "classify" else "mean", "value": fitted(self.value).item()}


class InverseDistance(Probe):
    """The nearest places by great circle, weighted by 1 / distance: their mean, or the class with the most weight."""

    neighbours = 8
    tree: Any = None

    def fit(self, latlon: Floats, target: Array) -> Self:
        """Keep the places (N, 2) in a tree of their unit vectors, whose chords order as great circles do."""
        if len(latlon) < self.neighbours:
            raise DataError(f"{len(latlon)} places to learn from are fewer than {self.neighbours} neighbours")
        spatial = require("scipy.spatial", extra="eval", what="the inverse-distance reference")
        self.tree, self.target = spatial.cKDTree(_xyz(latlon).numpy()), np.asarray(target)
        return self

    def predict(self, latlon: Floats) -> Array:
        """Places (M, 2) to codes or numbers (M,)."""
        chord, index = fitted(self.tree).query(_xyz(latlon).numpy(), k=self.neighbours)
        weights = 1 / np.maximum(2 * np.arcsin(np.minimum(chord / 2, 1)), COINCIDENT)
        values = self.target[index]
        return np.average(values, axis=1, weights=weights) if self.kind == "regress" else vote(values, weights)

    def describe(self) -> dict[str, Any]:
        """The number of neighbours, and the power of their distance."""
        return {"reference": "inverse-distance", "neighbours": self.neighbours, "power": 1}


class RandomFeatures:
    """An untrained network on unit vectors: x -> ReLU(W1 x + b1) -> ReLU(W2 . + b2), drawn once from a seed.

    Weights ~ N(0, 2 / inputs), which keeps the variance; biases ~ N(0, 0.3^2), so that the bends of the first layer
    are small circles spread over the whole sphere.
    """

    def __init__(self, width: int = 512, hidden: int = 512, seed: int = 0) -> None:
        generator = torch.Generator().manual_seed(seed)
        self.layers = []
        for inputs, outputs in ((3, hidden), (hidden, width)):
            weight = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64) * (2 / inputs) ** 0.5
            bias = torch.randn(outputs, generator=generator, dtype=torch.float64) * 0.3
            self.layers.append((weight, bias))

    def embed(self, latlon: Floats) -> npt.NDArray[np.float32]:
        """Places (N, 2) to features (N, width)."""
        parts = [self._forward(part).float() for part in torch.split(_xyz(latlon), 8192)]
        return np.asarray(torch.cat(parts).numpy())

    def _forward(self, xyz: Tensor) -> Tensor:
        for weight, bias in self.layers:
            xyz = torch.relu(torch.addmm(bias, xyz, weight))
        return xyz


class RandomNetwork(RidgeProbe):
    """The protocol's ridge probe on the untrained network's features."""

    network: RandomFeatures | None = None

    def fit(self, latlon: Floats, target: Array) -> Self:
        """Learn the target (N,) at places (N, 2)."""
        self.network = RandomFeatures(seed=self.seed)
        return super().fit(self.network.embed(latlon), target)

    def predict(self, latlon: Floats) -> Array:
        """Places (M, 2) to codes or numbers (M,)."""
        return super().predict(fitted(self.network).embed(latlon))

    def describe(self) -> dict[str, Any]:
        """The seed, and what the probe chose."""
        return {"reference": "random-features", "seed": self.seed, **super().describe()}


PROBES: Registry[type[Probe]] = Registry("probe", {"ridge": RidgeProbe, "knn": NeighbourProbe, "mlp": MlpProbe})
"""Names to probes; each is made from the kind of the task."""


REFERENCES: Registry[type[Probe]] = Registry(
    "reference",
    {"majority": Majority, "inverse-distance": InverseDistance, "random-features": RandomNetwork},
)
"""Names to references, which are probes of places (N, 2); each is made from the kind of the task."""


def build_probe(
    name: str, kind: Kind, *, few: bool = False, seed: int = 0, device: torch.device | str = "cpu"
) -> Probe:
    """An unfitted probe by name."""
    return PROBES[name](kind, few=few, seed=seed, device=device)


def _xyz(latlon: Floats) -> Tensor:
    return latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(as_places(latlon))))


def vote(values: Array, weights: npt.NDArray[np.float64]) -> npt.NDArray[np.int64]:
    """The class with the most weight in each row of codes (N, k), the lowest code of several, (N,)."""
    classes, code = np.unique(values, return_inverse=True)
    code = code.reshape(values.shape)
    support = np.stack([np.where(code == code[:, [i]], weights, 0).sum(1) for i in range(values.shape[1])], axis=1)
    best = support >= support.max(1, keepdims=True) * (1 - 1e-12)
    found: npt.NDArray[np.int64] = classes[np.where(best, code, len(classes)).min(1)]
    return found


def fitted(part: Any) -> Any:
    """A part that `fit` makes, when it is there."""
    if part is None:
        raise ConfigError("this has not been fitted yet: call fit first")
    return part


class Outcome(NamedTuple):
    """What a probe predicts for one task, or why it could not."""

    task: Task
    prediction: Array | None
    """Codes or numbers for the rows tested on, (M,)."""
    chosen: dict[str, Any]
    reason: str = ""


class Sides(NamedTuple):
    """Features of the rows learned from and tested on, or their places for a reference."""

    train: Array
    test: Array


def run_probe(
    name: str, tasks: Sequence[Task], sides: Sides, rows: Split, *, few: bool, device: torch.device
) -> list[Outcome]:
    """One probe on every task of a draw; ridge regressions are solved together."""
    shared = [task for task in tasks if task.kind == "regress" and name == "ridge" and not few]
    others = [task for task in tasks if not any(task is other for other in shared)]
    return [
        *(_run_ridges(shared, sides, rows, device) if shared else []),
        *(run_alone(build_probe(name, task.kind, device=device, few=few), task, sides, rows) for task in others),
    ]


def run_alone(probe: Probe, task: Task, sides: Sides, rows: Split) -> Outcome:
    """One unfitted probe on one task."""
    try:
        probe.fit(sides.train, task.target[rows.train])
        return Outcome(task, probe.predict(sides.test), probe.describe())
    except TessearthError as error:
        return Outcome(task, None, {}, str(error))


def _run_ridges(tasks: Sequence[Task], sides: Sides, rows: Split, device: torch.device) -> list[Outcome]:
    targets = np.stack([task.target[rows.train] for task in tasks], axis=1)
    try:
        ridge = fit_ridge_regression(sides.train, targets, device=device)
    except TessearthError as error:
        return [Outcome(task, None, {}, str(error)) for task in tasks]
    prediction = ridge.predict(sides.test)
    return [
        Outcome(task, prediction[:, column], _describe_ridge(ridge, column, REGRESSION_FOLDS))
        for column, task in enumerate(tasks)
    ]


def _describe_ridge(ridge: RidgeFit, column: int, folds: int) -> dict[str, Any]:
    scores = None if folds == 1 else ridge.fold_scores[:, column].tolist()
    return {"probe": "ridge", "folds": folds, "alpha": float(ridge.alpha[column]), "fold_scores": scores}
