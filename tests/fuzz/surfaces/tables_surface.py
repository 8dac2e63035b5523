"""Tables of places: csv, plain and compressed, Parquet and GeoParquet, read for embedding and for labels."""

import gzip
import io
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import VALUES, damage_bytes, damage_tree
from tests.fuzz.surfaces import Prepared, Surface, each

TOKENS = (
    *(
        b",",
        b'"',
        b"\n",
        b"\r\n",
        b"\r",
        b"\x00",
        b"\xef\xbb\xbf",
        b"\xff\xfe",
        b";",
        b"\t",
        b"lat",
        b"lon",
        b"nan",
        b"inf",
    ),
    *(
        b"1e999",
        b"-1e-400",
        b"9" * 400,
        b'"a,b',
        b'""',
        b" 1 ",
        b"0x10",
        b"1_000",
        b"\xf0\x9f\x8c\x8d",
        b"a" * 3000,
        b"PAR1",
    ),
    *(b"," * 500, b"\n" * 300, b"NULL", b"latitude,longitude\n", b"1,2\n", b"\x1f\x8b", b'"geo"', b"lat,lat,lon\n"),
)
GEO = {"version": "1.0.0", "primary_column": "geometry", "columns": {"geometry": {"encoding": "WKB", "crs": None}}}
CRS = (
    None,
    "OGC:CRS84",
    "EPSG:4326",
    {"id": {"authority": "EPSG", "code": 4326}},
    {"id": 5},
    {"name": "x"},
    [],
    3,
    {"id": []},
)
POINTS = (
    *(struct.pack("<BIdd", 1, 1, 2.4, 48.9), struct.pack(">BIdd", 0, 1, 2.4, 48.9)),
    *(struct.pack("<BIddd", 1, 1001, 2.4, 48.9, 0.0), struct.pack("<BIIdd", 1, 0x20000001, 4326, 2.4, 48.9)),
    *(
        struct.pack("<BIdd", 1, 0x20000001, 2.4, 48.9),
        struct.pack("<BIdd", 1, 2, 2.4, 48.9),
        b"",
        b"\x01",
        b"\x01" * 21,
    ),
)


def prepare(folder: Path) -> Prepared:
    """Small tables of every format, and one reader after another."""
    import pyarrow as pa
    import torch

    from tessearth import Embedder
    from tessearth.bulk.tables import ModelChoice, TableJob, encode_table
    from tessearth.storage import read_labelled
    from tests.fuzz.surfaces.models import small_encoder

    torch.set_num_threads(1)
    pa.set_cpu_count(1)
    pa.set_io_thread_count(2)
    text = b'name,lat,lon,value\nParis,48.9,2.4,1\n"Sydney, NSW",-33.9,151.2,2.5\n x , 10 ,20,\n'
    seeds = [text, text.replace(b"\n", b"\r\n"), b"\xef\xbb\xbf" + text, gzip.compress(text, mtime=0)]
    seeds += [
        b"lat,lon\n" + b"1.5,30\n" * 300,
        b'{"lat": 1, "lon": 20, "value": [1]}\n{"lat": 2, "lon": 20, "value": "x"}\n',
    ]
    seeds += [write(names, values, geo) for names, values, geo in _tables()]
    embedder = Embedder(small_encoder(), device="cpu")

    class Opened(ModelChoice):
        def open(self, threads: int | None = None) -> Any:
            return embedder

    def encode(target: Path, form: Any) -> None:
        encode_table(
            TableJob(
                source=str(target), output=str(folder / "out"), format=form, choice=Opened(model="none"), overwrite=True
            )
        )

    def run(content: bytes) -> None:
        target = folder / ("case.csv.gz" if content[:2] == b"\x1f\x8b" else "case.table")
        target.write_bytes(content)
        each(
            lambda: encode(target, "jsonl"),
            lambda: encode(target, "csv"),
            lambda: encode(target, "parquet"),
            lambda: read_labelled(target, "value"),
            lambda: read_labelled(target, "name", "classify"),
        )

    return Prepared(seeds, run)


def _tables() -> list[tuple[list[str], list[Any], Any]]:
    import pyarrow as pa

    value, name = pa.array([1.0, None]), pa.array(["a", "b"])
    lat, lon = pa.array([48.9, -33.9]), pa.array([2.4, 151.2])
    wkb = pa.array([POINTS[0], POINTS[1]], pa.binary())
    struct_points = pa.StructArray.from_arrays([lon, lat], ["x", "y"])
    return [
        (["name", "lat", "lon", "value"], [name, lat, lon, value], None),
        (["lat", "lon", "value"], [lat.cast(pa.float32()), lon.cast(pa.string()), value], None),
        (["geometry", "value", "name"], [wkb, value, name], GEO),
        (["geometry", "value"], [struct_points, value], GEO),
    ]


def write(names: list[str], values: list[Any], geo: Any, **options: Any) -> bytes:
    """A Parquet file with GeoParquet metadata, whatever that says."""
    import pyarrow as pa
    import pyarrow.parquet

    metadata = None if geo is None else {b"geo": geo if isinstance(geo, bytes) else json.dumps(geo).encode()}
    sink = io.BytesIO()
    pa.parquet.write_table(pa.table(values, names=names).replace_schema_metadata(metadata), sink, **options)
    return sink.getvalue()


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage bytes, what is inside the compression, or what a Parquet file says and holds."""
    seed = random.choice(seeds)
    style = random.random()
    if style < 0.25:
        return _odd_parquet(random)
    if seed[:2] == b"\x1f\x8b" and style < 0.6:
        return gzip.compress(damage_bytes(random, gzip.decompress(seed), (), TOKENS), 1, mtime=0)
    return damage_bytes(random, seed, seeds, TOKENS)


def _odd_parquet(random: Random) -> bytes:
    """A well-formed Parquet file whose columns are of odd types, or whose metadata lies."""
    import pyarrow as pa

    names, values, _ = random.choice(_tables())
    names, values = list(names), list(values)
    at = random.randrange(len(names))
    try:
        kind = random.choice(_kinds())
        values[at] = random.choice(
            (lambda: values[at].cast(kind), lambda: pa.nulls(2, kind), lambda: pa.array([None, 1], kind))
        )()
    except (pa.ArrowException, TypeError, ValueError):
        values[at] = pa.array([random.choice(POINTS), damage_bytes(random, random.choice(POINTS))], pa.binary())
    if random.random() < 0.2:
        names[at] = random.choice(("lat", "lon", "", "x", "geometry", "value"))
    if random.random() < 0.1:
        values = [value.slice(0, 0) for value in values]
    geo = None
    if random.random() < 0.6:
        geo = damage_tree(random, {**GEO, "columns": {"geometry": {"crs": random.choice(CRS)}}}, (*VALUES, *CRS))
    if random.random() < 0.05:
        geo = random.choice((b"{", b"\xff", b"[" * 50_000, b"null", b""))
    try:
        return write(names, values, geo, compression=random.choice(("none", "snappy", "zstd")))
    except (pa.ArrowException, ValueError):
        return write(*_tables()[0])


def _kinds() -> list[Any]:
    import pyarrow as pa

    return [
        *(pa.float16(), pa.float32(), pa.int8(), pa.uint64(), pa.bool_(), pa.string(), pa.large_string(), pa.binary()),
        *(pa.date32(), pa.timestamp("ns"), pa.decimal128(20, 3), pa.null(), pa.list_(pa.float64()), pa.large_binary()),
        *(
            pa.dictionary(pa.int8(), pa.string()),
            pa.dictionary(pa.int32(), pa.float64()),
            pa.struct([("x", pa.int8())]),
        ),
        *(pa.binary(21), pa.time32("s"), pa.duration("s"), pa.struct([("x", pa.string()), ("y", pa.list_(pa.int8()))])),
    ]


SURFACE = Surface("tables", prepare, mutate)
