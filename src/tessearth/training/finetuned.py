"""`FineTuned`: an encoder and the head that predicts one label from its embeddings, in memory and on disk."""

import dataclasses
import json
import math
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.bulk import ARRAYS_ONLY, open_writer, output_format
from tessearth.encoder import LocationEncoder
from tessearth.errors import ConfigError, DataError, TableError, WeightsError
from tessearth.ridge import ridge_path
from tessearth.settings import Kind
from tessearth.sphere import OnBad, take_latlon
from tessearth.storage import (
    AS_USUAL,
    PointBatch,
    Reading,
    check_free,
    open_points,
    read_sealed_tensors,
    seal_tensors,
    write_bytes,
)
from tessearth.zoo import load_base

PENALTIES = (0.1, 1.0, 10.0, 100.0, 1000.0)
"""Candidates for a ridge on features of unit variance."""
TEMPERATURES = (0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
"""Candidates for the number that turns a ridge's scores into logits."""
MARGIN = 0.25
"""Predicted numbers leave the range of the training targets by at most this share of it, on either side."""


class Judged(NamedTuple):
    """The quality of predictions on places the head was not fitted to."""

    score: float
    """Accuracy for classes, R2 for numbers."""
    loss: float


class LabelHead(nn.Module):
    """y = W x + b + V ReLU(U x + u) of the standardised embedding x; without a hidden layer the last part is absent.

    Classes: (N, C) logits. Numbers: (N, 1), standardised; `values` converts them to their unit and clamps them near the
    range of the training targets, because a linear map is unbounded far from every labelled place.
    """

    feature_mean: Tensor
    feature_scale: Tensor
    target_mean: Tensor
    target_scale: Tensor
    target_range: Tensor

    def __init__(self, kind: Kind, input_dim: int, outputs: int, hidden_dim: int = 0) -> None:
        super().__init__()
        self.kind = kind
        self.linear = nn.Linear(input_dim, outputs)
        self.entry = nn.Linear(input_dim, hidden_dim) if hidden_dim else None
        self.exit = nn.Linear(hidden_dim, outputs, bias=False) if hidden_dim else None
        self.register_buffer("feature_mean", torch.zeros(input_dim))
        self.register_buffer("feature_scale", torch.ones(input_dim))
        self.register_buffer("target_mean", torch.zeros(()))
        self.register_buffer("target_scale", torch.ones(()))
        self.register_buffer("target_range", torch.tensor((-torch.inf, torch.inf)))

    def forward(self, embedding: Tensor) -> Tensor:
        """(N, D) -> (N, C), or (N, 1)."""
        x = (embedding - self.feature_mean) * self.feature_scale
        out: Tensor = self.linear(x)
        if self.entry is not None and self.exit is not None:
            out = out + self.exit(F.relu(self.entry(x)))
        return out

    def values(self, out: Tensor) -> Tensor:
        """Probabilities (N, C), or numbers (N,) in the target's unit."""
        if self.kind == "classify":
            return torch.softmax(out, dim=-1)
        return (out[:, 0] * self.target_scale + self.target_mean).clamp(*self.target_range)

    def loss(self, out: Tensor, target: Tensor, weights: Tensor | None = None) -> Tensor:
        """Cross-entropy of codes, weighted by class, or the mean square of standardised differences."""
        if self.kind == "classify":
            return F.cross_entropy(out, target, weights)
        return (out[:, 0] - (target - self.target_mean) / self.target_scale).square().mean()

    @torch.no_grad()
    def judge(self, embedding: Tensor, target: Tensor) -> Judged:
        """The quality of the head on embeddings (N, D) and their targets (N,)."""
        out = self(embedding)
        loss = float(self.loss(out, target))
        if self.kind == "classify":
            return Judged(float((out.argmax(-1) == target).double().mean()), loss)
        missed = (self.values(out).double() - target.double()).square().sum()
        spread = (target.double() - target.double().mean()).square().sum()
        return Judged(float(1 - missed / spread), loss)


class Rows(NamedTuple):
    """Embeddings and their targets."""

    embedding: Tensor
    """(N, D)."""
    target: Tensor
    """(N,): codes or numbers."""


@torch.no_grad()
def fit_ridge_(head: LabelHead, training: Rows, validation: Rows, weights: Tensor | None = None) -> Judged:
    """Set a head to the ridge regression of its training rows; the penalty is the best on the validation rows.

    Classes are +1 and -1, one column each, and the scores become logits at the temperature of the lowest validation
    loss. The hidden layer's output starts at 0, so that the head is the ridge until it is trained. `weights` (C,) count
    rows by class.
    """
    _standardise_(head, training)
    x = (training.embedding - head.feature_mean) * head.feature_scale
    if head.kind == "classify":
        y = 2.0 * F.one_hot(training.target, head.linear.out_features) - 1
    else:
        y = ((training.target - head.target_mean) / head.target_scale)[:, None]
    counted = None if weights is None else weights[training.target]
    temperatures = TEMPERATURES if head.kind == "classify" else (1.0,)
    found: list[tuple[Judged, Tensor, Tensor]] = []
    for slope, bias in ridge_path(x, y, PENALTIES, counted):
        judged = [_judge_linear_(head, validation, slope / t, bias / t) for t in temperatures]
        best = min(range(len(judged)), key=lambda i: judged[i].loss)
        found.append((judged[best], slope / temperatures[best], bias / temperatures[best]))
    _, slope, bias = max(found, key=lambda row: (row[0].score, -row[0].loss))
    return _judge_linear_(head, validation, slope, bias)


def _standardise_(head: LabelHead, rows: Rows) -> None:
    deviation, mean = torch.std_mean(rows.embedding.double(), dim=0)
    head.feature_mean.copy_(mean)
    head.feature_scale.copy_(torch.where(deviation > 1e-12, 1 / deviation.clamp_min(1e-12), 0.0))
    if head.kind == "regress":
        head.target_mean.copy_(rows.target.double().mean())
        head.target_scale.copy_(rows.target.double().std())
        low, high = rows.target.aminmax()
        head.target_range.copy_(torch.stack((low, high)) + MARGIN * (high - low) * head.target_range.sign())
    if head.exit is not None:
        head.exit.weight.zero_()


def _judge_linear_(head: LabelHead, rows: Rows, slope: Tensor, bias: Tensor) -> Judged:
    head.linear.weight.copy_(slope.T)
    head.linear.bias.copy_(bias)
    return head.judge(*rows)


ENCODER, HEAD, METRICS = "encoder.safetensors", "head.safetensors", "metrics.jsonl"
FORMAT, FORMAT_VERSION = "tessearth-label-head", "1"
PLACES_AT_ONCE = 2048
RESIDUALS = "residuals"
"""In the head's file, the name of what the held-out places were off."""
COVERAGE = 0.9
"""The share of true numbers that lie within their intervals."""

Array = npt.NDArray[Any]


@dataclasses.dataclass(slots=True, kw_only=True, eq=False)
class FineTuned:
    """Predicts a label of places."""

    encoder: LocationEncoder
    head: LabelHead
    kind: Kind
    classes: tuple[str, ...]
    """Names in the order of the head's outputs; empty for numbers."""
    about: dict[str, Any]
    """Its training and scores, ready for JSON."""
    residuals: Array | None = None
    """How far numbers at the held-out places were off, ascending, (V,); None for classes."""

    def predict(self, *points: Any, lat: Any = None, lon: Any = None, on_bad: OnBad = "error") -> Array:
        """The label of places given in any form `Embedder` takes: class names or numbers, (...).

        Rows that `on_bad` "null" keeps without a place have None or NaN.
        """
        values = self.values(*points, lat=lat, lon=lon, on_bad=on_bad)
        if self.kind == "regress":
            return values
        names: Array = np.array(self.classes, dtype=object)[values.argmax(-1)]
        missing = np.isnan(values[..., 0])
        if missing.any():
            names[missing] = None
        return names

    def values(self, *points: Any, lat: Any = None, lon: Any = None, on_bad: OnBad = "error") -> Array:
        """The probability of every class, (..., C), or the number itself, (...); NaN for a row without a place."""
        latlon = take_latlon(*points, lat=lat, lon=lon, on_bad=on_bad)
        rows = latlon.reshape(-1, 2)
        known = np.isfinite(rows).all(axis=1)
        found = self.values_of(self.embed(np.ascontiguousarray(rows[known])))
        values = np.full((len(rows), *found.shape[1:]), np.nan, dtype=found.dtype)
        values[known] = found
        return values.reshape((*latlon.shape[:-1], *found.shape[1:]))

    def embed(self, latlon: Array) -> Array:
        """Embeddings of checked degrees, (N, 2) -> (N, D)."""
        return embed_places(self.encoder, torch.from_numpy(latlon), self.head.linear.weight.device).cpu().numpy()

    def values_of(self, embeddings: Array) -> Array:
        """The probability of every class, (N, C), or the number itself, (N,), of embeddings (N, D)."""
        self.head.eval()
        with torch.inference_mode():
            x = torch.from_numpy(embeddings).to(self.head.linear.weight.device)
            values: Array = self.head.values(self.head(x)).cpu().numpy()
        return values

    def interval(self, *points: Any, coverage: float = COVERAGE) -> tuple[Array, Array]:
        """The lower and upper bounds of numbers, (...) each: split conformal, for places like the held-out ones."""
        values, half = self.values(*points), self.half_width(coverage)
        return values - half, values + half

    def half_width(self, coverage: float = COVERAGE) -> float:
        """How far around a predicted number its interval reaches: a quantile of what the held-out places were off."""
        if not 0 < coverage < 1:
            raise ConfigError(f"coverage is {coverage:g}; it must be a share between 0 and 1, such as 0.9")
        if self.residuals is None:
            what = "classes have probabilities" if self.kind == "classify" else "the model was made without them"
            raise DataError(f"there are no intervals: {what}")
        count = len(self.residuals)
        rank = math.ceil((count + 1) * coverage)
        if rank > count:
            raise DataError(f"{count} held-out rows give intervals of at most {count / (count + 1):.0%} coverage")
        return float(self.residuals[rank - 1])

    def half_width_or_none(self, coverage: float) -> float | None:
        """The half-width, or None with a warning where a model of numbers gives no interval."""
        if self.kind == "classify":
            return None
        try:
            return self.half_width(coverage)
        except DataError as error:
            warnings.warn(str(error), stacklevel=2)
            return None

    def save(self, path: str | Path) -> None:
        """Write both files into an existing folder, the head last."""
        folder = Path(path)
        self.encoder.save(folder / ENCODER, provenance={"finetuned": self.about})
        header = {
            "format": FORMAT,
            "format_version": FORMAT_VERSION,
            "kind": self.kind,
            "classes": json.dumps(self.classes),
            "hidden_dim": str(self.head.entry.out_features if self.head.entry is not None else 0),
            "about": json.dumps(self.about),
        }
        state = self.head.state_dict()
        if self.residuals is not None:
            state[RESIDUALS] = torch.from_numpy(self.residuals)
        write_bytes(folder / HEAD, seal_tensors(state, header))


@torch.no_grad()
def embed_places(encoder: LocationEncoder, latlon: Tensor, device: torch.device) -> Tensor:
    """Embeddings of an encoder in evaluation mode, degrees (N, 2) -> (N, D) in float32."""
    return torch.cat([encoder(part.to(device)).float() for part in torch.split(latlon.double(), PLACES_AT_ONCE)])


def load_finetuned(path: str | Path, device: torch.device | None = None) -> FineTuned:
    """Read the folder of `finetune`."""
    file = Path(path) / HEAD
    if not file.is_file():
        raise DataError(f"{path} holds no fine-tuned model: it has no {HEAD}; tessearth finetune makes one")
    try:
        header, state = read_sealed_tensors(file)
        if header.get("format") != FORMAT or header.get("format_version") != FORMAT_VERSION:
            raise WeightsError(f"{file} is no head of format {FORMAT_VERSION}")
        outputs, width = state["linear.weight"].shape
        kind: Kind = "regress" if header["kind"] == "regress" else "classify"
        residuals = state.pop(RESIDUALS, None)
        head = LabelHead(kind, width, outputs, int(header["hidden_dim"]))
        head.load_state_dict(state, strict=True)
        classes, about = tuple(json.loads(header["classes"])), json.loads(header["about"])
    except (KeyError, ValueError, RuntimeError) as error:
        reason = (str(error).splitlines() or ["unreadable"])[0]
        raise error if isinstance(error, WeightsError) else WeightsError(f"{file} is damaged: {reason}") from None
    chosen = device or torch.device("cpu")
    encoder = load_base(str(Path(path) / ENCODER))
    return FineTuned(
        encoder=encoder.to(chosen),
        head=head.to(chosen).eval(),
        kind=kind,
        classes=classes,
        about=about,
        residuals=None if residuals is None else residuals.numpy(),
    )


def predict(
    model: FineTuned | str | Path, *points: Any, lat: Any = None, lon: Any = None, on_bad: OnBad = "error"
) -> Array:
    """The label of places by a fine-tuned model or the folder of its run, as `FineTuned.predict` gives it.

    tessearth.predict("runs/koppen", 48.86, 2.35)
    """
    tuned = model if isinstance(model, FineTuned) else load_finetuned(model)
    return tuned.predict(*points, lat=lat, lon=lon, on_bad=on_bad)


PREDICTION, PROBABILITY, LOW, HIGH = "prediction", "probability", "low", "high"
Progress = Callable[[int, int | None], None]
"""Called with the rows done and their number in all, where the format gives it."""


class Filled(NamedTuple):
    """A table with predictions."""

    rows: int
    without_place: int
    """Rows without a usable place: left out, or without a prediction."""


def predict_table(
    tuned: FineTuned,
    table: str,
    out: str | Path,
    *,
    reading: Reading = AS_USUAL,
    overwrite: bool = False,
    coverage: float = COVERAGE,
    progress: Progress | None = None,
) -> Filled:
    """Write a table again, in any format, with a column `prediction`.

    Classes come with `probability`, numbers with `low` and `high`, between which a share of `coverage` lies.
    """
    half = tuned.half_width_or_none(coverage)
    done, added = 0, _prediction_schema(tuned, half)
    kind = output_format(str(out))
    if kind in ARRAYS_ONLY:
        raise TableError(f"{out} holds arrays, not a table: write .csv, .parquet or .gpkg")
    check_free(out, overwrite=overwrite)
    with open_points(table, reading) as points, open_writer(str(out), kind, points, added) as writer:
        for batch in points.batches:
            writer.write(batch, _predicted(batch, added, tuned, half))
            done += len(batch.latlon)
            if progress is not None:
                progress(done, points.total_rows)
    return Filled(done, points.bad_rows)


def _prediction_schema(tuned: FineTuned, half: float | None) -> pa.Schema:
    if tuned.kind == "regress":
        names = (PREDICTION,) if half is None else (PREDICTION, LOW, HIGH)
        return pa.schema([(name, pa.float64()) for name in names])
    return pa.schema([(PREDICTION, pa.string()), (PROBABILITY, pa.float64())])


def _predicted(batch: PointBatch, schema: pa.Schema, tuned: FineTuned, half: float | None) -> pa.RecordBatch:
    """The new columns of some rows, null where there is no place."""
    known = np.isfinite(batch.latlon).all(axis=1)
    values = tuned.values_of(batch.places.apply(tuned.embed)[known])
    if tuned.kind == "regress":
        columns = [values] if half is None else [values, values - half, values + half]
    else:
        columns = [np.array(tuned.classes, dtype=object)[values.argmax(-1)], values.max(-1)]
    spread = np.cumsum(known) - 1
    index = pa.array(spread, mask=~known)
    arrays = [pa.array(one, field.type).take(index) for one, field in zip(columns, schema, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=schema)
