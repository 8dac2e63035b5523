"""Precisions by name, and the head's linear layers in each of them.

float32, float64   the head as it was trained, or wider
bfloat16, float16  weights rounded; sums in half only where the processor has instructions for it, else in float32
int8               weights per output, activations per place, both balanced on a lattice of places; CPU only

Least cosine with float64 on a CPU, over 1,500 places, for random weights of the paper's size and for two trained
models: float32 1.000000 (within 6e-6 per number), float16 1.000000, bfloat16 0.99999; int8 0.99997 for random weights
but 0.995 for trained ones, whose embeddings hang on few hidden units: look before you trust int8. `tessearth bench`
says what it is for a model.
"""

import warnings
from typing import Any, Literal

import torch
from torch import Tensor, nn

from tessearth.embedding.fast.compact_head import CompactHead
from tessearth.encoder.head import ResidualBlock, ResidualHead

Precision = Literal["float32", "float64", "bfloat16", "float16", "int8"]

LEVELS = 127
"""Steps on each side of zero that a weight is rounded to."""

TINY = 1e-12


def network_dtype(precision: Precision) -> torch.dtype:
    """What floating tensors of a network are held in."""
    dtype: torch.dtype = torch.float32 if precision == "int8" else getattr(torch, precision)
    return dtype


class Int8Linear:
    """x W^T + b with eight-bit products; seven-bit activations, for which AVX2's pairwise sums cannot overflow.

    Column j of the input is divided, and of the weights multiplied, by sqrt(max|x_j| / max|w_j|), so that both are
    equally hard to round; each row is brought to unit range before, so that one place cannot coarsen another.
    """

    def __init__(self, layer: nn.Linear, sample: Tensor) -> None:
        """`sample` is what the layer is fed at typical places, (M, inputs)."""
        weight = layer.weight.detach().float()
        ranges = sample.abs().amax(0).clamp(min=1e-6) / weight.abs().amax(0).clamp(min=1e-6)
        balance = ranges.sqrt()
        self.shrink = balance.reciprocal()
        self.weight, self.bias = weight * balance, None if layer.bias is None else layer.bias.detach().float()
        self._pack()

    def __call__(self, x: Tensor) -> Tensor:
        """(N, inputs) -> (N, outputs)."""
        x = x * self.shrink
        scale = x.abs().amax(-1, keepdim=True).clamp_(min=TINY)
        out: Tensor = torch.ops.quantized.linear_dynamic(x.div_(scale), self._packed, True)
        out.mul_(scale)
        return out if self.bias is None else out.add_(self.bias)

    def _pack(self) -> None:
        step = self.weight.abs().amax(1).clamp(min=TINY).double() / LEVELS
        zero = torch.zeros(len(step), dtype=torch.long)
        with warnings.catch_warnings():  # torch means to replace these operators, and has nothing as fast on CPUs yet
            warnings.simplefilter("ignore")
            rounded = torch.quantize_per_channel(self.weight, step, zero, 0, torch.qint8)
            self._packed = torch.ops.quantized.linear_prepack(rounded, None)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in self.__dict__.items() if name != "_packed"}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state)
        self._pack()


class FastHead:
    """The residual head behind its first activation, in a named precision.

    Sums in float32 are taken by units (`CompactHead`), others layer by layer.
    """

    def __init__(self, head: ResidualHead, precision: Precision) -> None:
        """A head in float32; int8 is calibrated afterwards by `calibrate`."""
        self.head, self.precision = head, precision
        self.layers: dict[str, Int8Linear] = {}
        self.dtype = _arithmetic(precision)
        if self.dtype != torch.float32:
            head.to(self.dtype)
        elif precision in ("bfloat16", "float16"):
            with torch.no_grad():
                for parameter in head.parameters():
                    parameter.copy_(parameter.to(getattr(torch, precision)))
        self.compact = CompactHead(head) if self.dtype == torch.float32 and precision != "int8" else None

    def calibrate(self, sample: Tensor) -> None:
        """Round the layers to eight bits by first activations at typical places, (H, M)."""
        fed: dict[str, Tensor] = {}
        self._run(sample.T.contiguous(), fed)
        self.layers = {name: Int8Linear(layer, fed[name]) for name, layer in self._linears().items()}

    def __call__(self, x: Tensor) -> Tensor:
        """First activations, (H, N), to outputs, (N, D) in float32."""
        if self.compact is not None:
            return self.compact(x)
        return self._run(x.T.to(self.dtype, memory_format=torch.contiguous_format), None).float()

    def _run(self, x: Tensor, fed: dict[str, Tensor] | None) -> Tensor:
        linears = self._linears()

        def apply(name: str, x: Tensor) -> Tensor:
            if fed is not None:
                fed[name] = x.clone()
            return self.layers[name](x) if name in self.layers else linears[name](x)

        for i in range(len(self.head.blocks)):
            inner = apply(f"first.{i}", x).relu_()
            x = x.add_(apply(f"second.{i}", inner).relu_())
        return apply("exit", x)

    def _linears(self) -> dict[str, nn.Linear]:
        blocks = [block for block in self.head.blocks if isinstance(block, ResidualBlock)]
        first = {f"first.{i}": block.first for i, block in enumerate(blocks)}
        second = {f"second.{i}": block.second for i, block in enumerate(blocks)}
        return {**first, **second, "exit": self.head.exit}


def _arithmetic(precision: Precision) -> torch.dtype:
    """What sums are taken in: half precision only where it is not emulated, several times slower than float32."""
    probes = {"bfloat16": "_is_avx512_bf16_supported", "float16": "_is_amx_fp16_supported"}
    if precision in probes and getattr(torch.cpu, probes[precision], bool)():
        return network_dtype(precision)
    return torch.float32
