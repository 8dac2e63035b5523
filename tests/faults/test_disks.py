"""A full disk, a folder that cannot be written: one line says so, what was finished is kept, nothing is half there."""

import json
import re
import tempfile
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tessearth.bulk import rasters
from tessearth.embedding.cache import EmbeddingCache
from tessearth.errors import OutputError
from tessearth.imagery.store import FeatureStore
from tessearth.labels.sources import write_prepared
from tessearth.storage.files import write_bytes
from tessearth.storage.jobs import Entry, Job
from tests.cli.conftest import without_privileges
from tests.faults.forker import Forker
from tests.faults.harness import FULL, SmallDisk, leftovers
from tests.faults.works import WORKS, Given, Work, encode_array, write_database

Results = Callable[[str], dict[str, bytes]]

KILOBYTES = {
    "pretrain": 96,
    "features": 16,
    "encode": 3000,
    "raster tif": 400,
    "raster zarr": 100,
    "raster parquet": 64,
    "database": 16,
    "finetune": 16,
}
"""Room for a beginning of each work, and not for its end."""


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_a_full_disk_is_one_line_and_with_room_the_work_goes_on(
    name: str, forker: Forker, given: Given, undisturbed: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    expected = undisturbed(name)
    monkeypatch.setattr(rasters, "check_room", lambda *_: None)  # or it would not even begin
    with SmallDisk(tmp_path / "disk", KILOBYTES[name]) as disk:
        with pytest.raises(OutputError, match=FULL) as caught:
            WORKS[name].run(given, disk.path, lambda: None)
        assert "\n" not in str(caught.value)
        assert leftovers(disk.path) == []
        disk.grow()
        WORKS[name].run(given, disk.path, lambda: None)
        assert WORKS[name].result(disk.path) == expected


def test_a_full_disk_leaves_the_old_database_as_it_was(given: Given, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 24) as disk:
        (disk.path / "db.npz").write_bytes(b"the old one")
        with pytest.raises(OutputError, match=rf"cannot write .*db\.npz: ({FULL}); no partial file was left"):
            write_database(given, disk.path, lambda: None)
        assert (disk.path / "db.npz").read_bytes() == b"the old one"
        assert [path.name for path in disk.path.iterdir()] == ["db.npz"]


def test_a_table_that_does_not_fit_goes_on_when_there_is_room(given: Given, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 3000) as disk:
        with pytest.raises(OutputError, match=FULL):
            encode_array(given, disk.path, lambda: None)
        finished = dict(Job(disk.path / "o.npy.parts").entries)
        assert finished
        disk.grow()
        noted: list[dict[int, Entry]] = []
        encode_array(given, disk.path, lambda: noted.append(Job(disk.path / "o.npy.parts").entries))
        assert noted[len(finished) - 1] == finished, "what was finished was done again"
        assert len(np.load(disk.path / "o.npy")) == 4 * 16_384 - 100


def test_a_disk_too_small_for_a_raster_is_found_before_it_is_begun(given: Given, tmp_path: Path) -> None:
    with SmallDisk(tmp_path / "disk", 16) as disk:
        words = "GB on the way and .* GB are free" if disk.mounted else FULL
        with pytest.raises(OutputError, match=words):
            WORKS["raster tif"].run(given, disk.path, lambda: None)
        assert not (disk.path / "map.tif").exists()


def test_a_cache_on_a_full_disk_is_no_reason_to_stop(tmp_path: Path) -> None:
    embeddings = np.ones((100, 100), np.float32)
    with SmallDisk(tmp_path / "disk", 8) as disk:
        cache = EmbeddingCache(disk.path)
        cache.write("model", "places", embeddings)
        assert cache.read("model", "places", embeddings.shape) is None
        assert list(disk.path.iterdir()) == []


@pytest.fixture
def read_only() -> Iterator[Path]:
    """A folder that may be read and not written, outside of pytest's own, which nobody else may enter."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name) / "ours"
        folder.mkdir()
        Path(name).chmod(0o755)
        folder.chmod(0o555)
        with without_privileges():
            yield folder


@pytest.fixture(scope="module")
def open_given() -> Iterator[Given]:
    """Things to work on that anybody may read."""
    from tests.faults.works import make_given

    with tempfile.TemporaryDirectory() as name:
        Path(name).chmod(0o755)
        given = make_given(Path(name))
        yield given


@pytest.mark.parametrize("name", WORKS)
def test_a_read_only_folder_is_one_line_and_nothing_is_left(name: str, open_given: Given, read_only: Path) -> None:
    work: Work = WORKS[name]
    with pytest.raises(OutputError, match=r"permission denied|read-only") as caught:
        work.run(open_given, read_only, lambda: None)
    assert "\n" not in str(caught.value)
    assert list(read_only.iterdir()) == []


def test_what_is_only_read_may_be_read_only(open_given: Given) -> None:
    open_given.store.chmod(0o555)
    with without_privileges():
        assert len(FeatureStore(open_given.store).latlon) == 240


def test_a_read_only_cache_is_no_reason_to_stop(read_only: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from tessearth.labels import sources

    monkeypatch.setenv("TESSEARTH_CACHE", str(read_only / "cache"))
    cache = EmbeddingCache()
    cache.write("model", "places", np.ones((3, 2), np.float32))
    assert cache.read("model", "places", (3, 2)) is None

    monkeypatch.setattr(sources, "describe_source", lambda source: source)
    monkeypatch.setattr(sources, "source_hashes", lambda source: {})
    found = sources.load_prepared("table", ["towns"], lambda: ({"x": np.arange(3)}, {"count": 3}))
    np.testing.assert_array_equal(found.arrays["x"], np.arange(3))
    assert found.about == {"count": 3, "sources": ["towns"]}
    assert not found.arrays["x"].flags.writeable


def test_the_error_names_the_path_and_the_reason(read_only: Path) -> None:
    with pytest.raises(OutputError, match=re.escape(f"cannot write {read_only / 'x'}: permission denied")):
        write_bytes(read_only / "x", b"content")
    with pytest.raises(OutputError, match="permission denied"):
        write_prepared(read_only / "y", {"x": np.arange(3)}, json.loads("{}"))
