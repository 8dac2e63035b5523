"""Tables of places in, embeddings out, in every format."""

import contextlib
import csv
import gzip
import io
import json
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Any

import geopandas
import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tessearth.bulk.writers import as_column, embedding_schema, open_writer, output_format
from tessearth.errors import OutputError, TableError, TableWarning
from tessearth.sphere import Geometry, Places, read_shapes
from tessearth.storage import ROWS_AT_ONCE, PointBatch, Reading, csv_text, open_points, read_labelled

FRAME = pd.DataFrame(
    {"id": [7, 8, 9], "lat": [48.8566, -1.2921, 64.1], "lon": [2.3522, 36.8219, -179.99], "name": ["Paris", "N, B", ""]}
)
LATLON = FRAME[["lat", "lon"]].to_numpy()


def read_all(path: Path, keep: list[str] | None = None, **reading: object) -> tuple[np.ndarray, pa.Table]:
    with open_points(path, Reading(**reading), keep=keep) as points:
        batches = list(points.batches)
    return np.concatenate([batch.latlon for batch in batches]), pa.Table.from_batches([batch.rows for batch in batches])


def write_csv(path: Path, frame: pd.DataFrame = FRAME) -> Path:
    frame.to_csv(path, index=False)
    return path


def geo_frame(crs: int = 4326) -> geopandas.GeoDataFrame:
    points = geopandas.GeoSeries.from_xy(FRAME["lon"], FRAME["lat"], crs=4326)
    return geopandas.GeoDataFrame({"id": FRAME["id"]}, geometry=points).to_crs(crs)


def test_csv_and_parquet_give_the_same_places_and_columns(tmp_path: Path) -> None:
    FRAME.to_parquet(tmp_path / "a.parquet")
    (tmp_path / "b.csv.gz").write_bytes(gzip.compress(FRAME.to_csv(index=False).encode()))
    (tmp_path / "c.csv").write_bytes(b"\xef\xbb\xbf" + FRAME.to_csv(index=False).encode())
    for path in (write_csv(tmp_path / "a.csv"), tmp_path / "a.parquet", tmp_path / "b.csv.gz", tmp_path / "c.csv"):
        latlon, kept = read_all(path)
        np.testing.assert_allclose(latlon, LATLON)
        assert kept.column_names == ["id", "lat", "lon", "name"]
        assert [str(value) for value in kept["id"].to_pylist()] == ["7", "8", "9"]
        assert kept.schema.field("lat").type == pa.float64()
        assert kept["name"].to_pylist() == ["Paris", "N, B", ""]


def test_columns_can_be_named_and_left_behind(tmp_path: Path) -> None:
    path = write_csv(tmp_path / "a.csv", FRAME.rename(columns={"lat": "breite", "lon": "laenge"}))
    latlon, kept = read_all(path, lat="breite", lon="laenge", keep=["name"])
    np.testing.assert_allclose(latlon, LATLON)
    assert kept.column_names == ["name"]


@pytest.mark.parametrize("encoding", ["WKB", "geoarrow"])
def test_geoparquet_points_are_read_from_the_geometry(tmp_path: Path, encoding: str) -> None:
    geo_frame().to_parquet(tmp_path / "g.parquet", geometry_encoding=encoding)
    latlon, kept = read_all(tmp_path / "g.parquet")
    np.testing.assert_allclose(latlon, LATLON)
    assert kept.column_names == ["id", "geometry"]
    assert b"geo" in kept.schema.metadata


def test_every_dialect_of_a_binary_point_is_read() -> None:
    little = struct.pack("<BIdd", 1, 1, 2.5, 48.5)
    big = struct.pack(">BIdd", 0, 1, 2.5, 48.5)
    iso_z = struct.pack("<BIddd", 1, 1001, 2.5, 48.5, 100.0)
    extended_z = struct.pack("<BIddd", 1, 0x80000001, 2.5, 48.5, 100.0)
    with_srid = struct.pack("<BIIdd", 1, 0x20000001, 4326, 2.5, 48.5)
    column = pa.array([little, big, iso_z, extended_z, with_srid])
    np.testing.assert_array_equal(read_shapes(column, Geometry("geometry")).latlon, [[48.5, 2.5]] * 5)


def test_a_long_csv_is_read_in_pieces_and_rows_are_counted_through(tmp_path: Path) -> None:
    rows = 3 * ROWS_AT_ONCE + 5
    frame = pd.DataFrame({"lat": np.linspace(-80, 80, rows), "lon": np.linspace(-170, 170, rows)})
    latlon, _ = read_all(write_csv(tmp_path / "long.csv", frame))
    np.testing.assert_allclose(latlon, frame.to_numpy(), atol=1e-12)
    frame.loc[rows - 2, "lat"] = 99.0
    with pytest.raises(TableError, match=f"row {rows - 1} is"):
        read_all(write_csv(tmp_path / "long.csv", frame))


def make_bad(folder: Path, name: str) -> Path:
    path = folder / "points.csv"
    contents = {
        "empty": "",
        "only a header": "lat,lon\n",
        "text": "lat,lon\n48,2\nfourty,3\n",
        "decimal comma": 'lat,lon\n"48,5",2\n',
        "missing value": "lat,lon\n48,2\n,3\n",
        "missing column": "a,b\n1,2\n",
        "two columns of one name": "lat,lon,lat\n1,2,3\n",
        "row too long": "lat,lon\n1,30\n1,2,3\n",
        "latitude out of range": "lat,lon\n48,2\n91,200\n",
        "swapped": "lat,lon\n139.7,35.7\n",
        "not a number": "lat,lon\nnan,3\n",
        "infinite": "lat,lon\n1,inf\n",
    }
    if name in contents:
        path.write_text(contents[name])
    elif name == "binary":
        path.write_bytes(bytes(range(256)) * 4)
    elif name == "cut gzip":
        path.write_bytes(gzip.compress(pd.concat([FRAME] * 50).to_csv(index=False).encode())[:100])
    elif name == "cut parquet":
        FRAME.to_parquet(path)
        path.write_bytes(path.read_bytes()[:-100])
    elif name == "text in parquet":
        FRAME.assign(lat=["48", "x", "3"]).to_parquet(path)
    elif name == "null in parquet":
        FRAME.assign(lat=[48, None, 3]).to_parquet(path)
    elif name == "no rows in parquet":
        FRAME[:0].to_parquet(path)
    return path


BAD = {
    "no file": "there is no such file",
    "empty": "the file is empty",
    "only a header": "the table holds no rows",
    "text": "row 2: column 'lat' holds 'fourty', not a number",
    "decimal comma": "row 1: column 'lat' holds '48,5', not a number; to read these add --coordinates comma",
    "missing value": "row 2: column 'lat' is empty",
    "missing column": "no column of a, b reads as lat",
    "two columns of one name": "two columns are named 'lat'",
    "row too long": "row 2 has 3 fields, the header has 2",
    "latitude out of range": "row 2 is (91, 200): not (lat, lon) in degrees; latitude lies between -90 and 90",
    "swapped": "row 1 is (139.7, 35.7): not (lat, lon) in degrees; this looks like (lon, lat): swap the two",
    "not a number": "row 1 is (nan, 3)",
    "infinite": "row 1 is (1, inf)",
    "binary": "neither text nor a table format that can be read",
    "cut gzip": "cannot be read: Truncated compressed stream",
    "cut parquet": "cannot be read: Parquet magic bytes not found",
    "text in parquet": "row 2: column 'lat' holds 'x', not a number",
    "null in parquet": "row 2: column 'lat' is empty",
    "no rows in parquet": "the table holds no rows",
}


@pytest.mark.parametrize("name", BAD)
def test_a_bad_table_is_named_in_one_line(tmp_path: Path, name: str) -> None:
    path = make_bad(tmp_path, name)
    with pytest.raises(TableError) as caught:
        read_all(path)
    assert BAD[name] in str(caught.value)
    assert str(caught.value).startswith(f"{path}: ")
    assert "\n" not in str(caught.value)


EMBEDDINGS = np.random.default_rng(0).normal(size=(3, 5)).astype(np.float32)
SCHEMA = embedding_schema(5, "float32")


def write_all(tmp_path: Path, name: str, source: Path | None = None) -> Path:
    target = tmp_path / name
    with (
        open_points(str(source or write_csv(tmp_path / "in.csv"))) as points,
        open_writer(str(target), output_format(name), points, SCHEMA) as writer,
    ):
        for batch in points.batches:
            for half in (slice(0, 2), slice(2, 3)):  # two writes, so that appending is exercised
                lines = batch.lines and batch.lines[half]
                part = PointBatch(batch.rows[half], Places(batch.latlon[half]), lines)
                writer.write(part, as_column(EMBEDDINGS[half], part.latlon, SCHEMA))
    return target


def test_npy_and_npz_read_back(tmp_path: Path) -> None:
    np.testing.assert_array_equal(np.load(write_all(tmp_path, "o.npy")), EMBEDDINGS)
    assert np.load(tmp_path / "o.npy", mmap_mode="r").shape == (3, 5)
    archive = np.load(write_all(tmp_path, "o.npz"))
    np.testing.assert_array_equal(archive["embedding"], EMBEDDINGS)
    np.testing.assert_array_equal(np.stack([archive["lat"], archive["lon"]], axis=1), LATLON)


def test_parquet_reads_back_with_its_columns(tmp_path: Path) -> None:
    table = pq.read_table(write_all(tmp_path, "o.parquet"))
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 5)
    assert table.column_names == ["id", "lat", "lon", "name", "embedding"]
    np.testing.assert_array_equal(np.stack(table["embedding"].to_numpy()), EMBEDDINGS)
    assert pd.read_parquet(tmp_path / "o.parquet")["name"].tolist() == ["Paris", "N, B", ""]


def test_geoparquet_stays_geoparquet(tmp_path: Path) -> None:
    geo_frame().to_parquet(tmp_path / "g.parquet")
    frame = geopandas.read_parquet(write_all(tmp_path, "o.parquet", tmp_path / "g.parquet"))
    assert frame.crs == 4326
    np.testing.assert_array_equal(np.stack(frame["embedding"].to_list()), EMBEDDINGS)


def test_json_lines_read_back_to_the_last_bit(tmp_path: Path) -> None:
    rows = [json.loads(line) for line in io.StringIO(write_all(tmp_path, "o.jsonl").read_text())]
    assert [row["lat"] for row in rows] == FRAME["lat"].tolist()
    np.testing.assert_array_equal(np.array([row["embedding"] for row in rows], dtype=np.float32), EMBEDDINGS)


@pytest.mark.parametrize("name", ["o.npy", "o.npz", "o.parquet", "o.jsonl"])
def test_a_failure_leaves_what_stood_there_and_nothing_else(tmp_path: Path, name: str) -> None:
    source, target = write_csv(tmp_path / "in.csv"), tmp_path / name
    target.write_text("before")
    with (
        pytest.raises(TableError, match="at the very end"),
        open_points(str(source)) as points,
        open_writer(str(target), output_format(name), points, SCHEMA) as writer,
    ):
        for batch in points.batches:
            writer.write(batch, as_column(EMBEDDINGS, batch.latlon, SCHEMA))
        raise TableError("at the very end")
    assert target.read_text() == "before"
    assert sorted(path.name for path in tmp_path.iterdir()) == sorted(["in.csv", name])


def test_an_unknown_output_format_is_named() -> None:
    with pytest.raises(TableError, match=r"the suffix of x\.doc names no output format"):
        output_format("x.doc")
    with pytest.raises(TableError, match="there is no output format 'doc'"):
        output_format("x", "doc")
    with pytest.raises(TableError, match="standard output has no suffix"):
        output_format("-")


def test_a_full_device_is_named(tmp_path: Path) -> None:
    with (
        pytest.raises(OutputError, match="cannot write /dev/full: no space left on device"),
        open_points(str(write_csv(tmp_path / "in.csv"))) as points,
        open_writer("/dev/full", "jsonl", points, SCHEMA) as writer,
    ):
        for batch in points.batches:
            writer.write(batch, as_column(EMBEDDINGS, batch.latlon, SCHEMA))


SEPARATORS = [",", ";", "\t", "|"]
cells = st.text(alphabet='a"\n\r,;|\t é', max_size=6)


@given(
    rows=st.lists(st.tuples(cells, cells), min_size=1, max_size=12),
    separator=st.sampled_from(SEPARATORS),
    quoting=st.sampled_from([csv.QUOTE_MINIMAL, csv.QUOTE_ALL]),
    end=st.sampled_from(["\n", "\r\n"]),
    encoding=st.sampled_from(["utf-8", "cp1252"]),
    block=st.integers(1, 40),
)
def test_a_csv_is_cut_as_the_standard_reader_cuts_it_wherever_blocks_end(
    rows: list[tuple[str, str]], separator: str, quoting: Any, end: str, encoding: str, block: int
) -> None:
    text = io.StringIO()
    writer = csv.writer(text, delimiter=separator, quoting=quoting, lineterminator="\r\n")
    lines = []
    for row in [("n", "one", "two"), *((str(i), *row) for i, row in enumerate(rows))]:
        writer.writerow(row)
        lines.append(text.getvalue()[:-2].encode(encoding))
        text.seek(0)
        text.truncate()
    content = "".join(line.decode(encoding) + end for line in lines).encode(encoding)

    @contextlib.contextmanager
    def opened() -> Iterator[IO[bytes]]:
        yield io.BytesIO(content)

    with pytest.MonkeyPatch.context() as patched:
        file = csv_text.open_csv(opened, separator, encoding)
        patched.setattr(csv_text, "BLOCK_BYTES", block)
        blocks = list(file.blocks(["one", "two"]))
    assert [line for block in blocks for line in block.lines.cut()] == lines[1:]
    assert [tuple(row.values()) for block in blocks for row in block.rows.to_pylist()] == rows


def test_a_guessed_encoding_is_said(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_bytes("lat,lon,name\n48.5,2.5,Orl\u00e9ans\n".encode("cp1252"))
    with pytest.warns(TableWarning, match="is not UTF-8 and is read as cp1252; --encoding names another"):
        _, kept = read_all(path)
    assert kept["name"].to_pylist() == ["Orl\u00e9ans"]
    read_all(path, encoding="latin-1")  # said by the reader: no warning, which would be an error here


def test_numbers_with_decimal_commas_are_never_taken_for_classes(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("lat;lon;yield\n48,5;2,5;2,4\n49,5;3,5;-1,25\n")
    reading = Reading(coordinates="comma")
    assert read_labelled(path, "yield", reading=reading).target.tolist() == [2.4, -1.25]
    assert read_labelled(path, "yield", "classify", reading).classes == ("-1,25", "2,4")
    path.write_text("lat;lon;yield\n48.5;2.5;2,4\n49.5;3.5;7\n")
    with pytest.raises(TableError, match="holds '2,4': add --coordinates comma to read numbers, or --kind classify"):
        read_labelled(path, "yield")
