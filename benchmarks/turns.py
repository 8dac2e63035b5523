"""Timing that takes turns: rivals share the same cores, and the best round of each counts.

Other programs on the machine can only make a round slower.
"""

import time
from collections.abc import Callable
from typing import Any

import torch


def in_turns(works: dict[str, Callable[[], Any]], rounds: int, device: torch.device) -> tuple[dict[str, float], dict]:
    """The shortest time of each in seconds, and what each gave."""
    seconds: dict[str, float] = dict.fromkeys(works, float("inf"))
    results: dict[str, Any] = {}
    for _ in range(rounds):
        for name, work in works.items():
            wait(device)
            start = time.perf_counter()
            results[name] = work()
            wait(device)
            seconds[name] = min(seconds[name], time.perf_counter() - start)
    return seconds, results


def wait(device: torch.device) -> None:
    """Until the device has done what was asked of it."""
    if device.type == "cuda":
        torch.cuda.synchronize(device)
