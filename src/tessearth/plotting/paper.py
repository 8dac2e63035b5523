"""Figures as pages: sizes in centimetres, one style, and files of the kind their name says."""

import contextlib
import io
from collections.abc import Iterator
from os import PathLike
from pathlib import Path
from typing import Any

from tessearth.errors import ConfigError
from tessearth.packages import require
from tessearth.storage.files import write_bytes

COLUMN_CM = 8.5
"""The width of a journal's column; two and the gap between them are `PAGE_CM`."""
PAGE_CM = 17.5
CM_PER_INCH = 2.54
SUFFIXES = (".png", ".svg", ".pdf")
DPI = 300

STYLE: dict[str, Any] = {
    "font.family": ["DejaVu Sans"],  # it comes with matplotlib, so a figure looks alike on every machine
    "font.size": 7.0,
    "axes.titlesize": 7.5,
    "axes.labelsize": 7.0,
    "xtick.labelsize": 6.5,
    "ytick.labelsize": 6.5,
    "legend.fontsize": 6.5,
    "axes.linewidth": 0.5,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "xtick.major.width": 0.5,
    "ytick.major.width": 0.5,
    "xtick.major.size": 2.5,
    "ytick.major.size": 2.5,
    "lines.linewidth": 1.1,
    "lines.markersize": 3.5,
    "savefig.dpi": DPI,
    "svg.fonttype": "none",
    "svg.hashsalt": "tessearth",  # the same figure gives the same file
    "pdf.fonttype": 42,
}


@contextlib.contextmanager
def paper_style() -> Iterator[None]:
    """Everything made and saved inside follows `STYLE`."""
    matplotlib = require("matplotlib", extra="plot", what="a figure")
    with matplotlib.rc_context(STYLE):
        yield


def new_figure(width_cm: float = COLUMN_CM, height_cm: float | None = None, rows: int = 1, columns: int = 1) -> Any:
    """A figure and its axes (an array when there are several), laid out so that nothing overlaps."""
    figures = require("matplotlib.figure", extra="plot", what="a figure")
    if not 1 <= width_cm <= 200:
        raise ConfigError(f"width is {width_cm} cm; it must lie between 1 and 200")
    size = (width_cm / CM_PER_INCH, (height_cm or 0.62 * width_cm) / CM_PER_INCH)
    figure = figures.Figure(figsize=size, layout="constrained")
    figure.get_layout_engine().set(w_pad=0.02, h_pad=0.02, wspace=0.03, hspace=0.03)
    return figure, figure.subplots(rows, columns)


def add_colour_bar(axis: Any, drawn: Any, label: str, **style: Any) -> Any:
    """A labelled bar below an axis, or below several."""
    first = axis[0] if isinstance(axis, list) else axis
    shape = {"location": "bottom", "shrink": 0.7, "aspect": 32, "pad": 0.02, **style}
    bar = first.figure.colorbar(drawn, ax=axis, **shape)
    bar.set_label(label, labelpad=2)
    bar.outline.set_linewidth(0.4)
    bar.ax.tick_params(length=2, width=0.4, pad=1.5)
    return bar


def check_figure_path(path: str | PathLike[str], suffixes: tuple[str, ...] = SUFFIXES) -> Path:
    """The path, when its ending is a kind of file that can be written."""
    if Path(path).suffix.lower() not in suffixes:
        raise ConfigError(f"{path} names no kind of figure: end it in {' or '.join(suffixes)}")
    return Path(path)


def save_figure(figure: Any, path: str | PathLike[str], dpi: int = DPI) -> None:
    """Write a figure as its name says; the file carries no date, so the same figure gives the same bytes."""
    kind = check_figure_path(path).suffix.lower()[1:]
    content = io.BytesIO()
    dates = {"svg": {"Date": None}, "pdf": {"CreationDate": None}}
    figure.savefig(content, format=kind, dpi=dpi, metadata=dates.get(kind), bbox_inches="tight", pad_inches=0.02)
    write_bytes(path, content.getvalue())
