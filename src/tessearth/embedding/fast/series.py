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
import threading
from collections import OrderedDict
from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.embedding.fast.bounds import (
    EPSILON,
    FINEST,
    AffineLogits,
    bound_weights,
    cells_along_curve,
    fine_per_cell,
    keep_sites,
)
from tessearth.sphere import ROUNDING, CubeCells

NODES = (8, 10, 12, 14, 17)
"""Nodes along each coordinate that are tried, fewest first."""
MOST_DEGREE = 15
"""A cell that needs a longer series than this is divided instead."""
MOST_SWELLING = 32.0
"""How much larger than its least value the sum below may get: it magnifies the rounding of float32."""
ELLIPSES = torch.tensor([1.25**power for power in range(1, 13)], dtype=torch.float64)
"""The parameters rho at which bounds are taken; each site takes the lowest of its bounds."""
EDGE_SAMPLES = 33


class Chart(NamedTuple):
    """A cell with flat coordinates: (<x, across_0>, <x, across_1>) / half lies in [-1, 1]^2 for every x of the cell."""

    centre: Tensor
    """(3,)."""
    radius: Tensor
    """Of the cap that holds the cell, in radians, ()."""
    across: Tensor
    """Two unit vectors at right angles to the centre and each other, (2, 3)."""
    half: Tensor
    """Half the cell's width along them, (2,)."""


class Expansion(NamedTuple):
    """One cell's series."""

    sites: Tensor
    """The sites that take part, (K',)."""
    coefficients: Tensor
    """C w, (terms, K') in float64, terms by rising degree."""
    misplaced: float
    """The most that is misplaced of a place's shares, by sites and by terms left out together."""


def build_chart(cells: CubeCells, cell: int) -> Chart:
    """Flat coordinates for a cell, in float64."""
    which = torch.tensor([cell])
    centres, radii = cells.caps(which)
    along = torch.linspace(0, 1, EDGE_SAMPLES, dtype=torch.float64)
    low, high = torch.zeros_like(along), torch.ones_like(along)
    edges = ((along, low), (along, high), (low, along), (high, along))  # the last one towards larger first steps
    steps = torch.stack([torch.stack(edge, dim=-1) for edge in edges]).reshape(-1, 2)
    edge = cells.points(which, steps).reshape(1, 4, EDGE_SAMPLES, 3)
    towards = edge[:, 3, EDGE_SAMPLES // 2]
    first = torch.nn.functional.normalize(towards - (towards * centres).sum(-1, keepdim=True) * centres, dim=-1)
    across = torch.stack((first, torch.linalg.cross(centres, first, dim=-1)), dim=1)
    # Along a great circle <x, e> bends by at most 1, so between samples it rises by at most gap^2 / 8.
    gap = (edge[:, :, 1:] - edge[:, :, :-1]).norm(dim=-1).amax(dim=(1, 2))
    half = torch.einsum("mesx,max->mesa", edge, across).abs().amax(dim=(1, 2)) + gap[:, None].square() / 7 + ROUNDING
    return Chart(centres[0], radii[0], across[0], half[0])


def expand(logits: AffineLogits, chart: Chart, epsilon: float, most_degree: int = MOST_DEGREE) -> Expansion | None:
    """The series of a cell that misplaces at most epsilon of a place's shares; None where none short enough does."""
    device = logits.slopes.device
    centre, radius, across, half = (part.to(device) for part in chart)
    bounds = bound_weights(logits, centre[None], radius[None])
    sites = keep_sites(bounds, epsilon / 2)[0].nonzero()[:, 0]
    logits = logits.of(sites)
    shares = torch.log_softmax(logits.at(centre[None])[0], dim=0)
    lean = logits.slopes - shares.exp() @ logits.slopes  # a_k - m, (K', 3)
    nodes, unseen = _choose_nodes(lean, shares, Chart(centre, radius, across, half), epsilon / 4)
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
    """The degree of a series with this many terms."""
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


def _choose_nodes(lean: Tensor, shares: Tensor, chart: Chart, epsilon: float) -> tuple[int, float]:
    """How many nodes a side see all but epsilon, and a bound of what they do not see; 0 when too many are needed.

    With |u|, |v| <= B half in the ellipse, B = (rho + 1/rho) / 2, the sphere's own bend 1 - sqrt(1 - u^2 - v^2) is at
    most 1 - sqrt(1 - |B half|^2) in modulus, so log M <= sum |<a_k - m, across>| B half + |<a_k - m, c>| bend. Series
    coefficients beyond the nodes are lost once and folded back onto others once.
    """
    ellipses = ELLIPSES.to(lean.device)
    reach = (ellipses + 1 / ellipses) / 2
    inside = (reach * chart.half.norm()).square()
    usable = inside < 0.9
    rho, reach, bend = ellipses[usable], reach[usable], 1 - torch.sqrt(1 - inside[usable])
    steep = (lean @ chart.across.T).abs() @ chart.half  # (K',)
    away = (lean @ chart.centre).abs()
    largest = shares[:, None] + steep[:, None] * reach + away[:, None] * bend  # log w_k M, (K', rho)
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


TABLE_BYTES = 2**30
"""The most that one tessellation's tables may take; the least recently used are dropped and made again when needed."""
COARSE = 4
"""Cells per edge of a cube's face in which sites are sought first."""
COARSE_SHARE = 1 / 16
"""The share of epsilon that this first search may leave out."""
CHANGES = threading.RLock()
"""Held while the kept tables change: several threads embed blocks, and making a table twice is harmless."""
SAMPLED_CELLS = 8
UNKNOWN, WITHOUT_SERIES = -1, -2


class CellTable(NamedTuple):
    """A cell's series."""

    rows: Tensor
    """(terms, W): what the terms add to the sum above; the terms of one row are contiguous in memory."""
    total: Tensor
    """(terms,): and to the sum below."""

    @property
    def nbytes(self) -> int:
        """The memory it takes."""
        return self.rows.nbytes + self.total.nbytes


class Frame(NamedTuple):
    """What turns a place into the terms of a leaf, on the CPU; of several leaves when stacked, (L, ...) each."""

    across: Tensor
    """(2, 3)."""
    half: Tensor
    """(2,)."""
    total: Tensor
    """The table's, padded with zeros to the length of the longest series allowed."""


class Leaf(NamedTuple):
    """A cell that has a series."""

    side: int
    position: int
    """Along the curve."""
    frame: Frame


class Sample(NamedTuple):
    """What a few cells tell about all of them."""

    terms: float
    """The mean length of a place's series."""
    all_terms: float
    """The length of all series of the sphere together."""
    share: float
    """The share of the sphere that has series."""
    side: int
    """Of a leaf of the mean size."""


class CellTables:
    """Series for cells of one size, and for smaller ones within those that are too sharp to have one.

    `rows` are the sites' own (K, S), `onwards` the map (W, S) behind their mixture. It is folded into the tables if
    those of the whole sphere then fit into `room` bytes; otherwise (`is_folded` False) the caller applies it. Tables
    are made where `logits`, `rows` and `onwards` lie.
    """

    def __init__(
        self,
        logits: AffineLogits,
        rows: Tensor,
        onwards: Tensor,
        side: int,
        *,
        most_degree: int = MOST_DEGREE,
        room: int | None = None,
    ) -> None:
        self.logits, self.rows, self.onwards, self.side = logits, rows, onwards, side
        self.most_degree, self.room = most_degree, TABLE_BYTES if room is None else room
        self.leaf_of = torch.full((6 * FINEST**2,), UNKNOWN, dtype=torch.long)
        """The leaf that each finest cell lies in."""
        self.leaves: list[Leaf] = []
        self._divided: set[tuple[int, int]] = set()
        self._near: dict[int, Tensor] = {}
        self._frames: Frame | None = None
        self._tables: OrderedDict[int, CellTable] = OrderedDict()
        self._bytes = 0
        self.is_folded = True
        self.sample = self._sample()
        self.is_folded = 4 * self.sample.all_terms * len(onwards) <= self.room
        self.width = len(onwards) if self.is_folded else rows.shape[1]
        """How wide the tables' rows are."""
        self.fits = 4 * self.sample.all_terms * self.width <= self.room
        """Whether the tables of the whole sphere fit into `room`, roughly."""
        self._tables.clear()
        self._bytes = 0

    def find(self, fine: Tensor) -> Tensor:
        """The leaf of each place from its finest cell, (N,) -> (N,); below 0 where there is no series."""
        leaves = self.leaf_of[fine]
        unknown = torch.unique_consecutive(fine[leaves == UNKNOWN])
        for cell in unknown.tolist():
            if self.leaf_of[cell] == UNKNOWN:
                self._search(cell)
        return self.leaf_of[fine] if len(unknown) else leaves

    def frames(self) -> Frame:
        """The frames of all leaves found so far, stacked."""
        with CHANGES:
            if self._frames is None or len(self._frames.half) < len(self.leaves):
                frames = [leaf.frame for leaf in self.leaves]
                self._frames = Frame(*(torch.stack(parts) for parts in zip(*frames, strict=True)))
            return self._frames

    def terms(self, xyz: Tensor, leaves: Tensor, count: int) -> Tensor:
        """The first terms of places in their leaves, each divided by the sum below, (N, 3), (N,) -> (count, N)."""
        across, half, total = (part.index_select(0, leaves) for part in self.frames())
        flat = torch.einsum("nax,nx->an", across, xyz).div_(half.T).clamp_(-1, 1)
        terms = evaluate_terms(flat, series_degree(count))
        return terms.div_((terms * total[:, :count].T).sum(0))

    def table(self, leaf: int) -> CellTable:
        """A leaf's table."""
        with CHANGES:
            if leaf in self._tables:
                self._tables.move_to_end(leaf)
                return self._tables[leaf]
        made = self._make(self.leaves[leaf].side, self.leaves[leaf].position)
        assert made is not None
        self._keep(leaf, made[1])
        return made[1]

    def _search(self, cell: int) -> None:
        """Find the largest cell around a finest one that has a series."""
        side = self.side
        while side <= FINEST:
            position, size = cell // fine_per_cell(side), fine_per_cell(side)
            made = None if (side, position) in self._divided else self._make(side, position)
            within = slice(position * size, (position + 1) * size)
            if made is not None:
                with CHANGES:
                    if self.leaf_of[within.start] == UNKNOWN:  # else another thread has made the same one meanwhile
                        self._keep(len(self.leaves), made[1])
                        self.leaves.append(Leaf(side, position, made[0]))
                        self.leaf_of[within] = len(self.leaves) - 1
                return
            self._divided.add((side, position))
            side *= 2
        self.leaf_of[within] = WITHOUT_SERIES

    def _make(self, side: int, position: int) -> tuple[Frame, CellTable] | None:
        """The frame and the table of a cell along the curve; None where it has no series."""
        chart = build_chart(CubeCells(side), int(cells_along_curve(side)[position]))
        near = self._near_sites(position // (side // COARSE) ** 2)
        series = expand(self.logits.of(near), chart, (1 - COARSE_SHARE) * EPSILON, self.most_degree)
        if series is None:
            return None
        rows = series.coefficients.float() @ self.rows.index_select(0, near[series.sites])
        across = self.onwards @ rows.T if self.is_folded else rows.T.contiguous()
        table = CellTable(across.T, series.coefficients.sum(1).float())
        longest = len(term_degrees(self.most_degree))
        total = torch.nn.functional.pad(table.total.cpu(), (0, longest - len(table.total)))
        return Frame(chart.across.float(), chart.half.float(), total), table

    def _near_sites(self, position: int) -> Tensor:
        """The sites that can matter somewhere in a coarse cell; the cells within it consider these alone."""
        if position not in self._near:
            centre, radius = CubeCells(COARSE).caps(cells_along_curve(COARSE)[position : position + 1])
            device = self.logits.slopes.device
            bounds = bound_weights(self.logits, centre.to(device), radius.to(device))
            self._near[position] = keep_sites(bounds, COARSE_SHARE * EPSILON)[0].nonzero()[:, 0]
        return self._near[position]

    def _keep(self, leaf: int, table: CellTable) -> None:
        """Keep a table, and drop the least recently used while there is no room."""
        with CHANGES:
            if leaf not in self._tables:
                self._tables[leaf] = table
                self._bytes += table.nbytes
            while self._bytes > self.room and len(self._tables) > 1:
                self._bytes -= self._tables.popitem(last=False)[1].nbytes

    def _sample(self) -> Sample:
        found = self.find(torch.linspace(0, len(self.leaf_of) - 1, SAMPLED_CELLS, dtype=torch.float64).long())
        leaves = [leaf for leaf in found.tolist() if leaf >= 0]
        terms = [len(self.table(leaf).total) for leaf in leaves]
        # A place falls into a leaf as often as the leaf is large, so 6 side^2 counts every leaf once on average.
        counts = [6 * self.leaves[leaf].side ** 2 for leaf in leaves]
        every = sum(count * length for count, length in zip(counts, terms, strict=True)) / SAMPLED_CELLS
        length = sum(terms) / max(1, len(terms))
        side = 2 ** round(math.log2(max(self.side**2, every / max(1.0, length) / 6)) / 2)
        return Sample(length, every, len(terms) / SAMPLED_CELLS, min(side, FINEST))
