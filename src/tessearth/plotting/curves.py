"""Curves: losses and retrieval along a run, and scores against what was varied."""

from collections.abc import Sequence
from typing import Any, Literal, NamedTuple

import numpy as np

from tessearth.errors import DataError
from tessearth.plotting.colours import CLASS_COLOURS

MEASURES = {"accuracy": "mean accuracy (%)", "r2": "mean R²"}
VARIED = {
    "sites": "Voronoi sites K",
    "tokens": "semantic tokens T",
    "places": "training places",
    "top_k": "sites kept per place k",
    "share": "share of the training places",
}
"""What the axis of a varied quantity is called."""
SPLITS = {"random": "at random", "10deg": "whole blocks of 10°"}
"""How places were held out, in the words of a legend."""
ABOVE: dict[str, Any] = {"frameon": False, "loc": "lower center", "bbox_to_anchor": (0.5, 1.0), "borderpad": 0.1}
"""Legends stand above their axis, where no curve can run through them."""
MARKERS = ("o", "s", "^", "D", "v", "P")


class Score(NamedTuple):
    """One row of a performance table."""

    x: float
    """What was varied: sites, tokens, places, kept sites."""
    split: str
    accuracy: float
    """Mean over classification tasks; NaN where none was scored."""
    r2: float
    """Mean over regression tasks."""


def draw_losses(axis: Any, rows: Sequence[dict[str, Any]]) -> Any:
    """Every term of the loss against the optimiser step: lines while training, dots on places held out."""
    terms = [name for name in _last(rows, "training") if name not in ("total", "gradient_norm")]
    for name, colour in zip(terms, _colours(len(terms)), strict=True):
        steps, values = _series(rows, "training", name)
        axis.plot(steps, values, color=colour, label=name.replace("_", " "))
        axis.plot(*_series(rows, "validation", name), "o", color=colour, markersize=2.4)
    axis.set_yscale("log")
    axis.set(xlabel="optimiser step", ylabel="loss term, unweighted (no unit)")
    axis.legend(title="line: training, dot: held out", title_fontsize=6.5, ncols=2, **ABOVE)
    return axis


def draw_retrieval(axis: Any, rows: Sequence[dict[str, Any]]) -> Any:
    """How often the right partner is among the first k, on places held out, against the optimiser step."""
    found = [name for name in _last(rows, "validation") if "_top" in name]
    if not found:
        raise DataError("the metrics have no validation row with retrieval accuracies")
    ways = sorted({name.rpartition("_top")[0] for name in found})
    for way, colour in zip(ways, _colours(len(ways)), strict=True):
        for style, k in zip(("-", "--", ":"), (1, 5, 10), strict=True):
            steps, values = _series(rows, "validation", f"{way}_top{k}")
            label = f"{way.replace('_', ' ')}, top {k}"
            axis.plot(steps, 100 * values, style, marker=".", color=colour, label=label)
    axis.set(xlabel="optimiser step", ylabel="held-out retrieval (%)", ylim=(0, 100))
    axis.legend(ncols=2, **ABOVE)
    return axis


def draw_performance(axis: Any, scores: Sequence[Score], measure: Literal["accuracy", "r2"], *, x: str) -> Any:
    """Scores by setting, one line for each split; rows of one setting are averaged, bars show their spread."""
    factor = 100.0 if measure == "accuracy" else 1.0
    splits = sorted({score.split for score in scores})
    styles = zip(splits, _colours(len(splits)), MARKERS * len(splits), strict=False)
    for split, colour, marker in styles:
        rows = [score for score in scores if score.split == split and not np.isnan(getattr(score, measure))]
        values = {
            at: [factor * getattr(row, measure) for row in rows if row.x == at] for at in sorted({r.x for r in rows})
        }
        if not values:
            continue
        mean, spread = [np.mean(v) for v in values.values()], [float(np.std(v)) for v in values.values()]
        bars = {"yerr": spread, "capsize": 1.5, "elinewidth": 0.6} if any(spread) else {}
        label = SPLITS.get(split, split or "scores")
        axis.errorbar(list(values), mean, color=colour, marker=marker, label=label, **bars)
    axis.set(xlabel=VARIED.get(x, x), ylabel=MEASURES[measure])
    _scale_x(axis, sorted({score.x for score in scores}))
    axis.grid(axis="y", linewidth=0.3, alpha=0.6)
    if len(splits) > 1:
        axis.legend(title="places held out", title_fontsize=6.5, ncols=len(splits), **ABOVE)
    return axis


def _scale_x(axis: Any, values: list[float]) -> None:
    """A logarithmic axis with a tick at the values themselves when they span more than a factor of four.

    Where the first is 0 ("no tokens"), the axis is straight from there to the second.
    """
    positive = [value for value in values if value > 0]
    if values[0] >= 0 and len(positive) > 1 and positive[-1] / positive[0] >= 4:
        style = {} if values[0] > 0 else {"linthresh": positive[0]}
        axis.set_xscale("symlog" if style else "log", base=2, **style)
        shown = values if len(values) <= 6 else values[:: -(-len(values) // 6)]
        axis.set_xticks(shown, [f"{value:,.0f}" if value >= 1 else f"{value:g}" for value in shown])
        axis.minorticks_off()


def _series(rows: Sequence[dict[str, Any]], part: str, name: str) -> tuple[Any, Any]:
    found = [(row["step"], row[part][name]) for row in rows if name in row.get(part, {})]
    steps, values = np.array(found, dtype=np.float64).reshape(-1, 2).T
    return steps, values


def _last(rows: Sequence[dict[str, Any]], part: str) -> dict[str, Any]:
    return next((row[part] for row in reversed(rows) if part in row), {})


def _colours(count: int) -> list[str]:
    return [CLASS_COLOURS[i % len(CLASS_COLOURS)] for i in range(count)]
