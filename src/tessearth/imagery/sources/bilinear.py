"""Bilinear interpolation as four weighted lookups in a flat table of pixels."""

from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt


class Corners(NamedTuple):
    """The four pixels around each of P points and their shares."""

    number: npt.NDArray[np.int64]
    """Flat pixel numbers, (4, P)."""
    weight: npt.NDArray[np.float32]
    """Shares that sum to one, (4, P)."""


def find_corners(
    row: npt.NDArray[np.float64], column: npt.NDArray[np.float64], stride: int, start: npt.NDArray[np.int64] | int = 0
) -> Corners:
    """Find the pixels around points given in pixel units, where whole numbers are pixel centres.

    Pixel (r, c) is number start + r * stride + c; the row and the column after a point's own must exist as well.
    """
    top, left = np.floor(row), np.floor(column)
    down, right = (row - top).astype(np.float32), (column - left).astype(np.float32)
    first = (top.astype(np.int64) * stride + left.astype(np.int64) + start).reshape(-1)
    number = first + np.array([[0], [1], [stride], [stride + 1]])
    up, back = 1 - down, 1 - right
    weight = np.stack(
        [(up * back).reshape(-1), (up * right).reshape(-1), (down * back).reshape(-1), (down * right).reshape(-1)]
    )
    return Corners(number=number, weight=weight)


def has_gaps(planes: npt.NDArray[Any]) -> bool:
    """Whether some pixel is NaN."""
    return bool(np.issubdtype(planes.dtype, np.floating) and np.isnan(planes).any())


def blend(planes: npt.NDArray[Any], corners: Corners, *, gaps: bool = False) -> npt.NDArray[np.float32]:
    """Interpolate every band: planes (C, M) of pixels, P points -> (C, P).

    With `gaps`, NaN marks pixels without a value: a point takes what its other corners say, and is a gap itself when
    gaps hold more than half of it.
    """
    blend_plane = _blend_around_gaps if gaps else _blend_plane
    result = np.empty((len(planes), corners.number.shape[1]), dtype=np.float32)
    for plane, out in zip(planes, result, strict=True):
        blend_plane(plane, corners, out)
    return result


def _blend_plane(plane: npt.NDArray[Any], corners: Corners, out: npt.NDArray[np.float32]) -> None:
    part = np.empty_like(out)
    np.multiply(plane.take(corners.number[0]), corners.weight[0], out=out, dtype=np.float32, casting="same_kind")
    for number, weight in zip(corners.number[1:], corners.weight[1:], strict=True):
        np.multiply(plane.take(number), weight, out=part, dtype=np.float32, casting="same_kind")
        out += part


def _blend_around_gaps(plane: npt.NDArray[Any], corners: Corners, out: npt.NDArray[np.float32]) -> None:
    values = plane.take(corners.number)
    gaps = np.isnan(values)
    share = np.where(gaps, 0, corners.weight).sum(axis=0)
    total = np.where(gaps, 0, values * corners.weight).sum(axis=0)
    out[:] = np.where(share >= 0.5, total / np.maximum(share, 0.5), np.nan)
