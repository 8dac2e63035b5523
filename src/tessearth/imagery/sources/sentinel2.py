"""Sentinel-2 patches in the S2-100K layout: a folder of TIFFs with index.csv, or tar shards with metadata.parquet."""

from collections.abc import Sequence
from functools import partial
from pathlib import Path

import numpy as np

from tessearth.errors import ConfigError, DataError
from tessearth.imagery.source import Tiles
from tessearth.imagery.sources.images import decode_picture
from tessearth.imagery.sources.patches import (
    Check,
    LocatedPatches,
    PatchSet,
    Span,
    WhenBroken,
    check_names,
    find_files,
    find_in_shards,
    read_index,
    read_spans,
    total_bytes,
)
from tessearth.sphere import Floats

FILE_BANDS = ("B01", "B02", "B03", "B04", "B05", "B06", "B07", "B08", "B8A", "B09", "B11", "B12")
"""The bands of an S2-100K file, in order; surface reflectance products have no B10."""
ALL_BANDS = (*FILE_BANDS[:10], "B10", *FILE_BANDS[10:])
"""All thirteen bands of the instrument, in the order 13-band image encoders expect."""
REFLECTANCE_UNIT = 10_000
PROCESSING_OFFSET = 1_000
"""What products processed since 25 January 2022 add to every value."""
LEAST_BYTES = 10_000
KM_PER_PIXEL = 0.01


def decode_reflectance(content: bytes, name: str, *, bands: tuple[str, ...], offset: bool) -> Tiles:
    """A 12-band TIFF as reflectance (C, H, W): value / 10000, after taking the offset away where there is one.

    B10, which the files lack, is zero. With the offset, what would fall below zero becomes zero.
    """
    pixels = decode_picture(content, name=name)
    if len(pixels) != len(FILE_BANDS):
        raise DataError(
            f"{name} has {len(pixels)} bands, not the {len(FILE_BANDS)} of S2-100K ({' '.join(FILE_BANDS)})"
        )
    reflectance = pixels.astype(np.float32)
    if offset:
        reflectance = np.maximum(reflectance - PROCESSING_OFFSET, 0)
    reflectance /= REFLECTANCE_UNIT
    empty = np.zeros_like(reflectance[0])
    return np.stack([reflectance[FILE_BANDS.index(band)] if band in FILE_BANDS else empty for band in bands])


def sentinel2_patches(
    folder: str | Path,
    *,
    bands: Sequence[str] = ALL_BANDS,
    offset: bool = False,
    size: int | None = None,
    broken: WhenBroken = "raise",
    check: Check = "size",
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
    index, names, spans, shards, places = _open_folder(Path(folder))
    settings = {"offset": offset, "km_per_pixel": KM_PER_PIXEL}
    patches = PatchSet(
        kind="sentinel2-patches",
        names=names,
        sizes=[span.size for span in spans],
        places=places,
        bands=tuple(bands),
        read_many=partial(read_spans, spans),
        decode=partial(decode_reflectance, bands=tuple(bands), offset=offset),
        files=(index, *shards),
        least_bytes=LEAST_BYTES,
        settings=settings if shards else {"bytes": total_bytes(spans), **settings},
    )
    return LocatedPatches(patches, size=size, broken=broken, check=check)


def _open_folder(folder: Path) -> tuple[Path, tuple[str, ...], list[Span], list[Path], Floats]:
    """The index of either layout, with the names, spans, shards and places of its patches."""
    index = folder / "index.csv"
    if index.is_file():
        rows, places = read_index(index, "fn", lat="lat", lon="lon")
        names = check_names(rows["fn"].to_pylist(), folder / "images", str(index))
        return index, names, find_files(folder / "images", names), [], places
    index = folder / "metadata.parquet"
    if index.is_file():
        rows, places = read_index(index, "fn", "shard", lat="lat", lon="lon")
        names = check_names(rows["fn"].to_pylist(), folder, str(index))
        return index, names, *find_in_shards(folder, names, rows["shard"].to_pylist()), places
    raise DataError(f"{folder} is no S2-100K folder: it has neither index.csv nor metadata.parquet")
