"""References: what can be had from the coordinates alone, shown in every table next to the encoders.

An encoder that does not beat inverse distance has learned a map of its labels' neighbourhood; one that does not beat
the untrained network owes its score to the probe.
"""

from typing import Any, Self

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessearth.errors import DataError
from tessearth.evaluation.probes import Array, Probe, RidgeProbe, fitted, vote
from tessearth.packages import require
from tessearth.settings import Kind, Registry
from tessearth.sphere import Floats, as_places, latlon_to_xyz

COINCIDENT = 1e-9
"""Radians (6 mm): the least distance that a neighbour counts with."""


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


class RandomFeatures(nn.Module):
    """An untrained network on unit vectors: x -> ReLU(W1 x + b1) -> ReLU(W2 . + b2), drawn once from a seed.

    Weights ~ N(0, 2 / inputs), which keeps the variance; biases ~ N(0, 0.3^2), so that the bends of the first layer
    are small circles spread over the whole sphere.
    """

    def __init__(self, width: int = 512, hidden: int = 512, seed: int = 0) -> None:
        super().__init__()
        generator = torch.Generator().manual_seed(seed)
        for number, (inputs, outputs) in enumerate(((3, hidden), (hidden, width))):
            weight = torch.randn(inputs, outputs, generator=generator, dtype=torch.float64) * (2 / inputs) ** 0.5
            bias = torch.randn(outputs, generator=generator, dtype=torch.float64) * 0.3
            self.register_buffer(f"weight_{number}", weight)
            self.register_buffer(f"bias_{number}", bias)

    def forward(self, xyz: Tensor) -> Tensor:
        """Unit vectors (N, 3) to features (N, width)."""
        for number in range(2):
            weight, bias = self.get_buffer(f"weight_{number}"), self.get_buffer(f"bias_{number}")
            xyz = torch.relu(torch.addmm(bias, xyz, weight))
        return xyz

    @torch.inference_mode()
    def embed(self, latlon: Floats) -> npt.NDArray[np.float32]:
        """Places (N, 2) to features (N, width)."""
        parts = [self(part).float() for part in torch.split(_xyz(latlon), 8192)]
        return np.asarray(torch.cat(parts).numpy())


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


REFERENCES: Registry[type[Probe]] = Registry(
    "reference",
    {"majority": Majority, "inverse-distance": InverseDistance, "random-features": RandomNetwork},
)
"""Names to references, which are probes of places (N, 2); each is made from the kind of the task."""


def build_reference(name: str, kind: Kind, *, few: bool = False, seed: int = 0) -> Probe:
    """An unfitted reference by name."""
    return REFERENCES[name](kind, few=few, seed=seed)


def _xyz(latlon: Floats) -> Tensor:
    return latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(as_places(latlon))))
