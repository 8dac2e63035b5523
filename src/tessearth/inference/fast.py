"""The fast path of a Voronoi encoder on a CPU: sparse assignment, maps folded into the site table, a lean head.

Equal to the plain path up to rounding and the epsilon of `assignment`. What is cheapest is decided by a cost model from
how long the lists are and how the places crowd: smooth tessellations, few places or few sites take the dense form.
"""

import math
from typing import NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.inference.assignment import EPSILON, AffineLogits, SiteLists, read_logits
from tessearth.inference.precision import FastHead, Precision

SIDES = (4, 6, 8, 12, 16, 24, 32, 48, 64)
"""Cells per edge of a cube's face that are considered, coarse to fine."""

FEWEST_LISTED_SITES = 512
"""Below this the dense form is so cheap that lists are not made."""

ROWS_AT_ONCE = 1024
NUMBERS_AT_ONCE = 2**22
"""Of the weights held at once: 16 MB of float32 stay in a CPU's last cache."""

FEW_PLACES = 4
"""Up to this many places, each picks its own sites instead of its cell's."""

LIGHT = 64
"""How many times less than epsilon a site weighs that a single place tries to leave out."""


class Cost:
    """What things cost, in multiply-adds of a matrix product; measured on two AVX2 cores, only ratios matter."""

    weight = 200.0
    """One logit and its share in a softmax."""
    gathered = 16.0
    """One number of a site's row brought together with others."""
    cell = 2e6
    """Handling a cell, however few places it holds."""
    bound = 100.0
    """One site considered for a list, shared by the batches that use the list."""


class Grouping(NamedTuple):
    """Places sorted by the cell they lie in."""

    lists: SiteLists
    order: Tensor
    """Indices of the places, cell by cell, (N,)."""
    cells: Tensor
    """The cells met, (M,)."""
    counts: Tensor
    """How many places each holds, (M,)."""


class SparseMixture:
    """sum_k w_k(x) row_k for the rows of a table, (N, 3) -> (N, W), by the sites that can matter."""

    def __init__(self, logits: AffineLogits, table: Tensor, epsilon: float = EPSILON) -> None:
        self.wide, self.table, self.epsilon = logits, table, epsilon
        self.logits = AffineLogits(*(part.float() for part in logits))
        self._lists: dict[int, SiteLists] = {}

    def add_to(self, out: Tensor, xyz: Tensor) -> None:
        """Add the mixture at each direction to the rows of `out`, (N, W)."""
        if len(xyz) <= FEW_PLACES:
            for i, here in enumerate(xyz):
                out[i] += self._one(here)
            return
        grouping = self.group(xyz)
        if grouping is None:
            self._add_dense(out, xyz, None)
            return
        listed = grouping.counts >= self._fewest(grouping.lists)
        grouping.lists.prepare(grouping.cells[listed])
        pooled: list[Tensor] = []
        parts = torch.split(grouping.order, grouping.counts.tolist())
        for cell, rows, is_listed in zip(grouping.cells.tolist(), parts, listed.tolist(), strict=True):
            if is_listed:
                self._add_listed(out, xyz, rows, grouping.lists[cell])
            else:
                pooled.append(rows)
        if pooled:
            self._add_dense(out, xyz, torch.cat(pooled))

    def group(self, xyz: Tensor) -> Grouping | None:
        """The places by cells of the size that makes them cheapest; None where the dense form is cheaper still."""
        if len(self.table) < FEWEST_LISTED_SITES or len(xyz) < 2 * ROWS_AT_ONCE // 8:
            return None
        best, least = None, self._dense_cost(len(xyz))
        for side in SIDES:
            lists = self._at(side)
            met = torch.bincount(lists.cells.find(xyz), minlength=lists.cells.count)
            cost = self._listed_cost(lists, met)
            if cost > 1.5 * least:  # finer cells hold fewer places each: past the best it only gets worse
                break
            best, least = (lists, cost) if cost < least else (best, least)
        if best is None:
            return None
        cells, order = best.cells.find(xyz).sort()
        found, counts = torch.unique_consecutive(cells, return_counts=True)
        return Grouping(best, order, found, counts)

    def expected_sites(self) -> float:
        """How many sites a place has to look at, roughly."""
        return self._at(SIDES[3]).expected if len(self.table) >= FEWEST_LISTED_SITES else len(self.table)

    def _one(self, here: Tensor) -> Tensor:
        """The mixture at one place, (3,) -> (W,), by its own heaviest sites: the others weigh at most epsilon."""
        weights = torch.softmax(torch.addmv(self.logits.offsets, self.logits.slopes, here), dim=0)
        is_light = weights <= self.epsilon / LIGHT
        if float((weights * is_light).sum()) > self.epsilon:
            is_light = weights <= self.epsilon / len(weights)
        kept = is_light.logical_not().nonzero()[:, 0]
        shares = weights[kept]
        shares = shares / shares.sum()
        return F.embedding_bag(kept[None], self.table, per_sample_weights=shares[None], mode="sum")[0]

    def _add_listed(self, out: Tensor, xyz: Tensor, rows: Tensor, sites: Tensor) -> None:
        logits, table = self.logits, self.table
        if len(sites) < len(table):
            logits, table = logits.of(sites), table.index_select(0, sites)
        for part in torch.split(rows, max(1, NUMBERS_AT_ONCE // len(table))):
            out.index_add_(0, part, torch.softmax(logits.at(xyz.index_select(0, part)), dim=-1) @ table)

    def _add_dense(self, out: Tensor, xyz: Tensor, rows: Tensor | None) -> None:
        rows = torch.arange(len(xyz)) if rows is None else rows
        for part in torch.split(rows, max(1, NUMBERS_AT_ONCE // len(self.table))):
            out.index_add_(0, part, torch.softmax(self.logits.at(xyz.index_select(0, part)), dim=-1) @ self.table)

    def _at(self, side: int) -> SiteLists:
        if side not in self._lists:
            self._lists[side] = SiteLists(self.wide, side, self.epsilon)
        return self._lists[side]

    def _dense_cost(self, places: int) -> float:
        return places * len(self.table) * (self.table.shape[1] + Cost.weight)

    def _listed_cost(self, lists: SiteLists, met: Tensor) -> float:
        """Of places by lists, from how many lie in each cell.

        A list is made once and used by later batches too. Which are made already must not matter: the same places have
        to give the same bytes whatever was embedded before them.
        """
        cells = int((met > 0).sum())
        per_place = lists.expected * (self.table.shape[1] + Cost.weight)
        making = cells * len(self.table) * Cost.bound
        return int(met.sum()) * per_place + cells * self._cell_cost(lists) + making

    def _cell_cost(self, lists: SiteLists) -> float:
        return lists.expected * self.table.shape[1] * Cost.gathered + Cost.cell

    def _fewest(self, lists: SiteLists) -> int:
        """How many places a cell must hold for its list to pay."""
        saved = (len(self.table) - lists.expected) * (self.table.shape[1] + Cost.weight)
        return math.ceil(self._cell_cost(lists) / saved) if saved > 0 else 2**62


class FastVoronoi:
    """A Voronoi encoder on a CPU, prepared for speed: directions in, embeddings out, as `embed_xyz` gives them.

    Where it pays, the linear maps behind the mixture are folded into the site table: rows
    [e_k W_loc^T ; (1 - alpha) e_k W^T] give token logits and projection in one mixture.
    """

    def __init__(self, encoder: SphericalVoronoiEncoder, precision: Precision, epsilon: float = EPSILON) -> None:
        """`encoder` is a copy of one's own, in float32 on the CPU and in evaluation mode; its head may be rounded."""
        self.encoder, self.config = encoder, encoder.config
        logits = [read_logits(voronoi) for voronoi in encoder.voronois()]
        plain = [voronoi.embeddings.detach() for voronoi in encoder.voronois()]
        self.mixtures = [SparseMixture(*parts, epsilon) for parts in zip(logits, plain, strict=True)]
        self.is_folded = self._folding_pays()
        if self.is_folded:
            for mixture, table in zip(self.mixtures, self._folded_tables(plain), strict=True):
                mixture.table = table
        self.head = FastHead(encoder.head, precision)

    def embed(self, xyz: Tensor) -> Tensor:
        """(N, 3) in float32 -> (N, D)."""
        mixed = self._mix(xyz)
        if len(xyz) <= ROWS_AT_ONCE:
            return self._finish(xyz, mixed)
        out = torch.empty(len(xyz), self.config.output_dim)
        for start in range(0, len(xyz), ROWS_AT_ONCE):
            part = slice(start, start + ROWS_AT_ONCE)
            out[part] = self._finish(xyz[part], mixed[part])
        return out

    def calibrate(self, xyz: Tensor) -> None:
        """Round the head to eight bits by what it is fed at these places."""
        self.head.calibrate(self._blend(xyz, self._mix(xyz)))

    def _mix(self, xyz: Tensor) -> Tensor:
        """The mixtures, folded (N, T + D) or plain (N, S)."""
        widths = [mixture.table.shape[1] for mixture in self.mixtures]
        mixed = torch.zeros(len(xyz), widths[0] if self.is_folded else sum(widths))
        parts = [mixed] * len(widths) if self.is_folded else torch.split(mixed, widths, dim=1)
        for mixture, part in zip(self.mixtures, parts, strict=True):
            mixture.add_to(part, xyz)
        return mixed

    def _finish(self, xyz: Tensor, mixed: Tensor) -> Tensor:
        raw = self.head(self._blend(xyz, mixed))
        return F.normalize(raw, dim=-1) if self.config.normalize else raw

    def _blend(self, xyz: Tensor, mixed: Tensor) -> Tensor:
        """The head's input, (N, D) and the coordinates' own features where there are any."""
        blend = self._blend_folded(mixed) if self.is_folded else self._blend_plain(mixed)
        blend = self.encoder.norm(blend)
        if self.config.coordinate_octaves:
            blend = torch.cat((blend, self.encoder.coordinate_features(xyz)), dim=-1)
        return blend

    def _blend_plain(self, mixture: Tensor) -> Tensor:
        blend: Tensor = self.encoder.projection(mixture)
        tokens, gate = self.encoder.tokens, self.config.token_gate
        if tokens is None:
            return blend
        return torch.addmm(blend, tokens.location_attention(mixture), tokens.tokens, beta=1 - gate, alpha=gate)

    def _blend_folded(self, mixed: Tensor) -> Tensor:
        tokens, gate = self.encoder.tokens, self.config.token_gate
        if tokens is None:
            return mixed
        logits, projected = torch.split(mixed, [self.config.num_tokens, self.config.output_dim], dim=1)
        return torch.addmm(projected, torch.softmax(logits, dim=-1), tokens.tokens, alpha=gate)

    def _folding_pays(self) -> bool:
        """Rows of width T + D for every site, against rows of width S and one product per place."""
        folded = self.config.num_tokens + self.config.output_dim
        sites = [mixture.expected_sites() for mixture in self.mixtures]
        projected = self.config.num_tokens + (0 if isinstance(self.encoder.projection, nn.Identity) else folded)
        plain = sum(n * mixture.table.shape[1] for n, mixture in zip(sites, self.mixtures, strict=True))
        return not self.config.cosine_attention and sum(sites) * folded < plain + self.config.mixture_dim * projected

    def _folded_tables(self, plain: list[Tensor]) -> list[Tensor]:
        """(K, T + D) per tessellation, computed in float64; biases join the first, whose weights sum to one too."""
        first, last = self._maps()
        offset = torch.cat((first[1], last[1]))
        maps = torch.split(torch.cat((first[0], last[0])), [table.shape[1] for table in plain], dim=1)
        tables = [table.double() @ part.T for table, part in zip(plain, maps, strict=True)]
        tables[0] += offset
        return [table.float().contiguous() for table in tables]

    def _maps(self) -> tuple[tuple[Tensor, Tensor], tuple[Tensor, Tensor]]:
        """The linear maps behind the mixture as (matrix, bias): to the tokens' logits, and to the blend's own part."""
        projection, width = self.encoder.projection, self.config.mixture_dim
        if isinstance(projection, nn.Linear):
            matrix, bias = projection.weight.detach().double(), projection.bias.detach().double()
        else:
            matrix, bias = torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)
        tokens = self.encoder.tokens
        if tokens is None:
            empty = torch.zeros(0, width, dtype=torch.float64), torch.zeros(0, dtype=torch.float64)
            return empty, (matrix, bias)
        sharpened = 1 / tokens.temperature().detach().double()
        layer, share = tokens.location_logits, 1 - self.config.token_gate
        weight, shift = layer.weight.detach().double() * sharpened, layer.bias.detach().double() * sharpened
        return (weight, shift), (matrix * share, bias * share)
