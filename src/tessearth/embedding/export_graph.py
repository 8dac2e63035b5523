"""A model as one graph, degrees in and embeddings out: traced by torch.export, and turned into ONNX."""

import contextlib
import logging
import math
import warnings
from collections.abc import Iterator, Mapping
from typing import Any

import torch
from torch import Tensor, nn

from tessearth.embedding.engines import AnyEncoder
from tessearth.embedding.onnx import INPUT, OUTPUT
from tessearth.encoder.model import SphericalVoronoiEncoder
from tessearth.packages import require
from tessearth.sphere.geometry import latlon_to_xyz

RADIANS_PER_DEGREE = math.pi / 180
_ARITHMETIC = {getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div")}


class DegreesToEmbedding(nn.Module):
    """What is exported: degrees in float64, (N, 2) latitude first, to embeddings in float32, (N, D).

    Trigonometry and positional features are float64, everything after them is float32, as in `Embedder`.
    """

    def __init__(self, encoder: AnyEncoder) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.eval()

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) -> (N, D)."""
        if isinstance(self.encoder, SphericalVoronoiEncoder):
            return self.encoder.embed_xyz(latlon_to_xyz(latlon).float())
        embedding: Tensor = self.encoder(latlon)
        return embedding.float()


def trace(module: nn.Module) -> torch.export.ExportedProgram:
    """The module's graph for any number of places."""
    example = torch.tensor([[48.86, 2.35], [-1.29, 36.82], [64.1, -21.9]], dtype=torch.float64)
    shapes = ({0: torch.export.Dim("places", min=1)},)
    with _quiet():
        return torch.export.export(module, (example,), dynamic_shapes=shapes)


def to_onnx(program: torch.export.ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    """The graph as an ONNX file with text beside it."""
    require("onnxscript", extra="onnx", what="exporting to ONNX")
    onnx = require("onnx", extra="onnx", what="exporting to ONNX")
    with _quiet():
        exact = trace(_with_exact_numbers(program))
        made = torch.onnx.export(exact, (), dynamo=True, input_names=[INPUT], output_names=[OUTPUT], verbose=False)
    assert made is not None
    model = made.model_proto
    onnx.helper.set_model_props(model, dict(metadata))
    content: bytes = model.SerializeToString()
    return content


def _with_exact_numbers(program: torch.export.ExportedProgram) -> nn.Module:
    """The same graph with the numbers written into float64 arithmetic as tensors.

    The ONNX exporter rounds plain numbers to float32, pi / 180 in deg2rad among them: seven digits, where a sharp
    feature's phase needs ten.
    """
    module = program.module()
    assert isinstance(module, torch.fx.GraphModule)
    for node in list(module.graph.nodes):
        if node.op != "call_function" or getattr(node.meta.get("val"), "dtype", None) != torch.float64:
            continue
        if node.target == torch.ops.aten.deg2rad.default:
            node.target = torch.ops.aten.mul.Tensor
            node.args = (node.args[0], RADIANS_PER_DEGREE)
        if node.target in _ARITHMETIC:
            node.args = tuple(_as_tensor(module, node, one) if isinstance(one, float) else one for one in node.args)
    module.recompile()
    return module


def _as_tensor(module: torch.fx.GraphModule, node: torch.fx.Node, number: float) -> Any:
    """A node that reads the number from a buffer of the module."""
    name = f"number_{len(list(module.buffers()))}"
    module.register_buffer(name, torch.tensor(number, dtype=torch.float64))
    with module.graph.inserting_before(node):
        return module.graph.get_attr(name)


@contextlib.contextmanager
def _quiet() -> Iterator[None]:
    """Exporters warn of their own inner workings, on which nobody who exports a model can act."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)
