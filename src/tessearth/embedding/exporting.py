"""Models written for other programs: ONNX, torch.export, safetensors; each read back and compared when written.

Every form but safetensors is one graph from degrees (float64, (N, 2), latitude first) to embeddings (float32, (N, D)),
of unit length where the model's are, for any number of places. Trigonometry is part of the graph and is done in
float64, so longitudes wrap and no runner has to know about the sphere.
"""

import contextlib
import copy
import io
import json
import logging
import math
import os
import tempfile
import warnings
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt
import torch
from torch import Tensor, nn

from tessearth.embedding.embedder import Embedder
from tessearth.embedding.listed_graph import ListedGraph, has_lists, is_listed
from tessearth.embedding.onnx import FORMAT, INPUT, OUTPUT, OnnxEmbedder, seal
from tessearth.encoder import LocationEncoder, SphericalVoronoiEncoder
from tessearth.errors import ConfigError, TessearthError, WeightsError, first_line
from tessearth.packages import require
from tessearth.settings import places_at_once
from tessearth.sphere import fibonacci_lattice, xyz_to_latlon
from tessearth.storage import write_bytes
from tessearth.version import __version__
from tessearth.zoo import is_untrained, load_base, parse_name

RADIANS_PER_DEGREE = math.pi / 180
_ARITHMETIC = {getattr(torch.ops.aten, name).Tensor for name in ("add", "sub", "mul", "div")}


class DegreesToEmbedding(nn.Module):
    """The exported module: degrees in float64, (N, 2) latitude first, to embeddings in float32, (N, D).

    Trigonometry and positional features are float64, everything after them is float32, as in `Embedder`.
    """

    def __init__(self, encoder: LocationEncoder) -> None:
        super().__init__()
        self.encoder = encoder.requires_grad_(False)
        self.eval()

    def forward(self, latlon: Tensor) -> Tensor:
        """(N, 2) -> (N, D)."""
        return self.embed(self.encoder.to_input(latlon)).float()

    def embed(self, places: Tensor) -> Tensor:
        """Embeddings of what the encoder takes."""
        return self.encoder.embed_input(places)


class GraphOfLevels(DegreesToEmbedding):
    """The same with large levels of sharp sites by lists."""

    def __init__(self, encoder: SphericalVoronoiEncoder) -> None:
        super().__init__(encoder)
        self.voronoi = [encoder]
        """The same encoder, in a list so that its tensors are counted once."""
        listed = {str(i): ListedGraph(v) for i, v in enumerate(encoder.voronois()) if is_listed(v)}
        self.listed = nn.ModuleDict(listed)
        self.widest = max((graph.widest for graph in listed.values()), default=0)

    def embed(self, places: Tensor) -> Tensor:
        """Embeddings of directions."""
        (encoder,) = self.voronoi
        mixtures = [
            self.listed[str(i)](places) if str(i) in self.listed else v.mix(v.weights(places))
            for i, v in enumerate(encoder.voronois())
        ]
        return encoder.from_mixtures(places, mixtures)[0]


def trace(module: nn.Module) -> torch.export.ExportedProgram:
    """The module's graph for any number of places."""
    example = torch.tensor([[48.86, 2.35], [-1.29, 36.82], [64.1, -21.9]], dtype=torch.float64)
    shapes = ({0: torch.export.Dim("places", min=1)},)
    with _quiet():
        return torch.export.export(module, (example,), dynamic_shapes=shapes)


def to_onnx(program: torch.export.ExportedProgram, metadata: Mapping[str, str]) -> bytes:
    """The graph as an ONNX file with texts as its metadata."""
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
    """The same graph with the constants of float64 arithmetic as tensors.

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
    """Silence the exporters' warnings of their own inner workings, which a user can do nothing about."""
    logger = logging.getLogger("torch.onnx")
    level = logger.level
    logger.setLevel(logging.ERROR)
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            yield
    finally:
        logger.setLevel(level)


CHECKED_BATCHES = (1, 7, 4096)
TOLERANCE = 1e-5
"""The largest difference from torch, per number; for embeddings longer than 1, relative to their largest number."""
DESCRIPTION_NAME = "tessearth.json"
"""The name under which a torch.export file holds its metadata."""
LICENCE = (
    "This file was written by tessearth (MIT). The weights keep the licence they were published under; tessearth "
    "claims none on them."
)
EDGES = ((90.0, 0.0), (-90.0, 33.0), (0.0, 180.0), (0.0, -180.0), (12.5, 359.0), (-45.0, -179.999), (0.0, 0.0))

Embed = Callable[[npt.NDArray[np.float64]], npt.NDArray[np.floating]]


class Exported(NamedTuple):
    """A file that was written."""

    path: Path
    form: str
    difference: float
    """The largest from torch over the checked batches."""
    metadata: dict[str, str]


def export(model: str | os.PathLike[str] | LocationEncoder, out: str | os.PathLike[str]) -> Exported:
    """Write a model by name (as for `Embedder`) or as it is, in float32, in the form that the suffix names.

    The draft is first read back and compared with torch for 1, 7 and 4096 places: a model further than 1e-5 away is
    not written.
    """
    suffix = Path(out).suffix.lower()
    if suffix not in FORMATS:
        raise ConfigError(f"the suffix of {out} names no format; use one of {', '.join(FORMATS)}")
    form, write = FORMATS[suffix]
    encoder = _load(model)
    metadata = _describe(model, encoder)
    reference = DegreesToEmbedding(encoder)
    graph = reference
    if suffix != ".safetensors" and has_lists(encoder):
        graph = GraphOfLevels(encoder)
        metadata["widest"] = str(max(graph.widest, 4 * encoder.output_dim))
    with tempfile.TemporaryDirectory() as folder:
        draft = Path(folder) / f"draft{suffix}"
        try:
            embed = write(graph, draft, metadata)
        except TessearthError:
            raise
        except Exception as error:  # exporters and runtimes have errors of their own for what they cannot do
            raise ConfigError(f"{metadata['model']} has no {form} form: {first_line(error)}") from error
        difference = largest_difference(reference, embed)
        if not difference <= TOLERANCE:
            raise WeightsError(
                f"{metadata['model']} as {form} lies {difference:.1e} from torch, more than {TOLERANCE:.0e}: "
                f"nothing was written"
            )
        write_bytes(out, draft.read_bytes())
    return Exported(Path(out), form, difference, metadata)


def largest_difference(reference: DegreesToEmbedding, embed: Embed) -> float:
    """The largest difference of two encoders over the checked batches: max |a - b| / max(1, max |b|)."""
    at_once = places_at_once("cpu", reference.encoder.widest)
    lattice = xyz_to_latlon(fibonacci_lattice(max(CHECKED_BATCHES))).numpy()
    lattice[: len(EDGES)] = EDGES
    worst = 0.0
    for size in CHECKED_BATCHES:
        places = np.ascontiguousarray(lattice[:size])
        with torch.inference_mode():
            parts = torch.split(torch.from_numpy(places), at_once)
            wanted = torch.cat([reference(part) for part in parts]).numpy()
        difference = np.abs(embed(places) - wanted).max() / max(1.0, np.abs(wanted).max())
        worst = float(np.maximum(worst, difference))  # keeps NaN, which no limit allows
    return worst


def _load(model: str | os.PathLike[str] | LocationEncoder) -> LocationEncoder:
    """A copy of the encoder, in evaluation mode; a baseline's positional features keep their digits."""
    if not isinstance(model, LocationEncoder):
        named = parse_name(model)
        if named.mode is not None:
            raise ConfigError(
                f"{model} completes embeddings from a database, which no exported file holds: export {named.base} alone"
            )
        model = load_base(named.base)
    encoder = copy.deepcopy(model).cpu().eval()
    encoder.set_precision_(torch.float32)
    return encoder


def _describe(model: str | os.PathLike[str] | LocationEncoder, encoder: LocationEncoder) -> dict[str, str]:
    """The metadata inside the file, as texts."""
    embedder = Embedder(encoder, device="cpu")
    name = embedder.name if isinstance(model, nn.Module) else str(model)
    widest = max((tensor.shape[0] for tensor in encoder.parameters() if tensor.ndim), default=0)
    described = encoder.describe()
    settings = described.get("config") or {"baseline": described["name"], **(described["settings"] or {})}
    return {
        "model": name,
        "fingerprint": embedder.fingerprint(),
        "config": json.dumps(settings, sort_keys=True),
        "embedding_width": str(embedder.dim),
        "widest": str(max(widest, 4 * embedder.dim)),
        "trained": "no" if not isinstance(model, nn.Module) and is_untrained(str(model)) else "yes",
        "licence": LICENCE,
        "tessearth": __version__,
    }


def _write_onnx(graph: DegreesToEmbedding, draft: Path, metadata: Mapping[str, str]) -> Embed:
    draft.write_bytes(seal(to_onnx(trace(graph), {"format": FORMAT, **metadata})))
    try:
        return OnnxEmbedder(draft).embed
    except WeightsError as error:
        reason = str(error).partition("ONNX model: ")[2] or str(error)
        raise ConfigError(f"{metadata['model']} has no onnx form: onnxruntime cannot run it: {reason}") from None


def _write_program(graph: DegreesToEmbedding, draft: Path, metadata: Mapping[str, str]) -> Embed:
    content = io.BytesIO()
    torch.export.save(trace(graph), content, extra_files={DESCRIPTION_NAME: json.dumps(dict(metadata))})
    draft.write_bytes(content.getvalue())
    with _quiet():  # torch 2.11 warns about the bytes it reads itself
        program = torch.export.load(io.BytesIO(content.getvalue())).module()
    return lambda places: program(torch.from_numpy(places)).numpy()


def _write_weights(graph: DegreesToEmbedding, draft: Path, metadata: Mapping[str, str]) -> Embed:
    provenance = {"exported": {key: metadata[key] for key in ("model", "fingerprint", "licence")}}
    graph.encoder.save(draft, provenance=provenance)
    again = DegreesToEmbedding(load_base(str(draft)))
    return lambda places: again(torch.from_numpy(places)).numpy()


FORMATS: dict[str, tuple[str, Callable[[DegreesToEmbedding, Path, Mapping[str, str]], Embed]]] = {
    ".onnx": ("onnx", _write_onnx),
    ".pt2": ("torch-export", _write_program),
    ".safetensors": ("safetensors", _write_weights),
}
