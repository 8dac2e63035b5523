"""Several processes on one folder, one that runs out of memory, one that hangs, a clock that leaps."""

import contextlib
import dataclasses
import multiprocessing
import os
import resource
import shutil
import signal
import time
from collections.abc import Callable
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq
import pytest

from tessearth.bulk.tables import encode_table
from tessearth.embedding.cache import EmbeddingCache
from tessearth.errors import DataError, OutputError
from tessearth.imagery import building
from tessearth.imagery.store import FeatureStore
from tessearth.labels.sources import read_prepared, write_prepared
from tessearth.storage import files, workers
from tessearth.storage.files import atomic_write, locked_folder, write_bytes
from tessearth.storage.jobs import Job
from tests.faults.harness import in_child, jumping_clock
from tests.faults.works import WORKS, Given, encode, feature_recipe, make_features, table_job

Results = Callable[[str], dict[str, bytes]]
BUSY = OutputError("another process is at work here")


def test_a_lock_whose_folder_was_removed_binds_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The last holder removes the folder in the very moment between our opening the lock and holding it."""
    folder, real, removed = tmp_path / "o.parts", files._lock, []

    def late(lock: Any) -> bool:
        if not removed:
            removed.append(shutil.rmtree(folder))
        return real(lock)

    monkeypatch.setattr(files, "_lock", late)
    with (
        locked_folder(folder, busy=BUSY),
        pytest.raises(OutputError, match="another process is at work here"),
        locked_folder(folder, busy=BUSY),
    ):
        pytest.fail("two hold one folder")
    assert removed


def test_two_writers_of_one_file_do_not_take_each_other_for_dead(tmp_path: Path) -> None:
    target = tmp_path / "cache.safetensors"
    with atomic_write(target) as file:
        file.write(b"of the slow one")
        file.flush()
        assert in_child(lambda: write_bytes(target, b"of the quick one")) == 0
        assert target.read_bytes() == b"of the quick one"
    assert target.read_bytes() == b"of the slow one"
    assert [path.name for path in tmp_path.iterdir()] == ["cache.safetensors"]


def test_many_processes_fill_one_cache_and_all_read_what_is_right(tmp_path: Path) -> None:
    arrays = {"x": np.arange(20_000.0)}

    def write_and_read() -> None:
        for _ in range(15):
            write_prepared(tmp_path / "c.safetensors", arrays, {"count": 20_000})
            np.testing.assert_array_equal(read_prepared(tmp_path / "c.safetensors").arrays["x"], arrays["x"])

    def four_of_them() -> None:
        context = multiprocessing.get_context("fork")
        workers = [context.Process(target=write_and_read) for _ in range(4)]
        for worker in workers:
            worker.start()
        for worker in workers:
            worker.join()
        assert [worker.exitcode for worker in workers] == [0] * 4

    assert in_child(four_of_them) == 0
    assert [path.name for path in tmp_path.iterdir()] == ["c.safetensors"]


def test_a_store_that_another_process_finished_meanwhile_is_only_opened(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    make_features(given, tmp_path, lambda: None)
    real, looks = building.is_store, iter([False])
    monkeypatch.setattr(building, "is_store", lambda path: next(looks, None) is not False and real(path))
    monkeypatch.setattr(building, "build_source", lambda recipe: pytest.fail("the work is done a second time"))
    building.build_store(feature_recipe(given), tmp_path / "store", chunk_places=16)
    FeatureStore(tmp_path / "store")


@pytest.mark.parametrize("name", ["pretrain", "features", "encode", "raster parquet", "finetune"])
def test_a_second_process_is_turned_away_and_disturbs_nothing(name: str, given: Given, tmp_path: Path) -> None:
    folders = {"pretrain": "run", "features": "store", "encode": "o.parquet.parts", "finetune": "tuned"}
    with (
        locked_folder(tmp_path / folders.get(name, "map.parquet.part"), busy=BUSY),
        pytest.raises((OutputError, ValueError), match="another process is") as caught,
    ):
        WORKS[name].run(given, tmp_path, lambda: None)
    assert "\n" not in str(caught.value)


def hang() -> None:
    os.kill(os.getpid(), signal.SIGSTOP)


def think(seconds: float) -> str:
    end = time.process_time() + seconds
    while time.process_time() < end:
        pass
    return "thought"


def test_a_worker_that_hangs_is_told_from_one_that_thinks() -> None:
    pool = ProcessPoolExecutor(1, multiprocessing.get_context("fork"))
    try:
        thinking = pool.submit(think, 1.0)
        used = workers._end_hung(workers._processes_of(pool), float("-inf"))
        time.sleep(0.5)
        used = workers._end_hung(workers._processes_of(pool), used)
        assert thinking.result(timeout=30) == "thought"
        hanging = pool.submit(hang)
        used = workers._end_hung(workers._processes_of(pool), used)
        time.sleep(0.5)
        workers._end_hung(workers._processes_of(pool), used)
        with pytest.raises(BrokenProcessPool):
            hanging.result(timeout=30)
    finally:
        for process in list((pool._processes or {}).values()):
            process.kill()
        pool.shutdown()


def workers_of_this_process() -> list[int]:
    children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
    return [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]


@pytest.mark.slow
def test_a_table_survives_workers_that_hang(
    given: Given, undisturbed: Results, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(workers, "SILENT_SECONDS", 3.0)
    stopped: list[int] = []

    def stop_one(done: int, total: int | None) -> None:
        if done and not stopped:
            stopped.extend(workers_of_this_process()[:1])
            os.kill(stopped[0], signal.SIGSTOP)

    encode_table(table_job(given, tmp_path / "o.parquet"), workers=2, progress=stop_one)
    assert stopped
    assert (tmp_path / "o.parquet").read_bytes() == undisturbed("encode")["o.parquet"]
    with contextlib.suppress(ProcessLookupError):
        os.kill(stopped[0], 0)
        pytest.fail("the worker that hung was left behind")


def limit_memory(pid: int, more: int) -> None:
    """Let a process have so many more bytes than it has now."""
    pages = int(Path(f"/proc/{pid or 'self'}/statm").read_text().split()[0])
    limit = pages * resource.getpagesize() + more
    resource.prlimit(pid, resource.RLIMIT_AS, (limit, limit))


def take_all_memory() -> list[bytearray]:
    """Leave this process nothing but crumbs."""
    limit_memory(0, 2**22)
    taken: list[bytearray] = []
    for size in (2**20, 2**18, 2**16):
        with contextlib.suppress(MemoryError):
            while True:
                taken.append(bytearray(size))
    return taken


def test_want_of_memory_is_one_line_and_with_memory_the_work_goes_on(
    given: Given, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    def encode_in_little_memory() -> None:
        taken: list[bytearray] = []
        with pytest.raises(OutputError, match="a worker ran out of memory: the same command with fewer --workers"):
            encode(given, tmp_path, lambda: taken.extend(take_all_memory()))

    assert in_child(encode_in_little_memory) == 0, capfd.readouterr().err
    assert not (tmp_path / "o.parquet").exists()
    assert chunks_in(tmp_path) >= 1
    encode(given, tmp_path, lambda: None)
    assert pq.read_metadata(tmp_path / "o.parquet").num_rows == pq.read_metadata(given.table).num_rows


@pytest.mark.slow
def test_a_table_survives_workers_without_memory(given: Given, undisturbed: Results, tmp_path: Path) -> None:
    tightened: list[int] = []

    def tighten(done: int, total: int | None) -> None:
        if done and not tightened:
            tightened.extend(workers_of_this_process())
            for pid in tightened:
                limit_memory(pid, 2**18)

    with contextlib.suppress(OutputError):  # said in one line, or done by workers that took their place
        encode_table(table_job(given, tmp_path / "o.parquet"), workers=2, progress=tighten)
    assert tightened
    if not (tmp_path / "o.parquet").exists():
        encode_table(table_job(given, tmp_path / "o.parquet"), workers=1)
    assert (tmp_path / "o.parquet").read_bytes() == undisturbed("encode")["o.parquet"]


def chunks_in(folder: Path) -> int:
    return len(Job(folder / "o.parquet.parts").entries)


def begin_and_stop(given: Given, folder: Path) -> None:
    """Encode a table until two chunks are there."""

    def stop() -> None:
        if chunks_in(folder) >= 2:
            raise InterruptedError

    with pytest.raises((InterruptedError, OutputError)):
        encode(given, folder, stop)


def chunks_made(given: Given, folder: Path, monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Go on, and say which chunks had to be made."""
    made, real = [], Job.note
    monkeypatch.setattr(
        Job, "note", lambda job, number, *some, **more: (made.append(number), real(job, number, *some, **more))
    )
    encode(given, folder, lambda: None)
    return made


def test_a_tables_date_has_no_say_in_what_is_done(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own = given._replace(table=tmp_path / "p.parquet")
    shutil.copy(given.table, own.table)
    begin_and_stop(own, tmp_path)
    os.utime(own.table, (0, 0))  # the clock leapt, or somebody copied the table
    assert chunks_made(own, tmp_path, monkeypatch) == [2, 3]


def test_a_table_that_changed_under_its_old_date_is_noticed(
    given: Given, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    own, before = given._replace(table=tmp_path / "p.parquet"), given.table.stat()
    shutil.copy(given.table, own.table)
    os.utime(own.table, ns=(before.st_mtime_ns, before.st_mtime_ns))
    begin_and_stop(own, tmp_path)
    table = pq.read_table(own.table)
    lat = table["lat"].to_numpy().copy()
    lat[20_000] = -lat[20_000]
    pq.write_table(table.set_column(1, "lat", [lat]), own.table)
    os.utime(own.table, ns=(before.st_mtime_ns, before.st_mtime_ns))
    assert chunks_made(own, tmp_path, monkeypatch) == [1, 2, 3]


@pytest.mark.parametrize("name", ["features", "encode"])
def test_results_do_not_depend_on_the_clock(name: str, given: Given, tmp_path: Path) -> None:
    for folder in ("steady", "leaping"):
        (tmp_path / folder).mkdir()
        with jumping_clock() if folder == "leaping" else contextlib.nullcontext():
            WORKS[name].run(given, tmp_path / folder, lambda: None)
    assert WORKS[name].result(tmp_path / "steady") == WORKS[name].result(tmp_path / "leaping")


def test_a_cache_whose_files_are_of_tomorrow_still_tells_the_truth(tmp_path: Path) -> None:
    cache = EmbeddingCache(tmp_path, limit_bytes=1500)
    for number, date in enumerate((2e9, 0.0, 4e9)):
        cache.write("model", f"places {number}", np.full((10, 10), number, np.float32))
        if cache.path("model", f"places {number}").exists():
            os.utime(cache.path("model", f"places {number}"), (date, date))
    for number in range(3):
        found = cache.read("model", f"places {number}", (10, 10))
        assert found is None or bool((found == number).all())
    assert sum(path.stat().st_size for path in tmp_path.iterdir()) <= 1500


def test_parts_of_another_job_are_never_taken(given: Given, tmp_path: Path) -> None:
    begin_and_stop(given, tmp_path)
    job = table_job(given, tmp_path / "o.parquet")
    with pytest.raises(DataError, match="unfinished work of other settings"):
        encode_table(dataclasses.replace(job, width="float16"), workers=1)
