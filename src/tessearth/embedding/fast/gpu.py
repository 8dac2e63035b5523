"""The fast path of a Voronoi encoder on a GPU: places sorted into cells, one kernel up to the head, then products.

Series as on a CPU (`expansion`), for one tessellation; others and sharper ones by the fused softmax over all sites.
"""

import copy
from typing import Any, Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor

from tessearth.embedding.fast import triton_kernels as kernels
from tessearth.embedding.fast.bounds import EPSILON, FINEST, AffineLogits, CubeCells, cells_along_curve, read_logits
from tessearth.embedding.fast.head import Folded, fold
from tessearth.embedding.fast.series import CellTables, evaluate_terms, series_degree, term_degrees
from tessearth.embedding.fast.triton_kernels import MOST_TERMS, Halves, Shape
from tessearth.encoder.head import ResidualBlock
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.errors import ConfigError

DeviceWay = Literal["series", "series without kernel", "sites"]

SIDE = 8
"""Cells per edge of a cube's face that series are first tried for."""

MOST_LEAVES = 12_288
"""More cells than this take too long to make and too much room."""

SHAPES: dict[torch.dtype, Shape] = {
    torch.float32: Shape(places=64, tile=64, warps=4, stages=1),
    torch.bfloat16: Shape(places=64, tile=64, warps=4, stages=3),
    torch.float16: Shape(places=64, tile=64, warps=4, stages=3),
}
"""How the kernel's work is cut for each precision of the tables: the fastest in benchmarks/results/speed-gpu.md."""

MIXED_IN: dict[torch.dtype, torch.dtype] = {torch.bfloat16: torch.float16}
"""Series are multiplied in float16 where the head is in bfloat16: their terms lie in [-1, 1] and need the digits."""


class DeviceMaps(NamedTuple):
    """What a kernel needs of the folded maps."""

    offset: Tensor
    tokens: Tensor
    """(T, D + H), as the tables are."""
    bias: Tensor
    eps: float
    is_complete: bool
    """Whether nothing is added before the first activation is rectified."""


class Blocks(NamedTuple):
    """Places sorted into blocks that lie in one cell each."""

    leaves: Tensor
    """Each block's cell, (blocks,)."""
    slots: Tensor
    """Where each place went, (N,) below blocks * places."""
    flat: Tensor
    """Flat coordinates by slot, (blocks * places, 2); zeros where no place is."""
    xyz: Tensor
    """Directions by slot, (blocks * places, 3); zeros where no place is."""


class DeviceSeries:
    """The series of every cell of the sphere, padded to one length, on a device."""

    def __init__(self, logits: AffineLogits, rows: Tensor, folded: Folded, dtype: torch.dtype, epsilon: float) -> None:
        device = rows.device
        degree = series_degree(MOST_TERMS)
        made = CellTables(logits, rows, folded.mixture, SIDE, epsilon=epsilon, most_degree=degree, room=2**40)
        self.fits = all(self._make_face(made, face) for face in range(6))
        if not self.fits:
            return
        leaves = range(len(made.leaves))
        self.rows = torch.stack([_pad(made.table(leaf).rows) for leaf in leaves]).to(dtype)
        if not bool(self.rows.isfinite().all()):
            raise ConfigError(f"the folded rows of these weights are too large for {dtype}: use float32")
        self.total = torch.stack([_pad(made.table(leaf).total) for leaf in leaves])
        frames = made.frames()
        self.across, self.half = frames.across.to(device), frames.half.to(device)
        by_cell = torch.empty_like(made.leaf_of)
        by_cell[cells_along_curve(FINEST)] = made.leaf_of
        self.by_cell = by_cell.to(device, torch.int32)
        self.degrees = _pad(term_degrees(degree)).to(device)

    def _make_face(self, made: CellTables, face: int) -> bool:
        fine = torch.arange(face * FINEST**2, (face + 1) * FINEST**2)
        return bool((made.find(fine) >= 0).all()) and len(made.leaves) <= MOST_LEAVES

    def sort(self, xyz: Tensor, size: int) -> Blocks:
        """Directions, (N, 3), into blocks of `size`; no place waits for the host."""
        leaf = self.by_cell[CubeCells(FINEST).find(xyz)].long()
        flat = torch.einsum("nax,nx->na", self.across[leaf], xyz).div_(self.half[leaf]).clamp_(-1, 1)
        in_order, order = leaf.int().sort(stable=True)
        number = torch.arange(len(self.rows) + 1, device=xyz.device, dtype=torch.int32)
        starts = torch.searchsorted(in_order, number)
        counts = starts.diff()
        blocks = (counts + size - 1) // size
        ends = blocks.cumsum(0)
        shift = (ends - blocks) * size - starts[:-1]
        most = len(xyz) // size + len(self.rows)
        slots = torch.empty_like(order)
        slots[order] = torch.arange(len(xyz), device=xyz.device) + shift[in_order.long()]
        placed = torch.zeros(most * size, 5, device=xyz.device)
        placed[slots] = torch.cat((flat, xyz), dim=1)
        leaves = torch.searchsorted(ends, torch.arange(most, device=xyz.device), right=True)
        return Blocks(leaves.clamp_(max=len(counts) - 1), slots, placed[:, :2].contiguous(), placed[:, 2:])


class DeviceVoronoi:
    """A Voronoi encoder on a GPU, prepared for speed: directions in, embeddings out, as `embed_xyz` gives them."""

    def __init__(
        self,
        encoder: SphericalVoronoiEncoder,
        device: torch.device,
        dtype: torch.dtype,
        *,
        way: DeviceWay = "series",
        shape: Shape | None = None,
        epsilon: float = EPSILON,
    ) -> None:
        encoder = copy.deepcopy(encoder).eval().requires_grad_(False).float().cpu()
        self.config, self.device, self.dtype, self.way = encoder.config, device, dtype, way
        mixed_in = MIXED_IN.get(dtype, dtype)
        self.shape = shape or SHAPES[mixed_in]
        self.linear_shape = kernels.LINEAR_SHAPE
        self.folded: Folded = fold(encoder).to(device)
        self.maps = DeviceMaps(
            offset=self.folded.offset,
            tokens=self.folded.tokens.T.to(mixed_in).contiguous(),
            bias=self.folded.bias,
            eps=self.folded.eps,
            is_complete=self.folded.coordinates is None,
        )
        self.encoder = encoder.to(device)
        wide = [AffineLogits(*(part.to(device) for part in read_logits(v))) for v in encoder.voronois()]
        self.sites = [AffineLogits(*(part.float() for part in logits)) for logits in wide]
        self.rows = [voronoi.embeddings.to(mixed_in).contiguous() for voronoi in encoder.voronois()]
        self.series = self._make_series(wide, mixed_in, epsilon) if way != "sites" else None
        self.blocks = [_linears(block, dtype) for block in encoder.head.blocks if isinstance(block, ResidualBlock)]
        self.exit = encoder.head.exit.weight.T.to(dtype).contiguous()
        self.halves = self._halve() if dtype == torch.float32 and kernels.is_available(device) else None

    def _make_series(self, wide: list[AffineLogits], dtype: torch.dtype, epsilon: float) -> DeviceSeries:
        if len(wide) != 1:
            raise ConfigError("series on a GPU are for one tessellation alone: use way 'sites'")
        series = DeviceSeries(wide[0], self.encoder.voronois()[0].embeddings, self.folded, dtype, epsilon)
        if not series.fits:
            raise ConfigError("these sites are too sharp for series on a GPU: use way 'sites'")
        return series

    @torch.inference_mode()
    def embed(self, xyz: Tensor) -> Tensor:
        """(N, 3) in float32 on the device -> (N, D) in float32."""
        if self.series is None:
            return self._unit(self._head(self._activate_sites(xyz)))
        blocks = self.series.sort(xyz, self.shape.places)
        first = self._activate_series(self.series, blocks)
        raw = self._head(first)
        if kernels.is_available(self.device) and _is_power_of_two(raw.shape[1]):
            return kernels.finish(raw, blocks.slots, self.config.normalize)
        return self._unit(raw.index_select(0, blocks.slots))

    def _activate_series(self, series: DeviceSeries, blocks: Blocks) -> Tensor:
        """The head's first activation by slot, (slots, H)."""
        out = torch.empty(len(blocks.flat), self.config.hidden_dim, dtype=self.dtype, device=self.device)
        widths = (self.config.output_dim, self.config.hidden_dim)
        fused = kernels.are_tiles(self.shape.tile, *widths) and _is_power_of_two(max(self.config.num_tokens, 3))
        if self.way == "series" and fused and not self.config.cosine_attention and kernels.is_available(self.device):
            kernels.first_activations(
                blocks.flat.acos(), blocks.leaves, series.rows, series.total, series.degrees, self.maps, self.shape, out
            )
            return self._add_coordinates(out, blocks.xyz)
        size, degree = self.shape.places, series_degree(MOST_TERMS)
        for part in torch.split(torch.arange(len(blocks.leaves), device=self.device), 2048):
            leaves = blocks.leaves[part]
            flat = blocks.flat.view(-1, size, 2)[part].reshape(-1, 2)
            terms = _pad(evaluate_terms(flat.T, degree)).T.reshape(len(part), size, MOST_TERMS)
            terms = terms / (terms @ series.total[leaves][..., None])
            mixed = torch.bmm(terms.to(series.rows.dtype), series.rows[leaves]).float() + self.folded.offset
            features = self._features(blocks.xyz.view(-1, size, 3)[part].reshape(-1, 3))
            first = self.folded.activate(mixed.reshape(-1, mixed.shape[-1]).T.contiguous(), features)
            out.view(-1, size, out.shape[1])[part] = first.T.reshape(len(part), size, -1).to(self.dtype)
        return out

    def _activate_sites(self, xyz: Tensor) -> Tensor:
        """The same by all sites, in the order of the places, (N, H)."""
        parts = []
        for logits, rows in zip(self.sites, self.rows, strict=True):
            if kernels.is_available(self.device) and kernels.are_tiles(self.shape.tile, rows.shape[1]):
                parts.append(kernels.mix_sites(xyz, *logits, rows, self.shape))
            else:
                parts.append(torch.softmax(logits.at(xyz), dim=-1).to(rows.dtype) @ rows)
        mixed = (torch.cat(parts, dim=-1).to(self.dtype) @ self.folded.mixture.T.to(self.dtype)).float()
        first = self.folded.activate((mixed + self.folded.offset).T.contiguous(), self._features(xyz))
        return first.T.to(self.dtype).contiguous()

    def _features(self, xyz: Tensor) -> Tensor | None:
        return self.encoder.coordinate_features(xyz) if self.config.coordinate_octaves else None

    def _add_coordinates(self, first: Tensor, xyz: Tensor) -> Tensor:
        """What the coordinates' own features add to the first activation, and its rectification after that."""
        features = self._features(xyz)
        if features is None or self.folded.coordinates is None:
            return first
        return first.addmm_(features.to(self.dtype), self.folded.coordinates.T.to(self.dtype)).relu_()

    def _head(self, x: Tensor) -> Tensor:
        widths = (self.config.hidden_dim, self.config.output_dim)
        if self.halves is not None and kernels.are_tiles(self.linear_shape.tile, *widths):
            raw = self._head_by_halves(x, self.halves)
            if bool(raw.sum().isfinite()):  # otherwise an activation was too large for float16
                return raw
        for first, second in self.blocks:
            x = x.add_(_relu_linear(second, _relu_linear(first, x)))
        return x @ self.exit

    def _halve(self) -> list[Halves] | None:
        """Every matrix of the head in two float16 parts; None where one is too large for that."""
        matrices = [columns for block in self.blocks for columns, _ in block] + [self.exit]
        halves = [kernels.halve(columns) for columns in matrices]
        return halves if all(bool(half.high.isfinite().all()) for half in halves) else None

    def _head_by_halves(self, x: Tensor, halves: list[Halves]) -> Tensor:
        """The same in float32 on the tensor cores; `x` stays as it is."""
        matrices, shape = iter(halves), self.linear_shape
        for (_, first_bias), (_, second_bias) in self.blocks:
            middle = kernels.linear(x, next(matrices), first_bias, True, shape=shape)
            x = kernels.linear(middle, next(matrices), second_bias, True, before=x, shape=shape)
        return kernels.linear(x, next(matrices), x.new_zeros(self.config.output_dim), False, shape=shape)

    def _unit(self, raw: Tensor) -> Tensor:
        return F.normalize(raw.float(), dim=-1) if self.config.normalize else raw.float()


def build_on_device(encoder: SphericalVoronoiEncoder, device: torch.device, dtype: torch.dtype) -> DeviceVoronoi:
    """By series where the encoder has them, by all sites otherwise."""
    try:
        return DeviceVoronoi(encoder, device, dtype, way="series")
    except ConfigError:
        return DeviceVoronoi(encoder, device, dtype, way="sites")


def _relu_linear(layer: tuple[Tensor, Tensor], x: Tensor) -> Tensor:
    """ReLU(x W + b), in one step where the library has one."""
    columns, bias = layer
    out: Tensor = torch._addmm_activation(bias, x, columns) if x.is_cuda else torch.addmm(bias, x, columns).relu_()
    return out


def _linears(block: ResidualBlock, dtype: torch.dtype) -> Any:
    return [(layer.weight.T.to(dtype).contiguous(), layer.bias.to(dtype)) for layer in (block.first, block.second)]


def _pad(terms: Tensor) -> Tensor:
    """Zeros behind the terms, up to the length that tables have."""
    return torch.cat((terms, terms.new_zeros(MOST_TERMS - len(terms), *terms.shape[1:])))


def _is_power_of_two(number: int) -> bool:
    return number >= 16 and number & (number - 1) == 0
