"""What is known of places from outside the model: country, climate, land, temperature, height."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import MissingExtraError
from tessearth.labels.table import LABELS, prepare_labels
from tessearth.sphere.coordinates import Floats
from tessearth.sphere.land import is_land

NAMED = {"country": "country", "climate": "koppen"}
"""What we call it, and the label it is read from."""
MEASURED = {"temperature_c": "temperature", "elevation_m": "elevation"}


class Names(NamedTuple):
    """Country and climate of many places, as codes (-1 where there is none) and the words they stand for."""

    codes: dict[str, npt.NDArray[np.int64]]
    words: dict[str, tuple[str, ...]]

    def of(self, row: int) -> dict[str, str | None]:
        """The words for one place."""
        return {name: self.word(name, int(codes[row])) for name, codes in self.codes.items()}

    def word(self, name: str, code: int) -> str | None:
        """The word for a code."""
        return self.words[name][code] if code >= 0 else None


def name_places(latlon: Floats) -> Names:
    """Country and climate of places (N, 2); nothing where the label packages are not installed."""
    try:
        found = prepare_labels(latlon, NAMED.values())
        words = {label: (LABELS[label].class_names or tuple)() for label in NAMED.values()}
    except MissingExtraError:
        return Names({}, {})
    codes = {name: found[label].astype(np.int64) for name, label in NAMED.items()}
    return Names(codes, {name: words[label] for name, label in NAMED.items()})


def describe_place(latlon: Floats) -> dict[str, Any]:
    """Everything known of one place (2,), ready for JSON; empty where the label packages are not installed."""
    place = latlon[None]
    names = name_places(place)
    if not names.codes:
        return {}
    found = prepare_labels(place, MEASURED.values())
    measured = {name: float(found[label][0]) for name, label in MEASURED.items()}
    known = {name: round(value, 1) if np.isfinite(value) else None for name, value in measured.items()}
    return {**names.of(0), **known, "land": bool(is_land(place)[0])}


def land_mask(latlon: Floats) -> npt.NDArray[np.bool_]:
    """Which places (..., 2) are land; everything where the land mask is not installed."""
    try:
        return is_land(latlon)
    except MissingExtraError:
        return np.ones(latlon.shape[:-1], dtype=bool)
