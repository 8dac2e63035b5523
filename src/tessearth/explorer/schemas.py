"""What requests and answers hold, as plain dataclasses: pydantic reads them where it is installed, and so does OpenAPI.

Values that only the model can judge (coordinates, counts) are checked by the functions that use them, in the words the
command line uses.
"""

from dataclasses import dataclass
from typing import Any, ClassVar, Literal

KNOWN_ONLY: dict[str, Any] = {"extra": "forbid"}
"""Fields that nobody knows are refused, not passed over."""

Numbers = float | list[float]


@dataclass(frozen=True, kw_only=True)
class EmbedRequest:
    """One place ({"lat": 48.9, "lon": 2.4}), or many: lists of lat and lon, or points as [lat, lon] pairs."""

    __pydantic_config__: ClassVar[dict[str, Any]] = KNOWN_ONLY

    lat: Numbers | None = None
    lon: Numbers | None = None
    points: list[list[float]] | None = None
    format: Literal["json", "binary"] = "json"
    """json, or binary: float32 little-endian, row after row, with the shape in the header X-Shape."""


@dataclass(frozen=True, kw_only=True)
class EmbedAnswer:
    """The embedding of one place, (D), or of many, (N, D)."""

    model: str
    shape: list[int]
    embedding: list[float] | list[list[float]]


@dataclass(frozen=True, kw_only=True)
class SimilarRequest:
    """A place, and how many like it are wanted."""

    __pydantic_config__: ClassVar[dict[str, Any]] = KNOWN_ONLY

    lat: float
    lon: float
    count: int = 10
    apart_km: float = 500.0
    """None lies nearer than that to the place asked about, or to a better one."""


@dataclass(frozen=True, kw_only=True)
class Labels:
    """What is known of a place from outside the model; null where nothing is."""

    country: str | None = None
    climate: str | None = None
    """Koppen-Geiger class."""


@dataclass(frozen=True, kw_only=True)
class SimilarPlace(Labels):
    """A place like the one asked about."""

    lat: float
    lon: float
    similarity: float
    """Cosine of the embeddings."""
    distance_km: float


@dataclass(frozen=True, kw_only=True)
class SimilarAnswer:
    """Places on land, the most alike first."""

    lat: float
    lon: float
    places: list[SimilarPlace]
    compared: int
    """How many places were compared with."""


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
    """How well the sites cover a place."""

    score: float
    """exp(-tau a^2 / 2) at angle a from the nearest site: 1 on the site, towards 0 where no site reaches."""
    nearest_km: float
    effective_sites: float
    """exp of the entropy of the site weights."""


@dataclass(frozen=True, kw_only=True)
class PlaceAnswer(Labels):
    """What the model, and the labels, say of a place."""

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
    """The share of places on land that are less like the first than the second is."""


@dataclass(frozen=True, kw_only=True)
class TokenPlace(Labels):
    """Where a token is strong."""

    lat: float
    lon: float
    share: float


@dataclass(frozen=True, kw_only=True)
class Token:
    """One semantic token as places on land use it."""

    token: int
    mean: float
    """The mean attention it gets; 1 / T if all were used alike."""
    highest: float
    climate: str | None
    """The Koppen-Geiger class that it favours most over its frequency."""
    places: list[TokenPlace]


@dataclass(frozen=True, kw_only=True)
class TokensAnswer:
    """Every token, the most used first."""

    count: int
    effective: float
    """Tokens a place draws on: exp of the mean entropy."""
    tokens: list[Token]


@dataclass(frozen=True, kw_only=True)
class SitesAnswer:
    """Every site, as columns."""

    lat: list[float]
    lon: list[float]
    sharpness: list[float]
    reach_km: list[float]
    """Around a site its weight falls like a Gaussian of this width."""
    territory_km2: list[float]
    """The area that is nearest to it."""
    tessellation: list[int]


@dataclass(frozen=True, kw_only=True)
class MigrationAnswer:
    """Where some of the sites were while the model was trained."""

    steps: list[int]
    sites: list[int]
    """Which sites these are."""
    lat: list[list[float]]
    """(steps, sites)."""
    lon: list[list[float]]
    moved_km: list[float]
    """From the first step to the last, per site."""


@dataclass(frozen=True, kw_only=True)
class PredictRequest:
    """Places with a label each: numbers, or classes as text."""

    __pydantic_config__: ClassVar[dict[str, Any]] = KNOWN_ONLY

    lat: list[float]
    lon: list[float]
    values: list[float] | list[str]
    name: str = "value"
    kind: Literal["auto", "regress", "classify"] = "auto"
    """auto takes numbers for a quantity and text for classes."""
    step_degrees: float | None = None
    """Also answer with a map of the world in cells of this side; it must divide 180 and be at least 1."""


@dataclass(frozen=True, kw_only=True)
class Score:
    """A score in cross-validation."""

    name: str
    """accuracy or R2."""
    value: float
    folds: int
    baseline: float
    """What the most frequent class (or the mean) would score."""


@dataclass(frozen=True, kw_only=True)
class WorldMap:
    """Predictions on a grid, the north-west corner first."""

    step_degrees: float
    values: list[list[float]]
    """Numbers, or codes of the classes."""


@dataclass(frozen=True, kw_only=True)
class PredictAnswer:
    """A fitted probe, and where its map is."""

    probe: str
    name: str
    kind: Literal["regress", "classify"]
    rows: int
    random: Score | None
    """Rows held out at random; null with too few rows."""
    regional: Score | None
    """Whole blocks of 10 degrees held out, which is what a map of elsewhere depends on; null with too few blocks."""
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
    """How a layer's colours are read."""

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
    """Parameters its tiles take besides z, x, y."""
    max_zoom: int
    tiles: str
    """Pattern of its tiles."""


@dataclass(frozen=True, kw_only=True)
class HealthAnswer:
    """Whether the server works, and what it serves."""

    status: Literal["ok", "starting"]
    """starting while maps are being prepared; embeddings are served all the same."""
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
    """What was wrong and what to do, in one line."""

    error: str
