"""Retrieval databases out of feature stores, and places like a place."""

import typing
from collections.abc import Callable, Mapping
from typing import Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.embedding.describe import describe_model
from tessearth.embedding.embedder import Embedder
from tessearth.embedding.retrieval import Database
from tessearth.errors import ConfigError, DataError
from tessearth.imagery.store import FeatureStore
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.geometry import EARTH_RADIUS_KM, fibonacci_lattice, xyz_to_latlon
from tessearth.sphere.land import is_inhabited_land

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
    embedder: Embedder,
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


def image_keys(embedder: Embedder, store: FeatureStore, rows: npt.NDArray[np.int64]) -> npt.NDArray[np.float32]:
    """Image embeddings in the space of the location embeddings, (n, D): the stored features, centred.

    They are in that space only where the model was trained on this very store by its contrastive term and without an
    image head, whose weights no model file keeps; anything else is refused.
    """
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
