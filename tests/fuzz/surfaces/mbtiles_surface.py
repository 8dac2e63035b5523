"""MBTiles: SQLite files whose tables, views and pictures may all be somebody else's idea."""

import contextlib
import io
import json
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import VALUES, damage_bytes
from tests.fuzz.surfaces import Prepared, Surface

SIDE = 16
PLACES = [(10.0, 20.0), (84.9, -179.9), (-60.0, 100.0)]
TOKENS = (
    b"SQLite format 3\x00",
    b"CREATE TABLE",
    b"CREATE VIEW",
    b"tiles",
    b"metadata",
    b"zoom_level",
    b"tile_data",
    b"IHDR",
)
PICTURES = (
    "PNG",
    "JPEG",
    "WEBP",
    "GIF",
    "BMP",
    "TIFF",
    "PPM",
    "TGA",
    "ICO",
    "PCX",
    "JPEG2000",
    "SGI",
    "DDS",
    "ICNS",
    "PDF",
)
SCHEMAS = (
    "create table tiles (zoom_level integer, tile_column integer, tile_row integer, tile_data blob)",
    "create table tiles (zoom_level, tile_column, tile_row, tile_data)",
    "create table tiles (zoom_level text, tile_column text, tile_row text, tile_data text)",
    "create table tiles (zoom_level integer, tile_column integer, tile_row integer)",
    "create table map (zoom_level, tile_column, tile_row, tile_id); create table images (tile_id, tile_data);"
    "create view tiles as select zoom_level, tile_column, tile_row, tile_data from map join images using (tile_id)",
    "create view tiles as with recursive n(i) as (select 0 union all select i + 1 from n) "
    "select i % 3 as zoom_level, 0 as tile_column, 0 as tile_row, x'00' as tile_data from n",
    "create view tiles as select 0 as zoom_level, 0 as tile_column, 0 as tile_row, zeroblob(900000000) as tile_data",
    "create view tiles as select 0 as zoom_level, 0 as tile_column, 0 as tile_row, "
    "replace(hex(zeroblob(100000)), '00', hex(zeroblob(20000))) as tile_data",
    "create view tiles as select * from tiles",
    "create table tiles (zoom_level, tile_column, tile_row, tile_data as (randomblob(zoom_level * 1000000)))",
)


def prepare(folder: Path) -> Prepared:
    """Files of pictures in several formats."""
    from tessearth.imagery.sources.pyramid import TilePyramid

    seeds = [write(SCHEMAS[0], [(z, x, y, picture(form)) for z in range(2) for x in range(2**z) for y in range(2**z)])
             for form in ("PNG", "JPEG", "WEBP")]  # fmt: skip
    target = folder / "case.mbtiles"

    def run(content: bytes) -> None:
        target.write_bytes(content)
        for mode in ("RGB", "L", "RGBA"):
            TilePyramid(target, size=8, km_per_pixel=300.0, tile_pixels=SIDE, mode=mode).tiles(PLACES)  # type: ignore[arg-type]

    return Prepared(seeds, run)


def picture(form: str, side: int = SIDE, mode: str = "RGB") -> bytes:
    """A small picture in a format of Pillow's."""
    import numpy as np
    from PIL import Image

    pixels = (np.arange(side * side * 3) % 251).astype(np.uint8).reshape(side, side, 3)
    sink = io.BytesIO()
    Image.fromarray(pixels).convert(mode).save(sink, form)
    return sink.getvalue()


def write(schema: str, rows: Sequence[tuple[Any, ...]], form: Any = "png") -> bytes:
    """An MBTiles file with any schema; rows that do not fit it are left out."""
    with contextlib.closing(sqlite3.connect(":memory:", isolation_level=None)) as connection:
        connection.executescript("pragma page_size = 1024; create table metadata (name text, value text)")
        with contextlib.suppress(sqlite3.Error):
            connection.execute("insert into metadata values ('format', ?)", (form,))
        with contextlib.suppress(sqlite3.Error):
            connection.executescript(schema)
        for row in rows:
            with contextlib.suppress(sqlite3.Error, OverflowError):
                connection.execute(f"insert into tiles values ({','.join('?' * len(row))})", row)
        return connection.serialize()


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage the file, a picture in it, or say something odd in SQL."""
    style = random.random()
    if style < 0.4:
        return damage_bytes(random, random.choice(seeds), seeds, TOKENS)
    rows: list[tuple[Any, ...]] = [
        (z, x, y, _odd_picture(random)) for z in (0, 1) for x in range(2**z) for y in range(2**z)
    ]
    if style < 0.75:
        return write(SCHEMAS[0], rows)
    odd = [_odd(random, value) for value in random.choice(rows)]
    rows.insert(random.randrange(5), tuple(odd))
    form = random.choice(("png", "pbf", "mvt", None, 5, 1e300, b"\x00\xff", "jpg"))
    return write(random.choice(SCHEMAS), rows, form)


def _odd(random: Random, value: Any) -> Any:
    if random.random() < 0.5:
        return value
    odd = random.choice((*VALUES, 2**62, -3, 25, "0", b"", b"\x00"))
    return json.dumps(odd) if isinstance(odd, list | dict) else odd


def _odd_picture(random: Random) -> bytes:
    """A picture of any format, size and mode, whole or damaged."""
    try:
        side = random.choice((SIDE, SIDE, SIDE, 1, 17))
        made = picture(
            random.choice(PICTURES[:3] if random.random() < 0.7 else PICTURES),
            side,
            random.choice(("RGB", "L", "P", "1", "CMYK", "RGBA")),
        )
    except (OSError, KeyError, ValueError):
        made = picture("PNG")
    return damage_bytes(random, made, (), TOKENS) if random.random() < 0.7 else made


SURFACE = Surface("mbtiles", prepare, mutate)
