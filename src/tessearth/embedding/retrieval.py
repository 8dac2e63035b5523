"""RANGE retrieval: an embedding completed by the image embeddings of places like it, read off a database.

With unit query q and keys k_n, values V, and the places' unit vectors x:

    semantic   h = softmax_n(15 q.k_n) V                                        out = [h ; q]
    geodesic   h = (1 - b) softmax_n(40 x.x_n) V + b softmax_n(12 q.k_n) V      out = [h ; q],  b = 0.5

Every row of the database takes part. This is attention, computed for some queries at a time, so the matrix of queries
by database rows is never whole in memory; both parts of the geodesic mode are mixed before one product with the values.
"""

import typing
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import ConfigError, CoordinateError, DataError
from tessearth.sphere import (
    EARTH_RADIUS_KM,
    Floats,
    as_places,
    check_latlon,
    fibonacci_lattice,
    is_inhabited_land,
    latlon_to_xyz,
    xyz_to_latlon,
)
from tessearth.storage import atomic_write, read_npz
from tessearth.zoo import Mode

if TYPE_CHECKING:
    from tessearth.embedding.embedder import Embedder
    from tessearth.imagery import FeatureStore

Array = npt.NDArray[Any]

SETTINGS: dict[Mode, dict[str, float]] = {
    "semantic": {"sharpness": 15.0},
    "geodesic": {"sharpness": 12.0, "geodesic_sharpness": 40.0, "mix": 0.5},
}
"""How each mode reads the database; `mix` is the semantic share. exp(40) times a million rows is far from float32's
largest number and exp(-40) far from its smallest, so no softmax needs a shift by its largest logit."""
WEIGHTS_AT_ONCE = {"cpu": 2**25, "cuda": 2**28}
"""How many weights of each part are held at once: 128 MB of float32 on a CPU; a GPU wants more work per launch."""
ROWS_PER_SUM = {"cpu": 2**20, "cuda": 2**13}
"""A GPU's matrix product sums each entry in one number: over 100,000 rows at once its rounding shows in the fourth
digit. A CPU's sums in blocks by itself."""
FEWEST_QUERIES = 64
"""With fewer queries at a time, reading the database costs more than multiplying."""


class Part(NamedTuple):
    """One softmax of a mixture."""

    queries: Tensor
    """(N, D)."""
    keys: Tensor
    """(M, D)."""
    sharpness: float
    share: float = 1.0
    """How much of the mixture it makes up."""


class Database(NamedTuple):
    """Places with the embedding they are found by (key) and the image embedding that is read off (value)."""

    latlon: Floats
    """(N, 2) degrees."""
    keys: npt.NDArray[np.float32]
    """(N, D)."""
    values: npt.NDArray[np.float32]
    """(N, V)."""


def read_database(path: str | PathLike[str]) -> Database:
    """Read an npz with exactly locs (N, 2: longitude, latitude), keys (N, D) and image_embeddings (N, V)."""
    arrays = read_npz(path, ("locs", "keys", "image_embeddings"))
    locs = arrays["locs"]
    if locs.ndim != 2 or locs.shape[1] != 2:
        raise DataError(f"{path}: locs has shape {locs.shape}, not (N, 2) with (lon, lat)")
    try:
        latlon = check_latlon(np.asarray(locs[:, ::-1], dtype=np.float64))
    except CoordinateError as error:
        raise DataError(f"{path}: locs must be (lon, lat) in degrees: {error}") from None
    keys, values = (_matrix(path, name, arrays[name], len(latlon)) for name in ("keys", "image_embeddings"))
    return Database(np.ascontiguousarray(latlon), keys, values)


def save_database(database: Database, path: str | PathLike[str]) -> None:
    """Write a database as the npz that `read_database` reads."""
    arrays = {"locs": database.latlon[:, ::-1], "keys": database.keys, "image_embeddings": database.values}
    with atomic_write(path) as file:
        np.savez(file, **arrays)  # type: ignore[arg-type]


class Retriever:
    """Completes embeddings by a database, on any device, in bounded memory.

    retriever = Retriever(read_database("range_db.npz"), mode="geodesic")
    retriever.encode(embeddings, latlon)        # (N, V + D): [h ; q]
    """

    def __init__(
        self,
        database: Database,
        mode: Mode = "semantic",
        *,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        if mode not in SETTINGS:
            raise ConfigError(f"mode is {mode!r}; it must be 'semantic' or 'geodesic'")
        self.mode: Mode = mode
        self.device, self.dtype = torch.device(device), dtype
        self.keys = F.normalize(torch.as_tensor(database.keys, dtype=dtype, device=self.device), dim=-1)
        self.values = torch.as_tensor(database.values, dtype=dtype, device=self.device)
        self.places = self._xyz(database.latlon)

    @torch.inference_mode()
    def encode(self, embeddings: Array, latlon: npt.ArrayLike | None = None) -> npt.NDArray[np.float32]:
        """Embeddings (N, D) to [h ; q], (N, V + D); the geodesic mode also needs their places (N, 2)."""
        if self.mode == "geodesic" and (latlon is None or len(np.asarray(latlon)) != len(embeddings)):
            raise ConfigError("the geodesic mode needs the place of every embedding: pass latlon (N, 2)")
        xyz = None if latlon is None else self._xyz(latlon)
        return np.asarray(self.complete(torch.as_tensor(np.asarray(embeddings)), xyz).cpu().numpy())

    def complete(self, embeddings: Tensor, xyz: Tensor | None = None) -> Tensor:
        """The same for tensors, on the retriever's device; the geodesic mode takes unit vectors (N, 3)."""
        query = embeddings.to(self.device, self.dtype)
        if query.ndim != 2 or query.shape[1] != self.keys.shape[1]:
            raise DataError(f"embeddings have shape {tuple(query.shape)}; the keys are {self.keys.shape[1]} wide")
        query, settings = F.normalize(query, dim=-1), SETTINGS[self.mode]
        parts = [Part(query, self.keys, settings["sharpness"], settings.get("mix", 1.0))]
        if self.mode == "geodesic":
            assert xyz is not None
            queries = xyz.to(self.device, self.dtype)
            parts.append(Part(queries, self.places, settings["geodesic_sharpness"], 1 - settings["mix"]))
        return torch.cat((attend(parts, self.values), query), dim=1)

    def settings(self) -> dict[str, Any]:
        """How the database is read, as plain values."""
        return {"mode": self.mode, **SETTINGS[self.mode]}

    def _xyz(self, latlon: npt.ArrayLike) -> Tensor:
        xyz = latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(as_places(latlon))))
        return xyz.to(self.device, self.dtype)


def attend(parts: Sequence[Part], values: Tensor) -> Tensor:
    """Mix values (M, V) for N queries: sum over parts of share softmax_n(sharpness q.k_n) V, (N, V).

    What a single part is divided by waits until after the product with the values.
    """
    total = len(parts[0].queries)
    at_once = max(FEWEST_QUERIES, WEIGHTS_AT_ONCE.get(values.device.type, 2**28) // len(values))
    rows = ROWS_PER_SUM.get(values.device.type, ROWS_PER_SUM["cuda"])
    held = [values.new_empty(min(at_once, total), len(values)) for _ in parts]
    found = values.new_zeros(total, values.shape[1])
    for start in range(0, total, at_once):
        some = slice(start, start + at_once)
        weights = [
            torch.mm(part.queries[some] * part.sharpness, part.keys.T, out=buffer[: len(found[some])]).exp_()
            for part, buffer in zip(parts, held, strict=True)
        ]
        scales = [part.share / one.sum(1, keepdim=True) for part, one in zip(parts, weights, strict=True)]
        mixture = weights[0]
        for more, scale in zip(weights[1:], scales[1:], strict=True):
            mixture.mul_(scales[0]).addcmul_(more, scale)
            scales[0] = torch.ones_like(scales[0])
        for part, of_values in zip(torch.split(mixture, rows, dim=1), torch.split(values, rows), strict=True):
            found[some].addmm_(part, of_values)
        found[some].mul_(scales[0])
    return found


def _matrix(path: str | PathLike[str], name: str, array: Array, rows: int) -> npt.NDArray[np.float32]:
    if array.ndim != 2 or len(array) != rows or array.dtype.kind != "f":
        raise DataError(f"{Path(path)}: {name} is {array.dtype} of shape {array.shape}, not numbers ({rows}, width)")
    if rows == 0 or not np.isfinite(array).all():
        raise DataError(f"{Path(path)}: {name} {'is empty' if rows == 0 else 'holds values that are not finite'}")
    return np.ascontiguousarray(array, dtype=np.float32)


Keys = Literal["location", "image"]
Values = Literal["features", "components"]

ROWS_AT_ONCE = 8192
LATTICE_PLACES = 65_536
"""Of the whole sphere; about 17,000 of them, 88 km apart, lie on land."""


class Alike(NamedTuple):
    """Places similar to a query, the most similar first."""

    row: npt.NDArray[np.int64]
    """Among the places compared with, (k,)."""
    similarity: npt.NDArray[np.float32]
    """Cosine of the embeddings, (k,)."""
    distance_km: Floats
    """From the query's place, (k,)."""


def build_database(
    embedder: "Embedder",
    store: "FeatureStore",
    *,
    keys: Keys = "location",
    values: Values | None = None,
    held_out: bool = False,
    progress: Callable[[int, int], None] = lambda done, total: None,
) -> Database:
    """A database of a store's training places (with `held_out`, of all): image features found by embeddings.

    Values are the first view's components where the store keeps them, else its features. Keys are the embeddings of
    the places, or the image embeddings the model was trained to meet.
    """
    for name, value, choices in (("keys", keys, Keys), ("values", values, Values)):
        if value is not None and value not in typing.get_args(choices):
            raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(typing.get_args(choices))}")
    rows = np.arange(len(store.latlon)) if held_out else store.training
    if len(rows) == 0:
        raise DataError(f"{store.path} has no training places; take all of them with held_out")
    kind = values or ("features" if store.components is None else "components")
    found = np.asarray(_array(store, kind)[rows, 0], dtype=np.float32)
    if not np.isfinite(found).all():
        raise DataError(f"{store.path}: the {kind} of some places are not finite numbers; make the store again")
    latlon = store.latlon[rows]
    if keys == "image":
        return Database(latlon, image_keys(embedder, store, rows), found)
    places = np.empty((len(rows), embedder.dim), dtype=np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        places[some] = embedder.embed(latlon[some])
        progress(min(start + ROWS_AT_ONCE, len(rows)), len(rows))
    return Database(latlon, places, found)


def image_keys(embedder: "Embedder", store: "FeatureStore", rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Image embeddings in the space of the location embeddings, (n, D): the stored features, centred.

    They are in that space only if the model was trained on this very store by its contrastive term and without an
    image head, whose weights no model file keeps; other models are refused.
    """
    from tessearth.embedding.describe import describe_model

    origin = describe_model(embedder.name)["provenance"]
    kind, width = origin.get("image_features"), origin.get("image_feature_width")
    training, objective = (
        table if isinstance(table := origin.get(name), Mapping) else {} for name in ("training", "objective")
    )
    is_other_store = origin.get("store_recipe_sha256") != store.manifest["recipe_sha256"]
    reasons = {
        f"the model does not say that it was trained on {store.path}": is_other_store,
        f"its features are {width} wide and embeddings {embedder.dim}": width != embedder.dim,
        "it was trained with an image head, which its file does not keep": training.get("image_head") == "linear",
        "it was not trained to tell pairs apart (objective.contrastive is 0)": not objective.get("contrastive"),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(f"{embedder.name} and images have no space in common: {reason}; use --keys location")
    array = _array(store, "components" if kind == "components" else "features")
    blocks = np.split(store.training, range(ROWS_AT_ONCE, len(store.training), ROWS_AT_ONCE))
    total = sum(array[block].astype(np.float64).sum((0, 1)) for block in blocks)
    mean = total / (len(store.training) * array.shape[1])
    return np.asarray(array[rows, 0] - mean, dtype=np.float32)


def land_places() -> Floats:
    """Places spread evenly over land north of 60 S, (N, 2) degrees: the default places to compare with."""
    lattice = xyz_to_latlon(fibonacci_lattice(LATTICE_PLACES)).numpy()
    return np.ascontiguousarray(lattice[is_inhabited_land(lattice)])


def most_alike(
    query: npt.NDArray[Any], place: Floats, keys: npt.NDArray[Any], latlon: Floats, count: int, apart_km: float = 0.0
) -> Alike:
    """The places (N, 2) whose keys (N, D) are most like the query (D,), by cosine.

    With `apart_km`, each lies at least that far from the query's place and from every better one.
    """
    if not 1 <= count <= len(keys):
        raise ConfigError(f"count is {count}; it must lie between 1 and {len(keys)}")
    return choose_alike(cosines(query, keys), place, latlon, count, apart_km)


def cosines(query: npt.NDArray[Any], keys: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    """The cosine of a query (D,) to each key (N, D), (N,)."""
    return np.asarray(_unit(keys) @ _unit(query))


def choose_alike(
    similarity: npt.NDArray[np.float32], place: Floats, latlon: Floats, count: int, apart_km: float = 0.0
) -> Alike:
    """The places (N, 2) of the greatest similarity (N,), apart from the query's place and each other."""
    chosen: list[int] = []
    free = _distance_km(latlon, place) >= apart_km  # never of a row without a place, which is NaN
    for row in np.argsort(-similarity, kind="stable"):
        if free[row]:
            chosen.append(int(row))
            if len(chosen) == count:
                break
            if apart_km > 0:
                free &= _distance_km(latlon, latlon[row]) >= apart_km
    rows = np.array(chosen, dtype=np.int64)
    return Alike(rows, similarity[rows], _distance_km(latlon[rows], place))


def _distance_km(latlon: Floats, place: Floats) -> Floats:
    """Great-circle distances (N,) by the haversine, which keeps its digits for neighbours."""
    (lat, lon), (lat0, lon0) = np.deg2rad(latlon).T, np.deg2rad(place)
    square = np.sin((lat - lat0) / 2) ** 2 + np.cos(lat) * np.cos(lat0) * np.sin((lon - lon0) / 2) ** 2
    return np.asarray(2 * EARTH_RADIUS_KM * np.arcsin(np.sqrt(np.clip(square, 0, 1))))


def _unit(vectors: npt.NDArray[Any]) -> npt.NDArray[np.float32]:
    wide = np.asarray(vectors, dtype=np.float32)
    return np.asarray(wide / np.maximum(np.linalg.norm(wide, axis=-1, keepdims=True), 1e-12))


def _array(store: "FeatureStore", kind: Values) -> npt.NDArray[Any]:
    if kind == "features":
        return store.features
    if store.components is None:
        raise DataError(f"{store.path} keeps no components; take its features, or make it with features.pca")
    return store.components
