"""Mixtures of sites as short series: within a cell of the sphere, all sites together are a polynomial of the position.

Around a cell's centre c, with w_k the sites' shares at c and m = sum_k w_k a_k their mean slope, the mixture is

    f(x) = sum_k w_k g_k(x) row_k / sum_k w_k g_k(x),    g_k(x) = exp <a_k - m, x - c>,

and each g_k is smooth: a Chebyshev series in the two coordinates of the cell's plane, g_k ~ sum_t C_tk B_t(x), i + j <=
degree. So f(x) = B(x) (C w row) / B(x) (C w): once a cell's table C w row is made, its places cost as many products as
the series has terms, however many sites there are. The sum below is at least 1 (Jensen), so a share that the series
misplaces is at most delta = sum_k w_k sup|g_k - series|, which is bounded, not estimated:

- coefficients that were computed and left out count with their absolute values;
- what n nodes a side cannot see is bounded on Bernstein ellipses: |coefficient ij| <= 4 M rho^-(i+j), with M the
  largest |g_k| for both coordinates in the ellipse of parameter rho (Trefethen, Approximation Theory, chapter 8).
"""

import math
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import ROUNDING, AffineLogits, CubeCells, bound_weights, keep_sites

NODES = (8, 10, 12, 14, 17)
"""Nodes along each coordinate that are tried, fewest first."""

MOST_DEGREE = 15
"""A cell that needs a longer series than this is divided instead."""

MOST_SWELLING = 32.0
"""How much larger than its least value the sum below may get: it magnifies the rounding of float32."""

ELLIPSES = torch.tensor([1.25**power for power in range(1, 13)], dtype=torch.float64)
"""The parameters rho that bounds are taken at; every site is free to choose its best."""

EDGE_SAMPLES = 33


class Charts(NamedTuple):
    """Cells with flat coordinates: (<x, across_0>, <x, across_1>) / half lies in [-1, 1]^2 for every x of the cell."""

    centres: Tensor
    """(M, 3)."""
    radii: Tensor
    """Of the caps that hold the cells, in radians, (M,)."""
    across: Tensor
    """Two unit vectors at right angles to the centre and each other, (M, 2, 3)."""
    half: Tensor
    """Half the cell's width along them, (M, 2)."""


class Expansion(NamedTuple):
    """One cell's series."""

    sites: Tensor
    """The sites that take part, (K',)."""
    coefficients: Tensor
    """C w, (terms, K') in float64, terms by rising degree."""
    misplaced: float
    """The share that is misplaced at most, sites left out and terms left out together."""


def build_charts(cells: CubeCells, which: Tensor) -> Charts:
    """Flat coordinates for some cells, in float64."""
    centres, radii = cells.caps(which)
    edge = _edges(cells, which)  # (M, 4, samples, 3)
    towards = edge[:, 3, EDGE_SAMPLES // 2]
    first = torch.nn.functional.normalize(towards - (towards * centres).sum(-1, keepdim=True) * centres, dim=-1)
    across = torch.stack((first, torch.linalg.cross(centres, first, dim=-1)), dim=1)
    # Along a great circle <x, e> bends by at most 1, so between samples it rises by at most gap^2 / 8.
    gap = (edge[:, :, 1:] - edge[:, :, :-1]).norm(dim=-1).amax(dim=(1, 2))
    half = torch.einsum("mesx,max->mesa", edge, across).abs().amax(dim=(1, 2)) + gap[:, None].square() / 7 + ROUNDING
    return Charts(centres, radii, across, half)


def expand(
    logits: AffineLogits, charts: Charts, number: int, epsilon: float, most_degree: int = MOST_DEGREE
) -> Expansion | None:
    """The series of one cell that misplaces at most epsilon of a place's shares; None where none short enough does."""
    device = logits.slopes.device
    centre, radius, across, half = (part[number].to(device) for part in charts)
    bounds = bound_weights(logits, centre[None], radius[None])
    sites = keep_sites(bounds, epsilon / 2)[0].nonzero()[:, 0]
    logits = logits.of(sites)
    shares = torch.log_softmax(logits.at(centre[None])[0], dim=0)
    lean = logits.slopes - shares.exp() @ logits.slopes  # a_k - m, (K', 3)
    nodes, unseen = _choose_nodes(lean, shares, centre, across, half, epsilon / 4)
    if nodes == 0:
        return None
    series = _transform(lean, shares, centre, across * half[:, None], nodes)  # (nodes, nodes, K')
    degree, left_out = _choose_degree(series.abs().sum(-1).cpu(), epsilon / 4)
    swelling = float(series.sum(-1).abs().sum())
    if degree > most_degree or swelling > MOST_SWELLING:
        return None
    first, second = term_degrees(degree).to(device).unbind(1)
    return Expansion(sites, series[first, second], epsilon / 2 + unseen + left_out)


def term_degrees(degree: int) -> Tensor:
    """The degrees (i, j) of a series' terms, (terms, 2), by rising i + j: a shorter series begins a longer one."""
    return torch.tensor([(total - j, j) for total in range(degree + 1) for j in range(total + 1)])


def series_degree(terms: int) -> int:
    """The degree of a series of so many terms."""
    return (math.isqrt(8 * terms + 1) - 3) // 2


def evaluate_terms(flat: Tensor, degree: int) -> Tensor:
    """Every term T_i(u) T_j(v) at flat coordinates (2, N), (terms, N)."""
    powers = torch.empty(degree + 1, *flat.shape, dtype=flat.dtype, device=flat.device)
    powers[0] = 1
    if degree:
        powers[1] = flat
    twice = 2 * flat
    for i in range(2, degree + 1):
        torch.mul(twice, powers[i - 1], out=powers[i]).sub_(powers[i - 2])
    first, second = term_degrees(degree).to(flat.device).unbind(1)
    return powers[:, 0].index_select(0, first).mul_(powers[:, 1].index_select(0, second))


def _edges(cells: CubeCells, which: Tensor) -> Tensor:
    """Points along each cell's four edges, (M, 4, samples, 3); the last edge is the one towards larger first steps."""
    along = torch.linspace(0, 1, EDGE_SAMPLES, dtype=torch.float64)
    low, high = torch.zeros_like(along), torch.ones_like(along)
    ways = ((along, low), (along, high), (low, along), (high, along))
    steps = torch.stack([torch.stack(way, dim=-1) for way in ways]).reshape(-1, 2)
    return cells.points(which, steps).reshape(-1, 4, EDGE_SAMPLES, 3)


def _choose_nodes(
    lean: Tensor, shares: Tensor, centre: Tensor, across: Tensor, half: Tensor, epsilon: float
) -> tuple[int, float]:
    """How many nodes a side see all but epsilon, and how much they do not see at most; 0 when too many are needed.

    With |u|, |v| <= B half in the ellipse, B = (rho + 1/rho) / 2, the sphere's own bend 1 - sqrt(1 - u^2 - v^2) is at
    most 1 - sqrt(1 - |B half|^2) in modulus, so log M <= sum |<a_k - m, across>| B half + |<a_k - m, c>| bend. Series
    coefficients beyond the nodes are lost once and folded back onto others once.
    """
    ellipses = ELLIPSES.to(lean.device)
    reach = (ellipses + 1 / ellipses) / 2
    inside = (reach * half.norm()).square()
    usable = inside < 0.9
    rho, reach, bend = ellipses[usable], reach[usable], 1 - torch.sqrt(1 - inside[usable])
    steep = (lean @ across.T).abs() @ half  # (K',)
    largest = shares[:, None] + steep[:, None] * reach + (lean @ centre).abs()[:, None] * bend  # log w_k M, (K', rho)
    for nodes in NODES:
        beyond = math.log(16) - nodes * rho.log() - 2 * torch.log1p(-1 / rho)
        unseen = float((largest + beyond).amin(-1).exp().sum()) if len(rho) else math.inf
        if unseen <= epsilon:
            return nodes, unseen
    return 0, math.inf


def _transform(lean: Tensor, shares: Tensor, centre: Tensor, across: Tensor, nodes: int) -> Tensor:
    """Coefficients of every site's w_k g_k, (nodes, nodes, K'), from its values at Chebyshev nodes."""
    number = torch.arange(nodes, dtype=torch.float64, device=lean.device)
    angles = (number + 0.5) * (math.pi / nodes)
    flat = torch.cartesian_prod(angles.cos(), angles.cos()) @ across  # (nodes^2, 3), in the tangent plane
    bend = torch.sqrt(1 - flat.square().sum(-1)) - 1
    values = torch.addmm(shares, flat + bend[:, None] * centre, lean.T).exp_()
    cosines = torch.outer(number, angles).cos() * (2 / nodes)
    cosines[0] /= 2
    half_way = (cosines @ values.reshape(nodes, -1)).reshape(nodes, nodes, -1)
    return torch.matmul(cosines, half_way)


def _choose_degree(sizes: Tensor, epsilon: float) -> tuple[int, float]:
    """The lowest degree beyond which coefficients of these sizes (nodes, nodes) add up to at most epsilon."""
    total = torch.arange(len(sizes))
    beyond = torch.zeros(2 * len(sizes), dtype=torch.float64)
    beyond.index_add_(0, (total[:, None] + total).flatten(), sizes.flatten())
    left_out = beyond.flip(0).cumsum(0).flip(0)  # of this degree and beyond
    degree = max(int((left_out > epsilon).sum()) - 1, 0)
    return degree, float(left_out[degree + 1])
