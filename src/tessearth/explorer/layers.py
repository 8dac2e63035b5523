"""The layers of the map: for each what it shows, which field it reads, and how its values become colours."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.explorer.colours import HEAT, SCALE, class_colours, on_ramp, ramp, to_rgb
from tessearth.explorer.fields import FieldName
from tessearth.explorer.probes import FittedProbe
from tessearth.explorer.schemas import Legend
from tessearth.plotting.colours import Components

Array = npt.NDArray[Any]


class Layer(NamedTuple):
    """One map: values (..., C) from a field's rows, colours from the values."""

    key: tuple[object, ...]
    """What tells it from other maps of the same model."""
    field: FieldName
    values: Callable[[Array], Array]
    """Rows of the field (N, F) to what is interpolated between places, (N, C)."""
    paint: Callable[[Array], npt.NDArray[np.uint8]]
    """Interpolated values (H, W, C) to colours (H, W, 3)."""
    legend: Legend


def embedding_layer(components: Components) -> Layer:
    """Three independent components of the embedding as one colour."""
    unmixing, shift = components.unmixing.astype(np.float32), (components.mean @ components.unmixing).astype(np.float32)
    painted = components._replace(mean=np.zeros(3), unmixing=np.eye(3))
    legend = Legend(
        kind="colours",
        title="Embedding",
        colours=[],
        note="Places of one colour have embeddings alike: three independent components as lightness and hue.",
    )
    return Layer(
        key=("embedding",),
        field="embedding",
        values=lambda rows: rows.astype(np.float32) @ unmixing - shift,
        paint=lambda values: (painted.colours(values) * 255).round().astype(np.uint8),
        legend=legend,
    )


def sharpness_layer(low: float, high: float) -> Layer:
    """How sharp the sites around a place are."""
    legend = Legend(
        kind="scale",
        title="Sharpness",
        unit="\N{GREEK SMALL LETTER TAU}",
        low=low,
        high=high,
        logarithmic=True,
        colours=list(SCALE),
        note="Sharper sites tell neighbours apart; blunter ones smooth over a region.",
    )
    return Layer(("sharpness",), "sharpness", _as_is, _scale(low, high, SCALE, logarithmic=True), legend)


def token_layer(token: int, high: float) -> Layer:
    """How much of a place's attention one token gets."""
    legend = Legend(
        kind="scale",
        title=f"Token {token}",
        unit="% of attention",
        low=0.0,
        high=100 * high,
        colours=list(HEAT),
        note="How much of what the model says of a place comes from this token.",
    )
    return Layer(
        ("token", token), "attention", lambda rows: rows[:, token : token + 1], _scale(0.0, high, HEAT), legend
    )


def similarity_layer(query: Array, low: float, key: tuple[object, ...]) -> Layer:
    """How alike every place is to one: the cosine of their embeddings."""
    unit = (query / max(float(np.linalg.norm(query)), 1e-12)).astype(np.float32)

    def values(rows: Array) -> Array:
        wide = rows.astype(np.float32)
        length = np.sqrt(np.einsum("nd,nd->n", wide, wide))
        return np.asarray((wide @ unit) / np.maximum(length, 1e-12))[:, None]

    legend = Legend(
        kind="scale",
        title="Likeness",
        unit="cosine",
        low=low,
        high=1.0,
        colours=list(HEAT),
        note="How alike each place is to the one chosen.",
    )
    return Layer(("similarity", *key), "embedding", values, _scale(low, 1.0, HEAT), legend)


def prediction_layer(probe: FittedProbe) -> Layer:
    """What a probe predicts everywhere."""
    if probe.target.kind == "regress":
        legend = Legend(kind="scale", title=probe.name, low=probe.low, high=probe.high, colours=list(SCALE))
        paint = _scale(probe.low, probe.high, SCALE)
    else:
        colours = class_colours(len(probe.target.classes))
        legend = Legend(kind="classes", title=probe.name, colours=colours)
        paint = _best_class(probe, to_rgb(colours))
    return Layer(("prediction", probe.key), "embedding", probe.decide, paint, legend)


def _best_class(probe: FittedProbe, table: npt.NDArray[np.uint8]) -> Callable[[Array], npt.NDArray[np.uint8]]:
    codes = probe.fit.classes
    assert codes is not None
    return lambda values: table[codes[values.argmax(-1)]]


def _scale(
    low: float, high: float, stops: tuple[str, ...], *, logarithmic: bool = False
) -> Callable[[Array], npt.NDArray[np.uint8]]:
    table = ramp(stops)
    return lambda values: on_ramp(values[..., 0], low, high, table, logarithmic=logarithmic)


def _as_is(rows: Array) -> Array:
    return rows
