"""The cache of prepared arrays: what is damaged is made again, what changed is kept apart, many may prepare at once."""

import hashlib
import json
import threading
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import DataError
from tessearth.labels import sources
from tessearth.labels.sources import Arrays, DataSource, load_prepared, prepared_path, read_prepared

Build = Callable[[], tuple[Arrays, dict]]


@pytest.fixture(autouse=True)
def own_cache(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("TESSEARTH_CACHE", str(tmp_path / "cache"))


@pytest.fixture
def package(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A package with one data file, as an installer leaves it; the path of the file."""
    data = tmp_path / "site" / "madeup_data" / "numbers.txt"
    data.parent.mkdir(parents=True)
    (data.parent / "__init__.py").write_text("raise RuntimeError('data packages are never imported')")
    install(data, "1 2 3")
    monkeypatch.syspath_prepend(str(tmp_path / "site"))
    card = DataSource(distribution="madeup-data", files=("numbers.txt",), licence="none")
    monkeypatch.setitem(sources.SOURCES, "madeup", card)
    return data


def install(data: Path, content: str) -> None:
    data.write_text(content)
    about = data.parents[1] / "madeup_data-1.5.dist-info" / "METADATA"
    about.parent.mkdir(exist_ok=True)
    about.write_text("Metadata-Version: 2.1\nName: madeup-data\nVersion: 1.5\n")
    sources.file_sha256.cache_clear()


def counting_builder(source: Path) -> tuple[list[int], Build]:
    calls: list[int] = []

    def build() -> tuple[Arrays, dict]:
        calls.append(1)
        numbers = np.array(source.read_text().split(), dtype=np.int16)
        return {"numbers": numbers, "transposed": np.arange(6.0).reshape(2, 3).T}, {"note": "counted"}

    return calls, build


def test_the_second_call_reads_what_the_first_built(package: Path) -> None:
    calls, build = counting_builder(package)
    first = load_prepared("numbers", ["madeup"], build)
    second = load_prepared("numbers", ["madeup"], build)
    assert len(calls) == 1
    for found in (first, second):
        np.testing.assert_array_equal(found.arrays["numbers"], [1, 2, 3])
        np.testing.assert_array_equal(found.arrays["transposed"], np.arange(6.0).reshape(2, 3).T)
        assert found.arrays["numbers"].dtype == np.int16
        assert found.about["note"] == "counted"


def test_provenance_is_kept_inside(package: Path) -> None:
    _, build = counting_builder(package)
    (row,) = load_prepared("numbers", ["madeup"], build).about["sources"]
    assert (row["package"], row["version"], row["licence"]) == ("madeup-data", "1.5", "none")
    assert row["files"] == {"numbers.txt": hashlib.sha256(b"1 2 3").hexdigest()}


def flip(position: int) -> Callable[[bytes], bytes]:
    def change(content: bytes) -> bytes:
        changed = bytearray(content)
        changed[position] ^= 1
        return bytes(changed)

    return change


@pytest.mark.parametrize(
    "damage",
    [
        flip(-1),
        flip(-30),
        lambda content: content.replace(b"counted", b"counter"),
        lambda content: content[:-7],
        lambda content: content[:20],
        lambda content: content + b"more",
        lambda content: b"",
        lambda content: b"nothing like it",
    ],
)
def test_a_damaged_file_is_made_again(package: Path, damage: Callable[[bytes], bytes]) -> None:
    calls, build = counting_builder(package)
    load_prepared("numbers", ["madeup"], build)
    path = prepared_path("numbers", ["madeup"])
    whole = path.read_bytes()
    damaged = damage(whole)
    assert damaged != whole
    path.write_bytes(damaged)
    with pytest.raises(DataError, match="damaged"):
        read_prepared(path)
    np.testing.assert_array_equal(load_prepared("numbers", ["madeup"], build).arrays["numbers"], [1, 2, 3])
    assert len(calls) == 2
    assert path.read_bytes() == whole


def test_other_files_settings_or_versions_are_kept_apart(package: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    plain = prepared_path("numbers", ["madeup"])
    other_settings = prepared_path("numbers", ["madeup"], {"count": 5})
    with monkeypatch.context() as patch:
        patch.setattr(sources, "VERSION", sources.VERSION + 1)
        other_version = prepared_path("numbers", ["madeup"])
    install(package, "4 5 6")
    other_content = prepared_path("numbers", ["madeup"])
    assert len({plain, other_settings, other_version, other_content}) == 4
    install(package, "1 2 3")
    assert prepared_path("numbers", ["madeup"]) == plain


def test_a_builder_that_fails_leaves_nothing(package: Path) -> None:
    def fail() -> tuple[Arrays, dict]:
        raise DataError("no such column")

    with pytest.raises(DataError, match="no such column"):
        load_prepared("numbers", ["madeup"], fail)
    assert list(prepared_path("numbers", ["madeup"]).parent.iterdir()) == []


def test_many_may_prepare_at_once(package: Path) -> None:
    start, found = threading.Barrier(8), []
    _, build = counting_builder(package)

    def work() -> None:
        start.wait()
        found.append(load_prepared("numbers", ["madeup"], build).arrays["numbers"].tolist())

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert found == [[1, 2, 3]] * 8
    assert [path.suffix for path in prepared_path("numbers", ["madeup"]).parent.iterdir()] == [".safetensors"]


def test_real_packages_are_described() -> None:
    for name in ("climate map", "houses", "outlines"):
        assert json.dumps(sources.describe_source(name))
