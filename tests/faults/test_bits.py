"""A bit that turned, a file cut short: such a file is refused in one line, made again, or harmless; never believed."""

import json
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import pytest
import torch

from tessearth.embedding.cache import EmbeddingCache
from tessearth.embedding.retrieval import read_database, save_database
from tessearth.encoder.sites import Trajectory
from tessearth.encoder.weights import read_weights, save
from tessearth.errors import DataError, TessearthError
from tessearth.evaluation.geoprior import GeoPrior, load_prior, save_prior
from tessearth.imagery.image_encoders import build_image_encoder
from tessearth.imagery.image_encoders.rcf import RandomConvolution
from tessearth.imagery.store import FeatureStore
from tessearth.labels.sources import read_prepared, write_prepared
from tessearth.sphere.sampling import sample_sphere
from tessearth.training.finetuned import FineTuned, LabelHead, load_finetuned
from tessearth.training.run_folder import Checkpoint, RunFolder
from tessearth.zoo import build_baseline, load_baseline
from tests.conftest import tiny_encoder
from tests.faults.harness import flipped, shortened
from tests.faults.works import Given, database
from tests.training.fabricate import fabricate_store

QUICK, THOROUGH = 40, 3000
"""Bits turned in each file, one at a time."""


class Kept(NamedTuple):
    """A kind of file, how one is made, and what is read off it, as numbers and text that can be compared."""

    make: Callable[[Path], Path]
    read: Callable[[Path], Any]


def plain(value: Any) -> Any:
    """Anything that is read off a file in a form that == compares bit for bit."""
    if isinstance(value, torch.Tensor):
        return plain(value.numpy())
    if isinstance(value, np.ndarray):
        return str(value.dtype), value.shape, value.tobytes()
    if isinstance(value, dict):
        return {key: plain(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [plain(item) for item in value]
    return value


def make_weights(folder: Path, **options: Any) -> Path:
    save(tiny_encoder(dtype=torch.float32), folder / "m.safetensors", **options)
    return folder / "m.safetensors"


def make_baseline(folder: Path) -> Path:
    build_baseline("theory").save(folder / "b.safetensors", provenance={"step": 3})
    return folder / "b.safetensors"


def read_baseline(path: Path) -> Any:
    encoder = load_baseline(path)
    return encoder.name, encoder.state_dict()


def make_filters(folder: Path) -> Path:
    tiles = torch.rand(8, 3, 12, 12, generator=torch.Generator().manual_seed(0))
    encoder = build_image_encoder("rcf", tiles=tiles, num_filters=4, num_patches=50)
    assert isinstance(encoder, RandomConvolution)
    encoder.save(folder / "f.safetensors")
    return folder / "f.safetensors"


STATE = {"weight": torch.arange(60.0).reshape(12, 5), "optimiser": torch.ones(7)}


def make_checkpoint(folder: Path) -> Path:
    RunFolder(folder).save_checkpoint(Checkpoint(40, STATE, 0.5))
    return folder / "checkpoint.safetensors"


def make_trajectory(folder: Path) -> Path:
    rng = np.random.default_rng(0)
    positions, sharpness = (rng.normal(size=(4, 6, width)).astype(np.float32) for width in (3, 1))
    RunFolder(folder).save_trajectory([Trajectory(np.array([0, 4, 8, 12]), positions, sharpness[..., 0])])
    return folder / "trajectories.npz"


def make_head(folder: Path) -> Path:
    head = LabelHead("regress", 18, 1, 0)
    about = {"label": "height", "score": 0.5}
    FineTuned(encoder=tiny_encoder(dtype=torch.float32), head=head, kind="regress", classes=(), about=about).save(
        folder
    )
    return folder / "head.safetensors"


def read_head(path: Path) -> Any:
    tuned = load_finetuned(path.parent)
    return tuned.head.state_dict(), tuned.kind, tuned.classes, tuned.about


def make_prior(folder: Path) -> Path:
    rng = torch.Generator().manual_seed(0)
    prior = GeoPrior(torch.randn(3, 18, generator=rng), torch.randn(3, generator=rng))
    save_prior(prior, folder / "p.safetensors", names=("oak", "elm", "ash"), model="earth", fingerprint="abc")
    return folder / "p.safetensors"


def make_cache(folder: Path) -> Path:
    write_prepared(folder / "c.safetensors", {"x": np.arange(40.0)}, {"count": 40})
    return folder / "c.safetensors"


def make_embeddings(folder: Path) -> Path:
    cache = EmbeddingCache(folder)
    cache.write("fingerprint", "places", np.arange(40, dtype=np.float32).reshape(10, 4))
    return cache.path("fingerprint", "places")


def read_embeddings(path: Path) -> Any:
    return EmbeddingCache(path.parent).read("fingerprint", "places", (10, 4))


def make_database(folder: Path) -> Path:
    save_database(database(), folder / "db.npz")
    return folder / "db.npz"


PLACES = sample_sphere(50, 2)


KEPT: dict[str, Kept] = {
    "weights": Kept(lambda folder: make_weights(folder, provenance={"step": 12}), read_weights),
    "weights of the official layout": Kept(lambda folder: make_weights(folder, layout="official"), read_weights),
    "weights of a baseline": Kept(make_baseline, read_baseline),
    "filters of an image encoder": Kept(make_filters, lambda path: RandomConvolution.load(path).state_dict()),
    "checkpoint": Kept(make_checkpoint, lambda path: RunFolder(path.parent).load_checkpoint(STATE)),
    "trajectories": Kept(make_trajectory, lambda path: RunFolder(path.parent).load_trajectory(100)),
    "fine-tuned head": Kept(make_head, read_head),
    "species prior": Kept(make_prior, load_prior),
    "prepared cache": Kept(make_cache, read_prepared),
    "embedding cache": Kept(make_embeddings, read_embeddings),
    "retrieval database": Kept(make_database, read_database),
}


def believed(path: Path, read: Callable[[Path], Any], whole: Any) -> Iterator[str]:
    """Reads a file whose content is not as it was; a fault when it is read as something else, or not in one line."""
    try:
        found = plain(read(path))
    except TessearthError as error:
        if "\n" in str(error):
            yield f"more than one line: {error}"
    except Exception as error:
        yield f"{type(error).__name__}: {error}"
    else:
        if found not in (whole, None):
            yield "read as something else"


def faults(path: Path, read: Callable[[Path], Any], damaged: Iterator[bytes]) -> list[str]:
    whole, content = plain(read(path)), path.read_bytes()
    assert whole is not None
    found = []
    for changed in damaged:
        path.write_bytes(changed)
        found += [f"{_where(content, changed)}: {fault}" for fault in believed(path, read, whole)]
    path.write_bytes(content)
    assert plain(read(path)) == whole
    return found


def _where(content: bytes, changed: bytes) -> str:
    if len(content) != len(changed):
        return f"cut to {len(changed)} of {len(content)} bytes"
    byte = next(i for i, (a, b) in enumerate(zip(content, changed, strict=True)) if a != b)
    return f"byte {byte} of {len(content)}, {content[byte]:#x} for {changed[byte]:#x}"


@pytest.mark.parametrize("kind", KEPT)
def test_no_file_with_a_turned_bit_is_believed(kind: str, tmp_path: Path) -> None:
    path = KEPT[kind].make(tmp_path)
    assert faults(path, KEPT[kind].read, flipped(path.read_bytes(), QUICK)) == []


@pytest.mark.slow
@pytest.mark.parametrize("kind", KEPT)
def test_no_file_with_any_turned_bit_is_believed(kind: str, tmp_path: Path) -> None:
    path = KEPT[kind].make(tmp_path)
    assert faults(path, KEPT[kind].read, flipped(path.read_bytes(), THOROUGH, seed=1)) == []


@pytest.mark.parametrize("kind", KEPT)
def test_no_file_cut_short_is_believed(kind: str, tmp_path: Path) -> None:
    path = KEPT[kind].make(tmp_path)
    assert faults(path, KEPT[kind].read, shortened(path.read_bytes())) == []


def read_store(path: Path) -> Any:
    store = FeatureStore(path.parent)
    assert store.components is not None
    directions = (path.parent / "components.safetensors").read_bytes()
    arrays = np.array(store.features), np.array(store.components)
    return store.manifest, store.latlon, store.places.validation, *arrays, directions


@pytest.mark.parametrize(
    "name", ["manifest.json", "places.parquet", "features.npy", "components.npy", "components.safetensors"]
)
def test_no_damaged_store_is_believed(name: str, tmp_path: Path) -> None:
    fabricate_store(tmp_path / "store", pca=4, places=80)
    path = tmp_path / "store" / name
    content = path.read_bytes()
    assert faults(path, read_store, flipped(content, QUICK)) == []
    assert faults(path, read_store, shortened(content)) == []


def test_a_large_store_is_verified_before_it_is_trained_on(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tessearth.imagery import store
    from tessearth.training.loop import pretrain
    from tests.training.fabricate import toy_recipe

    shutil.copytree(given.store, tmp_path / "store")
    content = bytearray((tmp_path / "store" / "features.npy").read_bytes())
    content[-10] ^= 4
    (tmp_path / "store" / "features.npy").write_bytes(content)
    monkeypatch.setattr(store, "VERIFIED_BYTES", 0)
    FeatureStore(tmp_path / "store")  # opening alone does not read gigabytes
    with pytest.raises(DataError, match="do not match their checksum"):
        pretrain(toy_recipe(steps=1), tmp_path / "run", store=tmp_path / "store", device="cpu")


def test_a_width_that_lost_a_bit_is_refused(tmp_path: Path) -> None:
    """Of a narrower array not all bytes are read, so an archive's own checksum alone would never be compared."""
    path = make_database(tmp_path)
    content = path.read_bytes()
    assert content.count(b"(200, 12)") == 1
    path.write_bytes(content.replace(b"(200, 12)", b"(200, 10)"))
    with pytest.raises(DataError, match="is not an npz of plain arrays, or is damaged"):
        read_database(path)


def test_files_from_before_there_were_checksums_are_read(tmp_path: Path) -> None:
    import safetensors.torch

    path = make_checkpoint(tmp_path)
    header = {"format": "tessearth-checkpoint-1", "progress": json.dumps({"step": 40, "best": 0.5})}
    path.write_bytes(safetensors.torch.save(STATE, header))
    found = RunFolder(tmp_path).load_checkpoint(STATE)
    assert found is not None
    assert found.step == 40


@pytest.mark.slow
def test_no_damaged_onnx_file_is_believed(tmp_path: Path) -> None:
    from tessearth.embedding.exporting import export
    from tessearth.embedding.onnx import OnnxEmbedder

    export(tiny_encoder(dtype=torch.float32), tmp_path / "m.onnx")

    def read(path: Path) -> Any:
        return OnnxEmbedder(path, threads=1).embed(PLACES)

    path = tmp_path / "m.onnx"
    content = path.read_bytes()
    assert faults(path, read, flipped(content, 400)) == []
    assert faults(path, read, shortened(content)) == []
