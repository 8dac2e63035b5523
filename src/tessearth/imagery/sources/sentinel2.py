"""Sentinel-2 patches in the S2-100K layout: a folder of TIFFs with index.csv, or tar shards with metadata.parquet."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

import numpy as np
import numpy.typing as npt

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.sources.images import decode_picture
from tessearth.imagery.sources.patches import (
    LocatedPatches,
    PatchFiles,
    PatchReader,
    WhenBroken,
    check_names,
    find_column,
    open_shards,
    read_place_table,
)

FILE_BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
"""The bands of an S2-100K file, in order; surface reflectance products have no B10."""
ALL_BANDS = (*FILE_BANDS[:10], "B10", *FILE_BANDS[10:])
"""All thirteen bands of the instrument, in the order 13-band image encoders expect."""
REFLECTANCE_UNIT = 10_000
PROCESSING_OFFSET = 1_000
"""What products processed since 25 January 2022 add to every value."""
LEAST_BYTES = 10_000
KM_PER_PIXEL = 0.01


@dataclass(frozen=True, slots=True)
class DecodeReflectance:
    """Decodes a 12-band TIFF to reflectance: value / 10000, after taking the offset away where there is one.

    B10, which the files lack, is zero. With the offset, what would fall below zero becomes zero.
    """

    bands: tuple[str, ...]
    offset: bool

    def __call__(self, content: bytes, name: str) -> npt.NDArray[np.float32]:
        """From bytes to (C, H, W)."""
        pixels = decode_picture(content, name=name)
        if len(pixels) != len(FILE_BANDS):
            raise DataError(
                f"{name} has {len(pixels)} bands, not the {len(FILE_BANDS)} of S2-100K ({' '.join(FILE_BANDS)})"
            )
        reflectance = pixels.astype(np.float32)
        if self.offset:
            reflectance = np.maximum(reflectance - PROCESSING_OFFSET, 0)
        reflectance /= REFLECTANCE_UNIT
        empty = np.zeros_like(reflectance[0])
        return np.stack([reflectance[FILE_BANDS.index(band)] if band in FILE_BANDS else empty for band in self.bands])


def sentinel2_patches(
    folder: str | Path,
    *,
    bands: Sequence[str] = ALL_BANDS,
    offset: bool = False,
    size: int | None = None,
    broken: WhenBroken = "raise",
    check: Literal["size", "read"] = "size",
) -> LocatedPatches:
    """Patches of surface reflectance at 10 m, 256 x 256 pixels, cropped to their middle when `size` is smaller.

    The folder holds index.csv (fn, lon, lat) with images/<fn>, or metadata.parquet (fn, lon, lat, shard) with tar
    shards. `offset` is for scenes processed since 25 January 2022, whose values are 1000 too high. Files under 10 kB
    are broken downloads.
    """
    unknown = [band for band in bands if band not in ALL_BANDS]
    if unknown or not bands:
        raise ConfigError(
            f"Sentinel-2 has no band {unknown[0] if unknown else '()'!r}; there are {', '.join(ALL_BANDS)}"
        )
    reader, places = _open_folder(Path(folder))
    return LocatedPatches(
        reader,
        places,
        kind="sentinel2-patches",
        bands=tuple(bands),
        decode=DecodeReflectance(bands=tuple(bands), offset=offset),
        size=size,
        least_bytes=LEAST_BYTES,
        broken=broken,
        check=check,
        settings={"offset": offset, "km_per_pixel": KM_PER_PIXEL},
    )


def _open_folder(folder: Path) -> tuple[PatchReader, npt.NDArray[np.float64]]:
    index, metadata = folder / "index.csv", folder / "metadata.parquet"
    if index.is_file():
        rows, places = read_place_table(index, lat="lat", lon="lon")
        names = rows[find_column(rows.column_names, "fn", (), "file", str(index))].to_pylist()
        images = folder / "images"
        return PatchFiles(folder=images, names=check_names(names, images, str(index)), index=index), places
    if metadata.is_file():
        rows, places = read_place_table(metadata, lat="lat", lon="lon")
        names, shards = (
            rows[find_column(rows.column_names, name, (), name, str(metadata))].to_pylist() for name in ("fn", "shard")
        )
        return open_shards(folder, metadata, check_names(names, folder, str(metadata)), shards), places
    raise DataError(f"{folder} is no S2-100K folder: it has neither index.csv nor metadata.parquet")
