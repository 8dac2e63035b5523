"""The run folder: all files of a run, each written whole or not at all; docs/reference/formats.md lists them."""

import contextlib
import importlib
import json
import platform
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.encoder import TRAJECTORIES, LocationEncoder, SphericalVoronoiEncoder, Trajectory, read_slots
from tessearth.errors import ConfigError, DataError, OutputError, WeightsError
from tessearth.storage import (
    atomic_write,
    errors_of_writing,
    locked_folder,
    read_sealed_tensors,
    remove_unfinished,
    seal_tensors,
    write_bytes,
)
from tessearth.training.growth import Births
from tessearth.training.recipe import Recipe, first_difference, read_recipe, to_toml
from tessearth.version import __version__

RECIPE, ENVIRONMENT, METRICS, CHECKPOINT = "recipe.toml", "environment.json", "metrics.jsonl", "checkpoint.safetensors"
STORE, TENSORBOARD = "features", "tensorboard"
CHECKPOINT_FORMAT = "tessearth-checkpoint-1"


class Checkpoint(NamedTuple):
    """The state of a run."""

    step: int
    """Steps taken."""
    state: dict[str, Tensor]
    """Weights and optimiser, by name."""
    best: float | None
    """The lowest validation loss so far."""


class RunFolder:
    """Reads and writes a run."""

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._board: Any = None

    def weights(self, name: str) -> Path:
        """The file of the best or last weights."""
        return self.path / "weights" / f"{name}.safetensors"

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Hold the folder for one process."""
        busy = OutputError(f"another process is training {self.path}; choose another --out")
        with locked_folder(self.path, busy=busy):
            (self.path / "weights").mkdir(exist_ok=True)
            remove_unfinished(self.path, self.path / "weights")
            yield

    def begin(self, recipe: Recipe, *, resume: bool) -> None:
        """Write the recipe, or check that the run to resume has the same.

        What failed before anything was learned is begun anew.
        """
        if (self.path / RECIPE).is_file() and (resume or self.has_learned()):
            if not resume:
                raise OutputError(
                    f"{self.path} holds a run: tessearth pretrain --resume {self.path} continues it (Python: "
                    f"resume=True), or choose another --out"
                )
            difference = first_difference(self.recipe().to_dict(), recipe.to_dict())
            if difference:
                raise ConfigError(f"{self.path} is a run of another recipe: {difference}; choose another --out")
            return
        write_bytes(self.path / RECIPE, to_toml(recipe.to_dict()).encode())

    def recipe(self) -> Recipe:
        """The recipe of the run."""
        if not (self.path / RECIPE).is_file():
            raise DataError(f"{self.path} is not a run: it has no {RECIPE}")
        return read_recipe(str(self.path / RECIPE))

    def has_learned(self) -> bool:
        """Whether the run holds weights or a checkpoint."""
        return any(file.is_file() for file in (self.path / CHECKPOINT, self.weights("best"), self.weights("last")))

    def find_store(self) -> Path | None:
        """The store that the run was begun with; None is its own, or not yet known."""
        file = self.path / ENVIRONMENT
        try:
            store = json.loads(file.read_bytes()).get("store") if file.is_file() else None
        except (ValueError, AttributeError):
            raise DataError(f"{file} is damaged; name the store with --store") from None
        if store is not None and not Path(store).is_dir():
            raise DataError(f"the store {store} of this run is not there any more; name it with --store")
        return None if store is None else Path(store)

    def write_environment(self, device: torch.device, extra: Mapping[str, Any]) -> None:
        """Write the versions and the device, on which a result may depend in addition to the recipe."""
        environment = {
            "tessearth": __version__,
            "python": platform.python_version(),
            "torch": torch.__version__,
            "numpy": np.__version__,
            "system": f"{platform.system()} {platform.machine()}",
            "device": torch.cuda.get_device_name(device) if device.type == "cuda" else str(device),
            **extra,
        }
        write_bytes(self.path / ENVIRONMENT, (json.dumps(environment, indent=2) + "\n").encode())

    def load_checkpoint(self, expected: Mapping[str, Tensor]) -> Checkpoint | None:
        """The last checkpoint, whose tensors have the expected names and shapes; None before the first."""
        file = self.path / CHECKPOINT
        if not file.is_file():
            return None
        try:
            header, state = read_sealed_tensors(file)
        except WeightsError as error:
            raise WeightsError(f"{error}; remove it to begin again") from None
        shapes = {name: tuple(tensor.shape) for name, tensor in expected.items()}
        if header.get("format") != CHECKPOINT_FORMAT or {n: tuple(t.shape) for n, t in state.items()} != shapes:
            raise WeightsError(f"{file} is not a checkpoint of this recipe; remove it to begin again")
        progress = json.loads(header["progress"])
        return Checkpoint(progress["step"], state, progress["best"])

    def save_checkpoint(self, checkpoint: Checkpoint) -> None:
        """Replace the checkpoint in one step."""
        progress = json.dumps({"step": checkpoint.step, "best": checkpoint.best})
        header = {"format": CHECKPOINT_FORMAT, "progress": progress}
        write_bytes(self.path / CHECKPOINT, seal_tensors(checkpoint.state, header))

    def save_trajectory(self, records: Sequence[Trajectory]) -> None:
        """Replace the sites' trajectory by these parts of it."""
        parts = zip(Trajectory._fields, zip(*records, strict=True), strict=True)
        whole = {name: np.concatenate(found) for name, found in parts if found[0] is not None}
        with atomic_write(self.path / TRAJECTORIES) as file:
            np.savez(file, **whole)  # type: ignore[arg-type]

    def load_trajectory(self, step: int) -> list[Trajectory]:
        """The trajectory before a step; later records will be made again."""
        if not (self.path / TRAJECTORIES).is_file():
            return []
        try:
            found = read_slots(self.path / TRAJECTORIES)
        except DataError as error:
            raise DataError(f"{error}; remove it to continue without it") from None
        kept = found.steps < step
        before = Trajectory(found.steps[kept], found.positions[kept], found.sharpness[kept])
        if found.alive is None or found.births is None:
            return [before]
        return [before._replace(alive=found.alive[kept], births=found.births[found.births[:, 0] < step])]

    def forget_after(self, step: int) -> None:
        """Drop the log's lines about steps after this one, and a line cut short by a kill."""
        file = self.path / METRICS
        if file.is_file():
            kept = [line for line in file.read_bytes().splitlines() if _step_of(line) <= step]
            write_bytes(file, b"".join(line + b"\n" for line in kept))

    def log(self, step: int, values: Mapping[str, Any]) -> None:
        """Add a line to the log."""
        file = self.path / METRICS
        with errors_of_writing(file), open(file, "ab") as opened:
            opened.write(json.dumps({"step": step, **values}).encode() + b"\n")
        if self._board is None:
            with contextlib.suppress(ImportError):
                board = importlib.import_module("torch.utils.tensorboard")  # needs the tensorboard package
                self._board = board.SummaryWriter(str(self.path / TENSORBOARD), purge_step=step)
        if self._board is not None:
            for name, value in _scalars(values):
                self._board.add_scalar(name, value, step)

    def close(self) -> None:
        """Flush TensorBoard's files to the disk."""
        if self._board is not None:
            self._board.close()


def _step_of(line: bytes) -> float:
    try:
        return float(json.loads(line)["step"])
    except (ValueError, KeyError, TypeError):
        return float("inf")


def _scalars(values: Mapping[str, Any], path: str = "") -> Iterator[tuple[str, float]]:
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from _scalars(value, f"{path}{name}/")
        elif isinstance(value, int | float):
            yield f"{path}{name}", float(value)


class SiteRecords:
    """The parts of a run's trajectory; none are made of an encoder without sites."""

    def __init__(self, encoder: LocationEncoder | None, *, growing: bool) -> None:
        """`encoder` is the one in training; None records nothing."""
        self.encoder, self.growing = encoder, growing
        self.parts: list[Trajectory] = []

    def add(self, step: int) -> None:
        """Record positions and sharpness as they are before this step."""
        sites = self.encoder.sites() if self.encoder is not None else None
        if sites is None:
            return
        positions, sharpness = (part.detach().float().cpu().numpy()[None] for part in sites)
        self._append(Trajectory(np.array([step]), positions, sharpness), np.empty((0, 3), np.int64))

    def add_births(self, step: int, births: Sequence[Births]) -> None:
        """Record who was born of whom before this step, as a part without a moment."""
        if not births or not isinstance(self.encoder, SphericalVoronoiEncoder):
            return
        sizes = [t.num_sites for t in self.encoder.config.tessellations]
        firsts = [sum(sizes[: born.level]) for born in births]
        pairs = [
            torch.stack((born.parents, born.children), 1) + first for born, first in zip(births, firsts, strict=True)
        ]
        rows = torch.nn.functional.pad(torch.cat(pairs), (1, 0), value=step).cpu().numpy()
        total = sum(sizes)
        nothing = np.empty((0, total, 3), np.float32), np.empty((0, total), np.float32)
        self._append(Trajectory(np.empty(0, np.int64), *nothing), rows)

    def _append(self, record: Trajectory, births: npt.NDArray[np.int64]) -> None:
        if self.growing and isinstance(self.encoder, SphericalVoronoiEncoder):
            alive = torch.cat([voronoi.takes_part() for voronoi in self.encoder.voronois()]).cpu().numpy()
            record = record._replace(alive=np.tile(alive, (len(record.steps), 1)), births=births)
        self.parts.append(record)
