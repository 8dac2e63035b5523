"""`pretrain`: from a recipe and a feature store to a run folder; one process, or several started by torchrun."""

import contextlib
import math
import os
import signal
import threading
import time
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from types import FrameType
from typing import Any, NamedTuple

import torch
import torch.distributed as dist

from tessearth.encoder import SphericalVoronoiEncoder, compact
from tessearth.errors import ConfigError, DataError
from tessearth.imagery import DeviceFeatures, FeatureStore, build_store, compute_features, has_device_form, is_store
from tessearth.settings import find_device
from tessearth.training.data import TrainingData
from tessearth.training.model import FITTED_PLACES, PretrainingModel, centred, fit_image_side_, meeting_width
from tessearth.training.objective import is_distributed
from tessearth.training.recipe import Recipe, first_difference, read_recipe
from tessearth.training.run_folder import STORE, Checkpoint, RunFolder, SiteRecords
from tessearth.training.start import build_start
from tessearth.training.step import Stepper, numerics
from tessearth.training.validation import evaluate


def choose_device(device: str | None) -> torch.device:
    """The named device, else a GPU when there is one; under torchrun each process has its own."""
    name = device or ("cuda" if torch.cuda.is_available() else "cpu")
    chosen = find_device(f"cuda:{os.environ.get('LOCAL_RANK', '0')}" if name == "cuda" else name)
    if chosen.type == "cuda":
        torch.cuda.set_device(chosen)
    elif chosen.type != "cpu":
        raise ConfigError(f"training runs on cpu and cuda, not on {device!r}")
    return chosen


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[int]:
    """Join the processes that torchrun started, if it did; gives the rank of this one."""
    started_here = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank() if is_distributed() else 0
    finally:
        if started_here:
            dist.destroy_process_group()


class StopRequest:
    """Ctrl-C or SIGTERM, noted until the current step is over; a second one stops at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Note signals while the block runs, in a program's main thread; other threads cannot."""
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
        """Whether to stop. Several processes must stop at the same step, so they ask each other only when `now`."""
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
"""Called with the steps taken, their number in all, and the loss."""
FeaturesProgress = Callable[[int, int], None]
"""Called with the places whose features are made and their number in all."""


class Result(NamedTuple):
    """The outcome of a run."""

    weights: Path
    """The encoder at its lowest validation loss."""
    steps: int
    validation: dict[str, Any]
    """The last evaluation; empty when no places are held out."""
    left_out: tuple[str, ...] = ()
    """Terms of the objective that do not apply: those about tokens, for an encoder without."""


def pretrain(
    recipe: Recipe | str | None,
    out: str | Path,
    *,
    store: str | Path | FeatureStore | None = None,
    resume: bool = False,
    device: str | None = None,
    progress: Progress | None = None,
    features_progress: FeaturesProgress | None = None,
) -> Result:
    """Train an encoder by a recipe and write everything into the folder `out`.

    Without a store the recipe's own is made in RUN/features first and reported to `features_progress`; where a GPU can
    read all sources, features are made and kept in its memory, and only what was fitted is written. With `resume` an
    interrupted run continues and ends with the same weights as an uninterrupted one (bit for bit on a CPU); recipe
    (None) and store are read from the run. Ctrl-C saves a checkpoint and then raises KeyboardInterrupt. Started by
    torchrun, all processes train together.
    """
    folder = RunFolder(out)
    if recipe is None:
        recipe = folder.recipe()
    recipe = read_recipe(recipe) if isinstance(recipe, str) else recipe
    store = folder.find_store() if resume and store is None else store
    found: FeatureStore | DeviceFeatures
    chosen = choose_device(device)
    with process_group(chosen) as rank, numerics(recipe.training.precision, chosen):
        if rank > 0:
            dist.barrier()  # until the first process has checked or made the store
            found = store if isinstance(store, FeatureStore) else FeatureStore(store or folder.path / STORE)
            return _Run(recipe, None, found, chosen, progress=None).train()
        with folder.locked():
            folder.begin(recipe, resume=resume)
            found = _open_store(recipe, folder.path / STORE, store, chosen, features_progress)
            if is_distributed():
                dist.barrier()
            try:
                return _Run(recipe, folder, found, chosen, progress).train()
            finally:
                folder.close()


class _Run:
    """A run in progress; only the first process has a folder."""

    def __init__(
        self,
        recipe: Recipe,
        folder: RunFolder | None,
        store: FeatureStore | DeviceFeatures,
        device: torch.device,
        progress: Progress | None,
    ) -> None:
        self.recipe, self.folder, self.store, self.device = recipe, folder, store, device
        self.progress = progress or (lambda step, steps, loss: None)
        generator = torch.Generator().manual_seed(recipe.training.seed)
        encoder = build_start(recipe, generator)
        self.data = TrainingData(store, recipe.training, output_dim=meeting_width(encoder), device=device)
        model = PretrainingModel(encoder, self.data.moments, recipe.objective, recipe.training, generator)
        self.model = model.to(device, self.data.latlon.dtype).train()
        if recipe.start_from is not None:
            fit_image_side_(self.model, self.data.some_training(FITTED_PLACES))
        self.stepper = Stepper(self.model, self.data, recipe.training, recipe.sites)
        self.held_out = self.data.held_out(recipe.training.evaluate_places)
        self.best: float | None = None
        self.validation: dict[str, Any] = {}
        self.records = SiteRecords(self.model.encoder if folder else None, growing=self.stepper.growth is not None)
        self.stop = StopRequest()

    def train(self) -> Result:
        """Take every missing step."""
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
            self.records.add(step)
        self.stepper.take(step)
        self.records.add_births(step, self.stepper.births)
        last, logged = done == self.stepper.steps, done % training.log_every == 0
        stopped = self.stop.agreed(self.device, now=logged)
        saved = last or stopped or done % training.checkpoint_every == 0
        evaluated = last or done % training.evaluate_every == 0
        if logged or saved or evaluated:
            self._log(step)
        if evaluated:
            self._evaluate(done)
        if last:
            self.records.add(done)
        if saved:
            self._save(done)
        if stopped and not last:
            raise KeyboardInterrupt(f"stopped after step {done} of {self.stepper.steps}, which is saved")

    def _resume(self) -> int:
        """Restore the last checkpoint, if there is one; gives the first step to take."""
        start = 0
        if self.folder is not None:
            own = self.store.path.resolve() == (self.folder.path / STORE).resolve()
            where = {"store": None if own else str(self.store.path.resolve())}
            self.folder.write_environment(self.device, self._about_store() | where)
            checkpoint = self.folder.load_checkpoint(self.stepper.state())
            if checkpoint is not None:
                self.stepper.restore_(checkpoint.state)
                self.best, start = checkpoint.best, checkpoint.step
                self.records.parts = self.folder.load_trajectory(start)
            self.folder.forget_after(start)
        if self.stepper.world > 1:  # all processes begin at the first one's step, with its weights
            number = torch.tensor(start, device=self.device)
            for tensor in (number, *self.stepper.state().values()):
                dist.broadcast(tensor, 0)
            self.stepper.rebuild_lists_()
            start = int(number)
        return start

    def _log(self, step: int) -> None:
        """Log the mean terms of the steps since the last line; refuses terms that are not finite."""
        terms = self.stepper.reported()
        if not all(map(math.isfinite, terms.values())):
            culprit = next((name for name in self.stepper.first_not_finite() if name != "total"), "total")
            kept = f"; the last good checkpoint in {self.folder.path} is kept" if self.folder else ""
            raise DataError(f"the {culprit.replace('_', ' ')} is no longer finite at step {step + 1}{kept}")
        self.progress(step + 1, self.stepper.steps, terms["total"])
        if self.folder is not None:
            begun, first = self._begun
            speed = (step + 1 - first) / max(time.monotonic() - begun, 1e-9)
            epoch = (step + 1) / self.stepper.per_epoch
            rates = self.stepper.rates(step)
            values = {"epoch": epoch, "training": terms, "learning_rate": rates, "steps_per_second": speed}
            sites = self.stepper.sites_report()
            self.folder.log(step + 1, values | ({"sites": sites} if sites else {}))

    def _evaluate(self, done: int) -> None:
        if self.folder is None:
            return
        if self.held_out is not None:
            self.validation = evaluate(self.model, self.held_out)
            self.folder.log(done, {"validation": self.validation})
        loss = self.validation.get("total", math.inf)
        if self.best is None or loss < self.best or self.held_out is None:
            self.best = loss if math.isfinite(loss) else None
            self._save_weights("best", done)

    def _save(self, done: int) -> None:
        """Write the checkpoint last: other files may be ahead of it, so a kill in between loses nothing."""
        if self.folder is not None:
            self._save_weights("last", done)
            if self.records.parts:
                self.folder.save_trajectory(self.records.parts)
            self.folder.save_checkpoint(Checkpoint(done, self.stepper.state(), self.best))

    def _save_weights(self, name: str, done: int) -> None:
        """Write the encoder, without the slots in which there is no site."""
        assert self.folder is not None, "only the first process writes"
        encoder = self.model.encoder
        kept = compact(encoder) if isinstance(encoder, SphericalVoronoiEncoder) else encoder
        with centred(self.model, kept, self.data.some_places(FITTED_PLACES)) as written:
            written.save(self.folder.weights(name), provenance=self._provenance(done))

    def _provenance(self, done: int) -> dict[str, Any]:
        told = {key: table for key, table in self.recipe.to_dict().items() if key in ("objective", "sites", "training")}
        return {"step": done, "steps": self.stepper.steps, **told, **self._about_store()}

    def _about_store(self) -> dict[str, Any]:
        return {
            "store_recipe_sha256": self.store.manifest["recipe_sha256"],
            "image_features": self.data.kind,
            "image_feature_width": self.data.width,
            "training_places": len(self.data.training),
            "terms_left_out": list(self.model.left_out),
        }


def _open_store(
    recipe: Recipe,
    own: Path,
    store: str | Path | FeatureStore | None,
    device: torch.device,
    progress: FeaturesProgress | None,
) -> FeatureStore | DeviceFeatures:
    """The given store, checked against the recipe, else the run's own, which is made, or features on a GPU."""
    if recipe.training.places == "endless":
        if recipe.features is None or store is not None or is_distributed():
            raise ConfigError("endless places are trained on by one process, without a store; leave out --store")
        return compute_features(recipe.features, device=device, folder=own, progress=progress)
    if store is None:
        if recipe.features is None:
            raise ConfigError("the recipe has no [features] table, so give it a store: --store STORE")
        if not is_store(own) and _needs_no_store(recipe, device):
            return compute_features(recipe.features, device=device, folder=own, progress=progress)
        return build_store(recipe.features, own, device=device, progress=progress)
    # Verified whatever its size: a run takes hours, and damaged features would spoil all of it.
    opened = store if isinstance(store, FeatureStore) else FeatureStore(store, verify=True)
    wanted = recipe.features.to_dict() if recipe.features else None
    difference = wanted and first_difference(opened.recipe.to_dict(), wanted, "features")
    if difference:
        raise DataError(
            f"{opened.path} is not the store this recipe asks for: {difference}; make that one with `tessearth "
            f"features`, or take this one as it is with --set features=none"
        )
    return opened


def _needs_no_store(recipe: Recipe, device: torch.device) -> bool:
    """Whether features are made and kept on a GPU; where they could not be, a warning says why."""
    features, encoder = recipe.features, recipe.encoder
    if features is None or device.type != "cuda":
        return False
    reason = "not all sources have a form on a GPU" if not has_device_form(features) else ""
    reason = "several processes train on it" if is_distributed() else reason
    any_width = recipe.baseline is None and encoder.ends_in_units and encoder.num_tokens == 0
    width = encoder.output_dim if recipe.baseline is None else None
    fits = any_width or features.pca in (0, width)
    reason = reason if fits else "features.pca is neither 0 nor the embedding's width"
    if reason:
        warnings.warn(f"features are first written to a store in the run: {reason}", stacklevel=2)
    return not reason
