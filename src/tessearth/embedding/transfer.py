"""Results of one batch after another on their way from a device into arrays that hold them all."""

import contextlib
import math
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.sphere.coordinates import Floats, as_latlon, as_xyz
from tessearth.sphere.geometry import latlon_to_xyz, xyz_to_latlon


class PlaceBatch(NamedTuple):
    """Some places in float64, as degrees or as directions; each encoder asks for what it needs.

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
        return np.array([_direction(*row) for row in np.radians(self.values).tolist()], dtype=np.float32)

    def batches(self, size: int) -> Iterator[tuple[int, PlaceBatch]]:
        """The places and where each batch begins.

        No places still make one empty batch, from which results take their widths.
        """
        for start in range(0, max(1, len(self.values)), size):
            part = self.values[start : start + size]
            writable = part if part.flags.writeable else part.copy()  # torch warns of memory it may not write
            yield start, PlaceBatch(torch.from_numpy(writable), self.are_directions)


def _direction(lat: float, lon: float) -> tuple[float, float, float]:
    """A unit vector from radians."""
    return math.cos(lat) * math.cos(lon), math.cos(lat) * math.sin(lon), math.sin(lat)


def read_places(points: Any, lat: Any, lon: Any, xyz: Any) -> Places:
    """Places from whatever holds them: points, two named coordinates, or directions."""
    if xyz is None:
        latlon = as_latlon(points, lat=lat, lon=lon)
        return Places(np.ascontiguousarray(latlon.reshape(-1, 2)), latlon.shape[:-1], are_directions=False)
    if not (points is None and lat is None and lon is None):
        raise ConfigError("places were given twice: pass either xyz= or degrees")
    directions = as_xyz(xyz)
    return Places(np.ascontiguousarray(directions.reshape(-1, 3)), directions.shape[:-1], are_directions=True)


STAGE_BYTES = 2**24
"""Of page-locked memory in one stage. There are two: while the device fills one, the host empties the other."""
HELD_BYTES = 2**30
"""A batch no larger than this stays on the device while the next one is computed."""


class _Batch(NamedTuple):
    """What the device makes of some places."""

    start: int
    parts: tuple[Tensor, ...]
    made: torch.cuda.Event | None


class _Piece(NamedTuple):
    """Some numbers of a result, as many as a stage holds."""

    result: int
    first: int
    """Which number of the result they begin with."""
    numbers: Tensor


class _Stage:
    """Page-locked memory that a device writes on a stream of its own."""

    def __init__(self, stream: torch.cuda.Stream | None) -> None:
        self.stream = stream
        self.room = torch.empty(STAGE_BYTES, dtype=torch.uint8, pin_memory=stream is not None)
        self.arrived = torch.cuda.Event() if stream is not None else None  # type: ignore[no-untyped-call]

    def send(self, numbers: Tensor) -> Tensor:
        """Begin to copy numbers here, and say where they will be."""
        here = self.room[: numbers.nbytes].view(numbers.dtype)
        with torch.cuda.stream(self.stream) if self.stream is not None else contextlib.nullcontext():
            here.copy_(numbers, non_blocking=True)
            if self.arrived is not None:
                self.arrived.record()
        return here

    def wait(self) -> None:
        """Until what was sent is here."""
        if self.arrived is not None:
            self.arrived.synchronize()


class Gatherer:
    """Arrays as long as all places together, filled batch by batch.

    A GPU copies into ordinary memory slowly, and everything waits meanwhile. So its results go through page-locked
    memory, and from there by all threads to where they belong, while it computes the next batch.
    """

    def __init__(self, total: int, device: torch.device, *, is_staged: bool | None = None) -> None:
        self.total, self.device = total, device
        self.is_staged = device.type == "cuda" if is_staged is None else is_staged
        self.results: list[npt.NDArray[Any]] = []
        self._stages: list[_Stage] = []
        self._held: _Batch | None = None

    def add(self, start: int, parts: Sequence[Tensor]) -> None:
        """Take the results of the batch that begins at `start`; half precision becomes float32."""
        wide = tuple(_widened(part) for part in parts)
        size = sum(part.nbytes for part in wide)
        if len(wide[0]) == self.total and (size <= STAGE_BYTES or not self.is_staged):
            self.results = [part.cpu().numpy() for part in wide]
            return
        if start == 0:
            self.results = [_empty(self.total, part) for part in wide]
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
        """Bring the batch that is still on the device to its place."""
        held, self._held = self._held, None
        if held is None:
            return
        if not self.is_staged:
            for piece in _pieces(held, most_bytes=None):
                self._place(piece)
            return
        stages = self._open_stages()
        if stages[0].stream is not None and held.made is not None:
            stages[0].stream.wait_event(held.made)
        sent: tuple[_Stage, _Piece] | None = None
        for number, piece in enumerate(_pieces(held, STAGE_BYTES)):
            stage = stages[number % len(stages)]
            here = stage.send(piece.numbers)
            if sent is not None:
                self._receive(*sent)
            sent = stage, piece._replace(numbers=here)
        if sent is not None:
            self._receive(*sent)

    def _receive(self, stage: _Stage, piece: _Piece) -> None:
        stage.wait()
        self._place(piece)

    def _place(self, piece: _Piece) -> None:
        numbers = torch.from_numpy(self.results[piece.result]).view(-1)
        numbers[piece.first : piece.first + len(piece.numbers)].copy_(piece.numbers)

    def _open_stages(self) -> list[_Stage]:
        if not self._stages:
            is_gpu = self.device.type == "cuda"
            stream = torch.cuda.Stream(self.device) if is_gpu else None  # type: ignore[no-untyped-call]
            self._stages = [_Stage(stream) for _ in range(2)]
        return self._stages


def _pieces(batch: _Batch, most_bytes: int | None) -> Iterator[_Piece]:
    """A batch's results as numbers one after another, in pieces of so many bytes or whole."""
    for result, part in enumerate(batch.parts):
        numbers = part.view(-1)
        first = batch.start * (len(numbers) // max(1, len(part)))
        at_once = max(1, len(numbers) if most_bytes is None else most_bytes // part.dtype.itemsize)
        for begin in range(0, len(numbers), at_once):
            yield _Piece(result, first + begin, numbers[begin : begin + at_once])


def _widened(part: Tensor) -> Tensor:
    """Numbers that numpy has a type for, in a row."""
    return part.to(torch.float32 if part.dtype.itemsize < 4 else part.dtype).contiguous()


def _empty(total: int, like: Tensor) -> npt.NDArray[Any]:
    return np.empty((total, *like.shape[1:]), dtype=torch.empty(0, dtype=like.dtype).numpy().dtype)
