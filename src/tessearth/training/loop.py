"""`pretrain`: from a recipe and a feature store to a run folder; one process, or several started by torchrun."""

import contextlib
import dataclasses
import math
import os
import signal
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import numpy as np
import torch
import torch.distributed as dist

from tessearth.encoder.sites import Trajectory
from tessearth.encoder.tokens import measure_token_use
from tessearth.errors import ConfigError, DataError
from tessearth.imagery.building import build_store
from tessearth.imagery.store import FeatureStore
from tessearth.training.data import Batch, TrainingData
from tessearth.training.metrics import retrieval
from tessearth.training.model import PretrainingModel
from tessearth.training.objective import distillation_by_width, is_distributed, total_loss
from tessearth.training.recipe import Recipe, first_difference, read_recipe
from tessearth.training.run_folder import STORE, Checkpoint, RunFolder
from tessearth.training.start import FITTED_PLACES, build_start, fit_image_side_
from tessearth.training.step import Stepper, numerics


def choose_device(device: str | None) -> torch.device:
    """The named device, else a GPU when there is one; under torchrun each process has its own."""
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"there is no device {device!r}; it is cpu, cuda or such as cuda:0") from None
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {device!r} is given, but torch sees no GPU here; leave it out, or give cpu")
        index = int(os.environ.get("LOCAL_RANK", "0")) if chosen.index is None else chosen.index
        chosen = torch.device("cuda", index)
        torch.cuda.set_device(chosen)
    elif chosen.type != "cpu":
        raise ConfigError(f"training runs on cpu and cuda, not on {device!r}")
    return chosen


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[int]:
    """Join the processes torchrun started, if it did; returns the rank of this one."""
    started_here = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank() if is_distributed() else 0
    finally:
        if started_here:
            dist.destroy_process_group()


def wait_for_all() -> None:
    """Wait until every process has called this."""
    if is_distributed():
        dist.barrier()


class StopRequest:
    """Ctrl-C or SIGTERM, kept until a step is over; a second one stops immediately."""

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Catch the signals while the block runs; only a program's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agreed(self, device: torch.device, *, now: bool) -> bool:
        """Whether to stop; several processes must all do so at the same step, so they only ask each other `now`."""
        if not is_distributed():
            return self.asked
        if not now:
            return False
        asked = torch.tensor(float(self.asked), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True


Progress = Callable[[int, int, float], None]
"""Receives the steps taken, their number in all, and the loss."""
Looking = Callable[[int, int], None]
"""Receives the number of places done and in all, while features are computed."""


class NonFiniteLossError(DataError):
    """The loss is not finite; the last good checkpoint is kept."""


class Result(NamedTuple):
    """The outcome of a run."""

    weights: Path
    """The encoder at its lowest validation loss."""
    steps: int
    validation: dict[str, Any]
    """The last evaluation; empty when no places are held out."""
    left_out: tuple[str, ...] = ()
    """Terms of the objective that the encoder has no parts for: those about tokens, when it has none."""


def pretrain(
    recipe: Recipe | str,
    out: str | Path,
    *,
    store: str | Path | FeatureStore | None = None,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    looking: Looking | None = None,
) -> Result:
    """Train an encoder as a recipe says and leave everything in the folder `out`.

    Without a store the recipe's own is made in RUN/features first, and `looking` told how far that is. With `resume` an
    interrupted run continues and ends with the same weights as an uninterrupted one (bit for bit on a processor).
    Ctrl-C saves a checkpoint and then raises KeyboardInterrupt. Started by torchrun, all processes train together.
    """
    recipe = read_recipe(recipe) if isinstance(recipe, str) else recipe
    chosen = choose_device(device)
    folder = RunFolder(out)
    with process_group(chosen) as rank, numerics(recipe.training.precision, chosen):
        if rank > 0:
            wait_for_all()
            return _Run(recipe, None, _open_store(recipe, out, store), chosen, progress=None).train()
        with folder.locked():
            folder.begin(recipe, resume=resume)
            found = _open_store(recipe, out, store, build_on=chosen, looking=looking)
            wait_for_all()  # the others read the store that is there now
            try:
                return _Run(recipe, folder, found, chosen, progress).train()
            finally:
                folder.close()


class _Run:
    """One run; only the first process writes its folder."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder | None,
        store: FeatureStore,
        device: torch.device,
        progress: Progress | None,
    ) -> None:
        self.recipe, self.folder, self.store, self.device = recipe, folder, store, device
        self.progress = progress or (lambda step, steps, loss: None)
        self.dtype = torch.float64 if recipe.training.precision == "float64" else torch.float32
        generator = torch.Generator().manual_seed(recipe.training.seed)
        encoder = build_start(recipe, generator)
        self.data = TrainingData(
            store,
            output_dim=encoder.output_dim,
            share=recipe.training.share,
            seed=recipe.training.seed,
            device=device,
            dtype=self.dtype,
            keep=recipe.training.keep_features,
        )
        model = PretrainingModel(encoder, self.data.moments, recipe.objective, recipe.training, generator)
        self.model = model.to(device, self.dtype).train()
        if recipe.start_from is not None:
            fit_image_side_(self.model, self.data.some_training(FITTED_PLACES))
        self.stepper = Stepper(self.model, self.data, recipe.training)
        self.held_out = self.data.held_out(recipe.training.evaluate_places)
        self.best: float | None = None
        self.validation: dict[str, Any] = {}
        self.trajectory: list[Trajectory] = []
        self.stop = StopRequest()

    def train(self) -> Result:
        """Take all remaining steps."""
        first, steps = self._resume(), self.stepper.steps
        self._begun = (time.monotonic(), first)
        self.progress(first, steps, math.nan)
        try:
            with self.stop.listening():
                for step in range(first, steps):
                    self._step(step)
            if first == steps and self.folder is not None and self.held_out is not None:
                self.validation = evaluate(self.model, self.held_out)  # a finished run, resumed
        finally:
            self.data.close()
        best = self.folder.weights("best") if self.folder else Path()
        return Result(best, steps, self.validation, self.model.left_out)

    def _step(self, step: int) -> None:
        training, done = self.recipe.training, step + 1
        if step % training.record_every == 0:
            self._record(step)
        self.stepper.take(step)
        last, logged = done == self.stepper.steps, done % training.log_every == 0
        stopped = self.stop.agreed(self.device, now=logged)
        saved = last or stopped or done % training.checkpoint_every == 0
        evaluated = last or done % training.evaluate_every == 0
        if logged or saved or evaluated:
            self._log(step)
        if evaluated:
            self._evaluate(done)
        if last:
            self._record(done)
        if saved:
            self._save(done)
        if stopped and not last:
            raise KeyboardInterrupt(f"stopped after step {done} of {self.stepper.steps}, which is saved")

    def _resume(self) -> int:
        """Load the last checkpoint, if there is one; returns the first step to take."""
        if self.folder is None:
            return _shared_start(self.stepper, None, self.device)
        self.folder.write_environment(self.device, self._about_store())
        checkpoint = self.folder.load_checkpoint(self.stepper.state())
        start = 0
        if checkpoint is not None:
            self.stepper.restore_(checkpoint.state)
            self.best, start = checkpoint.best, checkpoint.step
            self.trajectory = self.folder.load_trajectory(start)
        self.folder.forget_after(start)
        return _shared_start(self.stepper, start, self.device)

    def _record(self, step: int) -> None:
        sites = self.model.encoder.sites() if self.folder is not None else None
        if sites is not None:
            positions, sharpness = (part.detach().float().cpu().numpy()[None] for part in sites)
            self.trajectory.append(Trajectory(np.array([step]), positions, sharpness))

    def _log(self, step: int) -> None:
        """Log the means since the last line, after checking that they are finite."""
        terms = self.stepper.reported()
        if not all(map(math.isfinite, terms.values())):
            culprit = next((name for name in self.stepper.first_astray() if name != "total"), "total")
            kept = f"; the last good checkpoint in {self.folder.path} is kept" if self.folder else ""
            raise NonFiniteLossError(f"the {culprit.replace('_', ' ')} is no longer finite at step {step + 1}{kept}")
        self.progress(step + 1, self.stepper.steps, terms["total"])
        if self.folder is not None:
            begun, first = self._begun
            speed = (step + 1 - first) / max(time.monotonic() - begun, 1e-9)
            epoch = (step + 1) / self.stepper.per_epoch
            rates = self.stepper.rates(step)
            values = {"epoch": epoch, "training": terms, "learning_rate": rates, "steps_per_second": speed}
            self.folder.log(step + 1, values)

    def _evaluate(self, done: int) -> None:
        if self.folder is None:
            return
        if self.held_out is not None:
            self.validation = evaluate(self.model, self.held_out)
            self.folder.log(done, {"validation": self.validation})
        loss = self.validation.get("total", math.inf)
        if self.best is None or loss < self.best or self.held_out is None:
            self.best = loss if math.isfinite(loss) else None
            self.folder.save_weights("best", self.model.encoder, self._provenance(done))

    def _save(self, done: int) -> None:
        """Write log and trajectories first, then the checkpoint, so that a kill in between loses nothing."""
        if self.folder is not None:
            self.folder.save_weights("last", self.model.encoder, self._provenance(done))
            if self.trajectory:
                self.folder.save_trajectory(self.trajectory)
            self.folder.save_checkpoint(Checkpoint(done, self.stepper.state(), self.best))

    def _provenance(self, done: int) -> dict[str, Any]:
        recipe = {
            key: value for key, value in self.recipe.to_dict().items() if key in ("objective", "sites", "training")
        }
        return {"step": done, "steps": self.stepper.steps, **recipe, **self._about_store()}

    def _about_store(self) -> dict[str, Any]:
        return {
            "store_recipe_sha256": self.store.manifest["recipe_sha256"],
            "image_features": self.data.kind,
            "image_feature_width": self.data.width,
            "training_places": len(self.data.training),
            "terms_left_out": list(self.model.left_out),
        }


@torch.no_grad()
def evaluate(model: PretrainingModel, batch: Batch) -> dict[str, Any]:
    """The objective, retrieval and the tokens' use on places held out, without dropout or jitter."""
    model.eval()
    try:
        sides = model.sides(*batch)
    finally:
        model.train()
    alone = dataclasses.replace(model.objective, negatives="local")  # the other processes are not listening
    terms = total_loss(sides, alone)
    found = retrieval(sides.location, sides.image)
    results: dict[str, Any] = {name: float(value) for name, value in terms._asdict().items()}
    for direction, shares in found._asdict().items():
        results |= {f"{direction}_top{k}": share for k, share in shares.items()}
    if model.objective.prefixes:
        widths = ("whole", *map(str, model.objective.prefixes))
        results["distillation_by_width"] = dict(zip(widths, map(float, distillation_by_width(sides)), strict=True))
    if sides.location_attention is not None:
        use = measure_token_use(sides.location_attention)
        results["tokens"] = {
            "entropy": use.entropy_share,
            "effective_tokens": use.effective_at_mean,
            "share_above_uniform": use.above_uniform / len(use.mean),
        }
    return results


def _open_store(
    recipe: Recipe,
    out: str | Path,
    store: str | Path | FeatureStore | None,
    build_on: torch.device | None = None,
    looking: Looking | None = None,
) -> FeatureStore:
    """The store that was given, checked against the recipe, else the run's own, made when `build_on` names a device."""
    if store is None:
        if recipe.features is None:
            raise ConfigError("the recipe has no [features] table, so give it a store: --store STORE")
        path = Path(out) / STORE
        if build_on is None:
            return FeatureStore(path)
        return build_store(recipe.features, path, device=build_on, progress=looking)
    # However large it is: a run takes hours, and nothing of it could be trusted if the features were not.
    first = build_on is not None
    opened = store if isinstance(store, FeatureStore) else FeatureStore(store, verify=first)
    wanted = recipe.features.to_dict() if recipe.features else None
    difference = wanted and first_difference(opened.recipe.to_dict(), wanted, "features")
    if difference:
        raise DataError(
            f"{opened.path} is not the store this recipe asks for: {difference}; make that one with `tessearth "
            f"features`, or take this one as it is with --set features=none"
        )
    return opened


def _shared_start(stepper: Stepper, start: int | None, device: torch.device) -> int:
    """Give every process the weights of the first."""
    if stepper.world == 1:
        return start or 0
    number = torch.tensor(start or 0, device=device)
    torch.distributed.broadcast(number, 0)
    for tensor in stepper.state().values():
        torch.distributed.broadcast(tensor, 0)
    return int(number)
