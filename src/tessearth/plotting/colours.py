"""Colours: three independent components of embeddings as one colour, and palettes anyone can tell apart."""

from typing import NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError

Floats = npt.NDArray[np.float64]

START, END = "#D55E00", "#0072B2"
CLASS_COLOURS = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#F0E442")
"""Okabe and Ito's, which people of any colour vision tell apart."""
MANY_COLOURS = (
    "#CC6677", "#332288", "#DDCC77", "#117733", "#88CCEE", "#882255", "#44AA99", "#999933", "#AA4499",
)  # fmt: skip
"""Tol's muted nine, for maps of many classes."""
OTHER_COLOUR = "#b8b8b8"
NUMBERS, ATTENTION, SHARPNESS, DIFFERENCES = "viridis", "magma_r", "cividis", "PuOr"
"""Maps of even lightness steps, made for any colour vision."""

LIGHTNESS, CHROMA = (0.45, 0.9), 0.15
"""Of Oklab: the first component runs through these lightnesses, the other two so far to either side of gray."""
ROUNDS, CLOSE_ENOUGH = 500, 1e-9


class Components(NamedTuple):
    """Three independent components: s = (x - mean) @ unmixing."""

    mean: Floats
    """(D,)."""
    unmixing: Floats
    """(D, 3)."""
    knots: Floats
    """(21, 3): percentiles 0, 5, ... 100 of each component over what they were fitted on."""

    def colours(self, embeddings: npt.ArrayLike) -> Floats:
        """Embeddings (..., D) to red, green and blue in [0, 1], (..., 3).

        The component that explains most becomes lightness, which every eye and every printer shows; the other two run
        from green to red and from blue to yellow.
        """
        values = (np.asarray(embeddings, dtype=np.float64) - self.mean) @ self.unmixing
        share = np.stack([_spread(values[..., i], self.knots[:, i]) for i in range(3)], axis=-1)
        lightness = LIGHTNESS[0] + (LIGHTNESS[1] - LIGHTNESS[0]) * share[..., :1]
        return oklab_to_rgb(np.concatenate((lightness, CHROMA * (2 * share[..., 1:] - 1)), axis=-1))


def fit_components(embeddings: npt.ArrayLike) -> Components:
    """Three independent components of embeddings (N, D), the same for the same rows: symmetric FastICA with tanh.

    The first three principal components are whitened and turned by W <- E[g(Wx) x'] - E[g'(Wx)] W, g = tanh, made
    orthogonal after every round, from W = 1 on. Components come by the variance they explain, each turned so that its
    longer tail is positive.
    """
    data = np.asarray(embeddings, dtype=np.float64)
    if data.ndim != 2 or len(data) < 4 or data.shape[1] < 3:
        raise DataError(f"colours need at least 4 embeddings of width 3 or more; these have shape {data.shape}")
    mean = data.mean(axis=0)
    values, vectors = np.linalg.eigh(np.cov(data - mean, rowvar=False))
    values, vectors = values[::-1][:3], vectors[:, ::-1][:, :3]
    if values[0] <= 0 or values[2] <= 1e-12 * values[0]:
        raise DataError("these embeddings vary in fewer than three directions: there is nothing to colour")
    whitening = vectors / np.sqrt(values)
    white = (data - mean) @ whitening
    turn = _independent(white)
    # What a component explains: the length of its column in x = mean + A s, with A = V sqrt(values) W'.
    explained = np.linalg.norm((vectors * np.sqrt(values)) @ turn.T, axis=0)
    turn = turn[np.argsort(-explained, kind="stable")]
    sources = white @ turn.T
    signs = np.where((sources**3).mean(axis=0) < 0, -1.0, 1.0)
    knots = np.percentile(sources * signs, np.linspace(0, 100, 21), axis=0)
    return Components(mean, whitening @ turn.T * signs, knots)


def oklab_to_rgb(lab: Floats) -> Floats:
    """Lightness, green-red and blue-yellow (..., 3) to sRGB in [0, 1]; what no screen shows is clipped.

    Ottosson's Oklab (2020): even steps look even.
    """
    to_cones = np.array(
        [[1, 0.3963377774, 0.2158037573], [1, -0.1055613458, -0.0638541728], [1, -0.0894841775, -1.2914855480]]
    )
    to_linear = np.array(
        [
            [4.0767416621, -3.3077115913, 0.2309699292],
            [-1.2684380046, 2.6097574011, -0.3413193965],
            [-0.0041960863, -0.7034186147, 1.7076147010],
        ]
    )
    linear = np.clip((lab @ to_cones.T) ** 3 @ to_linear.T, 0.0, 1.0)
    curved = 1.055 * linear ** (1 / 2.4) - 0.055
    return np.asarray(np.clip(np.where(linear <= 0.0031308, 12.92 * linear, curved), 0.0, 1.0))


def _spread(values: Floats, knots: Floats) -> Floats:
    """Values as shares of [0, 1]: half by their size between the 5th and 95th percentile, half by their rank.

    Independent components have long tails: by size alone, most places would share one dark corner of the colours.
    """
    size = np.clip((values - knots[1]) / max(knots[-2] - knots[1], 1e-12), 0.0, 1.0)
    return np.asarray((size + np.interp(values, knots, np.linspace(0, 1, len(knots)))) / 2)


def _independent(white: Floats) -> Floats:
    """The rotation (3, 3) that makes whitened data (N, 3) as independent as can be."""
    turn = np.eye(white.shape[1])
    for _ in range(ROUNDS):
        bent = np.tanh(white @ turn.T)
        update = bent.T @ white / len(white) - (1 - bent**2).mean(axis=0)[:, None] * turn
        left, _, right = np.linalg.svd(update)
        new = left @ right
        change = np.abs(np.abs((new * turn).sum(axis=1)) - 1).max()
        turn = new
        if change < CLOSE_ENOUGH:
            break
    return turn
