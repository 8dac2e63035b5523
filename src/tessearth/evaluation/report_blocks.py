"""The parts a report is made of, and what its numbers look like; one renderer each for Markdown and HTML."""

from typing import Literal, NamedTuple

Emphasis = Literal["", "best", "second", "beats", "note"]


class Heading(NamedTuple):
    """The title (level 1), or that of a section (2) or a part (3)."""

    level: int
    text: str


class Paragraph(NamedTuple):
    """Plain text."""

    text: str


class Listing(NamedTuple):
    """Lines of plain text, one below the other."""

    items: tuple[str, ...]


class Entry(NamedTuple):
    """What stands in a table."""

    text: str
    emphasis: Emphasis = ""


class Grid(NamedTuple):
    """A table: the first column names the row."""

    head: tuple[str, ...]
    rows: tuple[tuple[Entry, ...], ...]
    words: bool = False
    """Whether its columns hold words rather than numbers."""


class Figure(NamedTuple):
    """A picture."""

    name: str
    """Of its file, such as "10deg-koppen.png"."""
    caption: str
    png: bytes


Block = Heading | Paragraph | Listing | Grid | Figure

BEATS = "†"
"""Follows the score of a reference that beats every encoder."""
NOTHING = "-"


def spoken_score(metric: str, mean: float | None, spread: float | None = None) -> str:
    """Accuracy in percent, R2 as it is: "77.8 ± 0.4", "0.946"."""
    if mean is None:
        return NOTHING
    factor, digits = (100, 1) if metric == "accuracy" else (1, 3)
    shown = round(mean * factor, digits) + 0.0  # a rounded -0.0 becomes 0.0
    return f"{shown:.{digits}f}" + ("" if spread is None else f" ± {spread * factor:.{digits}f}")
