"""Places similar to one: over land, or among the places of a table, with the names of towns nearby."""

import os
import re
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.embedding.embedder import Embedder, keep_embedder
from tessearth.embedding.retrieval import choose_alike, cosines, land_places
from tessearth.errors import ConfigError, CoordinateError, MissingExtraError
from tessearth.sphere import Floats, OnBad, as_latlon, read_pair, take_latlon
from tessearth.zoo import DEFAULT_MODEL

PLACES_AT_ONCE = 8192
LEAST_OWN = 1e-3
"""Length of what a place has of its own below which it is the other place."""
KM = {"": 1.0, "km": 1.0, "m": 0.001, "mi": 1.609344}


class SimilarPlaces(NamedTuple):
    """Places similar to a query, the most similar first."""

    latlon: Floats
    """Degrees, (k, 2)."""
    similarity: npt.NDArray[np.float32]
    """Cosine to the query, (k,)."""
    distance_km: Floats
    """From the query's place, (k,)."""
    row: npt.NDArray[np.int64]
    """Among the places compared with, (k,)."""
    near: list[str] | None
    """The nearest town of each; None where the label packages are not installed."""


class Query(NamedTuple):
    """What others are compared with."""

    vector: npt.NDArray[Any]
    """An embedding, or its part that another place lacks, (D,)."""
    place: Floats
    """Degrees, (2,)."""
    name: str | None
    """What the place is called, where it was given by name."""


def similar(
    *place: Any,
    among: Any = None,
    unlike: Any = None,
    count: int = 10,
    apart: float | str = 0.0,
    model: str | os.PathLike[str] | Embedder = DEFAULT_MODEL,
    lat: str | None = None,
    lon: str | None = None,
    on_bad: OnBad = "error",
) -> SimilarPlaces:
    """The places most similar to one, by the cosine of their embeddings.

    similar("Nairobi"); similar(48.86, 2.35, apart="500km"); similar("Kenya", among=table, unlike=(1.3, 103.8))

    The place is two numbers, or the name of a town or country where the labels are installed. It is compared with land,
    88 km apart, or with the places of `among`, any table that `Embedder` reads (`lat` and `lon` name its columns;
    `on_bad` other than "error" leaves rows out). `unlike` takes away what the place shares with another one. `apart` is
    the least distance between the places found, and from the query: a number of km, or text with its unit.
    """
    embedder = model if isinstance(model, Embedder) else keep_embedder(os.fspath(model))
    query = make_query(embedder, read_place(*place), unlike)
    if among is None:
        latlon = land_places()
    else:
        on_bad = "error" if on_bad == "error" else "null"
        latlon = take_latlon(among, lat=lat, lon=lon, on_bad=on_bad).reshape(-1, 2)
    rows = np.flatnonzero(np.isfinite(latlon).all(axis=1))
    if count < 1:
        raise ConfigError(f"count is {count}; it must be at least 1")
    similarity = np.concatenate(
        [
            cosines(query.vector, embedder.embed(latlon[some]))
            for some in np.array_split(rows, max(1, len(rows) // PLACES_AT_ONCE))
        ]
    )
    found = choose_alike(similarity, query.place, latlon[rows], count, read_km(apart))
    chosen = rows[found.row]
    return SimilarPlaces(latlon[chosen], found.similarity, found.distance_km, chosen, name_places(latlon[chosen]))


def read_place(*place: Any) -> tuple[Floats, str | None]:
    """One place by its coordinates or its name: degrees (2,), and the name that was found."""
    if len(place) == 1 and isinstance(place[0], str):
        pair = read_pair(place[0], "lat,lon")
        if np.isfinite(pair).all():
            return as_latlon(pair), None
        from tessearth.labels import find_place

        named = find_place(place[0])
        return named.latlon, named.name
    latlon = as_latlon(*place)
    if latlon.shape != (2,):
        raise CoordinateError(f"places have shape {latlon.shape}: give one place, as latitude and longitude or a name")
    return latlon, None


def make_query(embedder: Embedder, place: tuple[Floats, str | None], unlike: Any = None) -> Query:
    """The embedding of a place; with another one, the part of it that is orthogonal to the other's."""
    latlon, name = place
    vector = embedder.embed(latlon)
    if unlike is not None:
        other = embedder.embed(read_place(*((unlike,) if isinstance(unlike, str) else (tuple(unlike),)))[0])
        vector = take_away(vector, other)
    return Query(vector, latlon, name)


def take_away(vector: npt.NDArray[Any], other: npt.NDArray[Any]) -> npt.NDArray[Any]:
    """The part of an embedding (D,) that is orthogonal to another one's."""
    vector, other = (one / max(float(np.linalg.norm(one)), 1e-12) for one in (vector, other))
    own = vector - (vector @ other) * other
    if np.linalg.norm(own) < LEAST_OWN:
        raise ConfigError("the two places have the same embedding: nothing is left of one without the other")
    return np.asarray(own)


def name_places(latlon: Floats) -> list[str] | None:
    """The town nearest to each place (N, 2); None where the label packages are not installed."""
    from tessearth.labels import nearest_towns

    try:
        return nearest_towns(latlon)
    except MissingExtraError:
        return None


def read_km(distance: float | str) -> float:
    """A distance in km, from a number of them or from text such as "500km" or "300 mi"."""
    found = re.fullmatch(r"\s*(\d+\.?\d*|\.\d+)\s*(km|mi|m|)\s*", str(distance))
    if found is None:
        raise ConfigError(f"apart is {distance!r}; it must be a distance such as 500, 500km or 300mi")
    return float(found[1]) * KM[found[2]]
