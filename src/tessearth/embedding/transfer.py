"""Places on their way to a device, and results of one batch after another on their way back into whole arrays."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.sphere import Floats, as_latlon, as_xyz, latlon_to_xyz, xyz_to_latlon


class PlaceBatch(NamedTuple):
    """Some places in float64, as degrees or as directions.

    The trigonometry between the two is done in float64, so longitude wraps exactly.
    """

    values: Tensor
    """Degrees (N, 2) or directions (N, 3)."""
    are_directions: bool

    def latlon(self) -> Tensor:
        """Degrees, latitude first, (N, 2)."""
        return xyz_to_latlon(self.values) if self.are_directions else self.values

    def xyz(self) -> Tensor:
        """Unit vectors, (N, 3)."""
        return self.values if self.are_directions else latlon_to_xyz(self.values)


class Places(NamedTuple):
    """Checked places, flattened, with the shape they came in."""

    values: Floats
    shape: tuple[int, ...]
    are_directions: bool

    def directions(self) -> npt.NDArray[np.float32]:
        """Unit vectors of a few places, (N, 3); for many, a batch's own are faster."""
        if self.are_directions:
            return self.values.astype(np.float32)
        xyz = [
            (math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat))
            for lat, lon in np.radians(self.values).tolist()
        ]
        return np.array(xyz, dtype=np.float32)

    def batches(self, size: int) -> Iterator[tuple[int, PlaceBatch]]:
        """The places in batches, each with the index of its first place.

        Without places there is one empty batch, from which results take their widths.
        """
        for start in range(0, max(1, len(self.values)), size):
            part = self.values[start : start + size]
            writable = part if part.flags.writeable else part.copy()  # torch warns of memory it may not write
            yield start, PlaceBatch(torch.from_numpy(writable), self.are_directions)


def read_places(points: Any, lat: Any, lon: Any, xyz: Any) -> Places:
    """Places from points, two named coordinates, or directions, in any container that `sphere.coordinates` reads."""
    if xyz is None:
        latlon = as_latlon(points, lat=lat, lon=lon)
        return Places(np.ascontiguousarray(latlon.reshape(-1, 2)), latlon.shape[:-1], are_directions=False)
    if not (points is None and lat is None and lon is None):
        raise ConfigError("places were given twice: pass either xyz= or degrees")
    directions = as_xyz(xyz)
    return Places(np.ascontiguousarray(directions.reshape(-1, 3)), directions.shape[:-1], are_directions=True)


STAGE_BYTES = 2**24
"""The page-locked memory of one stage. There are two: while the device fills one, the host empties the other."""
HELD_BYTES = 2**30
"""A batch no larger than this stays on the device while the next one is computed."""


class _Batch(NamedTuple):
    """What the device makes of some places."""

    start: int
    parts: tuple[Tensor, ...]
    made: torch.cuda.Event | None


class _Stage:
    """Page-locked memory that a device writes on a stream of its own."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream
        self.room = torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=stream is not None)
        self.arrived = torch.cuda.Event() if stream is not None else None  # type: ignore[no-untyped-call]

    def send(self, numbers: Tensor) -> Tensor:
        """Begin to copy numbers here, and return where they will be."""
        here = self.room[: numbers.nbytes].view(numbers.dtype)
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            here.copy_(numbers, non_blocking=True)
            if self.arrived is not None:
                self.arrived.record()
        return here

    def receive(self, here: Tensor, target: Tensor) -> None:
        """Wait for what was sent and put it where it belongs."""
        if self.arrived is not None:
            self.arrived.synchronize()
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
        self._stages: list[_Stage] = []
        self._held: _Batch | None = None

    def add(self, start: int, parts: Sequence[Tensor]) -> None:
        """Take the results of the batch that begins at `start`; half precision becomes float32."""
        wide = tuple(part.to(torch.float32 if part.dtype.itemsize < 4 else part.dtype).contiguous() for part in parts)
        size = sum(part.nbytes for part in wide)
        if len(wide[0]) == self.total and (size <= STAGE_BYTES or not self.is_staged):
            self.results = [part.cpu().numpy() for part in wide]
            return
        if start == 0:
            names = [str(part.dtype).removeprefix("torch.") for part in wide]
            self.results = [np.empty((self.total, *p.shape[1:]), name) for p, name in zip(wide, names, strict=True)]
        self._fetch_held()
        made = torch.cuda.current_stream(self.device).record_event() if self.device.type == "cuda" else None
        self._held = _Batch(start, wide, made)
        if size > HELD_BYTES or not self.is_staged:
            self._fetch_held()

    def finish(self) -> list[npt.NDArray[Any]]:
        """Every result, whole."""
        self._fetch_held()
        return self.results

    def _fetch_held(self) -> None:
        """Bring the batch that is still on the device into the results."""
        held, self._held = self._held, None
        if held is None:
            return
        if not self.is_staged:
            for numbers, target in self._pieces(held, most_bytes=None):
                target.copy_(numbers)
            return
        stages = self._open_stages()
        if stages[0].stream is not None and held.made is not None:
            stages[0].stream.wait_event(held.made)
        sent: tuple[_Stage, Tensor, Tensor] | None = None
        for number, (numbers, target) in enumerate(self._pieces(held, STAGE_BYTES)):
            stage = stages[number % len(stages)]
            here = stage.send(numbers)
            if sent is not None:
                sent[0].receive(*sent[1:])
            sent = stage, here, target
        if sent is not None:
            sent[0].receive(*sent[1:])

    def _pieces(self, batch: _Batch, most_bytes: int | None) -> Iterator[tuple[Tensor, Tensor]]:
        """A batch's numbers, in pieces of `most_bytes` or whole, each with the part of a result it belongs to."""
        for result, part in zip(self.results, batch.parts, strict=True):
            numbers = part.view(-1)
            first = batch.start * (len(numbers) // max(1, len(part)))
            target = torch.from_numpy(result).view(-1)[first : first + len(numbers)]
            size = max(1, len(numbers) if most_bytes is None else most_bytes // part.dtype.itemsize)
            yield from zip(torch.split(numbers, size), torch.split(target, size), strict=True)

    def _open_stages(self) -> list[_Stage]:
        if not self._stages:
            is_gpu = self.device.type == "cuda"
            stream = torch.cuda.Stream(self.device) if is_gpu else None  # type: ignore[no-untyped-call]
            self._stages = [_Stage(stream) for _ in range(2)]
        return self._stages
