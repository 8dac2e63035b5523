"""The feature store: what it holds, that interruptions change no byte, and that faults are found."""

import contextlib
import json
import multiprocessing
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from functools import partial
from pathlib import Path

import numpy as np
import pytest
import safetensors.numpy
import torch
from PIL import Image

from tessearth.errors import ConfigError, DataError, OutputError, UnknownNameError
from tessearth.imagery import building
from tessearth.imagery.building import build_store
from tessearth.imagery.contact_sheet import draw_contact_sheet
from tessearth.imagery.image_encoders import build_image_encoder
from tessearth.imagery.reading import build_source, join_sources, read_ahead, read_tiles
from tessearth.imagery.recipe import FeatureRecipe, PlacesRecipe, SourceRecipe
from tessearth.imagery.store import FeatureStore
from tessearth.sphere.sampling import split_places

CHUNK = 32
PLACES = 150


@pytest.fixture(scope="session")
def raster(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A small globe of soft random colours."""
    rng = np.random.default_rng(0)
    coarse = Image.fromarray(rng.integers(0, 256, (18, 36, 3), dtype=np.uint8))
    path = tmp_path_factory.mktemp("raster") / "earth.png"
    coarse.resize((720, 360), Image.Resampling.BICUBIC).save(path)
    return path


def make_recipe(raster: Path, **changes: object) -> FeatureRecipe:
    def source(km: float) -> SourceRecipe:
        return SourceRecipe(
            kind="global-raster",
            options={"path": str(raster), "size": 14, "km_per_pixel": km},
            crop=12,
            encoder="rcf",
            encoder_options={"num_filters": 8, "num_patches": 400},
        )

    values: dict[str, object] = {
        "sources": (source(55.0), source(110.0)),
        "places": PlacesRecipe(where="sphere", count=PLACES, seed=3, validation=0.2),
        "fit_places": 40,
        **changes,
    }
    return FeatureRecipe(**values)  # type: ignore[arg-type]


def build(recipe: FeatureRecipe, path: Path, **options: object) -> FeatureStore:
    return build_store(recipe, path, chunk_places=CHUNK, **options)  # type: ignore[arg-type]


def content(path: Path) -> dict[str, bytes]:
    return {str(p.relative_to(path)): p.read_bytes() for p in sorted(path.rglob("*")) if p.is_file()}


@pytest.fixture(scope="module")
def finished(raster: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    path = tmp_path_factory.mktemp("stores") / "finished"
    build(make_recipe(raster), path)
    return path


@pytest.fixture
def copy(finished: Path, tmp_path: Path) -> Path:
    shutil.copytree(finished, tmp_path / "copy")
    return tmp_path / "copy"


def test_a_store_holds_places_and_what_the_encoders_say_of_them(raster: Path, finished: Path) -> None:
    store = FeatureStore(finished)
    assert store.features.shape == (PLACES, 1, store.manifest["width"])
    assert store.features.dtype == np.float16
    assert isinstance(store.features, np.memmap)
    held_out = split_places(store.latlon, validation=0.2, seed=3)
    np.testing.assert_array_equal(store.validation, np.flatnonzero(held_out))
    np.testing.assert_array_equal(np.sort(np.concatenate([store.training, store.validation])), np.arange(PLACES))
    parts = []
    for number, recipe in enumerate(store.recipe.sources):
        tiles = build_source(recipe).tiles(store.latlon)[:, :, 1:13, 1:13]
        encoder = build_image_encoder(finished / "encoders" / f"{number}.safetensors")
        parts.append(encoder.encode(torch.from_numpy(np.ascontiguousarray(tiles))))
    np.testing.assert_array_equal(store.features[:, 0], torch.cat(parts, dim=1).half().numpy())


def test_the_manifest_says_what_made_it(finished: Path) -> None:
    manifest = json.loads((finished / "manifest.json").read_text())
    assert manifest["complete"]
    assert manifest["sources"][0]["source"]["files"][0]["sha256"]
    assert manifest["sources"][0]["encoder"]["name"] == "rcf"
    assert manifest["made_with"].keys() == {"tessearth", "numpy", "torch"}
    assert sorted(content(finished)) == sorted(
        ["encoders/0.safetensors", "encoders/1.safetensors", "features.npy", "manifest.json", "places.parquet"]
    )


@pytest.mark.parametrize("options", [{"readers": 1}, {"readers": 3}, {"processes": 2}])
def test_the_same_recipe_gives_the_same_bytes_whoever_reads(
    raster: Path, finished: Path, tmp_path: Path, options: dict[str, int]
) -> None:
    build(make_recipe(raster), tmp_path / "again", **options)
    assert content(tmp_path / "again") == content(finished)


def test_a_reading_process_that_is_killed_is_replaced(
    raster: Path, finished: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    encode, killed = building.encode_views, []

    def kill_a_reader_and_encode(*views: object) -> object:
        if not killed:
            killed.append(multiprocessing.active_children()[0].pid or 0)
            os.kill(killed[0], signal.SIGKILL)
        return encode(*views)  # type: ignore[arg-type]

    monkeypatch.setattr(building, "encode_views", kill_a_reader_and_encode)
    build(make_recipe(raster), tmp_path / "again", processes=1)
    assert killed
    assert content(tmp_path / "again") == content(finished)


def test_a_readers_own_error_arrives_whole(tmp_path: Path, raster: Path) -> None:
    """An error is sent from the process that read to the one that asked."""
    read = partial(read_tiles, [Refusing()], np.zeros((4, 2)), make_recipe(raster))
    with pytest.raises(DataError, match=r"^this source refuses$"):
        list(read_ahead(read, [(0, range(2)), (1, range(2, 4))], processes=1))


@pytest.mark.slow
def test_reading_processes_end_with_the_one_that_was_killed(raster: Path, tmp_path: Path) -> None:
    script = f"""
import multiprocessing, time
from functools import partial
import numpy as np
from pathlib import Path
from tests.imagery.test_store import make_recipe
from tessearth.imagery.reading import build_source, read_ahead, read_tiles
recipe = make_recipe(Path({str(raster)!r}))
read = partial(read_tiles, [build_source(each) for each in recipe.sources], np.zeros((9, 2)), recipe)
chunks = read_ahead(read, ((row, range(row, row + 1)) for row in range(9)), processes=1)
next(chunks)
print(multiprocessing.active_children()[0].pid, flush=True)
time.sleep(60)
"""
    with subprocess.Popen([sys.executable, "-c", script], stdout=subprocess.PIPE, text=True) as asking:
        assert asking.stdout is not None
        reading = Path("/proc") / asking.stdout.readline().strip()
        assert (reading / "stat").is_file()
        asking.kill()
    deadline = time.monotonic() + 20
    while (reading / "stat").is_file() and "Z" not in (reading / "stat").read_text().rpartition(")")[2]:
        assert time.monotonic() < deadline, "the reading process lives on"
        time.sleep(0.05)


class Refusing:
    """A source that cannot be read."""

    def tiles(self, latlon: np.ndarray) -> np.ndarray:
        raise DataError("this source refuses")


def test_float32_and_several_views(raster: Path, tmp_path: Path) -> None:
    store = build(make_recipe(raster, dtype="float32", views=3), tmp_path / "views")
    assert store.features.shape[1] == 3
    assert store.features.dtype == np.float32
    plain, first, second = np.moveaxis(store.features, 1, 0)
    assert not np.allclose(plain, first)
    assert not np.allclose(first, second)
    # Views of one place stay more alike than different places.
    near = np.linalg.norm(plain - first, axis=1)
    far = np.linalg.norm(plain - np.roll(plain, 1, axis=0), axis=1)
    assert np.median(near) < np.median(far)


def test_views_do_not_depend_on_how_places_are_chunked(raster: Path, tmp_path: Path) -> None:
    recipe = make_recipe(raster, views=2)
    one = build_store(recipe, tmp_path / "one", chunk_places=50)
    other = build_store(recipe, tmp_path / "other", chunk_places=17)
    # Vectorised arithmetic may round the last bit of a pixel by where it stands in a batch; another draw would show.
    np.testing.assert_allclose(one.features, other.features, rtol=0, atol=4e-3)
    third = build_store(make_recipe(raster, views=2, seed=1), tmp_path / "third", chunk_places=50)
    assert np.abs(third.features[:, 1] - one.features[:, 1]).max() > 0.1


def test_components_keep_the_natural_spectrum(raster: Path, tmp_path: Path) -> None:
    store = build(make_recipe(raster, dtype="float32", pca=6), tmp_path / "pca")
    assert store.components is not None
    assert store.components.shape == (PLACES, 1, 6)
    features = store.features[:, 0].astype(np.float64)
    kept = safetensors.numpy.load_file(tmp_path / "pca" / "components.safetensors")
    centred = features - features[store.training].mean(axis=0)
    np.testing.assert_allclose(store.components[:, 0], centred @ kept["directions"].T, atol=1e-4)
    singular = np.linalg.svd(centred[store.training], compute_uv=False) ** 2 / len(store.training)
    np.testing.assert_allclose(kept["variance"], singular[:6], rtol=1e-4)
    np.testing.assert_allclose(store.components[store.training, 0].var(axis=0), singular[:6], rtol=1e-3)
    assert store.manifest["components"]["share_of_variance"] == pytest.approx(
        singular[:6].sum() / singular.sum(), rel=1e-4
    )


def test_balanced_sources_share_the_variance(raster: Path, tmp_path: Path) -> None:
    loud = make_recipe(raster, dtype="float32", pca=30, balanced=True)
    quiet = build(make_recipe(raster, dtype="float32"), tmp_path / "plain").features[:, 0].astype(np.float64)
    store = build(loud, tmp_path / "balanced")
    assert store.components is not None
    widths = store.manifest["widths"]
    assert sum(widths) == store.manifest["width"] == quiet.shape[1]
    centred = quiet - quiet[store.training].mean(axis=0)
    halves = np.split(centred, np.cumsum(widths)[:-1], axis=1)
    totals = [half[store.training].var(axis=0).sum() for half in halves]
    assert totals[0] != pytest.approx(totals[1], rel=0.01)
    scaled = np.concatenate(
        [half * np.sqrt(sum(widths) / 2 / total) for half, total in zip(halves, totals, strict=True)], axis=1
    )
    expected = np.linalg.svd(scaled[store.training], compute_uv=False) ** 2 / len(store.training)
    np.testing.assert_allclose(store.components[store.training, 0].var(axis=0), expected[:30], rtol=1e-3)


def test_what_a_kill_left_half_written_goes(raster: Path, finished: Path, tmp_path: Path) -> None:
    for left in (
        tmp_path / "store" / ".manifest.json.abc.part",
        tmp_path / "store" / "encoders" / ".0.safetensors.x.part",
    ):
        left.parent.mkdir(parents=True, exist_ok=True)
        left.write_bytes(b"half")
    build(make_recipe(raster), tmp_path / "store")
    assert content(tmp_path / "store") == content(finished)


def test_a_finished_store_is_only_opened(raster: Path, finished: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(building, "build_source", lambda recipe: pytest.fail("the imagery was opened again"))
    before = content(finished)
    build(make_recipe(raster), finished)
    assert content(finished) == before


class Killed(BaseException):
    """Stands for whatever ends a run between two chunks."""


@pytest.mark.parametrize("after", [0, 1, 3, 4])
def test_an_interrupted_run_goes_on_and_gives_the_same_bytes(
    raster: Path, finished: Path, tmp_path: Path, after: int
) -> None:
    def stop(done: int, total: int) -> None:
        if done >= after * CHUNK:
            raise Killed

    with pytest.raises(Killed):
        build(make_recipe(raster), tmp_path / "store", progress=stop)
    with pytest.raises(DataError, match="is not finished; run the same `tessearth features` again"):
        FeatureStore(tmp_path / "store")
    seen: list[int] = []
    build(make_recipe(raster), tmp_path / "store", progress=lambda done, total: seen.append(done))
    assert seen[0] >= min(after * CHUNK, PLACES)  # what was reported is kept, and perhaps chunks that were on their way
    assert content(tmp_path / "store") == content(finished)


def test_two_processes_do_not_make_one_store(raster: Path, tmp_path: Path) -> None:
    path, inside, done = tmp_path / "store", threading.Event(), threading.Event()

    def hold(finished: int, total: int) -> None:
        inside.set()
        done.wait(20)

    first = threading.Thread(target=lambda: build(make_recipe(raster), path, progress=hold))
    first.start()
    try:
        assert inside.wait(20)
        with pytest.raises(DataError, match="another process is making"):
            build(make_recipe(raster), path)
    finally:
        done.set()
        first.join()
    FeatureStore(path)


@contextlib.contextmanager
def small_disk(largest_file: int) -> Iterator[None]:
    import resource

    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (largest_file, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)


def test_room_is_reserved_before_the_work_is_done(raster: Path, tmp_path: Path) -> None:
    with small_disk(8_000), pytest.raises(OutputError, match="cannot reserve room for"):
        build(make_recipe(raster), tmp_path / "store")
    assert not (tmp_path / "store" / "features.npy").exists()
    build(make_recipe(raster), tmp_path / "store")


def test_a_store_of_another_recipe_is_left_alone(raster: Path, copy: Path, tmp_path: Path) -> None:
    before = content(copy)
    with pytest.raises(DataError, match="is a store of another recipe"):
        build(make_recipe(raster, seed=9), copy)
    assert content(copy) == before

    def stop(done: int, total: int) -> None:
        if done:
            raise Killed

    with pytest.raises(Killed):
        build(make_recipe(raster), tmp_path / "begun", progress=stop)
    with pytest.raises(DataError, match="is a store of another recipe"):
        build(make_recipe(raster, dtype="float32"), tmp_path / "begun")


def test_what_failed_before_its_first_chunk_does_not_block_another_recipe(raster: Path, tmp_path: Path) -> None:
    def stop(done: int, total: int) -> None:
        raise Killed

    with pytest.raises(Killed):
        build(make_recipe(raster), tmp_path / "begun", progress=stop)
    build(make_recipe(raster, dtype="float32"), tmp_path / "begun")
    build(make_recipe(raster, dtype="float32"), tmp_path / "whole")
    assert content(tmp_path / "begun") == content(tmp_path / "whole")


def test_imagery_that_changed_meanwhile_is_noticed(raster: Path, tmp_path: Path) -> None:
    own = tmp_path / "earth.png"
    shutil.copy(raster, own)

    def stop(done: int, total: int) -> None:
        if done:
            raise Killed

    with pytest.raises(Killed):
        build(make_recipe(own), tmp_path / "store", progress=stop)
    pixels = np.asarray(Image.open(own)).copy()
    pixels[0, 0] ^= 255
    Image.fromarray(pixels).save(own)
    with pytest.raises(DataError, match="was begun with other sources; remove it and begin again"):
        build(make_recipe(own), tmp_path / "store")


DAMAGE = {
    "a bit of the features": (
        "features.npy",
        lambda b: b[:-50] + bytes([b[-50] ^ 1]) + b[-49:],
        "is damaged: places 128 to",
    ),
    "features cut short": ("features.npy", lambda b: b[: len(b) // 2], "is damaged or missing"),
    "features gone": ("features.npy", None, "is damaged or missing"),
    "places cut short": ("places.parquet", lambda b: b[:100], "cannot be read"),
    "manifest gone": ("manifest.json", None, "is not a feature store"),
    "manifest cut short": ("manifest.json", lambda b: b[:200], "cannot be read"),
    "another format": ("manifest.json", lambda b: b.replace(b"tessearth-features", b"zarr"), "does not describe"),
    "a newer format": (
        "manifest.json",
        lambda b: b.replace(b'"format_version": 1', b'"format_version": 2'),
        "of format 2",
    ),
    "another width": ("manifest.json", lambda b: b.replace(b'"views": 1', b'"views": 2'), "its own checksum"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_store_is_named_when_it_is_opened(copy: Path, damage: str) -> None:
    name, harm, words = DAMAGE[damage]
    if harm is None:
        (copy / name).unlink()
    else:
        (copy / name).write_bytes(harm((copy / name).read_bytes()))
    with pytest.raises(DataError) as caught:
        FeatureStore(copy)
    assert words in str(caught.value)
    assert "\n" not in str(caught.value)


def test_places_that_were_moved_are_noticed(copy: Path) -> None:
    import pyarrow as pa
    import pyarrow.parquet as pq

    table = pq.read_table(copy / "places.parquet")
    pq.write_table(table.set_column(0, "lat", pa.array(table["lat"].to_numpy() + 1e-9)), copy / "places.parquet")
    with pytest.raises(DataError, match="was changed: it does not match the manifest"):
        FeatureStore(copy)


def one_source(raster: Path, **changes: object) -> tuple[SourceRecipe, ...]:
    values = {
        "kind": "global-raster",
        "options": {"path": str(raster), "size": 12, "km_per_pixel": 50.0},
        "encoder_options": {"num_filters": 4, "num_patches": 100},
        **changes,
    }
    return (SourceRecipe(**values),)  # type: ignore[arg-type]


def test_wrong_words_in_a_recipe_are_named(raster: Path, tmp_path: Path) -> None:
    path = tmp_path / "store"
    wrong: list[tuple[dict[str, object], type[Exception], str]] = [
        ({"sources": one_source(raster, kind="blue-marbel")}, UnknownNameError, "did you mean 'blue-marble'"),
        (
            {"sources": one_source(raster, options={"sizes": 3})},
            ConfigError,
            "has no option 'sizes'; did you mean 'size'",
        ),
        ({"sources": one_source(raster, options={"path": str(raster)})}, ConfigError, "cannot be opened"),
        ({"sources": one_source(raster, encoder="rfc")}, UnknownNameError, "did you mean 'rcf'"),
        ({"sources": one_source(raster, encoder_options={"filters": 3})}, ConfigError, "filters"),
        ({"places": PlacesRecipe(where="source")}, ConfigError, "has no places of its own"),
        ({"places": PlacesRecipe(count=1, validation=0.999)}, ConfigError, "would be held out for validation"),
        ({"pca": 10_000}, ConfigError, "pca is 10000, but features are only"),
    ]
    for changes, error, words in wrong:
        with pytest.raises(error, match=words):
            build(make_recipe(raster, **changes), path)
        shutil.rmtree(path, ignore_errors=True)


def test_features_too_large_for_float16_are_refused(raster: Path) -> None:
    with pytest.raises(ConfigError, match="a feature of place 64 is 1e\\+06, too large for float16"):
        join_sources([torch.zeros(3, 1, 2), torch.full((3, 1, 2), 1e6)], make_recipe(raster), range(64, 67))


def test_places_of_a_sources_own(tmp_path: Path) -> None:
    rng = np.random.default_rng(0)
    (tmp_path / "images").mkdir()
    lines = ["fn,lat,lon"]
    for number in range(9):
        Image.fromarray(rng.integers(0, 256, (16, 16, 3), dtype=np.uint8)).save(tmp_path / "images" / f"{number}.png")
        lines.append(f"{number}.png,{10 + number},{-20 - number}")
    (tmp_path / "places.csv").write_text("\n".join(lines) + "\n")
    options = {"folder": str(tmp_path / "images"), "table": str(tmp_path / "places.csv")}
    source = SourceRecipe(kind="image-folder", options=options, encoder_options={"num_filters": 4, "num_patches": 100})
    places = PlacesRecipe(where="source", validation=0.3)
    store = build_store(FeatureRecipe(sources=(source,), places=places), tmp_path / "store")
    np.testing.assert_allclose(store.latlon[:, 0], 10 + np.arange(9))
    few = PlacesRecipe(where="source", count=4, validation=0.0)
    assert len(build_store(FeatureRecipe(sources=(source,), places=few), tmp_path / "few").latlon) == 4


def test_a_contact_sheet_shows_every_source_and_view(raster: Path, tmp_path: Path) -> None:
    store = build(make_recipe(raster, views=2), tmp_path / "store")
    draw_contact_sheet(store, tmp_path / "sheet.png", count=10)
    sheet = np.asarray(Image.open(tmp_path / "sheet.png"))
    assert sheet.shape[2] == 3
    assert sheet.shape[0] > 4 * 2 * 96
    assert sheet.std() > 10
    with pytest.raises(ConfigError, match="a sheet of 0 tiles"):
        draw_contact_sheet(store, tmp_path / "no.png", count=0)


def test_no_write_permission_is_named(raster: Path) -> None:
    import tempfile

    from tests.cli.conftest import without_privileges

    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o555)
        with without_privileges(), pytest.raises(OutputError, match=r"cannot make .*: permission denied"):
            build(make_recipe(raster), Path(name) / "store")
        assert list(Path(name).iterdir()) == []
