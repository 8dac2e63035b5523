"""Colours of embeddings: independent components are found, found again, and differ where embeddings do."""

import numpy as np
import pytest

from tessearth.errors import DataError
from tessearth.plotting.colours import CLASS_COLOURS, MANY_COLOURS, fit_components, oklab_to_rgb


def mixed(rng: np.random.Generator, rows: int = 4000) -> tuple[np.ndarray, np.ndarray]:
    sources = np.stack((rng.exponential(size=rows), rng.uniform(-1, 1, rows), rng.laplace(size=rows)), axis=-1)
    return sources, sources @ rng.normal(size=(3, 12)) + 5.0 + 0.01 * rng.normal(size=(rows, 12))


def test_independent_sources_are_found_up_to_order_and_sign() -> None:
    sources, embeddings = mixed(np.random.default_rng(0))
    fitted = fit_components(embeddings)
    found = (embeddings - fitted.mean) @ fitted.unmixing
    alike = np.abs(np.corrcoef(found, sources, rowvar=False)[:3, 3:])
    assert sorted(alike.argmax(axis=1)) == [0, 1, 2]
    assert alike.max(axis=1).min() > 0.98
    np.testing.assert_allclose(np.cov(found, rowvar=False), np.eye(3), atol=1e-6)


def test_the_component_that_explains_most_comes_first() -> None:
    rng = np.random.default_rng(1)
    sources = rng.laplace(size=(4000, 3)) * (1.0, 9.0, 3.0)
    fitted = fit_components(sources @ np.linalg.qr(rng.normal(size=(7, 3)))[0].T)
    found = (sources @ np.linalg.qr(np.random.default_rng(1).normal(size=(7, 3)))[0].T - fitted.mean) @ fitted.unmixing
    assert found.shape == (4000, 3)
    scale = np.linalg.norm(np.linalg.pinv(fitted.unmixing), axis=1)
    assert (np.diff(scale) < 0).all()


def test_colours_are_the_same_every_time_and_differ_between_groups() -> None:
    rng = np.random.default_rng(2)
    groups = np.repeat(np.eye(4, 9), 100, axis=0) + 0.05 * rng.normal(size=(400, 9))
    colours = fit_components(groups).colours(groups)
    np.testing.assert_array_equal(colours, fit_components(groups).colours(groups))
    means = colours.reshape(4, 100, 3).mean(axis=1)
    apart = np.linalg.norm(means[:, None] - means[None], axis=-1) + np.eye(4)
    assert apart.min() > 0.1
    assert colours.min() >= 0
    assert colours.max() <= 1


def test_embeddings_without_three_directions_are_refused() -> None:
    flat = np.outer(np.arange(50.0), np.ones(6))
    with pytest.raises(DataError, match="fewer than three directions"):
        fit_components(flat)
    with pytest.raises(DataError, match="at least 4 embeddings"):
        fit_components(np.ones((3, 9)))


def test_oklab_gives_gray_white_and_black() -> None:
    np.testing.assert_allclose(oklab_to_rgb(np.array([[1.0, 0, 0], [0.0, 0, 0]])), [[1, 1, 1], [0, 0, 0]], atol=1e-3)
    gray = oklab_to_rgb(np.array([0.6, 0.0, 0.0]))
    assert np.ptp(gray) < 1e-3


@pytest.mark.parametrize("palette", [CLASS_COLOURS, MANY_COLOURS])
def test_palettes_hold_apart_for_eyes_without_red_or_green(palette: tuple[str, ...]) -> None:
    """Viénot, Brettel and Mollon's (1999) deuteranope and protanope in linear RGB."""
    linear = (np.array([[int(c[i : i + 2], 16) for i in (1, 3, 5)] for c in palette]) / 255) ** 2.2
    for seen in ((0.29275, 0.70725, -0.02234), (0.11238, 0.88762, 0.00401)):
        yellow = linear[:, 0] * seen[0] + linear[:, 1] * seen[1]
        blue = linear[:, 2] + seen[2] * (linear[:, 0] - linear[:, 1])
        shown = np.clip(np.stack((yellow, yellow, blue), axis=-1), 0, 1) ** (1 / 2.2)
        apart = np.linalg.norm(shown[:, None] - shown[None], axis=-1) + np.eye(len(palette))
        assert apart.min() > 0.07
