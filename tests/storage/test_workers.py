"""A pool gives what a plain loop gives, whatever its workers are and whatever becomes of them."""

import os
import signal
import struct
import sys
import threading
import time
import types
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from tessearth.errors import MissingExtraError, OutputError
from tessearth.evaluation import runner
from tessearth.evaluation.plan import build_plan
from tessearth.evaluation.probes import REFERENCES
from tessearth.evaluation.runner import Runner
from tessearth.storage import workers
from tessearth.storage.workers import open_pool, side_by_side
from tests.conftest import tiny_encoder
from tests.evaluation.fabricate import class_task, number_task


def test_results_come_in_order_and_threads_are_put_back() -> None:
    before = torch.get_num_threads()
    met = threading.Barrier(3, timeout=20)

    def work(item: int) -> tuple[int, int]:
        met.wait()  # passes only when three run at the same time
        return item * item, torch.get_num_threads()

    assert list(side_by_side(work, range(6), 3)) == [(item * item, 1) for item in range(6)]
    assert torch.get_num_threads() == before


def test_an_error_is_raised_and_what_waits_is_not_begun() -> None:
    begun: list[int] = []

    def work(item: int) -> int:
        begun.append(item)
        if item == 0:
            raise KeyboardInterrupt
        time.sleep(0.02)  # all of them would take ten seconds: long enough for the error to be seen on a busy machine
        return item

    with pytest.raises(KeyboardInterrupt):
        list(side_by_side(work, range(1000), 2))
    assert len(begun) < 1000


def test_scores_do_not_depend_on_how_many_work(monkeypatch: pytest.MonkeyPatch) -> None:
    plan = build_plan([number_task(), class_task()], ["random", "20deg"])
    groups = runner.read_models({"tiny": tiny_encoder(dtype=torch.float32)})
    found = []
    for count in (1, 3):
        threads = types.SimpleNamespace(get_num_threads=lambda n=count: n, __version__=torch.__version__)
        monkeypatch.setattr(runner, "torch", threads)
        trial = Runner(plan, ["ridge", "knn"], torch.device("cpu"))
        made, _ = trial.run(groups, tuple(REFERENCES), {}, lambda *_: None)
        found.append((made.scores, made.breakdowns))
    assert found[0] == found[1]


def test_there_are_never_more_than_eight_however_many_are_asked_for() -> None:
    at_work: set[int] = set()
    most: list[int] = []

    def work(item: int) -> int:
        at_work.add(item)
        most.append(len(at_work))
        time.sleep(0.05)
        at_work.discard(item)
        return item

    assert list(side_by_side(work, range(24), 100)) == list(range(24))
    assert 2 < max(most) <= 8


def square(number: int) -> int:
    return number * number


def die_once(path: str) -> str:
    """End this process without a word, the first time."""
    if not Path(path).exists():
        Path(path).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    return path


def die(_: int) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


def fail(number: int) -> None:
    raise MissingExtraError(f"work {number}", "geo")


POOLS: list[dict[str, Any]] = [
    {"kind": "here"},
    {"kind": "threads", "workers": 2},
    {"kind": "processes", "workers": 2, "start_method": "fork"},
    {"kind": "processes", "workers": 2, "start_method": "spawn"},
]


@pytest.mark.parametrize("pool", POOLS)
def test_every_kind_of_pool_gives_every_result(pool: dict[str, Any]) -> None:
    expected = [(str(number), number * number) for number in range(9)]
    with open_pool(**pool) as opened:
        tasks = [(str(number), number) for number in range(9)]
        assert list(opened.run(square, tasks, at_once=3)) == expected
        assert sorted(opened.run(square, tasks, ordered=False)) == expected
        assert opened.call(square, 5) == 25
        with pytest.raises(MissingExtraError, match=r"work 0 needs .* pip install 'tessearth\[geo\]'"):
            opened.call(fail, 0)


def test_tasks_are_read_no_further_ahead_than_asked() -> None:
    read: list[int] = []

    def tasks() -> Iterator[tuple[int, int]]:
        for number in range(100):
            read.append(number)
            yield number, number

    with open_pool("threads", 2) as pool:
        for done, _ in pool.run(square, tasks(), at_once=3):
            assert read[-1] <= done + 3


def test_a_worker_that_is_killed_is_replaced_and_one_that_always_dies_is_named(tmp_path: Path) -> None:
    with open_pool("processes", 2, start_method="fork", advice="take fewer") as pool:
        paths = [str(tmp_path / name) for name in "abc"]
        assert [path for path, _ in pool.run(die_once, zip(paths, paths, strict=True))] == paths
        with pytest.raises(OutputError, match=r"4 times .*\(last process \d+ by signal 9\), perhaps .*: take fewer"):
            pool.call(die, 0)


def die_in_the_middle_of_an_answer(marker: Path) -> str:
    """The first call sends the length of an answer and two bytes of it; the next one answers."""
    if marker.exists():
        return "answered"
    marker.touch()
    frame = sys._getframe()
    while "result_queue" not in frame.f_locals:
        assert frame.f_back is not None
        frame = frame.f_back
    os.write(frame.f_locals["result_queue"]._writer.fileno(), struct.pack("!i", 1000) + b"ab")
    os.kill(os.getpid(), signal.SIGKILL)
    return "never"


def test_a_worker_that_is_killed_in_the_middle_of_an_answer_is_replaced(tmp_path: Path) -> None:
    with open_pool("processes", 2) as pool:
        assert pool.call(die_in_the_middle_of_an_answer, tmp_path / "marker") == "answered"


def test_where_the_system_cannot_tell_no_worker_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(workers, "PROC", Path("/nowhere"))
    healthy = types.SimpleNamespace(pid=1, kill=lambda: pytest.fail("a healthy worker"))
    used = float("-inf")
    for _ in range(3):
        used = workers._end_hung([healthy], used)
