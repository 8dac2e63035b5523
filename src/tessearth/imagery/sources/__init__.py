"""Imagery sources by name, for recipes; each is a function or class of keyword settings that returns a source."""

from collections.abc import Callable
from typing import Any

from tessearth.imagery.sources.geotiff import GeoTiff
from tessearth.imagery.sources.patch_folders import hugging_face_folder, image_folder, sentinel2_patches
from tessearth.imagery.sources.patches import LocatedPatches
from tessearth.imagery.sources.pyramid import TilePyramid
from tessearth.imagery.sources.raster import GlobalRaster, RasterLayers, blue_marble, shaded_relief
from tessearth.settings import Registry

SOURCES: Registry[Callable[..., Any]] = Registry(
    "imagery source",
    {
        "blue-marble": blue_marble,
        "shaded-relief": shaded_relief,
        "global-raster": GlobalRaster,
        "raster-layers": RasterLayers,
        "tile-pyramid": TilePyramid,
        "geotiff": GeoTiff,
        "sentinel2-patches": sentinel2_patches,
        "image-folder": image_folder,
        "hugging-face-folder": hugging_face_folder,
    },
)

__all__ = [
    "SOURCES",
    "GeoTiff",
    "GlobalRaster",
    "LocatedPatches",
    "RasterLayers",
    "TilePyramid",
    "blue_marble",
    "hugging_face_folder",
    "image_folder",
    "sentinel2_patches",
    "shaded_relief",
]
