"""Batches of features, stored or on the device: the pairs of a step follow from the seed and the step alone.

So a resumed run needs no record of what it has read, and no pair is lost or seen twice.
"""

from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor

from tessearth.errors import ConfigError, DataError
from tessearth.imagery import DeviceFeatures, FeatureStore
from tessearth.training.recipe import TrainingRecipe

PLACES_AT_ONCE = 4096
SHARE_OF_MEMORY = 0.5
"""The share of the device's free memory that features may take."""
MAIN_MEMORY = 4 * 2**30
"""On a CPU, features up to this many bytes are read at once; larger ones stay on disk."""

Rows = npt.NDArray[np.int64]
Features = npt.NDArray[Any] | Tensor
"""(places, views, width): on disk, or on a device."""


class Moments(NamedTuple):
    """The moments of features over the training places."""

    mean: Tensor
    """(F,)."""
    variance: Tensor
    """The total over the F dimensions, ()."""


class Batch(NamedTuple):
    """Pairs of one step, or of the validation."""

    latlon: Tensor
    """(N, 2) degrees."""
    features: Tensor
    """(N, F), as stored."""


class BatchOrder:
    """The rows of each step: every epoch is a new shuffle, split into whole batches."""

    def __init__(self, rows: Rows, views: int, batch_size: int, seed: int) -> None:
        self.rows, self.views, self.batch_size, self.seed = rows, views, batch_size, seed
        self.per_epoch = len(rows) // batch_size
        self._epochs: dict[int, Rows] = {}

    def __call__(self, step: int) -> Rows:
        """Rows of the table of places by views, (batch_size,); every epoch draws another view of a place."""
        epoch, batch = divmod(step, self.per_epoch)
        if epoch not in self._epochs:
            self._epochs = {epoch: self._shuffle(epoch), **{e: r for e, r in self._epochs.items() if e == epoch - 1}}
        return self._epochs[epoch][batch * self.batch_size : (batch + 1) * self.batch_size]

    def _shuffle(self, epoch: int) -> Rows:
        generator = np.random.default_rng([self.seed, epoch])
        order = generator.permutation(self.rows)
        return order * self.views + generator.integers(0, self.views, len(order))


class TrainingData:
    """The pairs of a store, on the device or read from disk batch by batch."""

    def __init__(
        self,
        store: FeatureStore | DeviceFeatures,
        training: TrainingRecipe,
        *,
        output_dim: int | None,
        device: torch.device,
    ) -> None:
        """Read the store's components where they are as wide as wanted, or any width will do, else its features."""
        components = store.components
        fits = components is not None and output_dim in (None, components.shape[-1])
        self.kind = "components" if fits else "features"
        self.array: Features = components if components is not None and fits else store.features
        chosen = np.random.default_rng([training.seed, *b"share"]).permutation(len(store.training))
        self.training = store.training[np.sort(chosen[: round(training.share * len(chosen))])]
        self.validation = store.validation
        self.views, self.device = self.array.shape[1], device
        dtype = torch.float64 if training.precision == "float64" else torch.float32
        self.latlon = torch.from_numpy(store.latlon).to(device, dtype)
        self.moments = _moments(self.array, self.training, device)
        _check_finite(self.array, self.validation, device)
        keep, on_gpu = training.keep_features, device.type == "cuda"
        room = SHARE_OF_MEMORY * torch.cuda.mem_get_info(device)[0] if on_gpu else MAIN_MEMORY
        there = isinstance(self.array, Tensor)
        resident = there or keep == "device" or (keep == "auto" and self.array.nbytes <= room)
        self._resident = _load(self.array, device) if resident else None
        self._reader = None if resident else ThreadPoolExecutor(max_workers=1)
        self._ahead: tuple[bytes, Future[Tensor]] | None = None
        self._drawn: tuple[DeviceFeatures, int] | None = None
        if training.places == "endless":
            assert isinstance(store, DeviceFeatures), "opened without a store"
            self._drawn = store, 0

    @property
    def width(self) -> int:
        """The width of the features (F)."""
        return int(self.array.shape[-1])

    def begin(self, epoch: int) -> None:
        """Where places are endless, replace the training places by the epoch's own; the first has the recipe's."""
        if self._drawn is None or self._drawn[1] == epoch:
            return
        assert self._resident is not None, "features on a device are resident"
        features = self._drawn[0]
        self._drawn = features, epoch
        rows = torch.from_numpy(self.training).to(self.device)
        latlon, fresh = features.redraw(len(rows), epoch)
        self.latlon[rows] = torch.from_numpy(latlon).to(self.latlon)
        self._resident.view(len(self.latlon), self.views, -1)[rows] = fresh

    def fill(self, batch: Batch, rows: Rows, following: Rows | None = None) -> None:
        """Copy the pairs of these rows into the batch; the rows `following` are read from disk meanwhile."""
        index = torch.from_numpy(rows)
        if self.device.type == "cuda":
            index = index.pin_memory().to(self.device, non_blocking=True)  # does not wait for the device
        torch.index_select(self.latlon, 0, index // self.views, out=batch.latlon)
        if self._resident is not None:
            torch.index_select(self._resident, 0, index, out=batch.features)
        else:
            batch.features.copy_(self._read(rows, following), non_blocking=True)

    def held_out(self, limit: int) -> Batch | None:
        """The first validation places without jitter; None when there are too few to compare."""
        rows = self.validation[:limit]
        return None if len(rows) < 2 else self._first_views(rows)

    def some_training(self, limit: int) -> Batch:
        """At most `limit` training places without jitter, spread over all of them."""
        return self._first_views(self._some(limit))

    def some_places(self, limit: int) -> Tensor:
        """The same places alone, (N, 2)."""
        return self.latlon[torch.from_numpy(self._some(limit)).to(self.device)]

    def _some(self, limit: int) -> Rows:
        return self.training[:: -(-len(self.training) // limit)]

    def _first_views(self, rows: Rows) -> Batch:
        features = _take(self.array, rows, self.device)[:, 0].contiguous()
        return Batch(self.latlon[torch.from_numpy(rows).to(self.device)], features)

    def empty_batch(self, size: int) -> Batch:
        """Room for one step's pairs."""
        return Batch(
            torch.zeros(size, 2, dtype=self.latlon.dtype, device=self.device),
            torch.zeros(size, self.width, dtype=_dtype_of(self.array), device=self.device),
        )

    def close(self) -> None:
        """End the reading thread."""
        if self._reader is not None:
            self._reader.shutdown(wait=True, cancel_futures=True)

    def _read(self, rows: Rows, following: Rows | None) -> Tensor:
        """Read rows from disk, or take them from the thread when it has read them ahead."""
        ahead, self._ahead = self._ahead, None
        found = ahead[1].result() if ahead is not None and ahead[0] == rows.tobytes() else self._gather(rows)
        if following is not None and self._reader is not None:
            self._ahead = (following.tobytes(), self._reader.submit(self._gather, following))
        return found

    def _gather(self, rows: Rows) -> Tensor:
        assert isinstance(self.array, np.ndarray), "features on a device are resident"
        flat = self.array.reshape(-1, self.width)
        order = np.argsort(rows, kind="stable")  # reads the file from front to back
        found = np.empty((len(rows), self.width), self.array.dtype)
        found[order] = flat[rows[order]]
        batch = torch.from_numpy(found)
        return batch.pin_memory() if self.device.type == "cuda" else batch


def _take(array: Features, rows: Rows, device: torch.device) -> Tensor:
    """Features of some places, (n, views, width), on the device."""
    if isinstance(array, Tensor):
        return array[torch.from_numpy(rows).to(array.device)]
    return torch.from_numpy(np.array(array[rows])).to(device)


def _dtype_of(array: Features) -> torch.dtype:
    return array.dtype if isinstance(array, Tensor) else torch.from_numpy(np.empty(0, array.dtype)).dtype


def _moments(array: Features, rows: Rows, device: torch.device) -> Moments:
    """Mean and total variance over the rows and all views, in float64; refuses numbers that are not finite."""
    if len(rows) == 0:
        raise DataError("the store has no training places; hold out fewer for validation")
    shift = _take(array, rows[:1], device)[0, 0].double()
    total, squares, count = torch.zeros_like(shift), torch.zeros_like(shift), 0
    for start in range(0, len(rows), PLACES_AT_ONCE):
        chunk = _take(array, rows[start : start + PLACES_AT_ONCE], device).flatten(0, 1)
        values = chunk.double() - shift
        total += values.sum(0)
        squares += values.square().sum(0)
        count += len(chunk)
    offset = total / count
    moments = Moments((offset + shift).cpu(), (squares / count - offset.square()).clamp_min(0).sum().cpu())
    if not bool(moments.mean.isfinite().all()) or not bool(moments.variance.isfinite()):
        _check_finite(array, rows, device)
    if float(moments.variance) == 0:
        raise DataError("the features of all training places are the same; there is nothing to learn from them")
    return moments


def _check_finite(array: Features, rows: Rows, device: torch.device) -> None:
    for start in range(0, len(rows), PLACES_AT_ONCE):
        chosen = rows[start : start + PLACES_AT_ONCE]
        bad = ~_take(array, chosen, device).isfinite().flatten(1).all(1)
        if bool(bad.any()):
            row = chosen[int(bad.int().argmax())]
            raise DataError(f"the features of place {row} are not finite numbers; make the store again")


def _load(array: Features, device: torch.device) -> Tensor:
    """The whole array as (places x views, width) on the device, copied a chunk at a time."""
    if isinstance(array, Tensor):
        return array.flatten(0, 1)
    places, views, width = array.shape
    try:
        whole = torch.empty(places * views, width, dtype=_dtype_of(array), device=device)
    except torch.OutOfMemoryError:
        raise ConfigError(
            f"{array.nbytes / 1e9:.1f} GB of features do not fit on {device}; --set training.keep_features=disk"
        ) from None
    for start in range(0, places, PLACES_AT_ONCE):
        chunk = torch.from_numpy(np.array(array[start : start + PLACES_AT_ONCE])).reshape(-1, width)
        whole[start * views : start * views + len(chunk)] = chunk.to(device)
    return whole
