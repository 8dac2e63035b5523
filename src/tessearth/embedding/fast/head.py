"""The head, and every linear map between the site mixture and the head's first activation, multiplied out once.

With f the mixture, a the token attention, C the subtraction of the mean and gamma, beta, eps the LayerNorm's own,

    entry(LayerNorm(b)) = W gamma C b / sqrt(mean (C b)^2 + eps) + W beta + bias,  b = (1 - alpha)(P f + p) + alpha z(a)

is linear in f and a except for one number per place. One product therefore gives the token logits, C b and W gamma C b
together, and the head's first layer is never computed by itself. Columns are places throughout: (rows, N).

Only the length of C b is used, and |Q^T C b| = |C b| for any Q with orthonormal columns that span it. C b is a linear
map of f and a (which sums to 1 and absorbs the offset), so S + T rows are enough: fewer than D where sites are narrow.

A head that is one layer of units has no entry: its units are a map of C b, and of Q^T C b, whose rows are W gamma Q.
"""

from typing import Literal, NamedTuple

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from tessearth.encoder import ResidualBlock, ResidualHead, SphericalVoronoiEncoder, Units

WORTH_TURNING = 0.8
"""The share of rows of C b up to which having fewer of them pays; products are fastest at round numbers of rows."""


class Folded(NamedTuple):
    """The maps in float32, with rows in this order: token logits (T), C b (D or fewer), W gamma C b (H), f (S or 0).

    Of a head that is one layer of units H is 0, and `units` leads from C b to it.
    """

    mixture: Tensor
    """From the mixture, (rows, S)."""
    offset: Tensor
    """(rows,)."""
    tokens: Tensor
    """From the token attention to C b and W gamma C b, (blend + H, T)."""
    bias: Tensor
    """Of the first activation, (H,)."""
    coordinates: Tensor | None
    """From the coordinates' own features to the first activation, (H, 6 octaves)."""
    units: "Layer | None"
    """From C b over its spread, and the coordinates' own features, to a head of units."""
    num_tokens: int
    blend_dim: int
    """Rows of C b."""
    spread: int
    """What the square of its length is divided by (D)."""
    hidden_dim: int
    eps: float
    compares_directions: bool
    """Whether token logits are divided by the mixture's length, for which there are rows of f."""

    def activate(self, mixed: Tensor, features: Tensor | None) -> Tensor:
        """The head's first activation, (H, N), from mixed rows, (rows, N), which are overwritten.

        `features` are the coordinates' own, (N, 6 octaves). Of a head of units, what its layer is multiplied with.
        """
        both = mixed[self.num_tokens : self.num_tokens + self.blend_dim + self.hidden_dim]
        if self.num_tokens:
            logits = mixed[: self.num_tokens]
            if self.compares_directions:
                length = mixed[-self.mixture.shape[1] :].square().sum(0).sqrt_()
                logits = logits / length.clamp_(min=1e-12)
            both = both.addmm_(self.tokens, torch.softmax(logits, dim=0))
        blend, entry = both[: self.blend_dim], both[self.blend_dim :]
        variance = blend.square().sum(0).div_(self.spread)
        scale = variance.add_(self.eps).rsqrt_()
        if self.units is not None:
            blend = blend.mul_(scale)
            return blend if features is None else torch.cat((blend, features.T))
        entry = entry.mul_(scale).add_(self.bias[:, None])
        if self.coordinates is not None and features is not None:
            entry = entry.addmm_(self.coordinates, features.T)
        return entry.relu_()


def fold(encoder: SphericalVoronoiEncoder, *, fewest_rows: bool = False) -> Folded:
    """Multiply out an encoder's maps in float64; `fewest_rows` keeps only the rows of C b that its length needs."""
    config, norm = encoder.config, encoder.norm
    width, hidden = config.output_dim, config.hidden_dim if config.has_trunk else 0
    layer = first_layer(encoder.head)
    weight, bias = _wide(layer.weight), _wide(layer.bias)
    inward = weight[:, :width] * _wide(norm.weight)
    onwards = torch.cat((torch.eye(width, dtype=torch.float64), inward[:hidden]))
    onwards = onwards - onwards.mean(-1, keepdim=True)  # C on the right; C C = C
    onwards[:width] = torch.eye(width, dtype=torch.float64) - 1 / width
    matrix, shift = _projection(encoder)
    share = 1.0 if encoder.tokens is None else 1 - config.token_gate
    logits, logit_shift = _token_logits(encoder)
    compares_directions = config.cosine_attention and config.num_tokens > 0
    itself = torch.eye(config.mixture_dim, dtype=torch.float64)[: config.mixture_dim if compares_directions else 0]
    tokens = torch.zeros(0, width) if encoder.tokens is None else encoder.tokens.tokens * config.token_gate
    parts, turn = Parts(onwards @ matrix * share, onwards @ shift * share, onwards @ _wide(tokens).T), None
    if fewest_rows:
        parts, turn = _turn(parts, width, WORTH_TURNING if len(config.tessellations) == 1 else 1.0)
    no_shift = torch.zeros(len(itself), dtype=torch.float64)
    bias = weight[:, :width] @ _wide(norm.bias) + bias
    units = None
    if not config.has_trunk:
        columns = (inward if turn is None else inward @ turn, weight[:, width:])
        units = Layer(torch.cat(columns, dim=1).T.float().contiguous(), bias.float())
    return Folded(
        mixture=torch.cat((logits, parts.matrix, itself)).float(),
        offset=torch.cat((logit_shift, parts.shift, no_shift)).float(),
        tokens=parts.tokens.float().contiguous(),
        bias=bias[:hidden].float(),
        coordinates=weight[:hidden, width:].float().contiguous() if config.coordinate_octaves else None,
        units=units,
        num_tokens=config.num_tokens,
        blend_dim=len(parts.matrix) - hidden,
        spread=width,
        hidden_dim=hidden,
        eps=norm.eps,
        compares_directions=compares_directions,
    )


def first_layer(head: ResidualHead) -> nn.Linear:
    """The layer that reads the blend: the entry, or the units' own."""
    if head.entry is not None:
        return head.entry
    assert isinstance(head.exit, Units), "a head without an entry is a layer of units"
    return head.exit.layer


class Parts(NamedTuple):
    """C b and W gamma C b as maps of the mixture and the token attention."""

    matrix: Tensor
    """(blend + H, S)."""
    shift: Tensor
    """(blend + H,)."""
    tokens: Tensor
    """(blend + H, T)."""


def _turn(parts: Parts, width: int, most: float) -> tuple[Parts, Tensor | None]:
    """The first `width` rows, C b, turned so that all but at most a share of them are zero and can go, and Q.

    The rows that are left are triangular, so those of a tessellation end where the next one's begin.
    """
    matrix, shift, tokens = (part[:width] for part in parts)
    maps = torch.cat((matrix, tokens + shift[:, None] if tokens.shape[1] else shift[:, None]), dim=1)
    if maps.shape[1] > most * width:
        return parts, None
    turn, turned = torch.linalg.qr(maps)  # Q (D, S + T) and Q^T maps, (S + T, S + T)
    count = matrix.shape[1]
    if tokens.shape[1]:
        blend = Parts(turned[:, :count], torch.zeros(len(turned), dtype=torch.float64), turned[:, count:])
    else:
        blend = Parts(turned[:, :count], turned[:, count], tokens[: len(turned)])
    rest = zip(blend, parts, strict=True)
    return Parts(*(torch.cat((turned_part, part[width:])) for turned_part, part in rest)), turn


def _projection(encoder: SphericalVoronoiEncoder) -> tuple[Tensor, Tensor]:
    """P and p, (D, S) and (D,)."""
    if isinstance(encoder.projection, nn.Linear):
        return _wide(encoder.projection.weight), _wide(encoder.projection.bias)
    width = encoder.config.output_dim
    return torch.eye(width, dtype=torch.float64), torch.zeros(width, dtype=torch.float64)


def _token_logits(encoder: SphericalVoronoiEncoder) -> tuple[Tensor, Tensor]:
    """The map to the token logits and its shift, (T, S) and (T,), divided by the temperature."""
    tokens = encoder.tokens
    if tokens is None:
        return torch.zeros(0, encoder.config.mixture_dim).double(), torch.zeros(0).double()
    sharpened = 1 / _wide(tokens.temperature())
    weight = _wide(tokens.location_logits.weight)
    if encoder.config.cosine_attention:
        return F.normalize(weight, dim=-1) * sharpened, torch.zeros(len(weight), dtype=torch.float64)
    return weight * sharpened, _wide(tokens.location_logits.bias) * sharpened


def _wide(tensor: Tensor) -> Tensor:
    return tensor.detach().cpu().double()


GATHER_BELOW = 0.9
"""The share of rows up to which gathering the others costs less than multiplying them all."""
FEWEST_PLACES = 64
"""In smaller blocks, multiplying all rows costs less."""
Precision = Literal["float32", "float64", "bfloat16", "float16"]


def network_dtype(precision: Precision) -> torch.dtype:
    """The type of a network's floating tensors."""
    dtype: torch.dtype = getattr(torch, precision)
    return dtype


class Layer(NamedTuple):
    """ReLU(W x + b)."""

    columns: Tensor
    """W^T, (inputs, outputs)."""
    bias: Tensor

    def __call__(self, x: Tensor) -> Tensor:
        """(inputs, N) -> (outputs, N), by the inputs that are above zero."""
        x, rows = _active(x, self.columns)
        return torch.addmm(self.bias[:, None], rows.T, x).relu_()


class FastHead:
    """The head behind its first activation, in a named precision.

    bfloat16 and float16 round the weights; sums are in half precision only where the processor has instructions for it,
    else in float32. Least cosine with float64 over 1,500 places, on random weights of the paper's size and on two
    trained models: float32 and float16 1.000000, bfloat16 0.99999.
    """

    def __init__(self, head: ResidualHead, precision: Precision, units: Layer | None = None) -> None:
        """A head in float32, which is rounded in place; `units` is the layer of `Folded` where it is all of it."""
        self.dtype = _arithmetic(precision)
        self.head = head.to(network_dtype(precision)).to(self.dtype)
        self.blocks = [
            [Layer(part.weight.detach().T.contiguous(), part.bias.detach()) for part in (block.first, block.second)]
            for block in residual_blocks(head)
        ]
        end = head.exit
        self.leak = end.leak if isinstance(end, Units) else None
        """The slope of units below zero, where the head ends with them."""
        if isinstance(end, Units):
            last = units or Layer(end.layer.weight.detach().T.contiguous(), end.layer.bias.detach())
            self.exit, self.bias, self.centre = last.columns.to(self.dtype), last.bias.float(), end.centre.float()
        else:
            self.exit = end.weight.detach().T.contiguous()  # (hidden, outputs)
            self.bias = self.centre = torch.zeros(self.exit.shape[1])

    @property
    def is_wide(self) -> bool:
        """Whether sums are in float32, where units that are zero are left out."""
        return self.dtype == torch.float32

    def __call__(self, x: Tensor) -> Tensor:
        """First activations, (H, N), which are overwritten, to outputs, (N, D) in float32."""
        if not self.is_wide:
            x = x.T.to(self.dtype, memory_format=torch.contiguous_format)
            for block in residual_blocks(self.head):
                x = x.add_(block.second(block.first(x).relu_()).relu_())
            out: Tensor = self.head.exit(x) if self.leak is None else x @ self.exit
            return self._end(out.float())
        for first, second in self.blocks:
            x = x.add_(second(first(x)))
        if self.leak is None:
            x, rows = _active(x, self.exit)
            return x.T @ rows
        return self._end(x.T @ self.exit)

    def _end(self, out: Tensor) -> Tensor:
        """What follows the last product, in place."""
        if self.leak is None:
            return out
        return torch.nn.functional.leaky_relu_(out.add_(self.bias), self.leak).sub_(self.centre)


def residual_blocks(head: ResidualHead) -> list[ResidualBlock]:
    """A head's blocks, in order."""
    return [block for block in head.blocks if isinstance(block, ResidualBlock)]


def _active(x: Tensor, rows: Tensor) -> tuple[Tensor, Tensor]:
    """The units (inputs, N) that are above zero somewhere and the rows (inputs, outputs) they are multiplied with."""
    if x.shape[1] < FEWEST_PLACES:
        return x, rows
    kept = (x.amax(1) > 0).nonzero()[:, 0]
    if len(kept) > GATHER_BELOW * len(x):
        return x, rows
    return x.index_select(0, kept), rows.index_select(0, kept)


def _arithmetic(precision: Precision) -> torch.dtype:
    """The type of sums: half precision only where the processor has it; emulated it is several times slower."""
    probes = {"bfloat16": "_is_avx512_bf16_supported", "float16": "_is_amx_fp16_supported"}
    if precision in probes and getattr(torch.cpu, probes[precision], bool)():
        return network_dtype(precision)
    return torch.float32
