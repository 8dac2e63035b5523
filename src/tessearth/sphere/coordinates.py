"""Places as users have them, checked once: degrees, directions, the columns of a table where places stand."""

import contextlib
import json
import reprlib
import typing
import warnings
from collections.abc import Callable, Iterable, Sequence
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, CoordinateError, CoordinateWarning, TableError
from tessearth.settings import did_you_mean
from tessearth.sphere.angles import advise, is_odd, read_angle

if TYPE_CHECKING:
    import pyarrow as pa

Floats = npt.NDArray[np.float64]
OnBad = Literal["error", "skip", "null"]
"""What is done about rows without a usable place: refuse all, leave them out, keep them as NaN."""

Shape = Literal["point", "centroid", "mean"]
"""What stands for a shape that is no point: a point inside of it, its centroid, or the mean over its area or length."""
SHAPES: tuple[Shape, ...] = ("point", "centroid", "mean")
LATITUDE_NAMES = ("lat", "latitude", "decimallatitude", "lat_deg", "y")
LONGITUDE_NAMES = ("lon", "lng", "long", "longitude", "decimallongitude", "lon_deg", "x")
GEOMETRY_NAMES = ("geometry", "geom", "wkb_geometry", "wkb")
"""What a column of binary shapes is called where nothing else says that it is one."""
LARGEST_DEGREES = (90, 360)
"""Of a latitude and of a longitude."""
NOT_DEGREES = {"c": "complex numbers", "M": "dates", "m": "durations"}
"""Kinds of arrays that numpy turns into numbers silently, losing a part of them."""
SHOWN_ROWS = 5
DEGREES = ("OGC:CRS84", "EPSG:4326")
NOT_LATITUDE = "not (lat, lon) in degrees"
LATITUDE_RANGE, SWAPPED = "latitude lies between -90 and 90", "this looks like (lon, lat): swap the two"


class _Numbers(NamedTuple):
    """Degrees as numbers, and what was given where that was text."""

    numbers: Floats
    given: npt.NDArray[Any] | None = None


class _Read(NamedTuple):
    """Degrees (..., 2), latitude first, with what was given, of the same shape, and what the coordinates are called."""

    latlon: Floats
    given: npt.NDArray[Any] | None
    names: tuple[str, str]


class Places(NamedTuple):
    """The places of some rows."""

    latlon: Floats
    """(N, 2) degrees; NaN where a row has none."""
    samples: Floats | None = None
    """(M, 2): the places whose mean stands for a row, for shapes with an area or a length."""
    owners: npt.NDArray[np.int64] | None = None
    """(M,): the row of each sample, ascending; every row with a place owns at least one."""
    season: Floats | None = None
    """(N,): the share of the year that a row is meant at; None is the whole year, for all of them."""

    def only(self, wanted: npt.NDArray[np.bool_]) -> "Places":
        """Some of the rows."""
        season = None if self.season is None else self.season[wanted]
        if self.samples is None or self.owners is None:
            return Places(self.latlon[wanted], season=season)
        of_wanted, number = wanted[self.owners], np.cumsum(wanted) - 1
        return Places(self.latlon[wanted], self.samples[of_wanted], number[self.owners[of_wanted]], season)

    def apply(self, embed: Callable[..., npt.NDArray[Any]]) -> npt.NDArray[Any]:
        """Embeddings of the rows, (N, D): NaN for a row without a place, the mean for a row with several.

        `embed` is called with degrees, (M, 2), and with shares of the year, (M,), where rows have seasons.
        """
        known: npt.NDArray[np.bool_] = np.asarray(np.isfinite(self.latlon).all(axis=1))
        some = self if known.all() else self.only(known)
        if some.samples is None or some.owners is None:
            found = embed(np.ascontiguousarray(some.latlon), *([] if some.season is None else [some.season]))
        else:
            when = [] if some.season is None else [some.season[some.owners]]
            found = embed(np.ascontiguousarray(some.samples), *when)
            counts = np.bincount(some.owners, minlength=len(some.latlon))
            if len(counts):
                sums = np.add.reduceat(found.astype(np.float64), np.cumsum(counts) - counts)
                found = (sums / counts[:, None]).astype(found.dtype)
        if known.all():
            return found
        embeddings = np.full((len(known), found.shape[1]), np.nan, found.dtype)
        embeddings[known] = found
        return embeddings


def as_latlon(*points: Any, lat: Any = None, lon: Any = None) -> Floats:
    """Checked degrees, shape (..., 2), latitude first, from any container.

    `points` is an array or list of (lat, lon), latitudes and longitudes one after the other, or a container: a frame of
    pandas, polars or geopandas, a table of pyarrow, a relation of DuckDB, a dict of columns, a list of dicts, shapes of
    shapely or GeoJSON, a Dataset or DataArray of xarray. With a container `lat` and `lon` name its columns; else they
    are the coordinates themselves, broadcast against each other.

    In a container places come from the columns named, else from its geometry in any projection, else from columns of
    the usual names. A point inside of them stands for lines and polygons. A Dataset with latitudes and longitudes along
    two dimensions gives all its cells, (lat, lon, 2).
    """
    return take_places(points, lat, lon).latlon


def take_latlon(*points: Any, lat: Any = None, lon: Any = None, on_bad: OnBad = "error") -> Floats:
    """The same, with a choice of what is done about rows without a usable place; "null" leaves NaN in theirs."""
    return take_places(points, lat, lon, on_bad).latlon


def take_places(
    points: tuple[Any, ...], lat: Any = None, lon: Any = None, on_bad: OnBad | None = None, shape: Shape = "point"
) -> Places:
    """The same with a choice of what stands for lines and polygons; the degrees have any shape (..., 2)."""
    if shape not in SHAPES:
        raise ConfigError(f"geometry is {shape!r}; it must be one of {' | '.join(SHAPES)}")
    if on_bad not in (None, *typing.get_args(OnBad)):
        raise ConfigError(f"on_bad is {on_bad!r}; it must be one of {', '.join(typing.get_args(OnBad))}")
    given = _read(points, lat, lon, shape)
    read = _Read(given.latlon, None, ("lat", "lon")) if isinstance(given, Places) else given
    places = given if isinstance(given, Places) else Places(read.latlon)
    bad = find_bad(read.latlon)
    if not bad.any():
        warn_of_radians(read.latlon)
        return places
    if on_bad == "skip" and read.latlon.ndim != 2:
        raise ConfigError("on_bad='skip' leaves rows out of a list of places; with other shapes use on_bad='null'")
    if on_bad in (None, "error") or bad.all():
        advice = "; on_bad='skip' leaves such rows out, on_bad='null' keeps them as NaN"
        _refuse_bad(read, advice if on_bad and not bad.all() else "")
    latlon = read.latlon.copy()
    latlon[bad] = np.nan
    warn_of_radians(latlon[~bad])
    places = places._replace(latlon=latlon)
    return places.only(~bad) if on_bad == "skip" else places


def _read(points: tuple[Any, ...], lat: Any, lon: Any, shape: Shape) -> "_Read | Places":
    """Places as they were given, not checked yet."""
    if len(points) > 2:
        raise CoordinateError(f"{len(points)} things were given as places: pass pairs, or latitudes and longitudes")
    if len(points) == 2 and points[1] is not None:
        if lat is not None or lon is not None:
            raise CoordinateError("places were given twice: pass either points or lat= and lon=")
        (lat, lon), points = points, ()
    given = points[0] if points else None
    if given is None:
        if lat is None or lon is None:
            raise CoordinateError("no places were given: pass points, or both lat= and lon=")
        return _stack(lat, lon, ("lat", "lon"))
    if not isinstance(lat, str | None) or not isinstance(lon, str | None):
        raise CoordinateError("places were given twice: pass either points or lat= and lon=")
    is_array = isinstance(given, np.ndarray) and given.dtype != object
    is_array = is_array or (isinstance(given, tuple) and all(type(one) is float for one in given))
    if not is_array:
        from tessearth.sphere.containers import find_places, is_container

        if hasattr(given, "__next__") and not is_container(given):
            given = list(given)
        found = find_places(given, lat, lon, shape)
        if found is not None:
            return found if isinstance(found, Places) else _stack(*found)
    if lat is not None or lon is not None:
        raise CoordinateError("lat= and lon= name columns, and these points have none")
    return _from_pairs(given)


def find_columns(columns: Iterable[Any], lat: str | None = None, lon: str | None = None) -> tuple[Any, Any]:
    """The latitude and longitude columns of a table: those named, else those of the usual names."""
    names = list(columns)
    found = _find_column(names, lat, LATITUDE_NAMES, "lat"), _find_column(names, lon, LONGITUDE_NAMES, "lon")
    if found[0] == found[1]:
        raise CoordinateError(f"latitude and longitude are both read from column {found[0]!r}: name one for each")
    lat_name, lon_name = (str(name).strip().lower() for name in found)
    if lat_name in LONGITUDE_NAMES or lon_name in LATITUDE_NAMES:
        raise CoordinateError(f"latitude is read from column {found[0]!r} and longitude from {found[1]!r}: swap them")
    return found


def _find_column(names: Sequence[Any], wanted: str | None, usual: tuple[str, ...], which: str) -> Any:
    if wanted is not None:
        if wanted in names:
            return wanted
        raise CoordinateError(f"there is no column {wanted!r}{did_you_mean(wanted, map(str, names))}")
    for candidate in usual:
        matches = [name for name in names if str(name).strip().lower() == candidate]
        if len(matches) == 1:
            return matches[0]
    listed = f"no column of {', '.join(map(str, names))} reads as {which}"
    raise CoordinateError(f"{listed}: name the {which} column (one of {', '.join(usual)})")


class Geometry(NamedTuple):
    """The geometry column of a table."""

    name: str
    crs: Any = None
    """What pyproj reads; None is degrees."""

    def is_in_degrees(self) -> bool:
        """Whether coordinates are longitude and latitude as they are: OGC:CRS84, or EPSG:4326 stored x first."""
        identifier = self.crs.get("id") if isinstance(self.crs, dict) else None
        known = f"{identifier.get('authority')}:{identifier.get('code')}" if isinstance(identifier, dict) else self.crs
        return self.crs is None or known in DEGREES


def geometry_column(schema: "pa.Schema") -> Geometry | None:
    """The geometry column of a table: by GeoParquet's metadata, by its Arrow extension, else by its usual name."""
    raw = (schema.metadata or {}).get(b"geo")
    if raw is not None:
        return _of_geoparquet(raw, schema.names)
    for field in schema:
        about = field.metadata or {}
        kind = getattr(field.type, "extension_name", about.get(b"ARROW:extension:name", b"").decode())
        if kind.startswith("geoarrow.") or kind == "ogc.wkb":
            crs = json.loads(about.get(b"ARROW:extension:metadata") or b"{}").get("crs")
            return Geometry(field.name, crs)
    try:
        find_columns(schema.names)
    except CoordinateError:
        named = [field.name for field in schema if field.name.lower() in GEOMETRY_NAMES and "binary" in str(field.type)]
        return Geometry(named[0]) if len(named) == 1 else None
    return None


def _of_geoparquet(raw: bytes, names: Sequence[str]) -> Geometry:
    try:
        described = json.loads(raw)
        name: str = described["primary_column"]
        crs = dict(described["columns"][name]).get("crs")
    except (ValueError, LookupError, TypeError, RecursionError):
        raise TableError("the GeoParquet metadata cannot be read") from None
    if name not in names:
        raise TableError(f"the GeoParquet metadata names the geometry {name!r}, and there is no such column")
    return Geometry(name, crs)


def as_places(latlon: Any) -> Floats:
    """Checked degrees as a list of places, shape (N, 2), from an array or a list of (lat, lon)."""
    places = _from_pairs(latlon)
    if places.latlon.ndim != 2:
        raise CoordinateError(f"places have shape {places.latlon.shape}, not (N, 2) with (lat, lon) in degrees")
    _refuse_bad(places)
    return places.latlon


def as_xyz(xyz: Any) -> Floats:
    """Checked directions on a sphere, shape (..., 3), brought to unit length."""
    directions = _as_floats(xyz, "xyz").numbers
    if directions.ndim == 0 or directions.shape[-1] != 3:
        raise CoordinateError(f"xyz has shape {directions.shape}; directions have shape (..., 3)")
    length = np.linalg.norm(directions, axis=-1, keepdims=True)
    bad = ~(np.isfinite(length) & (length > 0)).ravel()
    for row in np.flatnonzero(bad)[:1].tolist():
        raise CoordinateError(f"row {row} of xyz is ({_shown(directions.reshape(-1, 3)[row])}): it points nowhere")
    unit: Floats = directions / length
    return unit


def check_latlon(latlon: Floats, *, first_row: int = 0) -> Floats:
    """The places, when all are possible degrees; an error names the wrong rows, counted from `first_row`."""
    _refuse_bad(_Read(latlon, None, ("lat", "lon")), first_row=first_row)
    return latlon


def find_bad(latlon: Floats) -> npt.NDArray[np.bool_]:
    """Which places (..., 2) are no possible degrees, (...)."""
    possible = np.abs(latlon) <= LARGEST_DEGREES  # NaN and infinity are not
    if possible.all():
        return np.zeros(latlon.shape[:-1], dtype=np.bool_)
    return np.asarray(~possible.all(axis=-1))


def _refuse_bad(read: _Read, advice: str = "", first_row: int = 0) -> None:
    """Raise an error that counts the bad rows and names the first of them."""
    bad = find_bad(read.latlon).ravel()
    rows = np.flatnonzero(bad)
    if not len(rows):
        return
    flat = read.latlon.reshape(-1, 2)
    given = None if read.given is None else read.given.reshape(-1, 2)
    problems = []
    for row in rows[:SHOWN_ROWS].tolist():
        name = "the place" if read.latlon.ndim == 1 else f"row {first_row + row}"
        wrong = None if given is None else _wrong_text(given[row], read.names)
        problems.append(f"{name}: {wrong}" if wrong else f"{name} is ({_shown(flat[row])}): {_why(flat[row])}")
    if any(problem.endswith(NOT_LATITUDE) for problem in problems):
        is_swapped = bool((np.abs(flat[np.isfinite(flat).all(axis=1), 1]) <= 90).all())
        advice = f"; {SWAPPED if is_swapped else LATITUDE_RANGE}{advice}"
    texts = [] if given is None else [text for row in given[rows[:SHOWN_ROWS]] for text in row if is_odd(text)]
    raise CoordinateError(f"{say_bad(problems, len(rows), len(flat))}{advise(texts) or advice}")


def say_bad(problems: Sequence[str], bad: int, rows: int) -> str:
    """How many rows have no usable place, and the problems of the first."""
    count = "" if bad == 1 else f"{bad:,} of {rows:,} rows have no usable place: "
    more = f"; and {bad - SHOWN_ROWS:,} more" if bad > SHOWN_ROWS else ""
    return f"{count}{'; '.join(problems[:SHOWN_ROWS])}{more}"


def _why(place: Floats) -> str:
    """Why a place is none."""
    if not np.isfinite(place).all():
        return "latitude or longitude is missing or not finite"
    if abs(place[0]) > 90:
        return NOT_LATITUDE
    return "longitude lies between -180 and 180 (or 0 and 360) degrees"


def _shown(values: Floats) -> str:
    return ", ".join(f"{value:.10g}" for value in values)


def _wrong_text(given: npt.NDArray[Any], names: tuple[str, str]) -> str | None:
    """The coordinate of a row that is text and no number."""
    for name, text in zip(names, given, strict=True):
        if is_odd(text):
            return f"{name} holds {reprlib.repr(text)}, where degrees as numbers belong"
    return None


def are_radians(latlon: Floats) -> bool:
    """Whether all places lie inside +-pi/2 by +-pi: in degrees a patch of sea off Africa, so more likely radians."""
    rows = latlon.reshape(-1, 2)
    if not len(rows) or abs(rows[0, 0]) > np.pi / 2:  # true of nearly all tables
        return False
    return bool((np.abs(rows) <= (np.pi / 2, np.pi)).all() and rows.any())


def warn_of_radians(latlon: Floats) -> None:
    """Warn of places that look like radians."""
    if are_radians(latlon):
        warnings.warn(
            "every place lies within 1.58 degrees of latitude 0 and 3.15 of longitude 0: are these radians? "
            "tessearth takes degrees",
            CoordinateWarning,
            stacklevel=3,
        )


def _from_pairs(points: Any) -> _Read:
    if isinstance(points, str):
        raise CoordinateError(
            f"places are {reprlib.repr(points)}: give numbers, or a table that is read already; "
            "tessearth encode --input FILE embeds a file"
        )
    values = _as_floats(points, "points")
    if values.numbers.ndim == 0 or values.numbers.shape[-1] != 2:
        raise CoordinateError(f"points have shape {values.numbers.shape}; (lat, lon) pairs have shape (..., 2)")
    return _Read(*values, ("points", "points"))


def _as_floats(values: Any, name: str) -> _Numbers:
    """Numbers as float64; values that numpy converts with a loss (dates, complex numbers) are refused."""
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values  # numpy has no bfloat16
        array = np.ma.asarray(values) if np.ma.isMaskedArray(values) else np.asarray(values)
        if array.dtype.kind in NOT_DEGREES:
            raise CoordinateError(f"{name} holds {NOT_DEGREES[array.dtype.kind]}, where degrees as numbers belong")
        if array.dtype.kind in "OUST":
            array = array.astype(str) if array.dtype.kind == "S" else array
            numbers = np.array([_number(value) for value in array.ravel().tolist()], dtype=np.float64)
            return _Numbers(numbers.reshape(array.shape), array.astype(object))
        return _Numbers(np.asarray(np.ma.filled(array.astype(np.float64), np.nan)))
    except CoordinateError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise CoordinateError(f"{name} holds {_not_a_number(values)}, where degrees as numbers belong") from None


def _number(value: Any) -> float:
    """One value as a number; NaN for text that is none, and for nothing."""
    if isinstance(value, str):
        return read_angle(value)
    if value is None or type(value).__name__ == "NAType":  # of pandas
        return np.nan
    return float(value)


def _not_a_number(values: Any) -> str:
    """The first entry that is no number, for the error message."""
    uneven = "rows of different lengths"
    try:
        entries = np.asarray(values, dtype=object).ravel()
    except (TypeError, ValueError, RuntimeError):
        return uneven
    for value in entries:
        try:
            _number(value)
        except OverflowError:
            return "a number beyond any degree"
        except (TypeError, ValueError, RuntimeError):
            with contextlib.suppress(ValueError):  # Python does not write out numbers of thousands of digits
                return reprlib.repr(value)
            return f"a {type(value).__name__}"
    return uneven


def _stack(lat: Any, lon: Any, names: tuple[str, str]) -> _Read:
    both = _as_floats(lat, names[0]), _as_floats(lon, names[1])
    try:
        latlon = np.stack(np.broadcast_arrays(*(one.numbers for one in both)), axis=-1)
    except (ValueError, RuntimeError):
        shapes = [one.numbers.shape for one in both]
        raise CoordinateError(
            f"{names[0]} has shape {shapes[0]} and {names[1]} {shapes[1]}: they do not go together"
        ) from None
    if all(one.given is None for one in both):
        return _Read(latlon, None, names)
    given = [one.numbers if one.given is None else one.given for one in both]
    return _Read(latlon, np.stack(np.broadcast_arrays(*given), axis=-1).astype(object), names)
