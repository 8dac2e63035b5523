"""What a figure shows, and where its numbers come from: a model, a run, a table of scores, predictions of probes."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.csv

from tessearth import evaluation
from tessearth.embedding import Embedder
from tessearth.encoder import TRAJECTORIES
from tessearth.errors import ConfigError, CoordinateError, DataError, TableError, first_line
from tessearth.evaluation import Outcome, Task
from tessearth.imagery import FeatureStore, SourceRecipe, build_source, to_picture
from tessearth.plotting import COLUMN_CM, SHARE, Floats, Pixels, Predicted, Score, View, build_view, new_figure
from tessearth.settings import Kind, find_device, from_plain, read_value
from tessearth.sphere import check_latlon
from tessearth.zoo import shipped_folder

Array = npt.NDArray[Any]

METRICS_FILE, STORE = "metrics.jsonl", "features"
EXPLAIN_AT_ONCE = 8192
"""Places whose attention is computed in one call, which bounds the memory of their site weights."""
BRIGHTENED = 0.7
"""The power of brightness at which forests on paper can be told apart from each other, next to ice and sand."""
OWN_EARTH = SourceRecipe(kind="blue-marble", options={"size": 48, "km_per_pixel": 7.4})


@dataclass(kw_only=True)
class Settings:
    """What `tessearth plot --set name=value` changes; `KINDS` says which kind follows which."""

    store: str | None = None
    """A feature store whose tiles are shown; None is the run's own, else Blue Marble."""
    token: int | None = None
    """None is the token that tells places apart best."""
    tessellation: int = 0
    columns: int | None = None
    """How many pixels a map is wide; None leaves it to the kind of figure."""
    share: float = SHARE
    """The share of the sites shown in migration and sharpness."""
    seed: int = 0
    """Draws that share of the sites."""
    frames: int = 40
    """The pictures of an animation."""
    task: str = "koppen"
    models: str = ""
    """Encoders drawn next to the model in prediction maps, with commas between them."""
    x: str = "sites"
    """What was varied: sites, tokens, places, top_k."""


@dataclass(kw_only=True)
class Request(Settings):
    """What a figure shows."""

    model: str
    view: View = field(default_factory=View)
    device: str | None = None
    run: str | None = None
    """The folder of a training run; None is the one the model's weights lie in."""
    table: str | None = None
    """A csv file of scores."""
    width_cm: float | None = None
    predicted: Predicted | None = None
    """Predictions already at hand; otherwise they are worked out."""

    @cached_property
    def embedder(self) -> Embedder:
        """The model, loaded on first use."""
        return Embedder(self.model, device=self.device)

    def voronoi(self) -> Any:
        """The chosen tessellation of an encoder that has sites."""
        if not self.embedder.has_sites:
            raise ConfigError(f"{self.model} has no sites: this figure is for Voronoi encoders")
        every = self.embedder.encoder.voronois()
        if not 0 <= self.tessellation < len(every):
            raise ConfigError(f"tessellation is {self.tessellation}; the model's are numbered 0 to {len(every) - 1}")
        return every[self.tessellation]

    def positions(self) -> Floats:
        """Where the tessellation's sites lie, (K, 3)."""
        return np.asarray(self.voronoi().positions().detach().cpu().double().numpy())

    def attention(self, latlon: Floats) -> Array:
        """The attention of each place (N, 2) to each token, (N, T)."""
        self.voronoi()
        parts = []
        for start in range(0, len(latlon), EXPLAIN_AT_ONCE):
            part = self.embedder.explain(latlon[start : start + EXPLAIN_AT_ONCE]).token_attention
            if part is None:
                raise ConfigError(f"{self.model} has no semantic tokens")
            parts.append(part)
        return np.concatenate(parts)

    def pixels(self, usual: int) -> Pixels:
        """The pixels of the map."""
        return self.view.pixels(self.columns or usual)

    def map_figure(self, below_cm: float = 0.35) -> Any:
        """A figure with one axis of the map's own shape, and room for a bar or legend below."""
        width = self.width_cm or COLUMN_CM
        return new_figure(width, (width - 0.7) * self.view.aspect() + below_cm)

    def tiles(self, latlon: Floats) -> "Tiles":
        """The pictures of places (N, 2), from the first source of the feature store that `store` describes.

        All are stretched together, so that bright and dark places keep their order.
        """
        store = self._tile_store()
        recipe = OWN_EARTH if store is None else FeatureStore(store, verify=False).recipe.sources[0]
        source = build_source(recipe)
        pictures = to_picture(source.tiles(latlon), source.bands).transpose(0, 2, 3, 1)
        size, scale = recipe.options.get("size"), recipe.options.get("km_per_pixel")
        brightened = np.asarray(255 * (pictures / 255) ** BRIGHTENED).round().astype(np.uint8)
        return Tiles(brightened, float(size) * float(scale) if size and scale else None)

    def _tile_store(self) -> str | None:
        if self.store is not None:
            return self.store
        try:
            folder = find_run(self.model, self.run) / STORE
        except ConfigError:
            return None
        return str(folder) if (folder / "manifest.json").is_file() else None


class Tiles(NamedTuple):
    """Pictures of places."""

    pictures: npt.NDArray[np.uint8]
    """(N, h, w, 3)."""
    km: float | None
    """The width of a tile on the ground, where its source says so."""


def read_settings(texts: Mapping[str, str]) -> dict[str, Any]:
    """Settings by name as a `Request` takes them, from texts; an unknown name or another type is a ConfigError."""
    settings = from_plain(Settings, {name: read_value(text) for name, text in texts.items()})
    return {name: getattr(settings, name) for name in texts}


def read_view(projection: str | None, region: str | None, center: str | None) -> View:
    """A view from a projection's name, a region's, and the middle of the map as "LAT,LON"."""
    if center is None:
        return build_view(projection, region)
    try:
        lat, lon = (float(part) for part in center.split(","))
    except ValueError:
        raise CoordinateError(f"center is {center!r}; give LAT,LON in degrees such as 45,10") from None
    check_latlon(np.array([lat, lon]))
    return build_view(projection, region, (lat, lon))


def find_run(model: str, run: str | None) -> Path:
    """The folder of a training run: the one named, a shipped model's own, else the one whose weights the model is."""
    if run is not None:
        if not Path(run).is_dir():
            raise DataError(f"there is no run folder {run}")
        return Path(run)
    lies = shipped_folder(model) or Path(model)
    for folder in (lies, *lies.parents[:2]):
        if (folder / METRICS_FILE).is_file() or (folder / TRAJECTORIES).is_file():
            return folder
    raise ConfigError(f"{model} lies in no run folder; name the folder of its training with --run DIR")


def read_metrics(folder: Path) -> list[dict[str, Any]]:
    """The rows of a run's metrics, in the order they were written."""
    path = folder / METRICS_FILE
    try:
        rows = [json.loads(line) for line in path.read_text("utf-8").splitlines() if line.strip()]
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path} cannot be read as one JSON object a line: {first_line(error)}") from None
    if not rows or not all(isinstance(row, dict) for row in rows):
        raise DataError(f"{path} holds no JSON objects, one a line")
    if not any("training" in row for row in rows):
        raise DataError(f"{path} has no row of training losses")
    return rows


def read_scores(path: Path, x: str) -> list[Score]:
    """Scores from a csv: a column `x` names ("sites"), and accuracy and r2, one or both; split may be a fourth."""
    try:
        table = pa.csv.read_csv(path)
    except (OSError, pa.ArrowException) as error:
        raise TableError(f"cannot read {path}: {first_line(error)}") from None
    names = table.column_names
    if x not in names or not {"accuracy", "r2"} & set(names):
        raise TableError(f"{path} has columns {', '.join(names)}; it needs {x}, and accuracy or r2 or both")
    try:
        scores = [
            Score(float(row[x]), str(row.get("split", "")), _number(row.get("accuracy")), _number(row.get("r2")))
            for row in table.to_pylist()
        ]
    except (TypeError, ValueError):
        raise TableError(f"{path} has text or blanks where numbers belong ({x}, accuracy, r2)") from None
    if len({score.x for score in scores}) < 2:
        raise TableError(f"{path} has {len({score.x for score in scores})} values of {x}; a curve needs at least 2")
    return sorted(scores)


def _number(value: Any) -> float:
    return float("nan") if value is None or value == "" else float(value)


TOP_K_TASKS = ("koppen", "country", "temperature", "elevation")
"""Two of each kind: their means are what the curves show."""


def predict(models: Sequence[str], task_name: str, *, split: str = "random", device: str | None = None) -> Predicted:
    """The predictions of a ridge probe on each model's embeddings, at held-out places."""
    task = evaluation.load_task(task_name)
    rows = task.split or evaluation.build_splits(split, task.latlon)[0]
    said = {}
    for group in evaluation.read_models(list(models)):
        outcome = _probe(Embedder(group.members[0], device=device), [task], rows)[0]
        if outcome.prediction is None:
            raise DataError(f"{group.label} on {task.name}: {outcome.reason}")
        value = evaluation.score(task.kind, task.target[rows.test], outcome.prediction)
        said[f"{group.label} ({evaluation.METRICS[task.kind][0]} {value:.3f})"] = outcome.prediction
    return Predicted(
        latlon=task.latlon[rows.test],
        truth=task.target[rows.test],
        said=said,
        unit=task.unit,
        classes=task.classes if task.kind == "classify" else None,
    )


def score_top_k(model: str, kept: Sequence[int], *, split: str = "random", device: str | None = None) -> list[Score]:
    """Mean accuracy and mean R2 of ridge probes when only the `k` largest site weights of a place are kept."""
    tasks = [evaluation.load_task(name) for name in TOP_K_TASKS]
    if any(not np.array_equal(task.latlon, tasks[0].latlon) for task in tasks):
        tasks = _at_common_places(tasks)
    rows = evaluation.build_splits(split, tasks[0].latlon)[0]
    scores = []
    for k in kept:
        embedder = Embedder(model, device=device, top_k=k)
        if not embedder.has_sites:
            raise ConfigError(f"{model} has no sites to keep: top-k is for Voronoi encoders")
        told = _probe(embedder, tasks, rows)
        means = [_mean_score(told, kind, rows) for kind in ("classify", "regress")]
        scores.append(Score(float(k), split, *means))
    return scores


def _mean_score(told: Sequence[Outcome], kind: Kind, rows: evaluation.Split) -> float:
    """The mean over the tasks of a kind that a probe could be fitted to."""
    able = [(one.task, one.prediction) for one in told if one.task.kind == kind and one.prediction is not None]
    return float(np.mean([evaluation.score(kind, task.target[rows.test], said) for task, said in able]))


def _probe(embedder: Embedder, tasks: Sequence[Task], rows: evaluation.Split) -> list[Outcome]:
    embedded = np.asarray(embedder.embed(tasks[0].latlon), dtype=np.float32)
    sides = evaluation.Sides(train=embedded[rows.train], test=embedded[rows.test])
    return evaluation.run_probe("ridge", tasks, sides, rows, few=False, device=find_device(str(embedder.device)))


def _at_common_places(tasks: Sequence[Task]) -> list[Task]:
    """The tasks at the places all of them know, in the order of the first."""
    # A place as one complex number, which numpy compares as a whole.
    places = [np.ascontiguousarray(task.latlon).view(np.complex128)[:, 0] for task in tasks]
    common = tasks[0].latlon[np.logical_and.reduce([np.isin(places[0], other) for other in places])]
    if not len(common):
        raise DataError("the tasks of a top-k curve share no places")
    rows = [evaluation.rows_within(common, task.latlon) for task in tasks]
    return [
        replace(task, latlon=common, target=task.target[at], countries=None)
        for task, at in zip(tasks, rows, strict=True)
    ]
