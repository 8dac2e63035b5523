"""SIGKILL: whatever the moment, what was finished is kept, and the same call goes on to the same result."""

import os
import signal
from collections.abc import Callable
from pathlib import Path

import pytest

from tessearth.storage.files import atomic_write, write_bytes
from tests.faults.forker import Forker
from tests.faults.harness import in_child, leftovers
from tests.faults.works import WORKS, Given, table_job

SOME = {"features": 15, "encode": 3, "raster tif": 5, "raster parquet": 20, "database": 1, "pretrain": 9}
"""Every so-many-th moment; every moment, and what takes long to import, in the slow suite."""
SLOW = {"pretrain"}

Results = Callable[[str], dict[str, bytes]]


def kill_and_compare(name: str, every: int, forker: Forker, undisturbed: Results, folder: Path) -> None:
    """Do a work again and again, each time killed a few moments later, until it ends well."""
    expected, kills = undisturbed(name), 0
    while status := forker.do(name, folder, moment=kills * every):
        assert status == -signal.SIGKILL, f"ended with {status} instead of the kill at moment {kills * every}"
        kills += 1
        assert kills < 300, "nothing of what it did is kept"
    assert kills >= 2
    assert WORKS[name].result(folder) == expected
    assert leftovers(folder) == []


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[pytest.mark.slow] if name in SLOW else []) for name in SOME]
)
def test_killed_again_and_again_it_comes_to_the_same_result(
    name: str, forker: Forker, undisturbed: Results, tmp_path: Path
) -> None:
    kill_and_compare(name, SOME[name], forker, undisturbed, tmp_path)


@pytest.mark.slow
@pytest.mark.parametrize("name", WORKS)
def test_killed_at_every_moment_it_comes_to_the_same_result(
    name: str, forker: Forker, undisturbed: Results, tmp_path: Path
) -> None:
    kill_and_compare(name, 1, forker, undisturbed, tmp_path)


def test_what_was_there_before_a_kill_stays_and_the_next_write_tidies_up(tmp_path: Path) -> None:
    target = tmp_path / "result.npy"
    write_bytes(target, b"the old content")

    def die_while_writing() -> None:
        with atomic_write(target) as file:
            file.write(b"half of the n")
            file.flush()
            os.kill(os.getpid(), signal.SIGKILL)

    assert in_child(die_while_writing) == -signal.SIGKILL
    assert target.read_bytes() == b"the old content"
    assert len(leftovers(tmp_path)) == 1
    write_bytes(target, b"the new content")
    assert target.read_bytes() == b"the new content"
    assert leftovers(tmp_path) == []


@pytest.mark.slow
def test_several_workers_end_with_the_process_that_started_them(given: Given, tmp_path: Path) -> None:
    from tessearth.bulk.tables import encode_table

    def die_after_a_part(done: int, total: int | None) -> None:
        if done:
            (tmp_path / "workers").write_text(Path(f"/proc/self/task/{os.getpid()}/children").read_text())
            os.kill(os.getpid(), signal.SIGKILL)

    job = table_job(given, tmp_path / "o.parquet")
    assert in_child(lambda: encode_table(job, workers=2, progress=die_after_a_part)) == -signal.SIGKILL
    for pid in (tmp_path / "workers").read_text().split():
        for _ in range(2000):
            if not Path(f"/proc/{pid}").exists():
                break
            signal.sigtimedwait([], 0.01)
        assert not Path(f"/proc/{pid}").exists(), "a worker lives on without anybody to work for"
