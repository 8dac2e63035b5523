"""Probes on labels that a request sends: fitted on embeddings, scored in cross-validation, kept for their maps."""

import hashlib
import itertools
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError
from tessearth.evaluation import METRICS, RidgeProbe, block_ids, score
from tessearth.explorer.schemas import PredictRequest, Score
from tessearth.ridge import RidgeFit, fit_ridge_classifier, fit_ridge_regression
from tessearth.settings import Kind
from tessearth.sphere import Floats, take_latlon

Array = npt.NDArray[Any]

FEWEST_ROWS = 6
MOST_CLASSES = 64
MOST_CHARACTERS = 200
BLOCK_DEGREES = 10.0
REGIONAL_FOLDS = 3
SEED = 0
SHOWN = (2.0, 98.0)
"""Percentiles of the labels that become a map's darkest and brightest."""


class Target(NamedTuple):
    """Labels as numbers."""

    kind: Kind
    values: Array
    """(N,): numbers, or codes of the classes."""
    classes: tuple[str, ...]


class FittedProbe(NamedTuple):
    """A probe, its labels and its scores."""

    key: str
    name: str
    target: Target
    fit: RidgeFit
    random: Score | None
    regional: Score | None
    low: float
    high: float

    def decide(self, embeddings: Array) -> npt.NDArray[np.float32]:
        """The predicted number (N, 1), or a value for every class (N, C)."""
        return np.asarray(self.fit.decision(embeddings.astype(np.float32)).float().cpu().numpy())


def with_places(request: PredictRequest) -> PredictRequest:
    """The request without the rows that have no usable place, where it asks for that."""
    if request.on_bad == "error" or not len(request.lat) == len(request.lon) == len(request.values):
        return request
    places = take_latlon(lat=request.lat, lon=request.lon, on_bad="null")
    known: npt.NDArray[np.bool_] = np.asarray(np.isfinite(places).all(axis=1))

    def kept(values: Sequence[Any]) -> list[Any]:
        return list(itertools.compress(values, known.tolist()))

    return replace(request, lat=kept(request.lat), lon=kept(request.lon), values=kept(request.values))


def read_target(request: PredictRequest) -> Target:
    """The labels of a request as numbers or codes; labels that cannot be learned are refused with the reason."""
    rows, places = len(request.values), len(request.lat)
    if rows != places:
        raise DataError(f"{places} places and {rows} values do not go together: send one value for every place")
    if rows < FEWEST_ROWS:
        raise DataError(f"{rows} labelled places are too few to learn from: send at least {FEWEST_ROWS}")
    texts = [value for value in request.values if isinstance(value, str)]
    if texts and request.kind == "regress":
        raise DataError(f"values holds {texts[0][:40]!r}, where numbers belong; leave the row out, or ask for classes")
    if not texts and request.kind != "classify":
        return Target("regress", _numbers(request.values), ())
    return _classes([value if isinstance(value, str) else f"{value:g}" for value in request.values])


def fit_probe(name: str, target: Target, latlon: Floats, embeddings: Array) -> FittedProbe:
    """Fit the protocol's ridge probe on embeddings (N, D).

    Rows are shuffled first, because users' tables are sorted by place and folds of neighbours would not be random.
    """
    order = np.random.default_rng(SEED).permutation(len(latlon))
    rows, values, places = embeddings[order], target.values[order], latlon[order]
    probe = RidgeProbe(target.kind, few=True).fit(rows, values)
    fitted = probe.fitted
    assert fitted is not None
    about = probe.describe()
    random = None
    if about["fold_scores"] is not None:
        random = _score(target, float(np.nanmax(about["fold_scores"])), int(about["folds"]))
    regional = _regional_score(target.kind, rows, values, places, float(about["alpha"]))
    scored = None if regional is None else _score(target, regional, REGIONAL_FOLDS)
    low, high = (0.0, 0.0) if target.kind == "classify" else np.percentile(target.values, SHOWN)
    key = hashlib.sha256(name.encode() + latlon.tobytes() + target.values.tobytes() + repr(target.classes).encode())
    return FittedProbe(key.hexdigest()[:16], name, target, fitted, random, scored, float(low), float(high))


def _numbers(values: list[float] | list[str]) -> Array:
    numbers = np.asarray(values, dtype=np.float64)
    bad = np.flatnonzero(~np.isfinite(numbers))
    if len(bad):
        raise DataError(f"values[{bad[0]}] is {numbers[bad[0]]:g}, not a finite number; leave such rows out")
    if np.abs(numbers).max() > 1e30:
        raise DataError(f"values reach {np.abs(numbers).max():g}; numbers beyond 1e30 cannot be learned")
    if np.ptp(numbers) == 0:
        raise DataError(f"all {len(numbers)} values are {numbers[0]:g}: there is nothing to learn")
    return numbers


def _classes(values: list[str]) -> Target:
    names, codes, counts = np.unique(np.asarray(values), return_inverse=True, return_counts=True)
    if len(names) < 2:
        raise DataError(f"all {len(values)} values are {str(names[0])[:40]!r}: a classifier needs at least two classes")
    if len(names) > MOST_CLASSES:
        raise DataError(f"values has {len(names)} classes; a map shows at most {MOST_CLASSES}")
    if max(map(len, names)) > MOST_CHARACTERS:
        raise DataError(f"a class is named by more than {MOST_CHARACTERS} characters; shorten it")
    if counts.max() < 2:
        raise DataError("every class has a single place: nothing can be learned from one example each")
    return Target("classify", codes.astype(np.int64), tuple(str(name) for name in names))


def _score(target: Target, value: float, folds: int) -> Score:
    baseline = 0.0
    if target.kind == "classify":
        baseline = float(np.bincount(target.values).max() / len(target.values))
    return Score(name=METRICS[target.kind][0], value=value, folds=folds, baseline=baseline)


def _regional_score(kind: Kind, rows: Array, values: Array, latlon: Floats, alpha: float) -> float | None:
    """The score over all rows, each predicted by a probe fitted without its block; None with too few blocks."""
    blocks, member = np.unique(block_ids(latlon, BLOCK_DEGREES), return_inverse=True)
    if len(blocks) < 2 * REGIONAL_FOLDS:
        return None
    fold = np.random.default_rng(SEED).permutation(len(blocks))[member] % REGIONAL_FOLDS
    predicted = np.empty(len(values), dtype=values.dtype)
    for number in range(REGIONAL_FOLDS):
        train, test = np.flatnonzero(fold != number), np.flatnonzero(fold == number)
        if len(train) < FEWEST_ROWS or len(test) == 0 or (kind == "classify" and len(np.unique(values[train])) < 2):
            return None
        fit = fit_ridge_classifier if kind == "classify" else fit_ridge_regression
        fitted = fit(rows[train], values[train], alphas=(alpha,), folds=1)
        predicted[test] = fitted.predict(rows[test]).reshape(len(test))
    return score(kind, values, predicted)
