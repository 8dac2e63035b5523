"""Coordinates written as text: decimal commas, degrees with minutes and seconds, two of them in one cell."""

import re
from collections.abc import Sequence
from typing import Any, Literal

import numpy as np

Form = Literal["degrees", "comma", "dms", "lat,lon", "lon,lat", "wkt"]
"""How coordinates are written: 48.85; 48,85; 48°51'N; both in one cell, in either order; shapes as well-known text."""
FORMS: tuple[Form, ...] = ("degrees", "comma", "dms", "lat,lon", "lon,lat", "wkt")
IN_ONE_COLUMN: tuple[Form, ...] = ("lat,lon", "lon,lat", "wkt")

_NUMBER = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_COMMA = re.compile(r"[+-]?(\d+[.,]?\d*|[.,]\d+)")
_PARTS = re.compile(
    r"(?P<before>[NSEW])?\s*(?P<sign>[+-])?\s*(?P<degrees>\d+(?:[.,]\d+)?)\s*(?:°|º|deg|d|:|\s|$|(?=[NSEW]))\s*"
    r"(?:(?P<minutes>\d+(?:[.,]\d+)?)\s*(?:'|′|’|m|:|\s|$)\s*)?"  # noqa: RUF001
    r"(?:(?P<seconds>\d+(?:[.,]\d+)?)\s*(?:\"|″|”|''|′′|\s|$)\s*)?(?P<after>[NSEW])?",  # noqa: RUF001
    re.IGNORECASE,
)
_BETWEEN = re.compile(r"\s*([,;])\s*|\s+")
_MARK = re.compile(r"[°º:'′’NSEWd]", re.IGNORECASE)  # noqa: RUF001
_LETTERS = (
    re.compile(r"(?<![a-z])[EW](?![a-z])", re.IGNORECASE),
    re.compile(r"(?<![a-z])[NS](?![a-z])", re.IGNORECASE),
)
"""What belongs to no latitude, and to no longitude."""
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
    """Latitude and longitude of one cell such as "48.85, 2.35", "48°51'N 2°21'E" or "POINT (2.35 48.85)".

    NaN where the cell can be cut in two in no way, or in more than one.
    """
    point = _POINT.fullmatch(text)
    if point:
        return read_angle(point[2]), read_angle(point[1])
    text = text.strip().lstrip("([").rstrip(")]").strip()
    found = set()
    for between in _BETWEEN.finditer(text):
        parts = text[: between.start()], text[between.end() :]
        ordered = parts if form == "lat,lon" else parts[::-1]
        pair = tuple(_read_part(part, between[1] != ",") for part in ordered)
        if np.isfinite(pair).all() and fits_axis(ordered[0], 0) and fits_axis(ordered[1], 1):
            found.add(pair)
    return found.pop() if len(found) == 1 else (NOTHING, NOTHING)  # type: ignore[return-value]


def fits_axis(text: str, axis: int) -> bool:
    """Whether the letter of a hemisphere, where there is one, belongs to a latitude (0) or a longitude (1)."""
    return not _LETTERS[axis].search(text)


def _read_part(text: str, may_have_comma: bool) -> float:
    """One of two coordinates: a number without blanks, or degrees that are marked as such."""
    return read_angle(text, "dms" if _MARK.search(text) else "comma" if may_have_comma else "degrees")


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


def is_odd(text: Any) -> bool:
    """Whether this is text, and no number."""
    return isinstance(text, str) and bool(text.strip()) and not np.isfinite(read_angle(text))


def advise(texts: list[str]) -> str:
    """How coordinates become numbers that are written in another form."""
    form = guess_form(texts) if texts else None
    return {
        "comma": "; decimal commas are not read: replace them by points, column.str.replace(',', '.')",
        "dms": "; degrees are decimal numbers: 48°30'N is 48.5 (tessearth encode --coordinates dms reads a file)",
        "lat,lon": "; this is both in one column: split it, column.str.split(',', expand=True)",
    }.get(str(form), "")
