"""Values of a cell: the first dimensions of an embedding as float32, float16, or int8 with a scale and an offset."""

from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch

from tessearth.embedding import Embedder
from tessearth.errors import ConfigError
from tessearth.sphere import Layout, WindowPlaces

StoredType = Literal["int8", "float16", "float32"]
Array = npt.NDArray[Any]

PLACES_AT_ONCE = 8192
"""Embedded together: whole embeddings are wide, and only the kept dimensions of them stay in memory."""
SAMPLED_PLACES = 32_768
"""Embedded first, to find the range of each dimension."""
MARGIN = 0.05
"""Share of the sample's range that is added on either side, for the places outside the sample."""
LARGEST = 127
NODATA = {"int8": -128.0, "float16": float("nan"), "float32": float("nan")}
"""Numbers that stand for no value; no embedding is ever stored as -128."""


class StoredWindow(NamedTuple):
    """The values of one window as they are stored, and what storing them cost."""

    numbers: Array
    """(n, dims) in the stored type, nodata where no value was wanted."""
    largest_error: float
    """The largest difference between a value and what is read back, over the whole window."""
    clipped: int
    """How many values lay outside the range and were moved to its end (already part of the error)."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Stored:
    """How values are stored: value = number * scale + offset for int8, as they are for floats."""

    dims: int
    dtype: StoredType
    scale: tuple[float, ...] = ()
    """One per dimension for int8, empty for floats."""
    offset: tuple[float, ...] = ()

    @property
    def nodata(self) -> float:
        """The number that stands for no value."""
        return NODATA[self.dtype]

    def store(self, values: Array, wanted: npt.NDArray[np.bool_]) -> StoredWindow:
        """Values (n, dims) of the places wanted among all of a window, as they are stored."""
        numbers = np.full((len(wanted), self.dims), self.nodata, dtype=self.dtype)
        if len(values) == 0:
            return StoredWindow(numbers, 0.0, 0)
        clipped = 0
        if self.dtype == "int8":
            steps = np.rint((values - np.array(self.offset)) / np.array(self.scale))
            clipped = int((np.abs(steps) > LARGEST).sum())
            numbers[wanted] = np.clip(steps, -LARGEST, LARGEST)
        else:
            numbers[wanted] = values
        return StoredWindow(numbers, float(np.abs(self.read(numbers[wanted]) - values).max()), clipped)

    def read(self, numbers: Array) -> Array:
        """Stored numbers (..., dims) as float32 values, NaN for nodata."""
        if self.dtype != "int8":
            return numbers.astype(np.float32)
        values = numbers * np.array(self.scale) + np.array(self.offset)
        return np.where(numbers == self.nodata, np.nan, values).astype(np.float32)


def check_stored_type(dtype: str | None, types: tuple[StoredType, ...]) -> StoredType:
    """The type of a format's numbers, by default its first; codes only where every reader decodes them."""
    if dtype == "int8" and dtype not in types:
        raise ConfigError(
            f"dtype is int8, codes that readers of H3 tables would take for values: take {' or '.join(types)}"
        )
    if dtype is not None and dtype not in types:
        raise ConfigError(f"dtype is {dtype!r}; it must be one of {', '.join(types)}")
    return dtype or types[0]


def fit_stored(embedder: Embedder, layout: Layout, dims: int, dtype: StoredType, *, one_scale: bool) -> Stored:
    """Choose scale and offset for int8 from places all over the layout; floats need none.

    Each dimension gets the range it takes, (high - low) / 254 a step; with `one_scale` all share one range, for formats
    that know a single pair. Where the layout is small enough to look at every cell, the range is exact.
    """
    if dtype != "int8":
        return Stored(dims=dims, dtype=dtype)
    places, complete = layout.sample(SAMPLED_PLACES)
    if not places.wanted.any():  # land so small that the sample misses it: the sea around it is the nearest guess
        places, complete = places._replace(wanted=np.ones_like(places.wanted)), False
    values = embed_places(embedder, places, dims).astype(np.float64)
    low, high = values.min(0), values.max(0)
    if one_scale:
        low, high = np.full(dims, low.min()), np.full(dims, high.max())
    margin = 0.0 if complete else MARGIN * (high - low)
    low, high = low - margin, high + margin
    # A dimension that never changes still needs a step that can be divided by.
    scale = np.maximum((high - low) / (2 * LARGEST), np.finfo(np.float32).tiny)
    return Stored(dims=dims, dtype=dtype, scale=tuple(scale.tolist()), offset=tuple(((high + low) / 2).tolist()))


def compute_window(embedder: Embedder, layout: Layout, stored: Stored, number: int) -> StoredWindow:
    """Embed one window and bring it into its stored form; the same numbers wherever and whenever it is done."""
    places = layout.window(number)
    return stored.store(embed_places(embedder, places, stored.dims), places.wanted)


def embed_places(embedder: Embedder, places: WindowPlaces, dims: int) -> npt.NDArray[np.float32]:
    """The first dimensions of the embeddings of the places wanted, (n wanted, dims), fewer than all at unit length."""
    latlon = torch.from_numpy(places.latlon[places.wanted])
    values = np.empty((len(latlon), dims), dtype=np.float32)
    for start in range(0, len(latlon), PLACES_AT_ONCE):
        some = slice(start, start + PLACES_AT_ONCE)
        values[some] = embedder.embed_tensor(latlon[some], check=False)[:, :dims].cpu().numpy()
    if dims < embedder.dim:
        values /= np.maximum(np.linalg.norm(values, axis=1, keepdims=True), np.finfo(np.float32).tiny)
    return values
