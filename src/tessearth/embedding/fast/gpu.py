"""The fast path of a Voronoi encoder on a GPU: places sorted into cells, one kernel up to the head, then products.

It exists for one tessellation that has a series everywhere (see `series`); making them takes about ten seconds.
"""

import copy
from typing import Any, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.embedding.fast import triton_kernels as kernels
from tessearth.embedding.fast.bounds import FINEST, AffineLogits, cells_along_curve, read_logits, read_rows
from tessearth.embedding.fast.head import Folded, fold, residual_blocks
from tessearth.embedding.fast.listed import takes_lists
from tessearth.embedding.fast.series import CellTables, evaluate_terms, series_degree, term_degrees
from tessearth.embedding.fast.triton_kernels import MOST_TERMS, Halves, Shape, Tables
from tessearth.encoder import SphericalVoronoiEncoder
from tessearth.sphere import CubeCells

SIDE = 8
"""Cells per edge of a cube's face that series are first tried for."""
MOST_LEAVES = 12_288
"""More cells than this take too long to make and too much memory."""
BLOCKS_AT_ONCE = 2048
"""Of places, where no kernel computes the first activations."""

SHAPES: dict[torch.dtype, Shape] = {
    torch.float32: Shape(places=64, tile=64, warps=4, stages=1),
    torch.bfloat16: Shape(places=64, tile=64, warps=4, stages=3),
    torch.float16: Shape(places=64, tile=64, warps=4, stages=3),
}
"""How the kernel's work is cut for each precision of the tables: the fastest in benchmarks/results/speed-gpu.md."""

MIXED_IN: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.float16}
"""Series are multiplied in float16 where the head is in bfloat16: their terms lie in [-1, 1] and need the digits."""


class Blocks(NamedTuple):
    """Places sorted into blocks that lie in one cell each."""

    leaves: Tensor
    """Each block's cell, (blocks,)."""
    slots: Tensor
    """The slot of each place, (N,) below blocks * places."""
    flat: Tensor
    """Flat coordinates by slot, (blocks * places, 2); zeros in empty slots."""
    xyz: Tensor
    """Directions by slot, (blocks * places, 3); zeros in empty slots."""


class GpuSeries(NamedTuple):
    """The series of every cell of the sphere, padded to one length, on a device."""

    tables: Tables
    across: Tensor
    """(L, 2, 3), as `series.Frame`."""
    half: Tensor
    """(L, 2)."""
    by_cell: Tensor
    """The leaf of each finest cell by its number, (6 FINEST^2,)."""

    def sort(self, xyz: Tensor, size: int) -> Blocks:
        """Directions, (N, 3), into blocks of `size`, without waiting for the host."""
        leaf = self.by_cell[CubeCells(FINEST).find(xyz)].long()
        flat = torch.einsum("nax,nx->na", self.across[leaf], xyz).div_(self.half[leaf]).clamp_(-1, 1)
        in_order, order = leaf.int().sort(stable=True)
        number = torch.arange(len(self.half) + 1, device=xyz.device, dtype=torch.int32)
        starts = torch.searchsorted(in_order, number)
        counts = starts.diff()
        blocks = (counts + size - 1) // size
        ends = blocks.cumsum(0)
        shift = (ends - blocks) * size - starts[:-1]
        most = len(xyz) // size + len(self.half)
        slots = torch.empty_like(order)
        slots[order] = torch.arange(len(xyz), device=xyz.device) + shift[in_order.long()]
        placed = torch.zeros(most * size, 5, device=xyz.device)
        placed[slots] = torch.cat((flat, xyz), dim=1)
        leaves = torch.searchsorted(ends, torch.arange(most, device=xyz.device), right=True)
        return Blocks(leaves.clamp_(max=len(counts) - 1), slots, placed[:, :2].contiguous(), placed[:, 2:])


def make_series(logits: AffineLogits, rows: Tensor, folded: Folded, dtype: torch.dtype) -> GpuSeries | None:
    """Series where `logits`, `rows` and `folded` lie; None for too sharp sites or too large rows."""
    degree = series_degree(MOST_TERMS)
    made = CellTables(logits, rows, folded.mixture, SIDE, most_degree=degree, room=2**40)
    for face in torch.arange(6 * FINEST**2).view(6, -1):
        if bool((made.find(face) < 0).any()) or len(made.leaves) > MOST_LEAVES:
            return None
    tables = [made.table(leaf) for leaf in range(len(made.leaves))]
    padded = torch.stack([_pad(table.rows) for table in tables]).to(dtype)
    if not bool(padded.isfinite().all()):
        return None
    by_cell = torch.empty_like(made.leaf_of)
    by_cell[cells_along_curve(FINEST)] = made.leaf_of
    total = torch.stack([_pad(table.total) for table in tables])
    across, half, _ = (part.to(rows.device) for part in made.frames())
    degrees = _pad(term_degrees(degree)).to(rows.device)
    return GpuSeries(Tables(padded, total, degrees), across, half, by_cell.to(rows.device, torch.int32))


class GpuVoronoi:
    """A Voronoi encoder on a GPU, prepared for speed: directions in, embeddings out, as `embed_xyz` gives them."""

    def __init__(self, encoder: SphericalVoronoiEncoder, series: GpuSeries, folded: Folded, dtype: torch.dtype) -> None:
        """`encoder` is the caller's own copy, in float32 on the device; `prepare_on_gpu` makes the rest."""
        self.encoder, self.series, self.folded, self.dtype = encoder, series, folded, dtype
        self.config, self.device = encoder.config, folded.offset.device
        self.shape, self.linear_shape = SHAPES[series.tables.rows.dtype], kernels.LINEAR_SHAPE
        self.maps = folded._replace(tokens=folded.tokens.T.to(series.tables.rows.dtype).contiguous())
        layers = [layer for block in residual_blocks(encoder.head) for layer in (block.first, block.second)]
        self.layers = [(layer.weight.T.to(dtype).contiguous(), layer.bias.to(dtype)) for layer in layers]
        assert isinstance(encoder.head.exit, nn.Linear), "only heads with a linear exit have a fast form"
        self.exit = encoder.head.exit.weight.T.to(dtype).contiguous()
        self.halves: list[Halves] | None = None
        """Every matrix of the head in two float16 parts; None where one is too large for that."""
        if dtype == torch.float32 and kernels.is_available(self.device):
            halves = [kernels.halve(columns) for columns in (*(columns for columns, _ in self.layers), self.exit)]
            self.halves = halves if all(bool(half.high.isfinite().all()) for half in halves) else None

    def embed(self, xyz: Tensor) -> Tensor:
        """(N, 3) in float32 on the device -> (N, D) in float32."""
        blocks = self.series.sort(xyz, self.shape.places)
        raw = self._head(self._activate(blocks))
        if kernels.is_available(self.device) and _is_power_of_two(raw.shape[1]):
            return kernels.finish(raw, blocks.slots, self.config.normalize)
        raw = raw.index_select(0, blocks.slots).float()
        return F.normalize(raw, dim=-1) if self.config.normalize else raw

    def _activate(self, blocks: Blocks) -> Tensor:
        """The head's first activation by slot, (slots, H)."""
        out = torch.empty(len(blocks.flat), self.config.hidden_dim, dtype=self.dtype, device=self.device)
        if not self._has_kernel():
            return self._activate_without_kernel(blocks, out)
        kernels.first_activations(blocks.flat.acos(), blocks.leaves, self.series.tables, self.maps, self.shape, out)
        features = self._features(blocks.xyz)
        if features is None or self.folded.coordinates is None:
            return out
        return out.addmm_(features.to(self.dtype), self.folded.coordinates.T.to(self.dtype)).relu_()

    def _has_kernel(self) -> bool:
        """Whether the kernel can cut these widths into tiles and knows this attention."""
        config = self.config
        fits = kernels.are_tiles(self.shape.tile, config.output_dim, config.hidden_dim)
        known = not config.cosine_attention and _is_power_of_two(config.num_tokens)
        return fits and known and kernels.is_available(self.device)

    def _activate_without_kernel(self, blocks: Blocks, out: Tensor) -> Tensor:
        size, degree, tables = self.shape.places, series_degree(MOST_TERMS), self.series.tables
        for part in torch.split(torch.arange(len(blocks.leaves), device=self.device), BLOCKS_AT_ONCE):
            leaves = blocks.leaves[part]
            flat = blocks.flat.view(-1, size, 2)[part].reshape(-1, 2)
            terms = _pad(evaluate_terms(flat.T, degree)).T.reshape(len(part), size, MOST_TERMS)
            terms = terms / (terms @ tables.total[leaves][..., None])
            mixed = torch.bmm(terms.to(tables.rows.dtype), tables.rows[leaves]).float() + self.folded.offset
            features = self._features(blocks.xyz.view(-1, size, 3)[part].reshape(-1, 3))
            first = self.folded.activate(mixed.reshape(-1, mixed.shape[-1]).T.contiguous(), features)
            out.view(-1, size, out.shape[1])[part] = first.T.reshape(len(part), size, -1).to(self.dtype)
        return out

    def _features(self, xyz: Tensor) -> Tensor | None:
        return self.encoder.coordinate_features(xyz) if self.config.coordinate_octaves else None

    def _head(self, x: Tensor) -> Tensor:
        widths = (self.config.hidden_dim, self.config.output_dim)
        if self.halves is not None and kernels.are_tiles(self.linear_shape.tile, *widths):
            raw = self._head_by_halves(x, self.halves)
            if bool(raw.sum().isfinite()):  # otherwise an activation was too large for float16
                return raw
        for first, second in zip(self.layers[::2], self.layers[1::2], strict=True):
            x = x.add_(_relu_linear(second, _relu_linear(first, x)))
        return x @ self.exit

    def _head_by_halves(self, x: Tensor, halves: list[Halves]) -> Tensor:
        """The head in float32 on the tensor cores; `x` keeps its values."""
        matrices, shape = iter(halves), self.linear_shape
        for (_, first_bias), (_, second_bias) in zip(self.layers[::2], self.layers[1::2], strict=True):
            middle = kernels.linear(x, next(matrices), first_bias, True, shape=shape)
            x = kernels.linear(middle, next(matrices), second_bias, True, before=x, shape=shape)
        return kernels.linear(x, next(matrices), x.new_zeros(self.config.output_dim), False, shape=shape)


def prepare_on_gpu(encoder: SphericalVoronoiEncoder, device: torch.device, dtype: torch.dtype) -> GpuVoronoi | None:
    """The fast form of an encoder's copy; None where several tessellations or too sharp sites leave no series."""
    if len(encoder.voronois()) != 1 or takes_lists(encoder.voronois()[0]):
        return None
    encoder = copy.deepcopy(encoder).eval().requires_grad_(False).float().cpu()
    parts: list[Any] = [part.to(device) if isinstance(part, Tensor) else part for part in fold(encoder)]
    folded = Folded(*parts)
    voronoi = encoder.to(device).voronois()[0]
    logits = AffineLogits(*(part.to(device) for part in read_logits(voronoi)))
    series = make_series(logits, read_rows(voronoi), folded, MIXED_IN.get(dtype, dtype))
    return None if series is None else GpuVoronoi(encoder, series, folded, dtype)


def _relu_linear(layer: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """ReLU(x W + b), in one step where the library has one."""
    columns, bias = layer
    out: Tensor = torch._addmm_activation(bias, x, columns) if x.is_cuda else torch.addmm(bias, x, columns).relu_()
    return out


def _pad(terms: Tensor) -> Tensor:
    """Zeros behind the terms, up to the length of the tables."""
    return torch.cat((terms, terms.new_zeros(MOST_TERMS - len(terms), *terms.shape[1:])))


def _is_power_of_two(number: int) -> bool:
    return number >= 16 and number & (number - 1) == 0
