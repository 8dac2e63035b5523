"""What a model says everywhere: embeddings, token attention and sharpness on a grid of the world and on map tiles."""

import threading
from collections import OrderedDict
from collections.abc import Callable, Hashable
from typing import Any, Generic, Literal, TypeVar

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F

from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.explorer.batching import OverloadedError
from tessearth.plotting.world_maps import world_grid
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.geometry import latlon_to_xyz

Array = npt.NDArray[Any]
FieldName = Literal["embedding", "attention", "sharpness"]
Kept = TypeVar("Kept")

STEP_DEGREES = 1.0
WORLD_ZOOM = 3
"""Tiles up to this zoom are read off the world grid; deeper ones have places of their own."""
LATTICE_STEPS = 32
"""Across a tile of a deeper zoom: 0.7 degrees at zoom 4."""
DEEPEST_FIELD_ZOOM = 8
ROWS_AT_ONCE = 1024


class NotReadyError(OverloadedError):
    """A map that is still being prepared."""


class World:
    """Fields over the whole world, (H, W, C) each, as they become ready."""

    def __init__(self) -> None:
        self.places = world_grid(STEP_DEGREES)
        self.shape = self.places.shape[:2]
        self.progress: dict[FieldName, float] = {}
        self._fields: dict[FieldName, Array] = {}

    def put(self, name: FieldName, values: Array) -> None:
        """Keep a field of all places in rows, (H W, C)."""
        self._fields[name] = values.reshape(*self.shape, -1)
        self.progress[name] = 1.0

    def get(self, name: FieldName) -> Array:
        """A field (H, W, C), or an error that says how far it is."""
        if name not in self._fields:
            share = self.progress.get(name, 0.0)
            raise NotReadyError(f"this map is being prepared ({share:.0%}); ask again in a moment")
        return self._fields[name]

    def ready(self, name: FieldName) -> bool:
        """Whether a field is there."""
        return name in self._fields


@torch.inference_mode()
def site_fields(encoder: SphericalVoronoiEncoder, latlon: Floats) -> tuple[Array | None, Array]:
    """Token attention (N, T), None without tokens, and sharpness (N, 1) of places (N, 2).

    Sharpness is the sites' own, mixed on a logarithmic scale by the place's share in them; tessellations count alike.
    """
    attention, sharpness = [], []
    device = encoder.norm.weight.device
    for start in range(0, len(latlon), ROWS_AT_ONCE):
        xyz = latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(latlon[start : start + ROWS_AT_ONCE])))
        xyz = F.normalize(xyz, dim=-1).to(device, encoder.voronois()[0].directions.dtype)
        weights = [voronoi.weights(xyz) for voronoi in encoder.voronois()]
        logs = [part @ voronoi.log_sharpness for part, voronoi in zip(weights, encoder.voronois(), strict=True)]
        sharpness.append(torch.stack(logs).mean(0).exp().float().cpu().numpy())
        if encoder.tokens is not None:
            mixtures = [part @ v.embeddings for part, v in zip(weights, encoder.voronois(), strict=True)]
            mixture = torch.cat(mixtures, dim=-1).to(encoder.norm.weight.dtype)
            attention.append(encoder.tokens.location_attention(mixture).float().cpu().numpy())
    return (np.concatenate(attention) if attention else None), np.concatenate(sharpness)[:, None]


class Recent(Generic[Kept]):
    """The results used most recently, at most so many; two threads may make the same one, and both are right."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Kept | None:
        """What is kept under a key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: Kept) -> Kept:
        """Keep a result; the one not used for longest may have to go."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return value

    def find(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """What is kept, else what is made."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found
