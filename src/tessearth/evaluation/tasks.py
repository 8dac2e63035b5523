"""Tasks as a table of rows: places, a target, and whether it is a class or a number.

A task is named by the embedded benchmark ("koppen"), by the published csv files ("range/biome", read from a data
folder), by a checkerboard ("checkerboard-1000"), or by a table of your own ("mine.csv:target:classify"). A task that
cannot be evaluated is one TessearthError from `load_task`, so that a run can name it, skip it and go on.
"""

import typing
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from os import PathLike
from pathlib import Path
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.errors import ConfigError, DataError, TableError, UnknownNameError
from tessearth.labels import LABELS, LabelTable, country_names, load_benchmark, read_benchmark
from tessearth.ridge import CLASSIFIER_FOLDS, REGRESSION_FOLDS
from tessearth.settings import Kind, did_you_mean
from tessearth.sphere import fibonacci_lattice, latlon_to_xyz, sample_sphere, xyz_to_latlon
from tessearth.storage import AS_USUAL, PANDAS_BLANK, Labelled, Reading, column_names, read_labelled

Floats = npt.NDArray[np.float64]
Rows = npt.NDArray[np.int64]

CHECKERBOARD = "checkerboard-"
CHECKERBOARD_COLOURS = 16
CHECKERBOARD_ROWS = 10_000
RANGE = "range/"
ERA5 = "range/era5/"
OCEAN = "ocean"


class Split(NamedTuple):
    """Row numbers to learn from and to test on."""

    name: str
    """What was drawn and with which seed, such as "random-42"."""
    train: Rows
    test: Rows


@dataclass(frozen=True, slots=True, kw_only=True)
class Task:
    """Places with a target, every row of it known."""

    name: str
    kind: Kind
    latlon: Floats
    """(N, 2) degrees."""
    target: npt.NDArray[Any]
    """(N,): codes of `classes`, or numbers."""
    classes: tuple[str, ...] = ()
    countries: npt.NDArray[np.int64] | None = None
    """(N,): the country of each place, a code of `country_names`; None where it has to be looked up."""
    split: Split | None = None
    """The split the task comes with; None when any may be drawn."""
    notes: tuple[str, ...] = ()
    """What a reader of the results should know, one line each."""
    about: Mapping[str, Any] = field(default_factory=dict)
    """Where it comes from, ready for JSON."""

    @property
    def unit(self) -> str:
        """The label of a colour bar of its numbers."""
        return f"{self.name} ({self.about['unit']})" if self.about.get("unit") else self.name


@dataclass(frozen=True, slots=True, kw_only=True)
class FileTask:
    """A task of the published csv files."""

    files: tuple[str, ...]
    """Read one after another."""
    target: str
    kind: Kind
    lon: str = "lon"
    lat: str = "lat"
    transform: Literal["raw", "log1p"] = "raw"
    without: str | None = None
    """A class whose rows are left out."""
    fixed_split: bool = False
    """The last file is the test part."""


_ECOREGIONS: Any = {"files": ("ecoregion_train.csv", "ecoregion_val.csv"), "lon": "X", "lat": "Y", "kind": "classify"}
_COUNTRY: Any = {"files": ("country.csv",), "target": "country", "kind": "classify"}

FILE_TASKS: dict[str, FileTask] = {
    "range/biome": FileTask(target="BIOME_NAME", **_ECOREGIONS),
    "range/ecoregion": FileTask(target="ECO_NAME", **_ECOREGIONS),
    "range/country": FileTask(**_COUNTRY),
    "range/country-land": FileTask(**_COUNTRY, without=OCEAN),
    "range/temperature": FileTask(files=("temp.csv",), lon="Lon", lat="Lat", target="meanT", kind="regress"),
    "range/housing": FileTask(
        files=("housing.csv",), lon="longitude", lat="latitude", target="median_house_value", kind="regress"
    ),
    "range/elevation": FileTask(files=("elevation.csv",), target="elevation", kind="regress"),
    "range/population": FileTask(files=("population.csv",), target="population", kind="regress", transform="log1p"),
    "range/land": FileTask(
        files=("land_ocean_train.csv", "land_ocean_test.csv"), target="land", kind="classify", fixed_split=True
    ),
}
ERA5_FILE = FileTask(files=("ERA5_Land_Clipped_2020.csv",), lon="Longitude", lat="Latitude", target="", kind="regress")

TASKS: tuple[str, ...] = (*LABELS, *FILE_TASKS, f"{ERA5}<variable>", f"{CHECKERBOARD}<supports>", "<file>:<column>")
"""The names of tasks; words in angle brackets stand for a user's."""


def load_task(
    name: str,
    *,
    data_dir: Path | str | None = None,
    benchmark: Path | str | None = None,
    reading: Reading = AS_USUAL,
) -> Task:
    """A task by name, checked (`check_task`).

    `data_dir` holds the published csv files; `benchmark` is a prepared file of the embedded labels made elsewhere;
    `reading` is how the places of a user's table are read.
    """
    if name in LABELS:
        return check_task(_embedded(name, str(benchmark) if benchmark else None))
    if name in FILE_TASKS or name.startswith(ERA5):
        return check_task(_from_files(name, data_dir))
    if name.startswith(CHECKERBOARD):
        return check_task(_checkerboard(name))
    if ":" in name and not name.startswith(RANGE):
        path, column, kind = _parse_own(name)
        return check_task(_of_table(name, path, column, kind, reading))
    raise UnknownNameError(f"there is no task named {name!r}{did_you_mean(name, TASKS)}")


def available_files(data_dir: Path | str) -> list[str]:
    """The names of the published tasks whose files are all in a folder."""
    folder = Path(data_dir)
    found = [name for name, card in FILE_TASKS.items() if all((folder / file).is_file() for file in card.files)]
    path = folder / ERA5_FILE.files[0]
    if path.is_file():
        found += [f"{ERA5}{column}" for column in column_names(path) if column not in (ERA5_FILE.lon, ERA5_FILE.lat)]
    return found


def check_task(task: Task) -> Task:
    """The task with notes on its oddities, or one line that says why it cannot be evaluated.

    Rare classes stay, as in the published protocol; a class seen once is noted, because it is either never learned or
    never tested.
    """
    rows, folds = len(task.target), CLASSIFIER_FOLDS if task.kind == "classify" else REGRESSION_FOLDS
    if rows == 0:
        raise DataError(f"task {task.name}: no row has a target")
    values, counts = np.unique(task.target, return_counts=True)
    if len(values) == 1:
        what = f"is of one class, {_class_name(task, values[0])!r}" if task.kind == "classify" else f"is {values[0]:g}"
        raise DataError(f"task {task.name}: every one of its {rows} rows {what}; there is nothing to predict")
    needed = 2 * folds
    if rows < needed:
        raise DataError(f"task {task.name}: {rows} rows are too few for {folds} folds; it needs at least {needed}")
    if task.kind == "regress":
        return task
    if counts.max() < needed:
        raise DataError(
            f"task {task.name}: no class has more than {counts.max()} of the {rows} rows, too few for {folds} folds"
            f"{'; if the column holds numbers, give it as :regress' if len(values) > rows / 2 else ''}"
        )
    once = values[counts == 1]
    if len(once) == 0:
        return task
    some = ", ".join(_class_name(task, value) for value in once[:3]) + (", ..." if len(once) > 3 else "")
    note = f"{len(once)} of {len(values)} classes seen once ({some}): kept, but never both learned and tested"
    return replace(task, notes=(*task.notes, note))


def _embedded(name: str, benchmark: str | None) -> Task:
    tables = _benchmark(benchmark)
    table, country = tables[name], tables.get("country")
    known = table.known
    countries = None
    if country is not None and country.latlon is table.latlon and country.classes == country_names():
        countries = np.array(country.values[known], dtype=np.int64)
    missing = int((~known).sum())
    return Task(
        name=name,
        kind=table.kind,
        latlon=np.array(table.latlon[known]),
        target=np.array(table.values[known]),
        classes=table.classes,
        countries=countries,
        notes=(f"{missing} places without a label left out",) if missing else (),
        about=table.about,
    )


@lru_cache(maxsize=2)
def _benchmark(path: str | None) -> dict[str, LabelTable]:
    return read_benchmark(path) if path else load_benchmark()


def _from_files(name: str, data_dir: Path | str | None) -> Task:
    if data_dir is None:
        raise ConfigError(f"task {name} is read from the published csv files; say where they are with data_dir")
    card = FILE_TASKS.get(name) or replace(ERA5_FILE, target=name.removeprefix(ERA5))
    paths = [Path(data_dir) / file for file in card.files]
    parts = [
        read_labelled(path, card.target, card.kind, Reading(lat=card.lat, lon=card.lon), blank=PANDAS_BLANK)
        for path in paths
    ]
    table = _joined(parts)
    split = None
    if card.fixed_split:
        first = len(parts[0].target)
        split = Split("fixed", np.arange(first), np.arange(first, len(table.target)))
    dropped = (f"{table.dropped} rows without a label left out",) if table.dropped else ()
    task = Task(
        name=name,
        kind=card.kind,
        latlon=table.latlon,
        target=_transformed(table.target, card, name),
        classes=table.classes,
        split=split,
        notes=dropped,
        about={"files": [path.name for path in paths], "column": card.target, "transform": card.transform},
    )
    return task if card.without is None else _without(task, card.without)


def _joined(parts: list[Labelled]) -> Labelled:
    """Several tables as one, with one list of classes."""
    classes = tuple(sorted({name for part in parts for name in part.classes}))
    code = {name: i for i, name in enumerate(classes)}
    targets = [
        np.array([code[name] for name in part.classes], dtype=np.int64)[part.target] if classes else part.target
        for part in parts
    ]
    latlon = np.concatenate([part.latlon for part in parts])
    return Labelled(latlon, np.concatenate(targets), parts[0].kind, classes, sum(part.dropped for part in parts))


def _transformed(target: npt.NDArray[Any], card: FileTask, name: str) -> npt.NDArray[Any]:
    if card.transform == "raw":
        return target
    if target.min() < 0:
        raise DataError(f"task {name}: column {card.target!r} holds {target.min():g}, and log(1 + p) needs p >= 0")
    return np.asarray(np.log1p(target))


def _without(task: Task, unwanted: str) -> Task:
    """The task without the rows of one class, whose name is compared without regard to case."""
    code = [i for i, name in enumerate(task.classes) if name.casefold() == unwanted]
    if not code:
        raise DataError(
            f"task {task.name}: the file has no class {unwanted!r} to leave out; use the task with all rows"
        )
    kept = ~np.isin(task.target, code)
    note = f"{int((~kept).sum())} rows of class {unwanted!r} left out"
    return replace(task, latlon=task.latlon[kept], target=task.target[kept], notes=(*task.notes, note))


def _checkerboard(name: str) -> Task:
    """Support points on a Fibonacci lattice, label i mod 16; a place has the label of the nearest support.

    Learned from random places, tested on a lattice.
    """
    text = name.removeprefix(CHECKERBOARD)
    if not text.isdecimal() or not CHECKERBOARD_COLOURS <= int(text) <= 1_000_000:
        raise ConfigError(f"{name!r} must end in a number of supports from {CHECKERBOARD_COLOURS} to 1000000")
    supports = fibonacci_lattice(int(text))
    random = torch.from_numpy(sample_sphere(CHECKERBOARD_ROWS, 0, purpose="checkerboard"))
    lattice = fibonacci_lattice(CHECKERBOARD_ROWS)
    xyz = torch.cat((latlon_to_xyz(random), lattice))
    at_once = max(1, 2**24 // len(supports))
    nearest = torch.cat([(part @ supports.T).argmax(1) for part in torch.split(xyz, at_once)])
    rows = np.arange(2 * CHECKERBOARD_ROWS)
    return Task(
        name=name,
        kind="classify",
        latlon=torch.cat((random, xyz_to_latlon(lattice))).numpy(),
        target=(nearest % CHECKERBOARD_COLOURS).numpy(),
        classes=tuple(str(i) for i in range(CHECKERBOARD_COLOURS)),
        split=Split("fixed", rows[:CHECKERBOARD_ROWS], rows[CHECKERBOARD_ROWS:]),
        about={"supports": int(text), "colours": CHECKERBOARD_COLOURS},
    )


def read_tasks(
    table: Any, targets: str | Sequence[str], kind: Kind | None = None, reading: Reading = AS_USUAL
) -> list[Task]:
    """One task for each target column of a user's table, a file or a frame."""
    columns = [targets] if isinstance(targets, str) else list(targets)
    where = f"{table}:" if isinstance(table, str | PathLike) else ""
    return [_of_table(f"{where}{column}", table, column, kind, reading) for column in columns]


def _of_table(name: str, table: Any, column: str, kind: Kind | None, reading: Reading) -> Task:
    """A column of a user's table."""
    found = read_labelled(table, column, kind, reading)
    file = [Path(table).name] if isinstance(table, str | PathLike) else []
    return Task(
        name=name,
        kind=found.kind,
        latlon=found.latlon,
        target=found.target,
        classes=found.classes,
        notes=(f"{found.dropped} rows without a label or a place left out",) if found.dropped else (),
        about={"files": file, "column": column},
    )


def _parse_own(name: str) -> tuple[str, str, Kind | None]:
    path, column, *rest = (part.strip() for part in name.rsplit(":", 2 if name.count(":") > 1 else 1))
    if rest and rest[0] not in typing.get_args(Kind):
        raise ConfigError(f"{name!r} ends in {rest[0]!r}; a table is file:column[:classify|regress]")
    if not path or not column:
        raise TableError(f"{name!r} names no {'column' if path else 'file'}; write file:column[:classify|regress]")
    return path, column, typing.cast("Kind | None", rest[0] if rest else None)


def _class_name(task: Task, code: Any) -> str:
    return task.classes[code] if task.classes else str(code)
