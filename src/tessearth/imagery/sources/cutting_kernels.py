# mypy: disable-error-code="untyped-decorator, no-untyped-def"
# ruff: noqa: N803
"""Tiles cut from imagery on a GPU, in Triton: from a place to its pixels without a position in memory.

The arithmetic is that of `on_device`: positions in float64, shares and pixels in float32. Triton comes with CUDA builds
of PyTorch; without it `on_device` takes its plain path.
"""

from typing import NamedTuple

import torch
from torch import Tensor

from tessearth.imagery.kernels import launching, tl, triton

POINTS, WARPS = 256, 4
"""Pixels that one program cuts, and its warps."""
WANTED = -2
"""What the kernel writes into the table where it finds no page."""


class Paged(NamedTuple):
    """Decoded tiles of a pyramid."""

    pixels: Tensor
    """Of all pages, one after another: bytes, or four bytes in an int32."""
    table: Tensor
    """The page of every tile of every zoom, in rows from the north-west, or a negative number; int32."""
    side: int
    """Pixels of a page along each side."""


if triton is not None:
    PI = tl.constexpr(3.141592653589793)

    @triton.jit
    def _arc(upward, across):
        """The angle whose tangent is upward / across, in all four quadrants, in float64 to 1e-13."""
        high, flat = tl.abs(upward), tl.abs(across)
        ratio = tl.minimum(high, flat) / tl.maximum(tl.maximum(high, flat), 1e-300)
        steep = ratio > 0.4142135623730951  # tan(pi / 8): from there the series of atan((t - 1) / (t + 1)) is shorter
        ratio = tl.where(steep, (ratio - 1.0) / (ratio + 1.0), ratio)
        square = ratio * ratio
        series = tl.zeros_like(ratio)
        for back in tl.static_range(0, 16):
            series = series * square + (2 * (back % 2) - 1) / (31 - 2 * back)
        angle = series * ratio + tl.where(steep, PI / 4, 0.0)
        angle = tl.where(high > flat, PI / 2 - angle, angle)
        angle = tl.where(across < 0, PI - angle, angle)
        return tl.where(upward < 0, -angle, angle)

    @triton.jit
    def _direction(places, place, row, column, middle, factor, inside):
        """Upward, outward and east parts of a tile pixel's direction in the place's own meridian."""
        sine = tl.load(places + 4 * place, mask=inside, other=0.0)
        cosine = tl.load(places + 4 * place + 1, mask=inside, other=1.0)
        unit = tl.load(places + 4 * place + 3, mask=inside, other=1.0) / factor
        down, east = (row - middle) * unit, (column - middle) * unit
        return sine - down * cosine, cosine + down * sine, east

    @triton.jit
    def _mercator(upward, outward, east, centre, world):
        """Row and column of a direction on a world map; `centre` is the place's longitude in turns from its edge."""
        sine = upward / tl.sqrt(upward * upward + outward * outward + east * east)
        sine = tl.minimum(tl.maximum(sine, -0.9999), 0.9999)  # beyond the map's edge, which the row is held to
        row = (1.0 - tl.log((1.0 + sine) / (1.0 - sine)) / (2 * PI)) * (world * 0.5) - 0.5
        turn = centre + _arc(east, outward) / (2 * PI)
        return tl.minimum(tl.maximum(row, 0.0), world - 1.0), (turn - tl.floor(turn)) * world - 0.5

    # Sizes are no constants, so that all sources meet the same few compiled kernels.
    @triton.jit(do_not_specialize=("count", "size", "bands", "height", "width"))
    def _cut_raster(
        pixels, places, out, count, size, bands, height, width,
        POINTS: tl.constexpr,
    ):  # fmt: skip
        point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
        area = size * size
        place, inside = point // area, point < count
        at = (point % area).to(tl.int32)
        row, column = (at // size).to(tl.float64), (at % size).to(tl.float64)
        upward, outward, east = _direction(places, place, row, column, (size - 1) * 0.5, 1, inside)
        lat = _arc(upward, tl.sqrt(outward * outward + east * east))
        turn = tl.load(places + 4 * place + 2, mask=inside, other=0.0) + _arc(east, outward) / (2 * PI)
        # Pixel centres lie half a pixel inside, and the frame moves everything by one.
        row = (0.5 - lat / PI) * height + 0.5
        column = (turn - tl.floor(turn)) * width + 0.5
        top, left = tl.floor(row), tl.floor(column)
        down, right = (row - top).to(tl.float32), (column - left).to(tl.float32)
        up, back = 1.0 - down, 1.0 - right
        stride = (width + 2).to(tl.int64)
        first = pixels + (top.to(tl.int64) * stride + left.to(tl.int64)) * bands
        target = out + place * (bands * area) + at
        band = 0
        while band < bands:
            here = first + band
            value = tl.load(here, mask=inside, other=0).to(tl.float32) * (up * back)
            value += tl.load(here + bands, mask=inside, other=0).to(tl.float32) * (up * right)
            value += tl.load(here + stride * bands, mask=inside, other=0).to(tl.float32) * (down * back)
            value += tl.load(here + (stride + 1) * bands, mask=inside, other=0).to(tl.float32) * (down * right)
            tl.store(target + band * area, value, mask=inside)
            band += 1

    @triton.jit(do_not_specialize=("count", "size"))
    def _cut_pyramid(
        pixels, table, places, detail, out, count, size, side,
        BANDS: tl.constexpr, POINTS: tl.constexpr,
    ):  # fmt: skip
        point = tl.program_id(0).to(tl.int64) * POINTS + tl.arange(0, POINTS)
        area = size * size
        place, inside = point // area, point < count
        at = (point % area).to(tl.int32)
        zoom = tl.load(detail + 2 * place, mask=inside, other=0)
        factor = tl.load(detail + 2 * place + 1, mask=inside, other=1)
        centre = tl.load(places + 4 * place + 2, mask=inside, other=0.0)
        world = side << zoom
        first = table + ((1 << (2 * zoom)) - 1) // 3  # tables of all zooms lie one behind another
        red = tl.zeros((POINTS,), dtype=tl.float32)
        green, blue, alpha = red, red, red
        step = 0
        most = tl.max(factor * factor, axis=0)
        while step < most:
            going = inside & (step < factor * factor)
            row = (at // size * factor + step // factor).to(tl.float64)
            column = (at % size * factor + step % factor).to(tl.float64)
            upward, outward, east = _direction(places, place, row, column, (size * factor - 1) * 0.5, factor, going)
            row, column = _mercator(upward, outward, east, centre, world)
            top, left = tl.floor(row), tl.floor(column)
            down, right = (row - top).to(tl.float32), (column - left).to(tl.float32)
            for corner in tl.static_range(4):
                below, beside = corner // 2, corner % 2
                y = tl.minimum(top.to(tl.int32) + below, world - 1)
                x = left.to(tl.int32) + beside
                x = tl.where(x < 0, x + world, tl.where(x < world, x, x - world))
                entry = first + ((y // side) << zoom) + x // side
                page = tl.load(entry, mask=going, other=0)
                tl.store(entry, tl.full((POINTS,), -2, tl.int32), mask=going & (page < 0))
                number = page.to(tl.int64) * (side * side) + (y % side) * side + x % side
                value = tl.load(pixels + number, mask=going & (page >= 0), other=0)
                share = (down if below else 1.0 - down) * (right if beside else 1.0 - right)
                red += share * (value & 255).to(tl.float32)
                if BANDS > 1:
                    green += share * ((value >> 8) & 255).to(tl.float32)
                    blue += share * ((value >> 16) & 255).to(tl.float32)
                if BANDS > 3:
                    alpha += share * ((value >> 24) & 255).to(tl.float32)
            step += 1
        shrunk = 255.0 * (factor * factor).to(tl.float32)
        target = out + place * (BANDS * area) + at
        tl.store(target, red / shrunk, mask=inside)
        if BANDS > 1:
            tl.store(target + area, green / shrunk, mask=inside)
            tl.store(target + 2 * area, blue / shrunk, mask=inside)
        if BANDS > 3:
            tl.store(target + 3 * area, alpha / shrunk, mask=inside)


def cut_raster(pixels: Tensor, shape: tuple[int, int], places: Tensor, size: int, unit: float, west: float) -> Tensor:
    """Tiles (N, C, size, size) of places (N, 2) from framed pixels ((H + 2) * (W + 2), C) of a raster (H, W).

    `unit` is a tile pixel in Earth radii, `west` the left edge's longitude; no pixel may be NaN.
    """
    bands, count = pixels.shape[1], len(places) * size**2
    out, prepared = torch.empty(len(places), bands, size, size, device=places.device), _prepare(places, west, unit)
    with launching, torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        _cut_raster[(max(1, triton.cdiv(count, POINTS)),)](
            pixels, prepared, out, count, size, bands, *shape, POINTS=POINTS, num_warps=WARPS
        )
    return out


def cut_pyramid(paged: Paged, places: Tensor, detail: Tensor, unit: float, out: Tensor) -> None:
    """Tiles of places (N, 2), in [0, 1], written to `out` (N, C, size, size), each place at its own zoom.

    Where the table knows no page it holds WANTED afterwards, and what is cut is wrong. `detail` (N, 2) in int32 holds
    zooms and how many map pixels go into a tile's pixel along each side; `unit` is a tile pixel in Earth radii.
    """
    (places_in_all, bands, size, _), prepared = out.shape, _prepare(places, -180.0, unit)
    count = places_in_all * size**2
    with launching, torch.cuda.device_of(out):  # type: ignore[no-untyped-call]
        _cut_pyramid[(max(1, triton.cdiv(count, POINTS)),)](
            paged.pixels, paged.table, prepared, detail, out, count, size, paged.side,
            BANDS=bands, POINTS=POINTS, num_warps=WARPS,
        )  # fmt: skip


def _prepare(places: Tensor, west: float, unit: float) -> Tensor:
    """Sine and cosine of the latitude, the longitude in turns from `west`, and the unit; (N, 4) in float64."""
    lat, lon = places.double().unbind(1)
    radians = lat.deg2rad()
    return torch.stack((radians.sin(), radians.cos(), (lon - west) / 360.0, torch.full_like(lat, unit)), dim=1)
