"""Places as users have them, checked once: arrays, lists, pandas, geopandas, named columns, directions."""

import contextlib
import reprlib
import warnings
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import CoordinateError, CoordinateWarning
from tessearth.settings import did_you_mean

Floats = npt.NDArray[np.float64]

LATITUDE_NAMES = ("lat", "latitude", "decimallatitude", "lat_deg", "y")
LONGITUDE_NAMES = ("lon", "lng", "long", "longitude", "decimallongitude", "lon_deg", "x")

LARGEST_DEGREES = (90, 360)
"""Of a latitude and of a longitude."""
NOT_DEGREES = {"c": "complex numbers", "M": "dates", "m": "durations"}
"""Kinds of arrays that numpy turns into numbers silently, losing a part of them."""


def as_latlon(points: Any = None, *, lat: Any = None, lon: Any = None) -> Floats:
    """Checked degrees, shape (..., 2), latitude first, from any container.

    `points` is an array or list of (lat, lon), a DataFrame with columns of the usual names, or a GeoSeries or
    GeoDataFrame of points in any projection; or the two coordinates come by name, broadcast against each other.
    """
    if points is None and (lat is None or lon is None):
        raise CoordinateError("no places were given: pass points, or both lat= and lon=")
    if points is not None and not (lat is None and lon is None):
        raise CoordinateError("places were given twice: pass either points or lat= and lon=")
    if points is None:
        latlon = _stack(_as_floats(lat, "lat"), _as_floats(lon, "lon"))
    elif hasattr(points, "geom_type") and hasattr(points, "crs"):
        latlon = _from_geometry(points)
    elif hasattr(points, "columns"):
        names = find_columns(points.columns)
        latlon = _stack(*(_as_floats(points[name].to_numpy(), str(name)) for name in names))
    else:
        latlon = _from_pairs(points)
    check_latlon(latlon)
    warn_of_radians(latlon)
    return latlon


def as_places(latlon: Any) -> Floats:
    """Checked degrees as a list of places, shape (N, 2), from an array or a list of (lat, lon)."""
    places = _from_pairs(latlon)
    if places.ndim != 2:
        raise CoordinateError(f"places have shape {places.shape}, not (N, 2) with (lat, lon) in degrees")
    return check_latlon(places)


def as_xyz(xyz: Any) -> Floats:
    """Checked directions on a sphere, shape (..., 3), brought to unit length."""
    directions = _as_floats(xyz, "xyz")
    if directions.ndim == 0 or directions.shape[-1] != 3:
        raise CoordinateError(f"xyz has shape {directions.shape}; directions have shape (..., 3)")
    length = np.linalg.norm(directions, axis=-1, keepdims=True)
    bad = ~(np.isfinite(length) & (length > 0)).ravel()
    _check_rows(directions.reshape(-1, 3), bad, "row {row} of xyz", 0, "it points nowhere")
    unit: Floats = directions / length
    return unit


def check_latlon(latlon: Floats, *, first_row: int = 0) -> Floats:
    """The places, when all are possible degrees; an error names the first wrong row, counted from `first_row`."""
    rows = latlon.reshape(-1, 2)
    if (np.abs(rows) <= LARGEST_DEGREES).all():  # also refuses NaN and infinity
        return latlon
    name = "the place" if latlon.ndim == 1 else "row {row}"
    lat, lon = np.abs(rows.T)
    swappable = bool((lon <= 90).all())
    advice = "this looks like (lon, lat): swap the two" if swappable else "latitude lies between -90 and 90"
    for bad, reason in (
        (
            np.asarray(~np.isfinite(rows).all(axis=1)),
            "latitude or longitude is missing or not finite; leave such rows out",
        ),
        (lat > 90, f"not (lat, lon) in degrees; {advice}"),
        (lon > 360, "longitude lies between -180 and 180 (or 0 and 360) degrees"),
    ):
        _check_rows(rows, bad, name, first_row, reason)
    return latlon


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


def find_columns(columns: Iterable[Any], lat: str | None = None, lon: str | None = None) -> tuple[Any, Any]:
    """The latitude and longitude columns of a table: those named, else those of the usual names."""
    names = list(columns)
    found = _find_column(names, lat, LATITUDE_NAMES, "lat"), _find_column(names, lon, LONGITUDE_NAMES, "lon")
    lat_name, lon_name = (str(name).lower() for name in found)
    if lat_name in LONGITUDE_NAMES or lon_name in LATITUDE_NAMES:
        raise CoordinateError(f"latitude is read from column {found[0]!r} and longitude from {found[1]!r}: swap them")
    return found


def _find_column(names: Sequence[Any], wanted: str | None, usual: tuple[str, ...], which: str) -> Any:
    if wanted is not None:
        if wanted in names:
            return wanted
        raise CoordinateError(f"there is no column {wanted!r}{did_you_mean(wanted, map(str, names))}")
    for candidate in usual:
        matches = [name for name in names if str(name).lower() == candidate]
        if len(matches) == 1:
            return matches[0]
    listed = ", ".join(map(str, names))
    raise CoordinateError(
        f"no column of {listed} reads as {which}: name the {which} column (one of {', '.join(usual)})"
    )


def _from_geometry(points: Any) -> Floats:
    geometry = getattr(points, "geometry", points)
    if geometry.crs is not None:
        geometry = geometry.to_crs(4326)
    if not bool((geometry.geom_type == "Point").all()):
        raise CoordinateError("the geometry holds shapes that are not points; take their centroids first")
    return _stack(geometry.y.to_numpy(np.float64), geometry.x.to_numpy(np.float64))


def _from_pairs(points: Any) -> Floats:
    latlon = _as_floats(points, "points")
    if latlon.ndim == 0 or latlon.shape[-1] != 2:
        raise CoordinateError(f"points have shape {latlon.shape}; (lat, lon) pairs have shape (..., 2)")
    return latlon


def _as_floats(values: Any, name: str) -> Floats:
    """Numbers as float64; values that numpy converts with a loss (dates, complex numbers) are refused."""
    try:
        if hasattr(values, "detach"):
            values = values.detach().cpu()
            values = values.double() if values.is_floating_point() else values  # numpy has no bfloat16
        array = np.ma.asarray(values) if np.ma.isMaskedArray(values) else np.asarray(values)
        if array.dtype.kind in NOT_DEGREES:
            raise CoordinateError(f"{name} holds {NOT_DEGREES[array.dtype.kind]}, where degrees as numbers belong")
        numbers = array.astype(np.float64)
        return np.asarray(np.ma.filled(numbers, np.nan))
    except CoordinateError:
        raise
    except (TypeError, ValueError, OverflowError, RuntimeError):
        raise CoordinateError(f"{name} holds {_not_a_number(values)}, where degrees as numbers belong") from None


def _not_a_number(values: Any) -> str:
    """The first entry that is no number, for the error message."""
    uneven = "rows of different lengths"
    try:
        entries = np.asarray(values, dtype=object).ravel()
    except (TypeError, ValueError, RuntimeError):
        return uneven
    for value in entries:
        try:
            float(value)
        except OverflowError:
            return "a number beyond any degree"
        except (TypeError, ValueError, RuntimeError):
            with contextlib.suppress(ValueError):  # Python does not write out numbers of thousands of digits
                return reprlib.repr(value)
            return f"a {type(value).__name__}"
    return uneven


def _stack(lat: Floats, lon: Floats) -> Floats:
    try:
        return np.stack(np.broadcast_arrays(lat, lon), axis=-1)
    except (ValueError, RuntimeError):
        raise CoordinateError(f"lat has shape {lat.shape} and lon {lon.shape}: they do not go together") from None


def _check_rows(rows: Floats, bad: npt.NDArray[np.bool_], name: str, first_row: int, reason: str) -> None:
    for row in np.flatnonzero(bad)[:1].tolist():
        shown = ", ".join(f"{value:.10g}" for value in rows[row])
        raise CoordinateError(f"{name.format(row=first_row + row)} is ({shown}): {reason}")
