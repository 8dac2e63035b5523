"""Where a model's sites were while it was trained, from the record its run keeps."""

from os import PathLike
from pathlib import Path
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.embedding.retrieval import read_npz
from tessearth.errors import ConfigError, DataError
from tessearth.explorer.schemas import MigrationAnswer
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.geometry import EARTH_RADIUS_KM, angular_distance, xyz_to_latlon
from tessearth.zoo.shipped import shipped_folder

FILE = "trajectories.npz"
MOST_FRAMES = 60


class Trajectories(NamedTuple):
    """The record of a run."""

    steps: npt.NDArray[np.int64]
    """(F,) in rising order."""
    positions: npt.NDArray[np.float32]
    """(F, K, 3)."""


def find_trajectories(model: str | PathLike[str]) -> Path | None:
    """The record beside a model's file, in its folder, or in the run whose weights it is; None when there is none."""
    path = shipped_folder(model) or Path(model)
    if not path.exists():
        return None
    beside = [path / FILE] if path.is_dir() else [path.with_suffix(".trajectories.npz"), path.parent / FILE]
    if path.parent.name == "weights":
        beside.append(path.parent.parent / FILE)
    return next((file for file in beside if file.is_file()), None)


def read_trajectories(path: str | PathLike[str], num_sites: int) -> Trajectories:
    """Read a record and check that it is of so many sites."""
    arrays = read_npz(path, ("steps", "positions", "sharpness"))
    steps, positions = arrays["steps"], arrays["positions"]
    whole = steps.ndim == 1 and positions.ndim == 3 and positions.shape[0] == len(steps) > 0
    if not whole or positions.shape[2] != 3 or not np.isfinite(positions).all():
        raise DataError(f"{path} is no record of sites: steps {steps.shape}, positions {positions.shape}")
    if positions.shape[1] != num_sites:
        raise DataError(f"{path} follows {positions.shape[1]} sites, and the model has {num_sites}")
    return Trajectories(steps.astype(np.int64), positions.astype(np.float32))


def describe_migration(record: Trajectories, *, share: float, frames: int, seed: int) -> MigrationAnswer:
    """A seeded share of the sites over evenly chosen frames, the first and the last always among them."""
    if not 0 < share <= 1:
        raise ConfigError(f"share is {share:g}; it must lie above 0 and be at most 1")
    if not 2 <= frames <= MOST_FRAMES:
        raise ConfigError(f"frames is {frames}; it must lie between 2 and {MOST_FRAMES}")
    if seed < 0:
        raise ConfigError(f"seed is {seed}; it must be 0 or more")
    count = record.positions.shape[1]
    chosen = np.sort(np.random.default_rng(seed).permutation(count)[: max(1, round(share * count))])
    shown = np.unique(np.linspace(0, len(record.steps) - 1, frames).round().astype(np.int64))
    latlon = _to_latlon(record.positions[np.ix_(shown, chosen)])
    return MigrationAnswer(
        steps=record.steps[shown].tolist(),
        sites=chosen.tolist(),
        lat=latlon[..., 0].round(3).tolist(),
        lon=latlon[..., 1].round(3).tolist(),
        moved_km=_moved_km(record.positions[:, chosen]).round(1).tolist(),
    )


def _to_latlon(positions: npt.NDArray[np.float32]) -> Floats:
    return np.asarray(xyz_to_latlon(torch.from_numpy(positions.astype(np.float64))).numpy())


def _moved_km(positions: npt.NDArray[np.float32]) -> Floats:
    first, last = (torch.nn.functional.normalize(torch.from_numpy(positions[i]).double(), dim=-1) for i in (0, -1))
    return np.asarray(angular_distance(first, last).numpy() * EARTH_RADIUS_KM)
