"""Results of one batch after another on their way from a device into whole arrays."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

STAGE_BYTES = 2**24
"""The page-locked memory of one stage. There are two: while the device fills one, the host empties the other."""
HELD_BYTES = 2**30
"""A batch no larger than this stays on the device while the next one is computed."""


class _Stage:
    """Page-locked memory that a device writes on a stream of its own."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream
        self.room = torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=stream is not None)
        self.arrived = torch.cuda.Event() if stream is not None else None  # type: ignore[no-untyped-call]
        self.sent: tuple[Tensor, Tensor] | None = None

    def send(self, numbers: Tensor, target: Tensor) -> None:
        """Begin to copy numbers here, on their way to their target."""
        here = self.room[: numbers.nbytes].view(numbers.dtype)
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            here.copy_(numbers, non_blocking=True)
            if self.arrived is not None:
                self.arrived.record()
        self.sent = here, target

    def receive(self) -> None:
        """Wait for what was sent, if anything was, and put it where it belongs."""
        if self.sent is None:
            return
        if self.arrived is not None:
            self.arrived.synchronize()
        (here, target), self.sent = self.sent, None
        target.copy_(here)


class Gatherer:
    """Arrays as long as all places together, filled batch by batch.

    A GPU copies into ordinary memory slowly, and everything waits meanwhile. Its results therefore go through
    page-locked memory, and all threads move them from there while the GPU computes the next batch.
    """

    def __init__(self, total: int, device: torch.device, *, is_staged: bool | None = None) -> None:
        self.total, self.device = total, device
        self.is_staged = device.type == "cuda" if is_staged is None else is_staged
        self.results: list[npt.NDArray[Any]] = []
        self._filled = 0
        self._stages: list[_Stage] = []
        self._held: list[tuple[Tensor, Tensor]] = []
        """The batch that is still on the device: numbers, and the part of a result they belong to."""
        self._made: torch.cuda.Event | None = None

    def add(self, parts: Sequence[Tensor]) -> None:
        """Take the results of the next batch; half precision becomes float32."""
        wide = [part.to(torch.float32 if part.dtype.itemsize < 4 else part.dtype).contiguous() for part in parts]
        size = sum(part.nbytes for part in wide)
        if len(wide[0]) == self.total and (size <= STAGE_BYTES or not self.is_staged):
            self.results = [part.cpu().numpy() for part in wide]
            return
        if not self.results:
            names = [str(part.dtype).removeprefix("torch.") for part in wide]
            self.results = [np.empty((self.total, *p.shape[1:]), name) for p, name in zip(wide, names, strict=True)]
        rows = slice(self._filled, self._filled + len(wide[0]))
        self._filled = rows.stop
        targets = [torch.from_numpy(result)[rows] for result in self.results]
        if not self.is_staged:
            for part, target in zip(wide, targets, strict=True):
                target.copy_(part)
            return
        self._fetch_held()
        self._held = list(zip(wide, targets, strict=True))
        self._made = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        if size > HELD_BYTES:
            self._fetch_held()

    def finish(self) -> list[npt.NDArray[Any]]:
        """Every result, whole."""
        self._fetch_held()
        return self.results

    def _fetch_held(self) -> None:
        """Bring the batch that is still on the device into the results."""
        if not self._held:
            return
        if not self._stages:
            is_gpu = self.device.type == "cuda"
            stream = torch.cuda.Stream(self.device) if is_gpu else None  # type: ignore[no-untyped-call]
            self._stages = [_Stage(stream) for _ in range(2)]
        if self._stages[0].stream is not None and self._made is not None:
            self._stages[0].stream.wait_event(self._made)
        stage, other = self._stages
        for numbers, target in self._pieces():
            stage.send(numbers, target)
            other.receive()
            stage, other = other, stage
        other.receive()
        self._held = []

    def _pieces(self) -> Iterator[tuple[Tensor, Tensor]]:
        """What is held, in pieces that fit into a stage."""
        for part, target in self._held:
            size = max(1, STAGE_BYTES // part.dtype.itemsize)
            yield from zip(torch.split(part.view(-1), size), torch.split(target.view(-1), size), strict=True)
