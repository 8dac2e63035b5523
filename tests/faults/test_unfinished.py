"""Unfinished work that was damaged while nobody looked: it is done again or refused, and never believed."""

import contextlib
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tessearth.errors import TessearthError
from tests.faults.harness import contents, flipped, shortened
from tests.faults.works import WORKS, Given

Results = Callable[[str], dict[str, bytes]]

ENOUGH = {"features": 4, "encode": 3, "raster parquet": 4, "raster zarr": 4, "raster tif": 4}
"""Steps after which each work is left unfinished."""
QUICK = ("features", "encode", "raster parquet")


class Left(BaseException):
    """Whatever ended the work."""


@pytest.fixture(scope="module")
def begun(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], Path]:
    """A folder in which a work was begun."""
    known: dict[str, Path] = {}

    def find(name: str) -> Path:
        if name not in known:
            steps = iter(range(ENOUGH[name]))

            def stop() -> None:
                if next(steps, None) is None:
                    raise Left

            known[name] = tmp_path_factory.mktemp("begun")
            with pytest.raises(Left):
                WORKS[name].run(given, known[name], stop)
        return known[name]

    return find


@pytest.fixture(scope="module")
def whole(given: Given, tmp_path_factory: pytest.TempPathFactory) -> Callable[[str], dict[str, bytes]]:
    known: dict[str, dict[str, bytes]] = {}

    def find(name: str) -> dict[str, bytes]:
        if name not in known:
            folder = tmp_path_factory.mktemp("whole")
            WORKS[name].run(given, folder, lambda: None)
            known[name] = WORKS[name].result(folder)
        return known[name]

    return find


def damages(content: bytes, flips: int) -> Iterator[bytes]:
    yield from flipped(content, flips, seed=len(content))
    yield from list(shortened(content))[:: 3 if flips < 10 else 1]


def go_on(name: str, given: Given, begun: Path, whole: dict[str, bytes], folder: Path, flips: int) -> int:
    """Damage every file of an unfinished work in turn and go on; how often that came to the right result."""
    right = 0
    for damaged in sorted(contents(begun)):
        if damaged.endswith(".lock"):
            continue
        for number, content in enumerate(damages((begun / damaged).read_bytes(), flips)):
            copy = folder / f"{damaged.replace('/', '_')}-{number}"
            shutil.copytree(begun, copy)
            (copy / damaged).write_bytes(content)
            with contextlib.suppress(TessearthError):
                WORKS[name].run(given, copy, lambda: None)
                assert WORKS[name].result(copy) == whole, f"{damaged}, damage {number}, was believed"
                right += 1
            shutil.rmtree(copy)
    return right


@pytest.mark.parametrize("name", QUICK)
def test_no_damage_to_unfinished_work_is_believed(
    name: str, given: Given, begun: Callable[[str], Path], whole: Results, tmp_path: Path
) -> None:
    assert go_on(name, given, begun(name), whole(name), tmp_path, flips=2) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ENOUGH)
def test_no_damage_whatever_to_unfinished_work_is_believed(
    name: str, given: Given, begun: Callable[[str], Path], whole: Results, tmp_path: Path
) -> None:
    assert go_on(name, given, begun(name), whole(name), tmp_path, flips=10) > 0


def test_an_array_that_is_gone_is_made_again(
    given: Given, begun: Callable[[str], Path], whole: Results, tmp_path: Path
) -> None:
    shutil.copytree(begun("features"), tmp_path / "copy")
    (tmp_path / "copy" / "store" / "features.npy").unlink()
    WORKS["features"].run(given, tmp_path / "copy", lambda: None)
    assert WORKS["features"].result(tmp_path / "copy") == whole("features")


def test_a_scale_that_lost_a_bit_is_refused(given: Given, tmp_path: Path) -> None:
    """Of a raster in whole numbers the scale is half the value, and it stands in the plan alone."""
    from tests.faults.works import GRID, map_as

    draw = map_as(".zarr", {**GRID, "dtype": "int8"})
    steps = iter(range(2))

    def stop() -> None:
        if next(steps, None) is None:
            raise Left

    with pytest.raises(Left):
        draw(given, tmp_path, stop)
    plan = tmp_path / "map.zarr.part" / "plan.json"
    text = plan.read_text()
    at = text.index('"scale"') + text[text.index('"scale"') :].index("0.") + 3
    plan.write_text(text[:at] + str((int(text[at]) + 1) % 10) + text[at + 1 :])
    with pytest.raises(TessearthError, match=r"plan\.json cannot be read or is damaged; remove"):
        draw(given, tmp_path, lambda: None)


def test_a_window_that_is_damaged_while_the_output_is_made_is_in_no_output(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from tessearth.bulk import rasters

    real = rasters._fill

    def fill_and_damage(*arguments: object) -> None:
        real(*arguments)  # type: ignore[arg-type]
        path = next(p for p in sorted((tmp_path / "map.parquet.part").glob("window-*.raw")) if p.stat().st_size)
        content = bytearray(path.read_bytes())
        content[5] ^= 1
        path.write_bytes(content)

    monkeypatch.setattr(rasters, "_fill", fill_and_damage)
    with pytest.raises(TessearthError, match="is damaged; run it again, and it is computed anew"):
        WORKS["raster parquet"].run(given, tmp_path, lambda: None)
    assert not (tmp_path / "map.parquet").exists()


@pytest.mark.slow
def test_a_finished_zarr_store_tells_its_readers_of_a_turned_bit(given: Given, tmp_path: Path) -> None:
    zarr = pytest.importorskip("zarr")
    WORKS["raster zarr"].run(given, tmp_path, lambda: None)
    chunk = max((tmp_path / "map.zarr" / "embedding" / "c").rglob("*"), key=lambda path: path.stat().st_size)
    content, rng = chunk.read_bytes(), np.random.default_rng(0)
    expected = zarr.open_group(str(tmp_path / "map.zarr"), mode="r")["embedding"][...].tobytes()
    for bit in rng.integers(0, len(content) * 8, 200):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << (bit % 8)
        chunk.write_bytes(changed)
        try:
            found = zarr.open_group(str(tmp_path / "map.zarr"), mode="r")["embedding"][...].tobytes()
        except Exception:
            continue
        assert found == expected, f"bit {bit} of {chunk.name}"
