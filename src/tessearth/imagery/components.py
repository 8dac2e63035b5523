"""Principal components of stored features, kept next to them with their natural spectrum or a flatter one."""

from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import safetensors.numpy
import torch

from tessearth.errors import ConfigError
from tessearth.imagery.store import COMPONENTS, DIRECTIONS, FEATURES, feature_shape, open_array
from tessearth.storage import atomic_write, checksum, write_bytes

Floats = npt.NDArray[np.float64]


def write_components(
    path: Path,
    manifest: dict[str, Any],
    width: int,
    training: npt.NDArray[np.int64],
    *,
    balanced: bool = False,
    flattening: float = 0.0,
    device: str | torch.device = "cpu",
) -> dict[str, Any]:
    """Find the leading directions of the training places' features and project all features onto them.

    `balanced` first multiplies each source's features by one number, so that all have the same total variance and a
    feature's is 1 on average. `flattening` divides every component by this power of its deviation, taken relative
    to the first one's, so that the first stays as it is. Returns the manifest's entry about the components: how many
    there are, the share of the variance they keep, and checksums.
    """
    features = open_array(path / FEATURES, feature_shape(manifest), manifest["dtype"])
    if width > features.shape[-1]:
        raise ConfigError(f"pca is {width}, but features are only {features.shape[-1]} wide")
    step = manifest["chunk_places"]
    device = device if torch.device(device).type == "cuda" else "cpu"  # other accelerators have no float64
    mean, covariance = _moments(features, training, step, device)
    scale = _balance(covariance, manifest["widths"]) if balanced else np.ones(len(mean))
    found = torch.linalg.eigh(torch.from_numpy(covariance * scale[:, None] * scale).to(device))
    variance, directions = (part.cpu().numpy() for part in found)
    variance, directions = variance[::-1], _oriented(directions[:, ::-1]) * scale[:, None]
    directions = directions[:, :width] / _deviation(variance[:width]) ** flattening
    kept = {"mean": mean, "directions": directions.T, "variance": variance[:width]}
    checksums = []
    with atomic_write(path / COMPONENTS) as file:
        shape = (*features.shape[:2], width)
        header = {"descr": features.dtype.str, "fortran_order": False, "shape": shape}
        np.lib.format.write_array_header_1_0(file, header)
        stored = getattr(torch, manifest["dtype"])
        onto, middle = torch.from_numpy(np.ascontiguousarray(directions)).to(device), torch.from_numpy(mean).to(device)
        for start in range(0, len(features), step):
            projected = (_at(features[start : start + step], device) - middle) @ onto
            chunk = np.ascontiguousarray(projected.to(stored).cpu().numpy())
            checksums.append(checksum(chunk))
            file.write(chunk.data)
    narrow = {name: np.ascontiguousarray(value, dtype=np.float32) for name, value in kept.items()}
    content = safetensors.numpy.save(narrow)
    write_bytes(path / DIRECTIONS, content)
    return {
        "width": width,
        "share_of_variance": float(variance[:width].sum() / max(variance.sum(), 1e-300)),
        "chunks": checksums,
        "directions_sha256": checksum(content),
    }


def _at(features: npt.NDArray[Any], device: str | torch.device) -> torch.Tensor:
    """Features on a device in float64, sent as they are stored."""
    return torch.from_numpy(np.array(features)).to(device).double()


def _moments(
    features: npt.NDArray[Any], training: npt.NDArray[np.int64], step: int, device: str | torch.device
) -> tuple[Floats, Floats]:
    """Mean (F,) and covariance (F, F) over training places and all views, in float64, a chunk at a time.

    Values are shifted by the first place's before they are squared, so that large means do not eat the variance.
    """
    width = features.shape[-1]
    shift = _at(features[training[0], 0], device)
    total, products, count = torch.zeros_like(shift), shift.new_zeros(width, width), 0
    for start in range(0, len(training), step):
        rows = _at(features[training[start : start + step]], device).reshape(-1, width) - shift
        total += rows.sum(dim=0)
        products += rows.T @ rows
        count += len(rows)
    offset = total / count
    covariance = products / count - torch.outer(offset, offset)
    return (offset + shift).cpu().numpy(), covariance.cpu().numpy()


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
