"""Colours of map tiles: scales that the colour-blind can read, classes, and PNG files of them."""

import colorsys
import io
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.packages import require

Array = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]

SCALE = ("#2b1d52", "#33488e", "#2a6f97", "#2a9183", "#63b155", "#b9c93c", "#fbe14b")
"""From low to high: dark to light whatever the eye, blue to yellow for eyes that see them."""
HEAT = ("#1c1030", "#51175f", "#932567", "#cf4351", "#f0793a", "#fcb84a", "#fdf3b0")
"""For likeness and attention, where only the high end matters."""
CLASSES = ("#0072b2", "#e69f00", "#009e73", "#cc79a7", "#56b4e9", "#d55e00", "#f0e442", "#7a7a7a")
"""Okabe and Ito's, told apart by every common kind of colour vision; further classes get hues a golden angle apart."""
GOLDEN_TURN = 0.381966


def class_colours(count: int) -> list[str]:
    """So many colours as #rrggbb, neighbours in the list unlike each other."""
    more = []
    for i in range(count - len(CLASSES)):
        rgb = colorsys.hls_to_rgb((i * GOLDEN_TURN + 0.07) % 1, (0.42, 0.6, 0.75)[i % 3], (0.75, 0.5)[i // 3 % 2])
        more.append("#" + "".join(f"{round(255 * part):02x}" for part in rgb))
    return [*CLASSES[:count], *more]


def to_rgb(colours: tuple[str, ...] | list[str]) -> Bytes:
    """#rrggbb to bytes (n, 3)."""
    return np.array([[int(colour[i : i + 2], 16) for i in (1, 3, 5)] for colour in colours], dtype=np.uint8)


def ramp(stops: tuple[str, ...], size: int = 256) -> Bytes:
    """Colours between stops as a table (size, 3)."""
    at, rgb = np.linspace(0, len(stops) - 1, size), to_rgb(stops).astype(np.float64)
    channels = [np.interp(at, np.arange(len(stops)), rgb[:, i]) for i in range(3)]
    return np.stack(channels, axis=-1).round().astype(np.uint8)


def on_ramp(values: Array, low: float, high: float, table: Bytes, *, logarithmic: bool = False) -> Bytes:
    """Values (...) to colours (..., 3); what lies outside takes the colour of the end."""
    if logarithmic:
        values, low, high = np.log(np.maximum(values, 1e-12)), np.log(low), np.log(high)
    share = (values - low) / max(high - low, 1e-12)
    picked: Bytes = table[(np.clip(share, 0, 1) * (len(table) - 1)).astype(np.int64)]
    return picked


def encode_png(rgb: Bytes, shown: npt.NDArray[np.bool_] | None = None) -> bytes:
    """A PNG of colours (H, W, 3); where not `shown`, it is transparent."""
    image = require("PIL.Image", extra="serve", what="map tiles")
    if shown is not None:
        rgb = np.dstack((rgb * shown[..., None], np.where(shown, 255, 0).astype(np.uint8)))
    content = io.BytesIO()
    image.fromarray(np.ascontiguousarray(rgb)).save(content, format="PNG", compress_level=6)
    return content.getvalue()
