"""What figures are drawn from besides a model: a run's folder, and tables of scores."""

import json
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from tessearth.errors import ConfigError, DataError, TableError
from tessearth.zoo.shipped import shipped_folder

Floats = npt.NDArray[np.float64]

TRAJECTORIES, METRICS, STORE = "trajectories.npz", "metrics.jsonl", "features"
MEANS = "-means"
"""How a study's rows name the two means of a split: of accuracies, then of R2."""


class Trajectory(NamedTuple):
    """Where sites lay along a run."""

    steps: npt.NDArray[np.int64]
    """(R,) optimiser steps."""
    positions: Floats
    """(R, K, 3)."""


class Score(NamedTuple):
    """One row of a performance table."""

    x: float
    """What was varied: sites, tokens, places, kept sites."""
    split: str
    accuracy: float
    """Mean over classification tasks; NaN where none was scored."""
    r2: float
    """Mean over regression tasks."""


def find_run(model: str, run: str | None) -> Path:
    """The folder of a training run: the one named, a shipped model's own, else the one whose weights the model is."""
    if run is not None:
        if not Path(run).is_dir():
            raise DataError(f"there is no run folder {run}")
        return Path(run)
    lies = shipped_folder(model) or Path(model)
    for folder in (lies, *lies.parents[:2]):
        if (folder / METRICS).is_file() or (folder / TRAJECTORIES).is_file():
            return folder
    raise ConfigError(f"{model} lies in no run folder; name the folder of its training with --run DIR")


def read_trajectory(folder: Path) -> Trajectory:
    """The sites' recorded positions along a run."""
    path = folder / TRAJECTORIES
    try:
        with np.load(path, allow_pickle=False) as parts:
            found = Trajectory(parts["steps"], parts["positions"].astype(np.float64))
    except FileNotFoundError:
        raise DataError(f"{folder} holds no {TRAJECTORIES}: the run recorded no site positions") from None
    except (OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
        raise DataError(f"{path} is damaged or holds no steps and positions") from None
    if found.positions.ndim != 3 or len(found.steps) != len(found.positions):
        raise DataError(f"{path} has {len(found.steps)} steps for positions of shape {found.positions.shape}")
    return found


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, in the order they were written."""
    rows = _read_rows(folder / METRICS)
    if not any("training" in row for row in rows):
        raise DataError(f"{folder / METRICS} has no row of training losses")
    return rows


def read_scores(path: Path, x: str, also: Mapping[str, float] | None = None) -> list[Score]:
    """Scores against what was varied, from a csv or a study's jsonl.

    A csv has a column `x` names ("sites"), and accuracy and r2, one or both; split may be a fourth. A study's rows are
    named "K-1024": `x` is what stands before the number, and `also` says what other runs ("base") had, as in
    {"base": 4096}.
    """
    scores = _from_study(path, x, also or {}) if path.suffix == ".jsonl" else _from_csv(path, x)
    if len({score.x for score in scores}) < 2:
        raise TableError(f"{path} has {len({score.x for score in scores})} values of {x}; a curve needs at least 2")
    return sorted(scores)


def _from_csv(path: Path, x: str) -> list[Score]:
    try:
        table = pa.csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"cannot read {path}: {str(error).splitlines()[0]}") from None
    names = table.column_names
    if x not in names or not {"accuracy", "r2"} & set(names):
        raise TableError(f"{path} has columns {', '.join(names)}; it needs {x}, and accuracy or r2 or both")
    try:
        return [
            Score(float(row[x]), str(row.get("split", "")), _number(row.get("accuracy")), _number(row.get("r2")))
            for row in table.to_pylist()
        ]
    except (TypeError, ValueError):
        raise TableError(f"{path} has text or blanks where numbers belong ({x}, accuracy, r2)") from None


def _from_study(path: Path, x: str, also: Mapping[str, float]) -> list[Score]:
    scores = []
    for row in _read_rows(path):
        name = str(row.get("run", ""))
        value = also.get(name, _after(name, f"{x}-"))
        if value is None:
            continue
        for key, means in row.items():
            if key.endswith(MEANS):
                accuracy, r2 = means
                scores.append(Score(value, key.removesuffix(MEANS), float(accuracy), float(r2)))
    return scores


def _after(name: str, prefix: str) -> float | None:
    try:
        return float(name.removeprefix(prefix)) if name.startswith(prefix) else None
    except ValueError:
        return None


def _number(value: Any) -> float:
    return float("nan") if value is None or value == "" else float(value)


def _read_rows(path: Path) -> list[dict[str, Any]]:
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as one JSON object a line: {str(error).splitlines()[0]}") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} holds no JSON objects, one a line")
    return rows
