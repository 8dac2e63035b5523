"""GeoTIFF and what may stand in a file of that name: tags of any value, other drivers' files, VRT."""

import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random

from tests.fuzz.mutation import LIMITS, damage_bytes
from tests.fuzz.surfaces import Prepared, Surface, each

PLACES = [(10.0, 20.0), (-5.0, -60.0)]
NEAR = [(48.9, 2.4)]
TYPE_SIZES = {1: 1, 2: 1, 3: 2, 4: 4, 5: 8, 11: 4, 12: 8, 16: 8}
TOKENS = (
    *(b"II*\x00", b"MM\x00*", b"II+\x00", b"<VRTDataset", b"<GDAL_WMS>", b"/vsicurl/http://127.0.0.1:9/x", b"/vsizip/"),
    *(b"GDAL_METADATA", b"\x89PNG\r\n", b"GRIB", b"CDF\x01", b"\x89HDF\r\n\x1a\n", b"NITF02.10", b"%PDF-1.4", b"DDS "),
)
VRT = b"""<VRTDataset rasterXSize="36" rasterYSize="18"><SRS>EPSG:4326</SRS>
<GeoTransform>-180,10,0,90,0,-10</GeoTransform><VRTRasterBand dataType="Byte" band="1"><SimpleSource>
<SourceFilename relativeToVRT="1">other.tif</SourceFilename><SourceBand>1</SourceBand>
<SrcRect xOff="0" yOff="0" xSize="36" ySize="18"/><DstRect xOff="0" yOff="0" xSize="36" ySize="18"/>
</SimpleSource></VRTRasterBand></VRTDataset>"""
WMS = b"""<GDAL_WMS><Service name="TMS"><ServerUrl>http://127.0.0.1:9/${z}/${x}/${y}.png</ServerUrl></Service>
<DataWindow><UpperLeftX>-180</UpperLeftX><UpperLeftY>90</UpperLeftY><LowerRightX>180</LowerRightX>
<LowerRightY>-90</LowerRightY><TileLevel>2</TileLevel></DataWindow><Projection>EPSG:4326</Projection></GDAL_WMS>"""


def prepare(folder: Path) -> Prepared:
    """Rasters of several layouts and compressions."""
    import numpy as np

    from tessearth.imagery.sources.geotiff import GeoTiff
    from tessearth.imagery.sources.images import decode_picture
    from tessearth.imagery.sources.raster import GlobalRaster
    from tests.imagery.sources.fabricate import write_globe, write_projected

    pixels = (np.arange(3 * 18 * 36) % 251).astype(np.uint8).reshape(3, 18, 36)
    write_globe(folder / "other.tif", pixels)
    write_globe(
        folder / "deflate.tif", pixels.astype(np.uint16), compress="deflate", tiled=True, blockxsize=16, blockysize=16
    )
    write_globe(folder / "lzw.tif", pixels.astype(np.float32), compress="lzw", nodata=5.0)
    write_globe(folder / "jpeg.tif", pixels, compress="jpeg", photometric="ycbcr")
    write_globe(folder / "zstd.tif", pixels, compress="zstd", BIGTIFF="YES")
    write_globe(folder / "webp.tif", pixels, compress="webp")
    write_projected(folder / "utm.tif", "EPSG:32631", (48.9, 2.4), metres=1000, side=24)
    seeds = [path.read_bytes() for path in sorted(folder.glob("*.tif"))]

    def tiles(target: Path, places: list[tuple[float, float]]) -> None:
        GeoTiff(target, size=4, km_per_pixel=500.0 if places is PLACES else 2.0).tiles(np.array(places))

    def run(content: bytes) -> None:
        target = folder / ("case.vrt" if content[:4] == b"<VRT" else "case.tif")
        target.write_bytes(content)
        each(
            lambda: tiles(target, PLACES),
            lambda: tiles(target, NEAR),
            lambda: GlobalRaster(target, size=4, km_per_pixel=500.0).tiles(np.array(PLACES)),
            lambda: decode_picture(content, name="a patch"),
        )

    return Prepared([*seeds, VRT], run)


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage bytes, or entries of the directory of tags."""
    seed = random.choice(seeds)
    style = random.random()
    if seed[:4] == b"II*\0" and style < 0.55:
        changed = bytearray(seed)
        for _ in range(random.choice((1, 1, 2, 4))):
            _odd_tag(random, changed)
        return bytes(changed)
    if style > 0.97:
        return damage_bytes(random, WMS, (), TOKENS) if style > 0.985 else WMS
    return damage_bytes(random, seed, seeds, TOKENS)


def _odd_tag(random: Random, content: bytearray) -> None:
    """Another tag, type, count or value in one entry of the first directory, or in what it points to."""
    (start,) = struct.unpack_from("<I", content, 4)
    if start + 2 > len(content):  # an earlier change led it astray
        return
    (count,) = struct.unpack_from("<H", content, start)
    at = start + 2 + 12 * random.randrange(min(count, 64) or 1)
    if at + 12 > len(content):
        return
    tag, kind, length, value = struct.unpack_from("<HHII", content, at)
    number = random.choice((random.choice(LIMITS), random.getrandbits(32), value + 1, 0, length)) % 2**32
    field = random.randrange(5)
    if field == 4 and TYPE_SIZES.get(kind, 1) * length > 4 and value + 8 <= len(content):
        place = min(value + random.randrange(max(1, TYPE_SIZES.get(kind, 1) * length)), len(content) - 8)
        packed = random.choice(
            (struct.pack("<d", random.choice((0.0, 1e308, float("nan"), -1e-300))), struct.pack("<Q", number))
        )
        content[place : place + 8] = packed
        return
    changes = ((number % 65536, kind, length, value), (tag, random.choice((*TYPE_SIZES, 0, 99)), length, value))
    entries = (*changes, (tag, kind, number, value), (tag, kind, length, number), (tag, kind, length, number))
    struct.pack_into("<HHII", content, at, *entries[field])


SURFACE = Surface("geotiff", prepare, mutate)
