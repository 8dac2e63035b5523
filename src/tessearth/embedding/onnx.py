"""`OnnxEmbedder`: an exported model run by onnxruntime, in programs that have no torch."""

import hashlib
import os
import re
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import WeightsError
from tessearth.packages import require
from tessearth.sphere.coordinates import as_latlon

FORMAT = "tessearth-onnx-1"
"""What the file's metadata calls itself; the number is that of this layout."""
INPUT, OUTPUT = "latlon", "embedding"
UNSEALED = {"sha256": "0" * 64}
"""The entry of the metadata that `sealed` fills in."""
_SEALED = re.compile(rb"\n\x06sha256\x12@([0-9a-f]{64})")  # as protocol buffers write a pair of texts
_UNSEALED = b"\n\x06sha256\x12@" + b"0" * 64
NUMBERS_AT_ONCE = 2**23
"""Of the widest array the graph makes, so that memory does not grow with the number of places."""


class OnnxEmbedder:
    """Turns places into embeddings by a file that `tessearth export` wrote.

        embed = OnnxEmbedder("earth.onnx")
        embed([(48.86, 2.35)])   # (1, 512), float32

    The graph takes degrees in float64, shape (N, 2), and does its own trigonometry in float64: longitudes wrap, and no
    digits are lost on the way. Any other runtime of ONNX can run it the same way.
    """

    def __init__(self, path: str | os.PathLike[str], *, threads: int | None = None) -> None:
        """Open a file; `threads` is how many onnxruntime may use, all cores by default."""
        self._session = _open_session(_check_seal(Path(path)), threads)
        self.metadata: dict[str, str] = dict(self._session.get_modelmeta().custom_metadata_map)
        if self.metadata.get("format") != FORMAT:
            raise WeightsError(
                f"{path} was not written by this tessearth: tessearth export --model MODEL --out FILE.onnx makes one"
            )
        self.name = self.metadata["model"]
        self.dim = int(self.metadata["embedding_width"])
        self.has_sites = False  # what an embedding is made of is not in the graph
        self.batch_size = max(1, NUMBERS_AT_ONCE // int(self.metadata["widest"]))

    def fingerprint(self) -> str:
        """SHA-256 over everything that decides the embeddings, the runtime included."""
        return f"onnx-{self.metadata['fingerprint']}"

    def __call__(self, points: Any = None, *, lat: Any = None, lon: Any = None) -> npt.NDArray[np.float32]:
        """The same as `embed`."""
        return self.embed(points, lat=lat, lon=lon)

    def embed(self, points: Any = None, *, lat: Any = None, lon: Any = None) -> npt.NDArray[np.float32]:
        """Embeddings of places, (..., D) in float32, from whatever `coordinates.as_latlon` reads."""
        latlon = as_latlon(points, lat=lat, lon=lon)
        flat = np.ascontiguousarray(latlon.reshape(-1, 2))
        embeddings = np.empty((len(flat), self.dim), dtype=np.float32)
        for start in range(0, len(flat), self.batch_size):
            some = slice(start, start + self.batch_size)
            (embeddings[some],) = self._session.run([OUTPUT], {INPUT: flat[some]})
        return embeddings.reshape(*latlon.shape[:-1], self.dim)


def sealed(content: bytes) -> bytes:
    """An ONNX file whose metadata has the entry `sha256` of 64 zeros, with its own checksum put in their place."""
    return content.replace(_UNSEALED, _UNSEALED[:-64] + hashlib.sha256(content).hexdigest().encode(), 1)


def _check_seal(path: Path) -> Path:
    """The path of a file that is as it was written; one from before there were seals is taken as it is."""
    try:
        content = path.read_bytes() if path.is_file() else b""
    except OSError as error:
        raise WeightsError(f"cannot read {path}: {(error.strerror or str(error)).lower()}") from None
    found = _SEALED.search(content)
    if found is not None:
        unsealed = content[: found.start(1)] + b"0" * 64 + content[found.end(1) :]
        if hashlib.sha256(unsealed).hexdigest().encode() != found[1]:
            raise WeightsError(f"{path} is damaged: it does not match its own checksum; export it again")
    return path


def _open_session(path: Path, threads: int | None) -> Any:
    if not path.is_file():
        raise WeightsError(f"there is no ONNX file {path}: tessearth export --model MODEL --out FILE.onnx makes one")
    runtime = require("onnxruntime", extra="onnx", what="running an ONNX file")
    options = runtime.SessionOptions()
    options.log_severity_level = 3
    if threads is not None:
        options.intra_op_num_threads = threads
    try:
        return runtime.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])
    except Exception as error:  # the runtime has a family of its own errors, all of which mean the file
        reason = (str(error).splitlines() or [type(error).__name__])[0]
        raise WeightsError(f"{path} is damaged or no ONNX model: {reason}") from None
