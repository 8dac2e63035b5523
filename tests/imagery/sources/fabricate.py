"""Imagery whose pixels say where they are, written in the true formats, and the places it is read at."""

import io
import math
import sqlite3
import tarfile
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.parquet
import torch
from PIL import Image
from torch import Tensor

from tessearth.sphere.geometry import EARTH_RADIUS_KM, latlon_to_xyz

Array = npt.NDArray[Any]

PLACES = {
    "Paris": (48.8566, 2.3522),
    "Tokyo": (35.6762, 139.6503),
    "Quito": (-0.1807, -78.4678),
    "Sydney": (-33.8688, 151.2093),
    "Reykjavik": (64.1466, -21.9426),
    "Cape Town": (-33.9249, 18.4241),
    "Anchorage": (61.2181, -149.9003),
    "Ushuaia": (-54.8019, -68.3030),
    "Everest": (27.9881, 86.9250),
    "Denali": (63.0692, -151.0070),
    "Kilimanjaro": (-3.0674, 37.3556),
    "Aconcagua": (-32.6532, -70.0109),
    "Sahara": (23.4162, 10.0),
    "Atacama": (-24.5, -69.25),
    "Taklamakan": (38.9, 82.2),
    "Taveuni, west of 180": (-16.9833, 179.9861),
    "Taveuni, east of 180": (-16.8200, -179.9700),
    "Wrangel Island, on 180": (71.1000, 180.0),
    "Arctic, 85 N west of 180": (85.0, 179.9),
    "Arctic, 85 N east of 180": (85.0, -179.9),
}
LATLON = np.array(list(PLACES.values()))


def to_xyz(latlon: Array) -> Array:
    lat, lon = np.moveaxis(np.deg2rad(latlon), -1, 0)
    return np.stack((np.cos(lat) * np.cos(lon), np.cos(lat) * np.sin(lon), np.sin(lat)), axis=-1)


def degrees_apart(a: Array, b: Array) -> Array:
    """The angle between directions (..., 3) of any length."""
    cross = np.linalg.norm(np.cross(a, b), axis=-1)
    return np.rad2deg(np.arctan2(cross, (a * b).sum(-1)))


def harmonic(xyz: Array) -> Array:
    """A smooth pattern on the sphere of degrees 1 to 3, between 0 and 1."""
    x, y, z = np.moveaxis(xyz, -1, 0)
    return 0.5 + 0.1 * x - 0.12 * y * z + 0.1 * (x * x - y * y) + 0.15 * z * (5 * z * z - 3) / 2


def globe_centres(height: int, width: int, west: float = -180.0) -> Array:
    """Degrees of the pixel centres of a global raster, (height, width, 2)."""
    lat = 90 - (np.arange(height) + 0.5) * 180 / height
    lon = west + (np.arange(width) + 0.5) * 360 / width
    return np.stack(np.meshgrid(lat, lon, indexing="ij"), axis=-1)


def from_origin(west: float, north: float, width: float, height: float) -> Any:
    """The transform of a raster by its upper left corner and the size of a pixel."""
    from affine import Affine

    return Affine(width, 0.0, west, 0.0, -height, north)


def write_tiff(path: Path, pixels: Array, transform: Any, crs: str, **options: Any) -> Path:
    """A GeoTIFF of pixels (C, H, W)."""
    import rasterio

    count, height, width = pixels.shape
    with rasterio.open(
        path, "w", driver="GTiff", width=width, height=height, count=count, dtype=pixels.dtype, transform=transform,
        crs=crs, **options,
    ) as file:  # fmt: skip
        file.write(pixels)
    return path


def write_globe(path: Path, pixels: Array, west: float = -180.0, **options: Any) -> Path:
    """A GeoTIFF of the whole Earth in degrees."""
    return write_tiff(
        path, pixels, from_origin(west, 90, 360 / pixels.shape[2], 180 / pixels.shape[1]), "EPSG:4326", **options
    )


def write_projected(
    path: Path, crs: str, latlon: tuple[float, float], *, metres: float, side: int, **options: Any
) -> Path:
    """A square GeoTIFF around a place in any projection, whose three bands are the direction of every pixel."""
    import pyproj

    there = pyproj.Transformer.from_crs("EPSG:4326", crs, always_xy=True)
    x, y = there.transform(latlon[1], latlon[0])
    left, top = x - metres * side / 2, y + metres * side / 2
    steps = (np.arange(side) + 0.5) * metres
    xs, ys = np.meshgrid(left + steps, top - steps)
    lon, lat = there.transform(xs, ys, direction="INVERSE")
    pixels = to_xyz(np.stack((lat, lon), axis=-1)).transpose(2, 0, 1).astype(np.float32)
    return write_tiff(path, pixels, from_origin(left, top, metres, metres), crs, **options)


def encode(pixels: Array, form: str = "PNG") -> bytes:
    """A picture file of uint8 pixels (H, W) or (H, W, C)."""
    buffer = io.BytesIO()
    Image.fromarray(pixels).save(buffer, form)
    return buffer.getvalue()


def position_pattern(column: Array, row: Array) -> Array:
    """Triangle waves with a slope of one level per pixel, two for either axis a quarter wave apart: (..., 4).

    Wherever one of the two turns round, the other is straight: being off by a pixel changes a level by one.
    """

    def wave(position: Array) -> Array:
        return 64 + np.abs(np.mod(position, 256) - 128)

    return np.stack((wave(column), wave(column + 64), wave(row), wave(row + 64)), axis=-1)


def pattern_tile(z: int, x: int, y: int) -> bytes:
    """A tile of the pattern in whole-world pixels of its zoom."""
    column, row = np.meshgrid(x * 256 + np.arange(256.0), y * 256 + np.arange(256.0))
    return encode(position_pattern(column, row).astype(np.uint8))


def tile_directions(z: int, x: int, y: int) -> Array:
    """The directions of a tile's pixel centres, (256, 256, 3)."""
    column, row = np.meshgrid(x * 256 + np.arange(256) + 0.5, y * 256 + np.arange(256) + 0.5)
    world = 256 * 2**z
    lat = np.rad2deg(np.arctan(np.sinh(np.pi * (1 - 2 * row / world))))
    return to_xyz(np.stack((lat, column / world * 360 - 180), axis=-1))


def harmonic_tile(z: int, x: int, y: int) -> bytes:
    """A tile of the harmonic, in gray."""
    return encode(np.rint(harmonic(tile_directions(z, x, y)) * 255).astype(np.uint8))


def all_tiles(zoom: int) -> list[tuple[int, int, int]]:
    return [(zoom, x, y) for x in range(2**zoom) for y in range(2**zoom)]


def write_mbtiles(
    path: Path, tiles: Iterable[tuple[int, int, int]], make: Callable[[int, int, int], bytes], form: str = "png"
) -> Path:
    """An MBTiles file, rows counted from the south as its specification asks."""
    connection = sqlite3.connect(path)
    connection.execute("create table metadata (name text, value text)")
    connection.execute("create table tiles (zoom_level integer, tile_column integer, tile_row integer, tile_data blob)")
    connection.execute("insert into metadata values ('format', ?)", (form,))
    rows = [(z, x, 2**z - 1 - y, make(z, x, y)) for z, x, y in tiles]
    connection.executemany("insert into tiles values (?, ?, ?, ?)", rows)
    connection.commit()
    connection.close()
    return path


def write_tile_folder(
    folder: Path, tiles: Iterable[tuple[int, int, int]], make: Callable[[int, int, int], bytes], *, tms: bool = False
) -> Path:
    for z, x, y in tiles:
        path = folder / str(z) / str(x) / f"{2**z - 1 - y if tms else y}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(make(z, x, y))
    return folder


def mercator_position(latlon: Array, zoom: int) -> tuple[Array, Array]:
    """Column and row in whole-world pixels, whole numbers at pixel centres; written apart from the code under test."""
    lat, lon = np.moveaxis(latlon, -1, 0)
    world = 256 * 2**zoom
    northing = np.log(np.tan(math.pi / 4 + np.deg2rad(lat) / 2))
    return (lon + 180) / 360 * world - 0.5, (1 - northing / math.pi) / 2 * world - 0.5


def sentinel2_bytes(number: int, side: int = 64, bands: int = 12) -> bytes:
    """A patch of uint16 values 1000 * band + number + noise-free ramp, uncompressed so that it is over 10 kB."""
    import rasterio

    ramp = np.arange(side * side).reshape(side, side) % 7
    pixels = (1000 * np.arange(1, bands + 1)[:, None, None] + number + ramp).astype(np.uint16)
    with rasterio.MemoryFile() as memory:
        transform = from_origin(500_000 + number, 0, 10, 10)
        with memory.open(
            driver="GTiff", width=side, height=side, count=bands, dtype="uint16", crs="EPSG:32631", transform=transform
        ) as file:
            file.write(pixels)
        return bytes(memory.read())


def write_s2_folder(folder: Path, latlon: Array, contents: list[bytes] | None = None) -> Path:
    """The S2-100K layout: index.csv and images/patch_<i>.tif."""
    (folder / "images").mkdir(parents=True)
    lines = ["fn,lon,lat"]
    for number, (lat, lon) in enumerate(latlon):
        content = contents[number] if contents else sentinel2_bytes(number)
        (folder / "images" / f"patch_{number}.tif").write_bytes(content)
        lines.append(f"patch_{number}.tif,{lon},{lat}")
    (folder / "index.csv").write_text("\n".join(lines) + "\n")
    return folder


def write_s2_shards(folder: Path, latlon: Array, *, per_shard: int, numbered: bool = False) -> Path:
    """The same as tar shards and metadata.parquet, shards named by file name or by number."""
    folder.mkdir(parents=True)
    numbers = range(len(latlon))
    for shard in range(math.ceil(len(latlon) / per_shard)):
        with tarfile.open(folder / f"shard_{shard:05d}.tar", "w") as archive:
            for number in numbers[shard * per_shard : (shard + 1) * per_shard]:
                content = sentinel2_bytes(number)
                member = tarfile.TarInfo(f"images/patch_{number}.tif")
                member.size = len(content)
                archive.addfile(member, io.BytesIO(content))
    shards = [number // per_shard if numbered else f"shard_{number // per_shard:05d}.tar" for number in numbers]
    table = {
        "fn": [f"patch_{number}.tif" for number in numbers],
        "lon": latlon[:, 1],
        "lat": latlon[:, 0],
        "patch_idx": list(numbers),
        "shard": shards,
    }
    pa.parquet.write_table(pa.table(table), folder / "metadata.parquet")
    return folder


def tangent_frame(latlon: Tensor) -> tuple[Tensor, Tensor, Tensor]:
    """The local axes of each place as unit vectors: up, east and north, each (..., 3).

    At a pole, where east has no meaning of its own, it follows from the longitude given.
    """
    lat, lon = latlon.deg2rad().unbind(-1)
    zero = torch.zeros_like(lat)
    up = latlon_to_xyz(latlon)
    east = torch.stack((-lon.sin(), lon.cos(), zero), dim=-1)
    north = torch.stack((-lat.sin() * lon.cos(), -lat.sin() * lon.sin(), lat.cos()), dim=-1)
    return up, east, north


def tangent_grid(latlon: Tensor, size: int, km_per_pixel: float) -> Tensor:
    """Where the pixels of a square tile lie: places (N, 2) to directions (N, size, size, 3).

    The tile lies on the plane that touches the sphere at the place (gnomonic projection), so it is as undistorted at a
    pole as on the equator. Row 0 is north, column 0 west; directions go through pixel centres, the place through the
    middle.
    """
    up, east, north = (axis[:, None, None, :] for axis in tangent_frame(latlon))
    offset = torch.arange(size, dtype=latlon.dtype, device=latlon.device) - (size - 1) / 2
    offset = offset * (km_per_pixel / EARTH_RADIUS_KM)
    plane = up + offset[None, None, :, None] * east - offset[None, :, None, None] * north
    return torch.nn.functional.normalize(plane, dim=-1)
