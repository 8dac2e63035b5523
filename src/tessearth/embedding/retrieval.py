"""RANGE retrieval: an embedding completed by the image embeddings of places like it, read off a database.

With unit query q and keys k_n, values V as they are, and the places' unit vectors x:

    semantic   h = softmax_n(15 q.k_n) V                                        out = [h ; q]
    geodesic   h = (1 - b) softmax_n(40 x.x_n) V + b softmax_n(12 q.k_n) V      out = [h ; q],  b = 0.5

Every row of the database takes part. It is attention, computed for some queries at a time, so the matrix of queries by
database rows is never whole in memory; both parts of the geodesic mode are mixed before they meet the values, once.
"""

import typing
from collections.abc import Callable, Mapping, Sequence
from os import PathLike
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple
from zipfile import BadZipFile

import numpy as np
import numpy.typing as npt
import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.errors import ConfigError, CoordinateError, DataError
from tessearth.imagery.store import FeatureStore
from tessearth.sphere.coordinates import Floats, as_places, check_latlon
from tessearth.sphere.geometry import EARTH_RADIUS_KM, fibonacci_lattice, latlon_to_xyz, xyz_to_latlon
from tessearth.sphere.land import is_inhabited_land
from tessearth.storage.files import atomic_write

if TYPE_CHECKING:
    from tessearth.embedding.embedder import Embedder

Array = npt.NDArray[Any]
Mode = Literal["semantic", "geodesic"]

SEMANTIC_SHARPNESS = 15.0
MIXED_SEMANTIC_SHARPNESS = 12.0
GEODESIC_SHARPNESS = 40.0
MIX = 0.5
WEIGHTS_AT_ONCE = {"cpu": 2**25, "cuda": 2**28}
"""Weights held at once for each part: 128 MB of float32 on a processor; a GPU wants more work per launch."""
UNSHIFTED_SHARPNESS = 60.0
"""exp(60) times a million rows is far from float32's largest number, exp(-60) far from its smallest."""
ROWS_PER_SUM = {"cpu": 2**20, "cuda": 2**13}
"""A GPU's matrix product adds up in one number per entry: over 100,000 rows at once its rounding shows in the fourth
digit. A processor's adds up in blocks by itself."""
FEWEST_QUERIES = 64
"""Below that, reading the database once for so few queries would cost more than multiplying."""
SMALL_NPZ_BYTES = 2**28
MOST_COMPRESSION = 100
"""Numbers worth keeping do not shrink by more; an archive of zeros shrinks a thousandfold and fills the memory."""


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
    """Places with the embedding they are found by and the image embedding that is read off."""

    latlon: Floats
    """(N, 2) degrees."""
    keys: npt.NDArray[np.float32]
    """(N, D)."""
    values: npt.NDArray[np.float32]
    """(N, V)."""


class Similar(NamedTuple):
    """The database rows most like each query, the most like first."""

    row: npt.NDArray[np.int64]
    """(N, k)."""
    similarity: npt.NDArray[np.float32]
    """Cosine of query and key, (N, k)."""


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


def read_npz(path: str | PathLike[str], names: tuple[str, ...]) -> dict[str, Array]:
    """The arrays of an npz that must hold these and no others; nothing in it is ever run."""
    try:
        with np.load(path, allow_pickle=False) as archive:
            found = list(getattr(archive, "files", []))
            missing, surplus = sorted(set(names) - set(found)), sorted(set(found) - set(names))
            if missing or surplus:
                said = [f"no {name}" for name in missing] + [f"a surplus {name}" for name in surplus]
                raise DataError(f"{path} has {' and '.join(said)}; it must hold {', '.join(names)}")
            claimed, there = sum(entry.file_size for entry in archive.zip.infolist()), Path(path).stat().st_size
            if claimed > max(SMALL_NPZ_BYTES, MOST_COMPRESSION * there):
                raise DataError(f"{path} would fill {claimed / 2**30:.1f} GiB of memory from {there / 2**20:.1f} MB")
            # The archive's checksums are only compared at the end of an entry, which an array never reaches when the
            # bit that turned stands in its shape.
            if archive.zip.testzip() is not None:
                raise BadZipFile
            return {name: np.asarray(archive[name]) for name in names}
    except FileNotFoundError:
        raise DataError(f"there is no file {path}") from None
    except DataError:
        raise
    except Exception:  # whatever damage makes the readers of archives and arrays raise
        raise DataError(f"{path} is not an npz of plain arrays, or is damaged") from None


class Retriever:
    """Completes embeddings by a database, on any device, in bounded memory.

    retriever = Retriever(read_database("range_db.npz"), mode="geodesic")
    retriever.encode(embeddings, latlon)        # (N, V + D): [h ; q]
    retriever.similar(embeddings, count=10)     # places like these
    """

    def __init__(
        self,
        database: Database,
        mode: Mode = "semantic",
        *,
        sharpness: float | None = None,
        geodesic_sharpness: float = GEODESIC_SHARPNESS,
        mix: float = MIX,
        device: torch.device | str = "cpu",
        dtype: torch.dtype = torch.float32,
    ) -> None:
        """`sharpness` is that of the semantic part: 15, or 12 beside the geodesic one; `mix` is the semantic share."""
        if mode not in ("semantic", "geodesic"):
            raise ConfigError(f"mode is {mode!r}; it must be 'semantic' or 'geodesic'")
        if not 0 <= mix <= 1:
            raise ConfigError(f"mix is {mix}; it must be a share between 0 and 1")
        default = SEMANTIC_SHARPNESS if mode == "semantic" else MIXED_SEMANTIC_SHARPNESS
        self.mode: Mode = mode
        self.mix = mix
        self.sharpness = default if sharpness is None else sharpness
        self.geodesic_sharpness = geodesic_sharpness
        self.device, self.dtype = torch.device(device), dtype
        self.latlon = database.latlon
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
        query = self._queries(embeddings)
        parts = [Part(query, self.keys, self.sharpness)]
        if self.mode == "geodesic":
            assert xyz is not None
            near = Part(xyz.to(self.device, self.dtype), self.places, self.geodesic_sharpness, 1 - self.mix)
            parts = [parts[0]._replace(share=self.mix), near]
        return torch.cat((attend(parts, self.values), query), dim=1)

    def settings(self) -> dict[str, Any]:
        """How the database is read, as plain values."""
        geodesic = {"geodesic_sharpness": self.geodesic_sharpness, "mix": self.mix}
        return {"mode": self.mode, "sharpness": self.sharpness, **(geodesic if self.mode == "geodesic" else {})}

    @torch.inference_mode()
    def similar(self, embeddings: Array, count: int = 10) -> Similar:
        """The rows whose keys are most like each embedding (N, D) by cosine, exactly."""
        if not 1 <= count <= len(self.keys):
            raise ConfigError(f"count is {count}; it must lie between 1 and {len(self.keys)}")
        parts = torch.split(self._queries(torch.as_tensor(np.asarray(embeddings))), max(1, 2**25 // len(self.keys)))
        best = [(part @ self.keys.T).topk(count) for part in parts]
        row, similarity = torch.cat([each.indices for each in best]), torch.cat([each.values for each in best])
        return Similar(row.cpu().numpy(), similarity.cpu().numpy())

    def _queries(self, embeddings: Tensor) -> Tensor:
        query = embeddings.to(self.device, self.dtype)
        if query.ndim != 2 or query.shape[1] != self.keys.shape[1]:
            raise DataError(f"embeddings have shape {tuple(query.shape)}; the keys are {self.keys.shape[1]} wide")
        return F.normalize(query, dim=-1)

    def _xyz(self, latlon: npt.ArrayLike) -> Tensor:
        xyz = latlon_to_xyz(torch.from_numpy(np.ascontiguousarray(as_places(latlon))))
        return xyz.to(self.device, self.dtype)


def attend(parts: Sequence[Part], values: Tensor) -> Tensor:
    """Mix values (M, V) for N queries: sum over parts of share softmax_n(sharpness q.k_n) V, (N, V).

    Both vectors of a pair have unit length, so up to a sharpness of 60 exp(sharpness q.k) needs no shift by the largest
    one to stay within float32; what the parts are divided by waits until after the product with the values.
    """
    total = len(parts[0].queries)
    at_once = max(FEWEST_QUERIES, WEIGHTS_AT_ONCE.get(values.device.type, 2**28) // len(values))
    held = [values.new_empty(min(at_once, total), len(values)) for _ in parts]
    found = values.new_zeros(total, values.shape[1])
    for start in range(0, total, at_once):
        some = slice(start, start + at_once)
        weights = [_weights(part, some, buffer) for part, buffer in zip(parts, held, strict=True)]
        scales = [part.share / one.sum(1, keepdim=True) for part, one in zip(parts, weights, strict=True)]
        mixture = weights[0]
        for more, scale in zip(weights[1:], scales[1:], strict=True):
            mixture.mul_(scales[0]).addcmul_(more, scale)
            scales[0] = torch.ones_like(scales[0])
        _add_product(found[some], mixture, values)
        found[some].mul_(scales[0])
    return found


def _weights(part: Part, some: slice, buffer: Tensor) -> Tensor:
    """One part for some queries, (n, M): exp(sharpness q.k_n) up to a factor per query, in a buffer used again."""
    queries = part.queries[some] * part.sharpness
    weights = torch.mm(queries, part.keys.T, out=buffer[: len(queries)])
    if abs(part.sharpness) > UNSHIFTED_SHARPNESS:
        weights.sub_(weights.amax(1, keepdim=True))
    return weights.exp_()


def _add_product(found: Tensor, weights: Tensor, values: Tensor) -> None:
    """Add weights (n, M) times values (M, V) to what is there, some rows of the database at a time."""
    step = ROWS_PER_SUM.get(values.device.type, ROWS_PER_SUM["cuda"])
    for start in range(0, len(values), step):
        some = slice(start, start + step)
        found.addmm_(weights[:, some], values[some])


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
"""Of the whole sphere; some 17,000 of them, 88 km apart, lie on land."""


class Alike(NamedTuple):
    """Places like a place, the most alike first."""

    row: npt.NDArray[np.int64]
    """(k,) in the places compared with."""
    similarity: npt.NDArray[np.float32]
    """Cosine of the embeddings, (k,)."""
    distance_km: Floats
    """From the place asked about, (k,)."""


def build_database(
    embedder: "Embedder",
    store: FeatureStore,
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
    _check_choice("keys", keys, Keys)
    _check_choice("values", values, Values)
    rows = np.arange(len(store.latlon)) if held_out else store.training
    if len(rows) == 0:
        raise DataError(f"{store.path} has no training places; take all of them with held_out")
    chosen = values or ("features" if store.components is None else "components")
    found = _first_view(store, chosen, rows)
    latlon = store.latlon[rows]
    if keys == "image":
        return Database(latlon, image_keys(embedder, store, rows), found)
    places = np.empty((len(rows), embedder.dim), dtype=np.float32)
    for start in range(0, len(rows), ROWS_AT_ONCE):
        some = slice(start, start + ROWS_AT_ONCE)
        places[some] = embedder.embed(latlon[some])
        progress(min(start + ROWS_AT_ONCE, len(rows)), len(rows))
    return Database(latlon, places, found)


def image_keys(embedder: "Embedder", store: FeatureStore, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Image embeddings in the space of the location embeddings, (n, D): the stored features, centred.

    They are in that space only where the model was trained on this very store by its contrastive term and without an
    image head, whose weights no model file keeps; anything else is refused.
    """
    from tessearth.embedding.describe import describe_model

    origin = describe_model(embedder.name)["provenance"]
    kind, width = origin.get("image_features"), origin.get("image_feature_width")
    reasons = {
        f"the model does not say that it was trained on {store.path}": (
            origin.get("store_recipe_sha256") != store.manifest["recipe_sha256"]
        ),
        f"its features are {width} wide and embeddings {embedder.dim}": width != embedder.dim,
        "it was trained with an image head, which its file does not keep": (
            _setting(origin, "training", "image_head") == "linear"
        ),
        "it was not trained to tell pairs apart (objective.contrastive is 0)": (
            _setting(origin, "objective", "contrastive") in (None, 0)
        ),
    }
    for reason, holds in reasons.items():
        if holds:
            raise ConfigError(f"{embedder.name} and images have no space in common: {reason}; use --keys location")
    array = _array(store, "components" if kind == "components" else "features")
    training = store.training
    total = sum(
        array[training[start : start + ROWS_AT_ONCE]].astype(np.float64).sum((0, 1))
        for start in range(0, len(training), ROWS_AT_ONCE)
    )
    mean = total / (len(training) * array.shape[1])
    return np.asarray(array[rows, 0] - mean, dtype=np.float32)


def land_places() -> Floats:
    """Places spread evenly over land north of 60 S, (N, 2) degrees: what a place is compared with by default."""
    lattice = xyz_to_latlon(fibonacci_lattice(LATTICE_PLACES)).numpy()
    return np.ascontiguousarray(lattice[is_inhabited_land(lattice)])


def most_alike(
    query: npt.NDArray[Any], place: Floats, keys: npt.NDArray[Any], latlon: Floats, count: int, apart_km: float = 0.0
) -> Alike:
    """The places (N, 2) whose keys (N, D) are most like the query (D,), by cosine.

    With `apart_km`, none lies nearer than that to the place asked about or to a better one.
    """
    if not 1 <= count <= len(keys):
        raise ConfigError(f"count is {count}; it must lie between 1 and {len(keys)}")
    similarity = _unit(keys) @ _unit(query)
    chosen: list[int] = []
    free = _distance_km(latlon, place) >= apart_km
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


def _first_view(store: FeatureStore, kind: Values, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    found = np.asarray(_array(store, kind)[rows, 0], dtype=np.float32)
    if not np.isfinite(found).all():
        raise DataError(f"{store.path}: the {kind} of some places are not finite numbers; make the store again")
    return found


def _array(store: FeatureStore, kind: Values) -> npt.NDArray[Any]:
    if kind == "features":
        return store.features
    if store.components is None:
        raise DataError(f"{store.path} keeps no components; take its features, or make it with features.pca")
    return store.components


def _check_choice(name: str, value: str | None, choices: Any) -> None:
    if value is not None and value not in typing.get_args(choices):
        raise ConfigError(f"{name} is {value!r}; it must be one of {', '.join(typing.get_args(choices))}")


def _setting(origin: Mapping[str, Any], table: str, key: str) -> Any:
    values = origin.get(table)
    return values.get(key) if isinstance(values, Mapping) else None
