"""Series promise how much of a place's shares they misplace, whatever the weights, and keep the promise."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from tessearth.embedding.fast.bounds import CubeCells, read_logits
from tessearth.embedding.fast.series import (
    MOST_DEGREE,
    Chart,
    Expansion,
    build_chart,
    evaluate_terms,
    expand,
    series_degree,
    term_degrees,
)
from tests.embedding.test_bounds import SHARPNESS, tessellation


def shares_at(series: Expansion, chart: Chart, xyz: torch.Tensor, sites: int) -> torch.Tensor:
    flat = (xyz @ chart.across.T / chart.half).T
    assert flat.abs().max() <= 1
    terms = evaluate_terms(flat, series_degree(len(series.coefficients)))
    shares = torch.zeros(len(xyz), sites, dtype=torch.float64)
    shares[:, series.sites] = terms.T @ series.coefficients
    return shares


@given(
    seed=st.integers(0, 2**31),
    kind=st.sampled_from(list(SHARPNESS)),
    form=st.sampled_from([{}, {"logits": "decoupled"}, {"on_sphere": False}]),
    side=st.sampled_from([4, 8, 16, 64]),
    cell=st.floats(0, 1, exclude_max=True),
    corner=st.tuples(st.floats(0, 1), st.floats(0, 1)),
)
def test_a_series_misplaces_no_more_than_it_says(
    seed: int, kind: str, form: dict[str, object], side: int, cell: float, corner: tuple[float, float]
) -> None:
    logits = read_logits(tessellation(kind, num_sites=80, seed=seed, **form))
    cells = CubeCells(side)
    number = int(cell * cells.count)
    chart = build_chart(cells, number)
    series = expand(logits, chart, 1e-6)
    if series is None:
        return
    assert series.misplaced <= 1e-6
    within = torch.rand(100, 2, generator=torch.Generator().manual_seed(seed), dtype=torch.float64)
    within[:4] = torch.tensor([(0, 0), (0, 1), (1, 0), (1, 1)])
    within[4] = torch.tensor(corner)
    xyz = cells.points(torch.tensor([number]), within)[0]
    shares = shares_at(series, chart, xyz, 80)
    below = shares.sum(-1, keepdim=True)
    assert below.min() >= 1 - 1e-6  # what the certificate rests on
    wrong = (shares / below - torch.softmax(logits.at(xyz), dim=-1)).abs().sum(-1) / 2
    assert wrong.max() <= series.misplaced + 1e-12


def test_smooth_sites_have_series_and_sharp_ones_in_large_cells_do_not() -> None:
    chart = build_chart(CubeCells(4), 7)
    assert expand(read_logits(tessellation("smooth")), chart, 1e-6) is not None
    assert expand(read_logits(tessellation("sharp", logits="decoupled")), chart, 1e-6) is None


@pytest.mark.parametrize("epsilon", [1e-3, 1e-6, 1e-9])
def test_a_smaller_epsilon_takes_a_longer_series(epsilon: float) -> None:
    chart = build_chart(CubeCells(16), 700)
    logits = read_logits(tessellation("paper"))
    shorter, longer = expand(logits, chart, 10 * epsilon), expand(logits, chart, epsilon / 10)
    assert shorter is not None
    assert longer is not None
    assert len(shorter.coefficients) < len(longer.coefficients)
    assert longer.misplaced <= epsilon / 10


def test_a_broken_promise_would_be_seen() -> None:
    """A series cut short by two degrees is wrong by more than it says."""
    cells = CubeCells(8)
    chart, logits = build_chart(cells, 200), read_logits(tessellation("paper"))
    series = expand(logits, chart, 1e-6)
    assert series is not None
    degree = series_degree(len(series.coefficients)) - 2
    cut = series._replace(coefficients=series.coefficients[: len(term_degrees(degree))])
    xyz = cells.points(torch.tensor([200]), torch.rand(500, 2, dtype=torch.float64))[0]
    shares = shares_at(cut, chart, xyz, 600)
    wrong = (shares / shares.sum(-1, keepdim=True) - torch.softmax(logits.at(xyz), dim=-1)).abs().sum(-1) / 2
    assert wrong.max() > series.misplaced


def test_terms_are_products_of_chebyshev_polynomials_by_rising_degree() -> None:
    flat = torch.tensor([[0.3, -0.9], [0.5, 0.2]], dtype=torch.float64)
    degrees = term_degrees(MOST_DEGREE)
    assert series_degree(len(degrees)) == MOST_DEGREE
    assert (degrees.sum(1).diff() >= 0).all()
    expected = torch.cos(degrees[:, :1] * flat[0].acos()) * torch.cos(degrees[:, 1:] * flat[1].acos())
    torch.testing.assert_close(evaluate_terms(flat, MOST_DEGREE), expected)
