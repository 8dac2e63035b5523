"""What a picture can be asked: how much of it is drawn on, which colours it has, which words."""

import io
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
from PIL import Image

Picture = npt.NDArray[np.float64]


def render(figure: Any, dpi: int = 80) -> Picture:
    """A figure as (height, width, 3) in [0, 1], at the size it was made."""
    content = io.BytesIO()
    figure.savefig(content, format="png", dpi=dpi)
    return read(content)


def read(source: Path | io.BytesIO) -> Picture:
    with Image.open(source) as image:
        return np.asarray(image.convert("RGB"), dtype=np.float64) / 255


def drawn_share(picture: Picture) -> float:
    """The share of pixels that are not white."""
    return float((picture.min(axis=-1) < 0.97).mean())


def has_colour(picture: Picture, colour: str, least: int = 20) -> bool:
    wanted = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    return int((np.abs(picture - wanted).max(axis=-1) < 0.08).sum()) >= least


def distinct_colours(picture: Picture) -> int:
    return len(np.unique((picture * 15).round().astype(int).reshape(-1, 3), axis=0))


def words(figure: Any) -> str:
    """Every text of a figure, axes' labels and colour bars' among them."""
    from matplotlib.text import Text

    return " | ".join(text.get_text() for text in figure.findobj(Text) if text.get_text())
