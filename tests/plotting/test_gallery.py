"""The figures of the documentation: all there, all shown, none of them blank, and small enough to be carried along."""

import re
from pathlib import Path

import numpy as np
import pytest

from tessearth.figures.kinds import KINDS
from tests.plotting.pictures import Picture, distinct_colours, drawn_share, read

FIGURES = Path(__file__).parents[2] / "docs" / "figures"
PAGE = FIGURES.parent / "figures.md"
THINNED = 3
"""Of the rows and columns one in so many is looked at."""
MOST_BYTES = 12_000_000
OTHERS = ("explorer",)
"""Shown there, and not drawn by `tessearth plot`."""


def is_blank(picture: Picture) -> bool:
    """Nothing but paper, or one colour all over, or a frame around nothing."""
    height, width, _ = picture.shape
    inner = picture[height // 8 : -height // 8 : THINNED, width // 8 : -width // 8 : THINNED]
    return drawn_share(inner) < 0.01 or distinct_colours(inner) < 4


@pytest.mark.parametrize("path", sorted(FIGURES.iterdir()), ids=lambda path: path.name)
def test_no_figure_is_blank(path: Path) -> None:
    assert not is_blank(read(path))


def test_a_blank_figure_would_be_found() -> None:
    paper = np.ones((80, 120, 3))
    framed = paper.copy()
    framed[:2], framed[-2:] = 0, 0
    for blank in (paper, framed, np.full_like(paper, 0.4)):
        assert is_blank(blank)


def test_the_page_shows_every_figure_and_no_other() -> None:
    shown = re.findall(r"\]\(figures/([^)]+)\)", PAGE.read_text("utf-8"))
    assert sorted(shown) == sorted(path.name for path in FIGURES.iterdir())


def test_every_kind_is_among_them() -> None:
    names = [path.stem for path in FIGURES.iterdir() if path.stem not in OTHERS]
    for kind in KINDS:
        assert any(name == kind or name.startswith(f"{kind}-") for name in names), kind


def test_they_are_small() -> None:
    assert sum(path.stat().st_size for path in FIGURES.iterdir()) < MOST_BYTES
