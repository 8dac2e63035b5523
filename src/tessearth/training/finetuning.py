"""`finetune`: a small head on an encoder, and the encoder too unless it is frozen, learned from labelled places.

The head begins as the ridge regression of the label on the frozen embeddings. That start and every epoch are
candidates; the result is the one with the best score on held-out places. This score is therefore a little too high;
judge on places that took no part. The encoder learns without dropout, which would move embeddings away from those the
ridge was fitted to.
"""

import copy
import json
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass, fields, replace
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.encoder import LocationEncoder
from tessearth.errors import ConfigError, DataError, OutputError
from tessearth.settings import Kind, check_at_least, find_device, from_plain
from tessearth.sphere import LARGEST_DEGREES, as_latlon, is_frame, split_places
from tessearth.storage import Labelled, Reading, locked_folder, open_points, read_labelled, write_bytes
from tessearth.training.finetuned import HEAD, METRICS, FineTuned, Judged, LabelHead, Rows, embed_places, fit_ridge_
from tessearth.training.loop import StopRequest
from tessearth.training.model import check_trainable
from tessearth.training.recipe import GroupRecipe, GroupsRecipe
from tessearth.training.step import group_of, learning_rate
from tessearth.zoo import load_base

MISSING = ("None", "nan", "")
READING = tuple(field.name for field in fields(Reading))
METRIC = {"classify": "accuracy", "regress": "R2"}
Progress = Callable[[int, int, float], None]
"""Called with the epochs done, their number in all, and the best score so far."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FinetuneSettings:
    """How a label is learned."""

    frozen: bool = False
    """Whether only the head learns."""

    hidden_dim: int = 0
    """Width of one hidden layer in the head; 0 is a linear head."""

    epochs: int = 30
    batch_size: int = 256

    head_learning_rate: float = 1e-3
    """The peak; the rate rises for an epoch and falls along a cosine."""

    encoder_rate: float = 0.3
    """The encoder's learning rates, as a share of those of pretraining."""

    weight_decay: float = 0.01
    """The weight decay of the head."""

    validation: float = 0.2
    """The share of places held out to choose the best epoch."""

    block_degrees: float | None = None
    """Hold out whole blocks of this side instead of single places, to choose an epoch that does well in new regions."""

    class_weights: Literal["none", "balanced"] = "none"
    """Whether all classes count alike, rare ones and common ones."""

    seed: int = 0

    def __post_init__(self) -> None:
        check_at_least(self, 1, "batch_size")
        rates = ("head_learning_rate", "encoder_rate", "weight_decay")
        check_at_least(self, 0, "hidden_dim", "epochs", "seed", *rates)
        if not 0 < self.validation < 1:
            raise ConfigError(f"validation is {self.validation}; it must be a share between 0 and 1")


def finetune(
    model: str | PathLike[str] | LocationEncoder,
    places: Any,
    target: Any,
    *,
    kind: Kind | None = None,
    out: str | Path | None = None,
    overwrite: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    **settings: Any,
) -> FineTuned:
    """Learn a label of places on top of any encoder.

        finetune("earth", "mine.csv", "yield", out="runs/yield", frozen=True)
        finetune("earth", frame, "yield", lat="gps_lat", lon="gps_lon", on_bad="skip")
        finetune("earth", latlon, values)

    `places` is a file or a frame whose column `target` is learned, or places in any form with an array of targets.
    Numbers are a regression unless `kind` says otherwise; rows without a target are left out. `settings` are those of
    FinetuneSettings, and of `storage.Reading` for how places are read. Ctrl-C ends training early with the best so far.
    With `out` everything is written into a folder; `overwrite` replaces a fine-tuned model in it.
    """
    how = {name: settings.pop(name) for name in READING if name in settings}
    chosen = from_plain(FinetuneSettings, settings)
    if out is not None:
        _check_folder(Path(out), overwrite)
    labelled = _read(places, target, kind, from_plain(Reading, how))
    found = load_base(str(model)) if isinstance(model, str | PathLike) else copy.deepcopy(model)
    run = _Finetuning(found, labelled, chosen, find_device(device), progress or (lambda done, epochs, score: None))
    if out is None:
        return run.train(log=lambda line: None)
    folder = Path(out)
    with locked_folder(folder, busy=OutputError(f"another process is writing {folder}; choose another --out")):
        _check_folder(folder, overwrite)
        (folder / HEAD).unlink(missing_ok=True)
        lines: list[str] = []

        def log(line: dict[str, Any]) -> None:
            lines.append(json.dumps(line))
            write_bytes(folder / METRICS, ("\n".join(lines) + "\n").encode())

        tuned = run.train(log)
        tuned.save(folder)
    return tuned


def _check_folder(folder: Path, overwrite: bool) -> None:
    """Refuse a folder whose fine-tuned model would be lost."""
    if (folder / HEAD).exists() and not overwrite:
        raise OutputError(f"{folder} holds a fine-tuned model already; choose another --out, or add --overwrite")


class _Part(NamedTuple):
    """Rows on one side of the split."""

    latlon: Tensor
    """(N, 2) degrees."""
    target: Tensor
    """(N,): codes or numbers."""


class _Finetuning:
    """A run in progress."""

    def __init__(
        self,
        encoder: LocationEncoder,
        labelled: Labelled,
        settings: FinetuneSettings,
        device: torch.device,
        progress: Progress,
    ) -> None:
        self.labelled, self.settings, self.device, self.progress = labelled, settings, device, progress
        self.encoder = encoder.eval().to(device).float().requires_grad_(not settings.frozen)
        self.constrain: Callable[[], None] = (lambda: None) if settings.frozen else check_trainable(encoder).constrain_
        self.training, self.validation = _split(labelled, settings, device)
        self.weights = _class_weights(labelled, self.training.target, settings)

    def train(self, log: Callable[[dict[str, Any]], None]) -> FineTuned:
        """The best on held-out places of the ridge and every epoch."""
        with torch.random.fork_rng(devices=[self.device] if self.device.type == "cuda" else []):
            torch.manual_seed(self.settings.seed)
            rows = self._embedded(self.training), self._embedded(self.validation)
            outputs = len(self.labelled.classes) or 1
            head = LabelHead(self.labelled.kind, rows[0].embedding.shape[1], outputs, self.settings.hidden_dim)
            self.head = head.to(self.device)
            ridge = fit_ridge_(self.head, *rows, self.weights)
            log({"epoch": 0, "validation": ridge._asdict()})
            best, best_epoch, kept, done = ridge, 0, self._state(), 0
            stop = StopRequest()
            with stop.listening():
                for done, judged, loss in self._epochs(*rows, stop):
                    log({"epoch": done, "training": {"loss": loss}, "validation": judged._asdict()})
                    if (judged.score, -judged.loss) > (best.score, -best.loss):
                        best, best_epoch, kept = judged, done, self._state()
                    self.progress(done, self.settings.epochs, best.score)
        self.head.load_state_dict(kept[0])
        if not self.settings.frozen:
            self.encoder.load_state_dict(kept[1])
        return self._result(ridge, best, {"best_epoch": best_epoch, "epochs_done": done, "interrupted": stop.asked})

    def _epochs(self, training: Rows, validation: Rows, stop: StopRequest) -> Iterator[tuple[int, Judged, float]]:
        """Every epoch: its number, the judgement on held-out places after it, and its mean loss."""
        optimiser = self._optimiser()
        peaks = [group["lr"] for group in optimiser.param_groups]
        generator = torch.Generator().manual_seed(self.settings.seed)
        per_epoch = -(-len(training.target) // self.settings.batch_size)
        steps = self.settings.epochs * per_epoch
        for epoch in range(self.settings.epochs):
            order = torch.randperm(len(training.target), generator=generator).to(self.device)
            losses = []
            for i, chosen in enumerate(torch.split(order, self.settings.batch_size)):
                for group, peak in zip(optimiser.param_groups, peaks, strict=True):
                    group["lr"] = learning_rate(peak, 0.0, epoch * per_epoch + i, min(per_epoch, steps // 2), steps)
                losses.append(self._step(optimiser, training, chosen))
                if stop.asked:
                    return
            loss = float(torch.stack(losses).mean())
            if not np.isfinite(loss):
                raise DataError(f"the loss is no longer finite in epoch {epoch + 1}; lower the learning rates")
            judged = validation if self.settings.frozen else self._embedded(self.validation)
            yield epoch + 1, self.head.judge(*judged), loss

    def _step(self, optimiser: torch.optim.Optimizer, training: Rows, chosen: Tensor) -> Tensor:
        optimiser.zero_grad(set_to_none=True)
        if self.settings.frozen:
            embedding = training.embedding[chosen]
        else:
            embedding = self.encoder(self.training.latlon[chosen]).float()
        loss = self.head.loss(self.head(embedding), training.target[chosen], self.weights)
        torch.autograd.backward(loss)
        torch.nn.utils.clip_grad_norm_([p for group in optimiser.param_groups for p in group["params"]], 1.0)
        optimiser.step()
        self.constrain()
        return loss.detach()

    def _optimiser(self) -> torch.optim.Optimizer:
        """The head's group, and the encoder's groups of pretraining at a share of their rates."""
        settings, usual = self.settings, GroupsRecipe()
        found: dict[str, list[torch.nn.Parameter]] = {}
        for name, parameter in self.encoder.named_parameters():
            if parameter.requires_grad:
                found.setdefault(group_of(f"encoder.{name}"), []).append(parameter)
        groups: list[dict[str, Any]] = [{"params": list(self.head.parameters()), "lr": settings.head_learning_rate}]
        for name, parameters in found.items():
            group: GroupRecipe = getattr(usual, name)
            rate = settings.encoder_rate * group.learning_rate
            groups.append({"params": parameters, "lr": rate, "weight_decay": group.weight_decay})
        return torch.optim.AdamW(groups, weight_decay=settings.weight_decay, fused=True)

    def _embedded(self, part: _Part) -> Rows:
        return Rows(embed_places(self.encoder, part.latlon, self.device), part.target)

    def _state(self) -> tuple[dict[str, Tensor], dict[str, Tensor]]:
        """The head's tensors, and the encoder's unless it is frozen."""
        encoder = {} if self.settings.frozen else self.encoder.state_dict()
        return tuple({name: t.clone() for name, t in state.items()} for state in (self.head.state_dict(), encoder))  # type: ignore[return-value]

    def _result(self, ridge: Judged, best: Judged, progress: dict[str, Any]) -> FineTuned:
        side = self.settings.block_degrees
        about = {
            "metric": METRIC[self.labelled.kind],
            "frozen_ridge": ridge.score,
            "finetuned": best.score,
            **progress,
            "training_rows": len(self.training.target),
            "validation_rows": len(self.validation.target),
            "dropped_rows": self.labelled.dropped,
            "held_out": "single places" if side is None else f"blocks of {side:g} degrees",
            "settings": asdict(self.settings),
        }
        tuned = FineTuned(
            encoder=self.encoder.eval().requires_grad_(False),
            head=self.head.eval(),
            kind=self.labelled.kind,
            classes=self.labelled.classes,
            about=about,
        )
        if tuned.kind == "regress":
            predicted = tuned.values(self.validation.latlon.cpu().numpy())
            tuned.residuals = np.sort(np.abs(predicted - self.validation.target.cpu().numpy()))
        return tuned


def _read(places: Any, target: Any, kind: Kind | None, reading: Reading) -> Labelled:
    """Rows with a target, from a table and a column's name or from arrays."""
    if isinstance(target, str):
        return read_labelled(places, target, kind, reading)
    values = np.asarray(target).reshape(-1)
    latlon, bad = _read_places(places, reading)
    if len(latlon) != len(values):
        raise DataError(f"there are {len(latlon)} places and {len(values)} targets; give one for each")
    numeric = values.dtype.kind in "iuf"
    if kind == "regress" and not numeric:
        raise DataError(f"the targets are {values.dtype}, not numbers; give kind='classify'")
    known = np.isfinite(values) if numeric else np.array([str(value) not in MISSING for value in values], dtype=bool)
    known &= ~bad
    latlon, values, dropped = latlon[known], values[known], int((~known).sum())
    if numeric and kind != "classify":
        return Labelled(latlon, values.astype(np.float64), "regress", (), dropped)
    names, codes = np.unique(values.astype(str), return_inverse=True)
    return Labelled(latlon, codes.astype(np.int64), "classify", tuple(map(str, names)), dropped)


def _read_places(places: Any, reading: Reading) -> tuple[npt.NDArray[np.float64], npt.NDArray[np.bool_]]:
    """Places (N, 2) and which of them are to be left out, (N,)."""
    if isinstance(places, str | PathLike) or is_frame(places):
        with open_points(places, replace(reading, on_bad="error" if reading.on_bad == "error" else "null")) as points:
            latlon = np.concatenate([batch.latlon for batch in points.batches])
        return latlon, ~np.isfinite(latlon).all(axis=1)
    if reading.on_bad == "error":
        latlon = as_latlon(places).reshape(-1, 2)
        return latlon, np.zeros(len(latlon), dtype=bool)
    latlon = np.array(places, dtype=np.float64).reshape(-1, 2)
    return latlon, np.asarray(~(np.abs(latlon) <= LARGEST_DEGREES).all(axis=1))


def _split(labelled: Labelled, settings: FinetuneSettings, device: torch.device) -> tuple[_Part, _Part]:
    held_out = split_places(
        labelled.latlon, validation=settings.validation, seed=settings.seed, block_degrees=settings.block_degrees
    )
    sides = np.flatnonzero(~held_out), np.flatnonzero(held_out)
    if min(map(len, sides)) < 2:
        raise DataError(
            f"{len(labelled.target)} labelled rows leave {len(sides[0])} to learn from and {len(sides[1])} held out, "
            f"at least 2 of each are needed; give more rows, another share for validation or smaller blocks"
        )
    for word, rows in zip(("learn from", "hold out"), sides, strict=True):
        if len(np.unique(labelled.target[rows])) < 2 and (labelled.kind == "regress" or word == "learn from"):
            raise DataError(f"all rows to {word} have the same target; there is nothing to learn or to judge by")
    target = torch.from_numpy(labelled.target if labelled.kind == "classify" else labelled.target.astype(np.float32))
    latlon = torch.from_numpy(np.ascontiguousarray(labelled.latlon))
    training, validation = (_Part(latlon[rows].to(device), target[rows].to(device)) for rows in sides)
    return training, validation


def _class_weights(labelled: Labelled, target: Tensor, settings: FinetuneSettings) -> Tensor | None:
    """The weight of a row of each class, (C,), 1 on average; None without weights."""
    if labelled.kind == "regress" or settings.class_weights == "none":
        return None
    counts = torch.bincount(target, minlength=len(labelled.classes)).float()
    return len(target) / (counts.clamp_min(1) * (counts > 0).sum())
