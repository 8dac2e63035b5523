"""Coordinates written as text: decimal commas, degrees with minutes and seconds, two of them in one cell."""

import re
from collections.abc import Sequence
from typing import Literal

import numpy as np

Form = Literal["degrees", "comma", "dms", "lat,lon", "lon,lat"]
"""How coordinates are written: 48.85; 48,85; 48°51'N; both in one cell, in either order."""
FORMS: tuple[Form, ...] = ("degrees", "comma", "dms", "lat,lon", "lon,lat")
PAIRS: tuple[Form, ...] = ("lat,lon", "lon,lat")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)")
_PARTS = re.compile(
    r"(?P<before>[NSEW])?\s*(?P<sign>[+-])?\s*(?P<degrees>\d+(?:[.,]\d+)?)\s*(?:°|º|deg|d|:|\s|$)\s*"
    r"(?:(?P<minutes>\d+(?:[.,]\d+)?)\s*(?:'|′|’|m|:|\s|$)\s*)?"  # noqa: RUF001
    r"(?:(?P<seconds>\d+(?:[.,]\d+)?)\s*(?:\"|″|”|''|′′|\s|$)\s*)?(?P<after>[NSEW])?",  # noqa: RUF001
    re.IGNORECASE,
)
_PAIR = re.compile(r"\s*[(\[]?\s*(.+?)\s*(?:[,;]\s*|\s+)(.+?)\s*[)\]]?\s*")
_POINT = re.compile(r"\s*POINT\s*(?:Z\s*)?\(\s*(\S+)\s+(\S+)(?:\s+\S+)?\s*\)\s*", re.IGNORECASE)
NOTHING = float("nan")


def read_angle(text: str, form: Form = "degrees") -> float:
    """Degrees as a number; NaN for text that is none in this form.

    A hemisphere letter is the sign. O is refused: it is east in German and west in French.
    """
    text = text.strip().replace("−", "-")  # noqa: RUF001 # a typographic minus
    if form == "comma":
        return float(text.replace(",", ".")) if _COMMA.fullmatch(text) else NOTHING
    if _NUMBER.fullmatch(text):
        return float(text)
    return _read_parts(text) if form == "dms" else NOTHING


def read_pair(text: str, form: Form) -> tuple[float, float]:
    """Latitude and longitude of one cell such as "48.85, 2.35", "48°51'N 2°21'E" or "POINT (2.35 48.85)"."""
    point = _POINT.fullmatch(text)
    if point:
        return read_angle(point[2]), read_angle(point[1])
    pair = _PAIR.fullmatch(text)
    if pair is None:
        return NOTHING, NOTHING
    first, second = (read_angle(part, "dms") for part in pair.groups())
    return (first, second) if form == "lat,lon" else (second, first)


def guess_form(texts: Sequence[str]) -> Form | None:
    """The form in which all of some texts that are no plain numbers are coordinates; None when there is none."""
    forms: tuple[Form, ...] = ("comma", "dms")
    for form in forms:
        if texts and all(np.isfinite(read_angle(text, form)) for text in texts):
            return form
    if texts and all(np.isfinite(read_pair(text, "lat,lon")).all() for text in texts):
        return "lat,lon"
    return None


def _read_parts(text: str) -> float:
    found = _PARTS.fullmatch(text)
    if found is None or (found["before"] and found["after"]):
        return NOTHING
    parts = [float((found[name] or "0").replace(",", ".")) for name in ("degrees", "minutes", "seconds")]
    letter = (found["before"] or found["after"] or "").upper()
    if max(parts[1:]) >= 60 or (letter and found["sign"]):
        return NOTHING
    size = parts[0] + parts[1] / 60 + parts[2] / 3600
    return -size if found["sign"] == "-" or letter in ("S", "W") else size
