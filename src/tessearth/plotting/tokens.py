"""Semantic tokens: where each is attended to, how evenly they are used, and what the places that use them look like."""

from typing import Any

import numpy as np
import numpy.typing as npt
import torch

from tessearth.encoder import measure_token_use
from tessearth.errors import ConfigError, DataError
from tessearth.plotting.colours import ATTENTION, CLASS_COLOURS, END, START
from tessearth.plotting.ground import draw_ground, show_pixels
from tessearth.plotting.places import pixel_values
from tessearth.plotting.sites import to_xyz
from tessearth.plotting.views import Floats, Pixels, View

Array = npt.NDArray[Any]

ALIKE = 0.5
"""Maps that correlate more than this show the same thing twice."""
APART_DEGREES = 12.0
"""Top places of a token lie at least so far from each other, or one spot would fill them all."""


def draw_token_use(axis: Any, attention: Array) -> Any:
    """Mean attention of every token in descending order, with the line of uniform use and what it amounts to."""
    use = measure_token_use(torch.from_numpy(np.asarray(attention, dtype=np.float64)))
    tokens = len(use.mean)
    ranked = 100 * np.sort(use.mean.numpy())[::-1]
    colours = [END if value > 100 / tokens else CLASS_COLOURS[4] for value in ranked]
    axis.bar(np.arange(1, tokens + 1), ranked, width=0.85, color=colours)
    axis.axhline(100 / tokens, color=START, linestyle="--", linewidth=0.9, label=f"uniform: {100 / tokens:.2g} %")
    axis.set(xlabel="token, by rank", ylabel="mean attention (%)", xlim=(0.3, tokens + 0.7))
    said = f"{use.above_uniform} of {tokens} tokens above uniform\neffective tokens per place: {use.effective:.1f}\n"
    said += f"entropy: {use.entropy_share:.2f} of ln {tokens}"
    axis.legend(title=said, title_fontsize=6.5, loc="upper right", frameon=False, alignment="left")
    return axis


def draw_token_map(
    axis: Any, pixels: Pixels, attention: Array, view: View, *, plain: bool = False, highest: float | None = None
) -> Any:
    """The attention that one token gets over a map, (M,) for the places `pixels` shows, in percent."""
    painted = 100 * pixel_values(pixels, attention)
    top = 100 * highest if highest is not None else float(np.nanpercentile(painted, 99.5))
    drawn = show_pixels(axis, pixels, painted, cmap=ATTENTION, vmin=0.0, vmax=max(top, 1e-3))
    draw_ground(axis, view, plain=plain, over=True)
    return drawn


def most_used(attention: Array, count: int) -> list[int]:
    """The tokens with the most attention over places (N, T), most first."""
    return [int(token) for token in np.argsort(-attention.mean(axis=0), kind="stable")[:count]]


def most_telling(attention: Array, count: int) -> list[int]:
    """Tokens that tell places apart: the largest spread over places first, without maps similar to one already chosen.

    When too few differ enough, the next by spread fill up.
    """
    order = [int(token) for token in np.argsort(-attention.std(axis=0), kind="stable")]
    alike = np.nan_to_num(np.corrcoef(attention, rowvar=False).reshape(len(order), len(order)))
    chosen: list[int] = []
    for token in order:
        if len(chosen) < count and all(alike[token, other] < ALIKE for other in chosen):
            chosen.append(token)
    return (chosen + [token for token in order if token not in chosen])[:count]


def top_places(latlon: Floats, attention: Array, count: int) -> Floats:
    """The places (count, 2) with the most attention (N,) that lie apart from each other."""
    xyz = to_xyz(latlon)
    nearest = np.cos(np.deg2rad(APART_DEGREES))
    chosen: list[int] = []
    for row in np.argsort(-attention, kind="stable").tolist():
        if len(chosen) < count and (xyz[chosen] @ xyz[row] < nearest).all():
            chosen.append(row)
    if len(chosen) < count:
        raise DataError(f"only {len(chosen)} of {count} places lie apart from each other; give more places")
    return np.asarray(latlon[chosen])


def check_token(token: int, tokens: int) -> int:
    """The number of a token, when there is such a one."""
    if not 0 <= token < tokens:
        raise ConfigError(f"token is {token}; the model's tokens are numbered 0 to {tokens - 1}")
    return token
