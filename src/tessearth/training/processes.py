"""Several processes that train together, started by torchrun; and being asked to stop."""

import contextlib
import os
import signal
import threading
from collections.abc import Iterator
from types import FrameType

import torch
import torch.distributed as dist

from tessearth.errors import ConfigError
from tessearth.training.gathering import is_distributed


def choose_device(device: str | None) -> torch.device:
    """The device asked for, else a GPU when there is one; under torchrun each process has its own."""
    try:
        chosen = torch.device(device or ("cuda" if torch.cuda.is_available() else "cpu"))
    except RuntimeError:
        raise ConfigError(f"there is no device {device!r}; it is cpu, cuda or such as cuda:0") from None
    if chosen.type == "cuda":
        if not torch.cuda.is_available():
            raise ConfigError(f"device {device!r} was asked for, but torch sees no GPU here; leave it out, or say cpu")
        index = int(os.environ.get("LOCAL_RANK", "0")) if chosen.index is None else chosen.index
        chosen = torch.device("cuda", index)
        torch.cuda.set_device(chosen)
    elif chosen.type != "cpu":
        raise ConfigError(f"training runs on cpu and cuda, not on {device!r}")
    return chosen


@contextlib.contextmanager
def process_group(device: torch.device) -> Iterator[int]:
    """Join the processes torchrun started, if it did; the number of this one."""
    started_here = int(os.environ.get("WORLD_SIZE", "1")) > 1 and not dist.is_initialized()
    if started_here:
        dist.init_process_group("nccl" if device.type == "cuda" else "gloo")
    try:
        yield dist.get_rank() if is_distributed() else 0
    finally:
        if started_here:
            dist.destroy_process_group()


def wait_for_all() -> None:
    """Come back when every process has called this."""
    if is_distributed():
        dist.barrier()


class StopRequest:
    """Ctrl-C or a polite kill, remembered until a step is over; a second one is obeyed at once."""

    def __init__(self) -> None:
        self.asked = False

    @contextlib.contextmanager
    def listening(self) -> Iterator[None]:
        """Listen while the block runs; only a program's main thread can."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        before = {number: signal.signal(number, self._note) for number in (signal.SIGINT, signal.SIGTERM)}
        try:
            yield
        finally:
            for number, handler in before.items():
                signal.signal(number, handler)

    def agreed(self, device: torch.device, *, now: bool) -> bool:
        """Whether to stop; several processes must all do so at the same step, so they only ask each other `now`."""
        if not is_distributed():
            return self.asked
        if not now:
            return False
        asked = torch.tensor(float(self.asked), device=device)
        dist.all_reduce(asked, dist.ReduceOp.MAX)
        return bool(asked)

    def _note(self, number: int, frame: FrameType | None) -> None:
        if self.asked:
            raise KeyboardInterrupt
        self.asked = True
