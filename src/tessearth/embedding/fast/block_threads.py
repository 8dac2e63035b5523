"""Blocks of work side by side: every thread computes blocks of its own, and products inside a block are not divided.

Products of a few hundred rows gain little from being divided, because threads then wait for each other after each of
them; and a block's result does not depend on how many threads there are.
"""

from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import torch


def for_each_block(work: Callable[[int], None], blocks: Sequence[int]) -> None:
    """Call `work` with every block, by as many threads as torch was given; each must write to a place of its own."""
    allowed = torch.get_num_threads()
    if min(allowed, len(blocks)) < 2:
        for block in blocks:
            work(block)
        return

    def quietly(block: int) -> None:
        with torch.inference_mode():  # which is a thread's own
            work(block)

    try:
        with ThreadPoolExecutor(min(allowed, len(blocks)), initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(quietly, blocks):
                pass
    finally:
        torch.set_num_threads(allowed)  # threads that start later take what was set last
