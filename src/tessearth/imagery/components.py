"""Principal components of stored features, kept beside them with their natural spectrum or a flatter one."""

import hashlib
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy

from tessearth.errors import ConfigError
from tessearth.files import atomic_write, write_bytes
from tessearth.imagery.store import COMPONENTS, DIRECTIONS, FEATURES, chunk_sha256, feature_shape, open_array

Floats = npt.NDArray[np.float64]


def write_components(
    path: Path,
    manifest: dict[str, Any],
    width: int,
    training: npt.NDArray[np.int64],
    *,
    balanced: bool = False,
    flattening: float = 0.0,
) -> dict[str, Any]:
    """Find the leading directions of the training places' features and project all features onto them.

    `balanced` first multiplies each source's features by one number, so that all have the same total variance and a
    feature's is 1 on average. `flattening` divides every component by so high a power of its deviation, taken relative
    to the first one's, so that the first stays as it is. Returns what the manifest says of the components: how many
    there are, the share of the variance they keep, and checksums.
    """
    features = open_array(path / FEATURES, feature_shape(manifest), manifest["dtype"])
    if width > features.shape[-1]:
        raise ConfigError(f"pca is {width}, but features are only {features.shape[-1]} wide")
    step = manifest["chunk_places"]
    mean, covariance = _moments(features, training, step)
    scale = _balance(covariance, manifest["widths"]) if balanced else np.ones(len(mean))
    variance, directions = np.linalg.eigh(covariance * scale[:, None] * scale)
    variance, directions = variance[::-1], _oriented(directions[:, ::-1]) * scale[:, None]
    directions = directions[:, :width] / _deviation(variance[:width]) ** flattening
    kept = {"mean": mean, "directions": directions.T, "variance": variance[:width]}
    checksums = []
    with atomic_write(path / COMPONENTS) as file:
        shape = (*features.shape[:2], width)
        header = {"descr": features.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        for start in range(0, len(features), step):
            centred = features[start : start + step].astype(np.float64) - mean
            chunk = np.ascontiguousarray(centred @ directions).astype(features.dtype)
            checksums.append(chunk_sha256(chunk))
            file.write(chunk.data)
    narrow = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in kept.items()}
    content = safetensors.numpy.save(narrow)
    write_bytes(path / DIRECTIONS, content)
    return {
        "width": width,
        "share_of_variance": float(variance[:width].sum() / max(variance.sum(), 1e-300)),
        "chunks": checksums,
        "directions_sha256": hashlib.sha256(content).hexdigest(),
    }


def _moments(features: npt.NDArray[Any], training: npt.NDArray[np.int64], step: int) -> tuple[Floats, Floats]:
    """Mean (F,) and covariance (F, F) over training places and all views, in float64, a chunk at a time.

    Values are shifted by the first place's before they are squared, so that large means do not eat the variance.
    """
    width = features.shape[-1]
    shift = features[training[0], 0].astype(np.float64)
    total, products, count = np.zeros(width), np.zeros((width, width)), 0
    for start in range(0, len(training), step):
        rows = features[training[start : start + step]].reshape(-1, width).astype(np.float64) - shift
        total += rows.sum(axis=0)
        products += rows.T @ rows
        count += len(rows)
    offset = total / count
    return offset + shift, products / count - np.outer(offset, offset)


def _balance(covariance: Floats, widths: list[int]) -> Floats:
    """What each feature is multiplied with, (F,): one number per source."""
    blocks = np.split(np.diag(covariance), np.cumsum(widths)[:-1])
    scales = [np.sqrt(sum(widths) / len(widths) / max(float(block.sum()), 1e-300)) for block in blocks]
    return np.repeat(scales, widths)


def _deviation(variance: Floats) -> Floats:
    """Deviations relative to the first one's, (width,); never so small that rounding noise would be blown up."""
    relative: Floats = np.sqrt(np.maximum(variance / max(float(variance[0]), 1e-300), 1e-9))
    return relative


def _oriented(directions: Floats) -> Floats:
    """Each direction's largest entry positive: a decomposition leaves the sign open, a store must not."""
    largest = np.abs(directions).argmax(axis=0)
    signs = np.sign(directions[largest, np.arange(directions.shape[1])])
    oriented: Floats = directions * signs
    return oriented
