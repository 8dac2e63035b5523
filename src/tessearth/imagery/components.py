"""Principal components of features: of which sources how much, along which directions, and with how flat a spectrum."""

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np
import numpy.typing as npt
import safetensors.torch
import torch
from torch import Tensor

from tessearth.errors import ConfigError
from tessearth.imagery.recipe import FeatureRecipe

Floats = npt.NDArray[np.float64]


class Projection(NamedTuple):
    """Features less their mean, along the leading directions; float64 on one device."""

    mean: Tensor
    """(F,)."""
    directions: Tensor
    """(F, components), scaled."""
    variance: Tensor
    """Of all components, falling, (F,)."""

    def apply(self, features: Tensor) -> Tensor:
        """Features (..., F) on the same device to components of the same type."""
        return ((features.double() - self.mean) @ self.directions).to(features.dtype)

    def to_bytes(self) -> bytes:
        """The content of a file of float32."""
        width = self.directions.shape[1]
        parts = {"mean": self.mean, "directions": self.directions.T, "variance": self.variance[:width]}
        return safetensors.torch.save({name: part.float().cpu().contiguous() for name, part in parts.items()})

    @classmethod
    def from_bytes(cls, content: bytes, device: torch.device) -> "Projection":
        """What `to_bytes` wrote, rounded as it is there."""
        parts = {name: part.to(device).double() for name, part in safetensors.torch.load(content).items()}
        return cls(parts["mean"], parts["directions"].T.contiguous(), parts["variance"])


def fit_projection(rows: Iterable[Tensor], widths: Sequence[int], recipe: FeatureRecipe) -> Projection:
    """Find the leading directions of features (n, ..., F), a chunk at a time; `widths` are those of the sources.

    The recipe's `balanced` first multiplies each source's features by one number, so that all have the same total
    variance and a feature's is 1 on average; its `flattening` divides every component by this power of its deviation,
    taken relative to the first one's, so that the first stays as it is.
    """
    mean, covariance = _moments(rows)
    device = covariance.device
    scale = _balance(covariance.diag().cpu().numpy(), widths) if recipe.balanced else np.ones(len(mean))
    factor = torch.from_numpy(scale).to(device)
    found = torch.linalg.eigh(covariance * factor[:, None] * factor)
    variance, directions = (part.cpu().numpy() for part in found)
    variance, directions = variance[::-1], directions[:, ::-1]
    # A decomposition leaves the sign open, a store must not: each direction's largest entry is positive.
    directions = directions * np.sign(directions[np.abs(directions).argmax(axis=0), np.arange(len(directions))])
    deviation = _deviation(variance[: recipe.pca])
    directions = (directions * scale[:, None])[:, : recipe.pca] / deviation**recipe.flattening
    onto, spread = (torch.from_numpy(np.ascontiguousarray(part)).to(device) for part in (directions, variance))
    return Projection(mean, onto, spread)


def check_width(recipe: FeatureRecipe, width: int) -> None:
    """Refuse more components than there are features."""
    if recipe.pca > width:
        raise ConfigError(f"pca is {recipe.pca}, but features are only {width} wide")


def _moments(chunks: Iterable[Tensor]) -> tuple[Tensor, Tensor]:
    """Mean (F,) and covariance (F, F) of all rows, in float64.

    Values are shifted by the first row's before they are squared, so that large means do not eat the variance.
    """
    shift: Tensor | None = None
    for chunk in chunks:
        rows = chunk.reshape(-1, chunk.shape[-1]).double()
        if shift is None:
            shift, count = rows[0].clone(), 0
            total, products = torch.zeros_like(shift), shift.new_zeros(len(shift), len(shift))
        rows = rows - shift
        total += rows.sum(dim=0)
        products += rows.T @ rows
        count += len(rows)
    assert shift is not None, "some rows"
    offset = total / count
    return offset + shift, products / count - torch.outer(offset, offset)


def _balance(variance: Floats, widths: Sequence[int]) -> Floats:
    """What each feature is multiplied with, (F,): one number per source."""
    blocks = np.split(variance, np.cumsum(widths)[:-1])
    scales = [np.sqrt(sum(widths) / len(widths) / max(float(block.sum()), 1e-300)) for block in blocks]
    return np.repeat(scales, widths)


def _deviation(variance: Floats) -> Floats:
    """Deviations relative to the first one's, (width,); never so small that rounding noise would be blown up."""
    relative: Floats = np.sqrt(np.maximum(variance / max(float(variance[0]), 1e-300), 1e-9))
    return relative
