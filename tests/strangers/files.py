"""Tables of other formats as strangers write them: each a function that writes the file, and how it is read."""

import datetime
import json
import shutil
from collections.abc import Callable, Mapping
from decimal import Decimal
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

import geopandas
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pyogrio
import shapely

from tests.strangers.texts import LAT, LATLON, LON, NAMES, ROWS, again

LABEL = ["south" if lat < 0 else "north" for lat in LAT]
PLACES = {"lat": LAT, "lon": LON, "label": LABEL}


class File(NamedTuple):
    """A table that is no csv."""

    name: str
    path: str
    write: Callable[[Path], Any]
    own: str | None
    """The suffix of the same kind; None where it is not written."""
    reading: Mapping[str, Any] = MappingProxyType({})
    latlon: Any = LATLON
    is_vector: bool = False
    atol: float = 1e-5
    label: str | None = "label"


UTC = datetime.UTC
DAY = datetime.datetime(2024, 2, 29, 12, 30, 15, 123456)
TYPES: dict[str, pa.Array] = {
    "decimal": pa.array(again(Decimal("1.10"), Decimal("-12345678901234567890.12"), None), pa.decimal128(38, 2)),
    "list": pa.array(again([1, 2], [], None, [3]), pa.list_(pa.int32())),
    "text list": pa.array(again(["a", 'b"'], None, [None]), pa.list_(pa.string())),
    "struct": pa.array(again({"a": 1, "b": "x"}, None), pa.struct([("a", pa.int8()), ("b", pa.string())])),
    "dictionary": pa.array(again("red", "blue", None)).dictionary_encode(),
    "zone": pa.array(again(DAY, None), pa.timestamp("us", "Europe/Paris")),
    "utc": pa.array(again(DAY.replace(microsecond=123000)), pa.timestamp("ms", "UTC")),
    "ns": pa.array(again(1_709_208_000_123_456_789, None), pa.timestamp("ns")),
    "day": pa.array(again(DAY.date(), None), pa.date32()),
    "time": pa.array(again(DAY.time(), None), pa.time64("us")),
    "duration": pa.array(again(90, None), pa.duration("s")),
    "large": pa.array(again("ab", None, ""), pa.large_string()),
    "view": pa.array(again("ab", None, ""), pa.string_view()),
    "binary": pa.array(again(b"\x00\xff", None, b""), pa.binary()),
    "nothing": pa.nulls(ROWS),
    "fixed list": pa.array(again([1.5, 2.0], None), pa.list_(pa.float32(), 2)),
    "fixed bytes": pa.array(again(b"ab", None), pa.binary(2)),
    "seconds": pa.array(again(1, None), pa.timestamp("s")),
    "day in ms": pa.array(again(86_400_000, None), pa.date64()),
    "time in s": pa.array(again(1, None), pa.time32("s")),
    "long decimal": pa.array(again(Decimal("1.5"), None), pa.decimal256(60, 2)),
    "large list": pa.array(again([1], None), pa.large_list(pa.int64())),
    "infinite": pa.array(again(float("inf"), -1.5)),
    "bool": pa.array(again(True, False, None)),
    "int8": pa.array(again(-128, 127, None), pa.int8()),
    "uint64": pa.array(again(2**64 - 1, 0), pa.uint64()),
    "int64": pa.array(again(2**63 - 1, -(2**63), None), pa.int64()),
    "float16": pa.array(np.array(again(0.1, 65504.0), np.float16)),
    "float32": pa.array(again(0.1, None), pa.float32()),
    "float64": pa.array(again(0.1, None, 1e300, float("nan"))),
}
MEMBERS = {
    "plain types": ("bool", "int8", "int64", "float32", "dictionary", "large", "day"),
    "times": ("zone", "utc", "ns", "day", "time", "duration"),
    "big numbers": ("decimal", "uint64", "float16", "float64"),
    "nested": ("list", "text list", "struct"),
    "rare types": ("fixed list", "fixed bytes", "seconds", "day in ms", "time in s", "long decimal", "large list"),
    "infinite numbers": ("infinite",),
    "bytes and nothing": ("binary", "nothing", "view"),
}


def typed(*names: str) -> pa.Table:
    return pa.table({name: TYPES[name] for name in names} | {key: pa.array(value) for key, value in PLACES.items()})


def parquet(kind: str) -> File:
    def write(path: Path) -> None:
        pa.parquet.write_table(typed(*MEMBERS[kind]), path, row_group_size=7)

    return File(f"Parquet: {kind}", "t.parquet", write, ".parquet")


def feather(name: str, compression: str) -> File:
    def write(path: Path) -> None:
        pa.feather.write_feather(typed(*MEMBERS[name]), path, compression=compression)

    return File(f"Feather, {compression}: {name}", "t.feather", write, ".feather")


def objects(name: str, rows: list[dict[str, Any]], **more: Any) -> File:
    def write(path: Path) -> None:
        path.write_text("".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))

    return File(f"JSON lines: {name}", "t.jsonl", write, ".jsonl", **more)


def rows_with(**more: Any) -> list[dict[str, Any]]:
    columns = {**more, **PLACES}
    return [dict(zip(columns, row, strict=True)) for row in zip(*columns.values(), strict=True)]


def excel(path: Path) -> None:
    frame = pd.DataFrame({"id": [f"{i:05d}" for i in range(ROWS)], "day": again(DAY.replace(microsecond=0)),
                          "count": again(3, 4), "share": again(0.25, 1e-9), "name": NAMES, **PLACES})  # fmt: skip
    frame.to_excel(path, index=False)


POINTS = geopandas.GeoSeries.from_xy(LON, LAT, crs=4326)
NEAR = geopandas.GeoSeries.from_xy(np.linspace(-5, 1, ROWS), np.linspace(50, 58, ROWS), crs=4326)
NEAR_LATLON = np.stack((NEAR.y, NEAR.x), axis=-1)
SQUARES = geopandas.GeoSeries([shapely.box(o, a, o + 2, a + 1) for a, o in LATLON], crs=4326)
LINES = geopandas.GeoSeries([shapely.LineString([(o, a), (o + 1, a), (o + 1, a + 1)]) for a, o in LATLON], crs=4326)
HOLES = geopandas.GeoSeries([one.difference(one.centroid.buffer(0.3)) for one in SQUARES], crs=4326)
MULTI = geopandas.GeoSeries([shapely.MultiPoint([(o, a), (o, a + 1), (o + 0.1, a + 0.2)]) for a, o in LATLON], crs=4326)
GAPS = geopandas.GeoSeries([None if i == 3 else shapely.Point() if i == 5 else p for i, p in enumerate(POINTS)],
                           crs=4326)  # fmt: skip
GAP_LATLON = np.where(np.isin(np.arange(ROWS), (3, 5))[:, None], np.nan, LATLON)


def latlon_of(shapes: Any) -> Any:
    return np.stack((shapely.get_y(shapes), shapely.get_x(shapes)), axis=-1)


def frame(geometry: geopandas.GeoSeries, **more: Any) -> geopandas.GeoDataFrame:
    columns = {"code": [f"{i:05d}" for i in range(ROWS)], "name": NAMES, "count": again(1, 2**40), "label": LABEL,
               "x": again(0.5), "y": again(99.5), **more}  # fmt: skip
    return geopandas.GeoDataFrame(columns, geometry=geometry)


def vector(name: str, suffix: str, made: geopandas.GeoDataFrame, *, own: str | None = "", **more: Any) -> File:
    def write(path: Path) -> None:
        if suffix == ".parquet":
            made.to_parquet(path)
        else:
            options = {".shp": {"encoding": "cp1252"}, ".fgb": {"SPATIAL_INDEX": "NO"}}.get(suffix, {})
            pyogrio.write_dataframe(made, path, **options)

    return File(name, f"t{suffix}", write, suffix if own == "" else own, is_vector=True, **more)


def features(name: str, **properties: Any) -> File:
    keys = list(properties)
    rows = [
        {"type": "Feature", "properties": dict(zip(keys, row, strict=True)) | {"label": LABEL[i]},
         "geometry": {"type": "Point", "coordinates": [LON[i], LAT[i]]}}
        for i, row in enumerate(zip(*properties.values(), strict=True))
    ]  # fmt: skip
    text = json.dumps({"type": "FeatureCollection", "features": rows}, ensure_ascii=False)
    return File(f"GeoJSON: {name}", "t.geojson", lambda path: path.write_text(text), ".geojson", is_vector=True)


def two_layers(path: Path) -> None:
    file = str(path).partition("#")[0]
    pyogrio.write_dataframe(frame(NEAR), file, layer="near")
    pyogrio.write_dataframe(frame(POINTS), file, layer="far", append=True)


def zipped(path: Path) -> None:
    folder = path.with_suffix(".folder")
    folder.mkdir()
    pyogrio.write_dataframe(frame(POINTS), folder / "t.shp")
    shutil.make_archive(str(path.with_suffix("")), "zip", folder)


WESTERN = again("Zürich", "São Paulo", "Köln")
FILES = [
    *map(parquet, MEMBERS),
    feather("plain types", "uncompressed"),
    feather("times", "lz4"),
    feather("nested", "zstd"),
    objects("plain", rows_with(id=[f"{i:04d}" for i in range(ROWS)], name=NAMES)),
    objects("nested", rows_with(tags=again(["a", 1], None), more=again({"deep": {"er": [1, None]}}, None))),
    objects("mixed types", rows_with(odd=again(1, "1", 1.5, None, True), zero=again(0, 0.5))),
    objects("big numbers", rows_with(big=again(2**63 - 1, 2**53 + 1), huge=again(2**70, "x"))),
    objects("missing keys", [{"id": i, **row} if i % 2 else row for i, row in enumerate(rows_with())]),
    File("JSON in one list", "t.json", lambda path: path.write_text(json.dumps(rows_with(a=again("1")))), ".jsonl"),
    File("Excel", "t.xlsx", excel, ".xlsx"),
    vector("GeoPackage", ".gpkg", frame(POINTS, day=again(DAY.replace(microsecond=0)))),
    vector("FlatGeobuf", ".fgb", frame(POINTS)),
    vector("Shapefile in cp1252", ".shp", frame(POINTS, name=WESTERN), own=None),
    vector("GeoParquet in Mercator", ".parquet", frame(POINTS.to_crs(3857))),
    vector("GeoParquet in a UTM zone", ".parquet", frame(NEAR.to_crs(32630)), latlon=NEAR_LATLON),
    vector("GeoPackage of Britain", ".gpkg", frame(NEAR.to_crs(27700)), latlon=NEAR_LATLON, atol=1e-4),
    vector("polygons, by a point inside", ".gpkg", frame(HOLES), latlon=latlon_of(shapely.point_on_surface(HOLES))),
    vector("polygons, by the centroid", ".fgb", frame(HOLES), latlon=latlon_of(shapely.centroid(HOLES)),
           reading={"geometry": "centroid"}),
    vector("lines", ".gpkg", frame(LINES), latlon=latlon_of(shapely.point_on_surface(LINES))),
    vector("multipoints", ".geojson", frame(MULTI), latlon=latlon_of(shapely.point_on_surface(MULTI))),
    vector("empty and missing shapes", ".gpkg", frame(GAPS), latlon=GAP_LATLON, reading={"on_bad": "null"}),
    vector("empty and missing shapes in Parquet", ".parquet", frame(GAPS), latlon=GAP_LATLON,
           reading={"on_bad": "null"}),
    features("dates", day=again("2024-02-29", "29/02/2024"), at=again("2024-02-29T12:00:00Z", "x")),
    features("nested", tags=again({"a": [1, 2]}, None), some=again([1, 2], [3]), empty=again(None)),
    features("text that looks like numbers", zip=again("01001", "00501"), big=again(2**53 + 1, 1)),
    File("one of two layers", "t.gpkg#far", two_layers, ".gpkg", is_vector=True),
    File("a zipped Shapefile", "t.zip", zipped, None, is_vector=True),
]  # fmt: skip
