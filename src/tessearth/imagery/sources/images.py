"""Opening pictures: Pillow for JPEG, PNG and WebP, rasterio for GeoTIFF and its kin, with damage named the same way."""

import contextlib
import functools
import io
import struct
import threading
import warnings
import zlib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import numpy.typing as npt

from tessearth.errors import DataError, TessearthError
from tessearth.packages import require

RASTERIO_SUFFIXES = {".tif", ".tiff", ".vrt"}
TIFF_MAGIC = (b"II*\0", b"MM\0*", b"II+\0", b"MM\0+")
DECODER_ERRORS = (OSError, SyntaxError, ValueError, EOFError, IndexError, struct.error, zlib.error)
DECODERS = {"rasterio", "PIL", "pyproj", "pyarrow"}
FORMATS = ("JPEG", "PNG", "WEBP", "GIF", "BMP", "TIFF", "JPEG2000", "PPM")
"""Pictures; some of the other formats that Pillow opens start another program."""
MOST_BLOCK_BYTES = 2**29
"""Of a block that a raster file stores, and that is decoded, as a whole."""
MOST_PATCH_BYTES = 2**28
"""Of a patch, which is read whole."""
_bomb_limit = threading.Lock()
_warning_filters = threading.Lock()


RGB = ("red", "green", "blue")
BYTE_MODES = {"L": ("gray",), "RGB": RGB, "RGBA": (*RGB, "alpha")}
MODES = {**BYTE_MODES, "I;16": ("gray",), "I": ("gray",), "F": ("gray",)}
"""The bands of Pillow's modes that are read as they are; others (palettes, CMYK) are converted to RGB first."""


class Picture(NamedTuple):
    """An opened picture, its pixels not read yet."""

    height: int
    width: int
    bands: tuple[str, ...]
    is_bytes: bool
    """Whether pixels are 8-bit numbers."""
    read_rows: Callable[[int, int], npt.NDArray[Any]]
    """Rows from one up to another, as (rows, width, C)."""


@contextlib.contextmanager
def open_picture(path: Path, *, trusted: bool = False) -> Iterator[Picture]:
    """Open a JPEG, PNG or WebP with Pillow; its pixels are decoded when the first rows are read.

    Pillow refuses pictures so large that a small file could fill the memory; `trusted` lifts that for a file whose
    origin is known.
    """
    with _open_pillow(path, str(path), trusted=trusted) as image:
        mode = _mode_of(image)
        pixels = functools.cache(lambda: _decode(image, mode, str(path)))
        yield Picture(
            height=image.height,
            width=image.width,
            bands=MODES[mode],
            is_bytes=mode in BYTE_MODES,
            read_rows=lambda start, stop: pixels()[start:stop],
        )


def decode_picture(content: bytes, name: str, *, mode: str | None = None, side: int | None = None) -> npt.NDArray[Any]:
    """Decode an encoded picture to (C, H, W): TIFF through rasterio, anything else through Pillow.

    With `mode` it is turned into that mode; with `side` a picture of another size is refused before it is decoded.
    """
    if content[:4] in TIFF_MAGIC and mode is None:
        return _decode_tiff(content, name)
    with _open_pillow(io.BytesIO(content), name) as image:
        if side is not None and image.size != (side, side):
            raise DataError(f"{name} is {image.width} x {image.height} pixels, not {side} x {side}")
        pixels = _decode(image, mode or _mode_of(image), name)
    return np.ascontiguousarray(pixels.transpose(2, 0, 1))


def _decode(image: Any, mode: str, name: str) -> npt.NDArray[Any]:
    """An opened picture's pixels in a mode, (H, W, C)."""
    with damage_named(name):
        pixels = np.asarray(image if image.mode == mode else image.convert(mode))
    return pixels.reshape(*pixels.shape[:2], -1)


@contextlib.contextmanager
def open_raster(path: str | Path) -> Iterator[Any]:
    """Open a dataset with rasterio for the length of a block.

    Datasets belong to one thread; opening for each batch keeps readers free to move between threads and processes.
    """
    rasterio = require("rasterio", extra="geo", what="reading GeoTIFF")
    # By name, because GDAL would else believe the content: a "tif" may hold the address of a server, or any file's.
    driver = "VRT" if Path(path).suffix.lower() == ".vrt" else "GTiff"
    with damage_named(str(path)), _quiet_about_missing_places(rasterio):
        dataset = rasterio.open(path, driver=driver)
    with dataset:
        _check_raster(dataset, str(path))
        yield dataset


@contextlib.contextmanager
def damage_named(name: str) -> Iterator[None]:
    """Turn a decoder's error about a damaged file into a DataError that names it."""
    try:
        yield
    except TessearthError:
        raise
    except FileNotFoundError as error:
        raise DataError(f"there is no file {name}") from error
    except Exception as error:
        from_decoder = isinstance(error, DECODER_ERRORS) or type(error).__module__.split(".")[0] in DECODERS
        if not from_decoder:
            raise
        reason = " ".join(str(error).split()) or type(error).__name__
        raise DataError(f"cannot read {name}: {reason}") from error


def read_pixels(dataset: Any, **options: Any) -> npt.NDArray[Any]:
    """Pixels of a dataset's bands, (C, H, W), NaN where there is no data."""
    with damage_named(dataset.name):
        pixels = dataset.read(masked=True, **options)
    if np.ma.is_masked(pixels):
        return np.asarray(np.ma.filled(pixels.astype(np.float32), np.nan))
    return np.asarray(pixels.data)


def dataset_band_names(dataset: Any) -> tuple[str, ...]:
    """The descriptions of a dataset's bands where they tell them apart, else band1, band2 ..."""
    described = tuple(dataset.descriptions)
    telling = all(described) and len(set(described)) == len(described)
    return described if telling else tuple(f"band{number}" for number in dataset.indexes)


def _open_pillow(file: Any, name: str, *, trusted: bool = False) -> Any:
    """Open an image; Pillow looks at its pixel limit here and nowhere else, so only here it is lifted."""
    pillow: Any = require("PIL.Image", extra="data", what="reading pictures")
    with damage_named(name), _bomb_limit:
        limit = pillow.MAX_IMAGE_PIXELS
        try:
            pillow.MAX_IMAGE_PIXELS = None if trusted else limit
            pillow.init()  # formats are known by name from here on
            return pillow.open(file, formats=FORMATS)
        except (pillow.DecompressionBombError, pillow.DecompressionBombWarning) as error:
            raise DataError(f"{name} is refused: {error} If you know its origin, pass trusted=True") from error
        finally:
            pillow.MAX_IMAGE_PIXELS = limit


def _mode_of(image: Any) -> str:
    return str(image.mode) if image.mode in MODES else "RGB"


def _decode_tiff(content: bytes, name: str) -> npt.NDArray[Any]:
    rasterio = require("rasterio", extra="geo", what="reading TIFF patches")
    with damage_named(name), rasterio.MemoryFile(content) as memory:
        with _quiet_about_missing_places(rasterio):
            dataset = memory.open(driver="GTiff")
        with dataset:
            _check_raster(dataset, name)
            if _num_bytes(dataset, (dataset.height, dataset.width)) > MOST_PATCH_BYTES:
                raise DataError(f"{name} has {dataset.width} x {dataset.height} pixels: that is no patch")
            return np.asarray(dataset.read())


def _check_raster(dataset: Any, name: str) -> None:
    """Refuse what cannot be read within bounds: a raster without area, or in blocks of any size a header may claim."""
    if abs(dataset.transform.determinant) == 0 or not np.isfinite(tuple(dataset.transform)).all():
        raise DataError(f"{name} has pixels without area: its transform is {tuple(dataset.transform)[:6]}")
    largest = max(dataset.block_shapes, key=lambda shape: shape[0] * shape[1])
    if _num_bytes(dataset, largest) > MOST_BLOCK_BYTES:
        raise DataError(
            f"{name} is stored in blocks of {largest[1]} x {largest[0]} pixels, which fill the memory; tile it first: "
            f"gdal_translate -co TILED=YES"
        )


def _num_bytes(dataset: Any, shape: tuple[int, int]) -> int:
    return int(dataset.count * shape[0] * shape[1] * max(np.dtype(kind).itemsize for kind in dataset.dtypes))


@contextlib.contextmanager
def _quiet_about_missing_places(rasterio: Any) -> Iterator[None]:
    """Pictures that get their place from a table have none of their own; that is not worth a warning each."""
    with _warning_filters, warnings.catch_warnings():
        warnings.simplefilter("ignore", rasterio.errors.NotGeoreferencedWarning)
        yield
