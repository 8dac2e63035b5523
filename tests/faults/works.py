"""What takes long and must survive: each kind of work, small, and what it leaves behind when nothing disturbs it."""

from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import torch
from PIL import Image

from tessearth.bulk.rasters import write_raster
from tessearth.bulk.tables import ModelChoice, TableJob, encode_table
from tessearth.embedding.retrieval import Database, save_database
from tessearth.encoder.weights import load_weights, save
from tessearth.imagery.building import build_store
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.sphere.sampling import sample_sphere
from tessearth.storage.formats import ROWS_AT_ONCE
from tessearth.training.finetuning import finetune
from tessearth.training.loop import pretrain
from tests.conftest import tiny_encoder
from tests.faults.harness import Tick, contents
from tests.training.fabricate import fabricate_store, toy_recipe

GRID = {"bbox": (0, 20, 40, 60), "resolution": 0.1, "dims": 3}
CELLS = {"bbox": (-180, 60, 180, 90), "h3": 2, "dims": 3, "dtype": "float32"}
PARTS = 4


class Given(NamedTuple):
    """What work starts from."""

    model: Path
    store: Path
    table: Path
    picture: Path


class Work(NamedTuple):
    """Something that writes into a folder, and goes on there when it is asked again."""

    run: Callable[[Given, Path, Tick], object]
    result: Callable[[Path], dict[str, bytes]]


def make_given(folder: Path) -> Given:
    """A model, a finished store, a table of several parts and a picture of the Earth."""
    given = Given(folder / "m.safetensors", folder / "store", folder / "p.parquet", folder / "earth.png")
    save(tiny_encoder(dtype=torch.float32), given.model, provenance={"recipe": "none"})
    fabricate_store(given.store, pca=8)
    lat, lon = sample_sphere(PARTS * ROWS_AT_ONCE - 100, 0).T
    pq.write_table(pa.table({"id": np.arange(len(lat)), "lat": lat, "lon": lon}), given.table)
    pixels = np.random.default_rng(0).integers(0, 256, (18, 36, 3), dtype=np.uint8)
    Image.fromarray(pixels).resize((720, 360), Image.Resampling.BICUBIC).save(given.picture)
    return given


def table_job(given: Given, output: Path) -> TableJob:
    choice = ModelChoice(model=str(given.model), device="cpu")
    form = "npy" if output.suffix == ".npy" else "parquet"
    return TableJob(source=str(given.table), output=str(output), format=form, choice=choice)  # type: ignore[arg-type]


def feature_recipe(given: Given) -> FeatureRecipe:
    source = SourceRecipe(
        kind="global-raster",
        options={"path": str(given.picture), "size": 12, "km_per_pixel": 50.0},
        encoder_options={"num_filters": 4, "num_patches": 100},
    )
    places = PlacesRecipe(where="sphere", count=90, seed=3, validation=0.2)
    return FeatureRecipe(sources=(source,), places=places, fit_places=32, pca=4)


def train(given: Given, folder: Path, tick: Tick) -> None:
    pretrain(
        toy_recipe(steps=12, checkpoint_every=4, evaluate_every=6),
        folder / "run",
        store=given.store,
        resume=True,
        device="cpu",
        progress=lambda *_: tick(),
    )


def make_features(given: Given, folder: Path, tick: Tick) -> None:
    build_store(feature_recipe(given), folder / "store", chunk_places=16, progress=lambda *_: tick())


def encode(given: Given, folder: Path, tick: Tick) -> None:
    encode_table(table_job(given, folder / "o.parquet"), workers=1, progress=lambda *_: tick())


def encode_array(given: Given, folder: Path, tick: Tick) -> None:
    encode_table(table_job(given, folder / "o.npy"), workers=1, progress=lambda *_: tick())


def map_as(suffix: str, options: dict[str, object]) -> Callable[[Given, Path, Tick], object]:
    def draw(given: Given, folder: Path, tick: Tick) -> None:
        write_raster(given.model, folder / f"map{suffix}", device="cpu", progress=lambda *_: tick(), **options)  # type: ignore[arg-type]

    return draw


def write_database(given: Given, folder: Path, tick: Tick) -> None:
    save_database(database(), folder / "db.npz")


def database() -> Database:
    rng = np.random.default_rng(0)
    keys, values = (rng.normal(size=(200, width)).astype(np.float32) for width in (18, 12))
    return Database(sample_sphere(200, 1), keys, values)


def tune(given: Given, folder: Path, tick: Tick) -> None:
    latlon = sample_sphere(120, 3)
    out = folder / "tuned"
    if not (out / "head.safetensors").exists():
        settings = {"epochs": 2, "batch_size": 64, "device": "cpu"}
        finetune(given.model, latlon, np.sin(np.deg2rad(latlon[:, 1])), out=out, **settings)  # type: ignore[arg-type]


def weights_of(folder: Path) -> dict[str, bytes]:
    """The numbers of every encoder in a run, and where its sites were."""
    found = {}
    for path in sorted(folder.rglob("*.safetensors")):
        if path.name in {"best.safetensors", "last.safetensors", "encoder.safetensors"}:
            state = load_weights(path).state_dict()
            found[path.name] = b"".join(tensor.numpy().tobytes() for _, tensor in sorted(state.items()))
    for path in folder.rglob("trajectories.npz"):
        with np.load(path) as arrays:
            found |= {name: arrays[name].tobytes() for name in arrays.files}
    return found


WORKS: dict[str, Work] = {
    "pretrain": Work(train, weights_of),
    "features": Work(make_features, contents),
    "encode": Work(encode, contents),
    "raster tif": Work(map_as(".tif", GRID), contents),
    "raster zarr": Work(map_as(".zarr", {**GRID, "dtype": "float16"}), contents),
    "raster parquet": Work(map_as(".parquet", CELLS), contents),
    "database": Work(write_database, lambda folder: {"db": (folder / "db.npz").read_bytes()[-64:]}),
    "finetune": Work(tune, weights_of),
}
