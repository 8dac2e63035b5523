"""Draws side by side give what they give one by one."""

import threading
import time

import pytest
import torch

from tessearth.evaluation import runner
from tessearth.evaluation.plan import build_plan
from tessearth.evaluation.runner import Runner
from tessearth.storage.workers import side_by_side
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


def test_one_worker_is_a_plain_loop_in_the_same_thread() -> None:
    assert list(side_by_side(lambda _: threading.current_thread(), [0, 1], 1)) == [threading.current_thread()] * 2


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
    for workers in (1, 3):
        monkeypatch.setattr(runner, "side_by_side", lambda work, items, _, n=workers: side_by_side(work, items, n))
        made = Runner(plan, ["ridge", "knn"], torch.device("cpu")).run(groups, True, {}, lambda *_: None)
        found.append((made.results.scores, made.results.breakdowns))
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
