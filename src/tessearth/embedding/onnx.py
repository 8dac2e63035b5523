"""`OnnxEmbedder`: an exported model run by onnxruntime, in programs that have no torch."""

import os
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import WeightsError, first_line
from tessearth.packages import require
from tessearth.settings import check_dims, places_at_once
from tessearth.sphere import OnBad, take_latlon
from tessearth.storage import checksum

FORMAT = "tessearth-onnx-2"
"""The metadata's name of the format; the number is that of this layout."""
INPUT, OUTPUT = "latlon", "embedding"
SEAL = b"r\x48\n\x04seal\x12@"
"""How protocol buffers begin another entry of the metadata, `seal`, whose value has 64 letters."""


class OnnxEmbedder:
    """Turns places into embeddings by a file that `tessearth export` wrote.

        embed = OnnxEmbedder("earth.onnx")
        embed([(48.86, 2.35)])   # (1, 512), float32

    The graph takes degrees in float64, shape (N, 2), and does its own trigonometry in float64: longitudes wrap, and no
    digits are lost on the way. Any other runtime of ONNX can run it the same way.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None, dims: int | None = None) -> None:
        """Open a file; `threads` is how many onnxruntime may use, all cores by default.

        `dims` keeps that many of the first numbers, brought back to unit length.
        """
        self._session = _open_session(Path(path), threads)
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        self.name = self.metadata["model"]
        self._width = int(self.metadata["embedding_width"])
        self.dims = check_dims(dims, self._width)
        self.dim = self.dims or self._width
        self.has_sites = False  # the graph does not give the parts of an embedding
        self.batch_size = places_at_once("cpu", int(self.metadata["widest"]))

    def fingerprint(self) -> str:
        """SHA-256 over everything that decides the embeddings, the runtime included."""
        short = "" if self.dims is None else f"-dims{self.dims}"
        return f"onnx-{self.metadata['fingerprint']}{short}"

    def __call__(
        self, *points: Any, lat: Any = None, lon: Any = None, on_bad: OnBad = "error"
    ) -> npt.NDArray[np.float32]:
        """The same as `embed`."""
        return self.embed(*points, lat=lat, lon=lon, on_bad=on_bad)

    def embed(self, *points: Any, lat: Any = None, lon: Any = None, on_bad: OnBad = "error") -> npt.NDArray[np.float32]:
        """Embeddings of places, (..., D) in float32, as `Embedder.embed` takes and gives them."""
        latlon = take_latlon(*points, lat=lat, lon=lon, on_bad=on_bad)
        known = np.isfinite(latlon).all(axis=-1).ravel()
        flat = np.ascontiguousarray(latlon.reshape(-1, 2)[known])
        found = np.empty((len(flat), self.dim), dtype=np.float32)
        for start in range(0, len(flat), self.batch_size):
            some = slice(start, start + self.batch_size)
            (whole,) = self._session.run([OUTPUT], {INPUT: flat[some]})
            found[some] = whole if self.dims is None else first_numbers(whole, self.dims)
        embeddings = np.full((len(known), self.dim), np.nan, dtype=np.float32)
        embeddings[known] = found
        return embeddings.reshape(*latlon.shape[:-1], self.dim)


def first_numbers(embeddings: npt.NDArray[Any], dims: int) -> npt.NDArray[Any]:
    """The first numbers of embeddings (..., D), brought back to unit length."""
    first = embeddings[..., :dims]
    length = np.linalg.norm(first, axis=-1, keepdims=True)
    return np.asarray(first / np.maximum(length, 1e-12), dtype=embeddings.dtype)


def seal(content: bytes) -> bytes:
    """An ONNX file with its checksum as the last entry of its metadata."""
    return content + SEAL + checksum(content).encode()


def _open_session(path: Path, threads: int | None) -> Any:
    advice = "tessearth export --model MODEL --out FILE.onnx makes one"
    if not path.is_file():
        raise WeightsError(f"there is no ONNX file {path}: {advice}")
    try:
        content = path.read_bytes()
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    if seal(content[: -len(SEAL) - 64]) != content:
        raise WeightsError(f"{path} is damaged or no ONNX model of this version: {advice}")
    runtime = require("onnxruntime", extra="onnx", what="running an ONNX file")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return runtime.InferenceSession(content, options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has a family of its own errors, all of which mean the file
        raise WeightsError(f"{path} is damaged or no ONNX model: {first_line(error)}") from None
