"""Requests and answers as plain dataclasses, which pydantic validates and OpenAPI describes.

Coordinates and counts are checked by the functions that use them, in the words of the command line.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

from tessearth.sphere import OnBad

KNOWN_ONLY: dict[str, Any] = {"extra": "forbid"}
"""Unknown fields are refused."""

Numbers = float | list[float | None]
"""null stands for a coordinate that is missing."""
LayerName = Literal["embedding", "sharpness", "token", "similarity", "prediction"]
TileName = Literal["earth", "embedding", "sharpness", "token", "similarity", "prediction"]


@dataclass(frozen=True, kw_only=True)
class EmbedRequest:
    """One place ({"lat": 48.9, "lon": 2.4}), or many: lists of lat and lon, or points as [lat, lon] pairs."""

    __pydantic_config__: ClassVar[dict[str, Any]] = KNOWN_ONLY

    lat: Numbers | None = None
    lon: Numbers | None = None
    points: list[list[float | None]] | None = None
    format: Literal["json", "binary"] = "json"
    """json, or binary: float32 little-endian, row after row, with the shape in the header X-Shape."""
    dims: int | None = None
    """How many of the first numbers are sent, brought back to unit length; null is all of them."""
    on_bad: OnBad = "error"
    """Rows without a usable place: refuse all, skip them, or answer null for them (NaN in binary)."""


@dataclass(frozen=True, kw_only=True)
class EmbedAnswer:
    """The embedding of one place, (D), or of many, (N, D)."""

    model: str
    shape: list[int]
    embedding: list[float] | list[list[float] | None]


@dataclass(frozen=True, kw_only=True)
class SimilarRequest:
    """A place, and the number of similar places wanted."""

    __pydantic_config__: ClassVar[dict[str, Any]] = KNOWN_ONLY

    lat: float
    lon: float
    count: int = 10
    apart_km: float = 500.0
    """The least distance from the place given, and between the places found."""
    unlike: list[float] | None = None
    """Another place as [lat, lon]: what the two have in common does not count."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """Labels of a place; null where there is none."""

    country: str | None = None
    climate: str | None = None
    """Koppen-Geiger class."""


@dataclass(frozen=True, kw_only=True)
class SimilarPlace(Labels):
    """A place similar to the one given."""

    lat: float
    lon: float
    similarity: float
    """Cosine of the embeddings."""
    distance_km: float


@dataclass(frozen=True, kw_only=True)
class SimilarAnswer:
    """Places on land, the most similar first."""

    lat: float
    lon: float
    places: list[SimilarPlace]
    compared: int
    """The number of places compared with."""


@dataclass(frozen=True, kw_only=True)
class TokenShare:
    """How much a place draws on a token."""

    token: int
    share: float


@dataclass(frozen=True, kw_only=True)
class NearSite:
    """A site near a place."""

    site: int
    lat: float
    lon: float
    distance_km: float
    weight: float
    """The place's share in it, 0 to 1."""
    sharpness: float


@dataclass(frozen=True, kw_only=True)
class Support:
    """The sites' coverage of a place."""

    score: float
    """exp(-tau a^2 / 2) at angle a from the nearest site: 1 on the site, towards 0 where no site reaches."""
    nearest_km: float
    effective_sites: float
    """exp of the entropy of the site weights, the mean over tessellations."""
    relative: list[float] | None = None
    """Distance to the nearest site of each level over that site's spacing; null where sharpness is not tied to it."""


@dataclass(frozen=True, kw_only=True)
class PlaceAnswer(Labels):
    """The labels of a place, and the model's view of it."""

    lat: float
    lon: float
    land: bool | None = None
    temperature_c: float | None = None
    elevation_m: float | None = None
    support: Support | None = None
    tokens: list[TokenShare]
    sites: list[NearSite]


@dataclass(frozen=True, kw_only=True)
class CompareAnswer:
    """Two places side by side."""

    similarity: float
    """Cosine of the embeddings."""
    distance_km: float
    rank: float
    """The share of places on land that are less similar to the first than the second is."""


@dataclass(frozen=True, kw_only=True)
class TokenPlace(Labels):
    """A place where a token is strong."""

    lat: float
    lon: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Token:
    """The use of one semantic token by places on land."""

    token: int
    mean: float
    """Mean attention over places; 1 / T where all tokens are used equally."""
    highest: float
    climate: str | None
    """The Koppen-Geiger class whose places give it the highest mean attention."""
    places: list[TokenPlace]


@dataclass(frozen=True, kw_only=True)
class TokensAnswer:
    """Every token, the most used first."""

    count: int
    effective: float
    """Tokens a place draws on: the mean over places of exp(entropy of its attention)."""
    tokens: list[Token]


@dataclass(frozen=True, kw_only=True)
class SitesAnswer:
    """Every site, as columns."""

    lat: list[float]
    lon: list[float]
    sharpness: list[float]
    reach_km: list[float]
    """The width of the Gaussian by which a site's weight falls with distance."""
    territory_km2: list[float]
    """The area that is nearest to it."""
    tessellation: list[int]


@dataclass(frozen=True, kw_only=True)
class MigrationAnswer:
    """The positions of some sites while the model was trained."""

    steps: list[int]
    sites: list[int]
    """Their numbers in /sites."""
    lat: list[list[float]]
    """(steps, sites)."""
    lon: list[list[float]]
    moved_km: list[float]
    """From the first step to the last, per site."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """Places with a label each: numbers, or classes as text."""

    __pydantic_config__: ClassVar[dict[str, Any]] = KNOWN_ONLY

    lat: list[float | None]
    lon: list[float | None]
    values: list[float] | list[str]
    name: str = "value"
    on_bad: Literal["error", "skip"] = "error"
    """Rows without a usable place: refuse all, or leave them out."""
    kind: Literal["auto", "regress", "classify"] = "auto"
    """auto: numbers are a quantity, text is classes."""
    step_degrees: float | None = None
    """Adds a map of the world in cells of this side to the answer; it must divide 180 and be at least 1."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score in cross-validation."""

    name: str
    """accuracy or R2."""
    value: float
    folds: int
    baseline: float
    """The score of always answering the most frequent class, or the mean."""


@dataclass(frozen=True, kw_only=True)
class WorldMap:
    """Predictions on a grid, the north-west corner first."""

    step_degrees: float
    values: list[list[float]]
    """Numbers, or codes of the classes."""


@dataclass(frozen=True, kw_only=True)
class PredictAnswer:
    """A fitted probe, its scores and its map."""

    probe: str
    name: str
    kind: Literal["regress", "classify"]
    rows: int
    left_out: int
    """How many rows were left out because they had no usable place."""
    random: Score | None
    """The score with rows held out at random; null with too few rows."""
    regional: Score | None
    """The score with whole blocks of 10 degrees held out, as on a map of elsewhere; null with too few blocks."""
    penalty: float
    low: float | None = None
    high: float | None = None
    classes: list[str] | None = None
    colours: list[str] | None = None
    tiles: str
    """Pattern of the map's tiles."""
    map: WorldMap | None = None


@dataclass(frozen=True, kw_only=True)
class Legend:
    """The meaning of a layer's colours."""

    kind: Literal["colours", "scale", "classes", "picture"]
    title: str
    unit: str = ""
    low: float | None = None
    high: float | None = None
    logarithmic: bool = False
    colours: list[str]
    note: str = ""


@dataclass(frozen=True, kw_only=True)
class LayerAnswer:
    """One layer of the map."""

    name: str
    ready: bool
    progress: float
    """0 to 1."""
    needs: list[str]
    """Parameters of its tiles in addition to z, x, y."""
    max_zoom: int
    tiles: str
    """Pattern of its tiles."""


@dataclass(frozen=True, kw_only=True)
class HealthAnswer:
    """The state of the server, and the model it serves."""

    status: Literal["ok", "starting"]
    """starting: maps are still being prepared, and embeddings are served already."""
    version: str
    model: str
    fingerprint: str
    embedding_width: int
    sites: int
    tokens: int
    trained: bool
    migration: bool
    pictures: bool
    limits: dict[str, float]


@dataclass(frozen=True, kw_only=True)
class ErrorAnswer:
    """The mistake and its remedy, in one line."""

    error: str
