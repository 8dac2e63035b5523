"""What holds for every table: nothing is overwritten or removed, bad rows are named before any work, runs resume."""

import csv
import datetime
import gzip
import io
import json
import sys
import zipfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import openpyxl
import pandas as pd
import pyarrow.feather
import pyarrow.parquet
import pytest
import shapely
import torch

from tessearth import Embedder
from tessearth.bulk import ModelChoice, TableJob, encode_table, output_format, tables
from tessearth.errors import OutputError, TableError, TableWarning, TessearthError
from tessearth.sphere import Shape
from tessearth.storage import Reading, open_points, read_labelled
from tessearth.training import finetune, predict_table
from tests.conftest import tiny_encoder
from tests.strangers.texts import LATLON, Text, lines_of, table

pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.TableWarning")

EMBEDDER = Embedder(tiny_encoder(dtype=torch.float32), device="cpu")
DIM = EMBEDDER.dim
KINDS = (".csv", ".tsv", ".jsonl", ".parquet", ".arrow", ".gpkg", ".geojson", ".fgb", ".xlsx", ".npy", ".npz")


@pytest.fixture(autouse=True)
def opened(monkeypatch: pytest.MonkeyPatch) -> list[ModelChoice]:
    """The models that are opened, which are all the same one."""
    choices: list[ModelChoice] = []
    monkeypatch.setattr(ModelChoice, "open", lambda choice, threads=None: (choices.append(choice), EMBEDDER)[1])
    tables._opened.cache_clear()
    return choices


def encode(source: Path, output: Path, workers: int | None = None, keep: Any = None, **reading: Any) -> Any:
    overwrite = reading.pop("overwrite", False)
    job = TableJob(source=str(source), output=str(output), format=output_format(str(output)), keep=keep,
                   choice=ModelChoice(model="shared"), reading=Reading(**reading), overwrite=overwrite)  # fmt: skip
    return encode_table(job, workers=workers)


BAD = {2: ("", "1"), 5: ("x", "1"), 9: ("91", "1"), 11: ("1", "361"), 30: ("nan", "1"), 59: ("1", "inf")}


@pytest.fixture
def dirty(tmp_path: Path) -> Path:
    """A csv with six bad rows."""
    cells = {name: list(map(str, column)) for name, column in table().items()}
    for row, (lat, lon) in BAD.items():
        cells["lat"][row], cells["lon"][row] = lat, lon
    path = tmp_path / "dirty.csv"
    path.write_bytes(Text("dirty", lines_of(cells)).content())
    return path


def rows_of(path: Path) -> list[list[str]]:
    return list(csv.reader(io.StringIO(path.read_text(), newline="")))


def test_bad_rows_are_counted_and_named_with_the_option_to_add(dirty: Path, opened: list[ModelChoice]) -> None:
    with pytest.raises(TableError) as caught:
        encode(dirty, dirty.with_name("o.csv"), bad_file=str(dirty.with_name("bad.csv")))
    said = str(caught.value)
    assert "6 of 60 rows have no usable place: row 3: column 'lat' is empty; row 6: column 'lat' holds 'x'" in said
    assert "and 1 more; to go on without such rows add --bad-rows skip, or null to keep them" in said
    listed = rows_of(dirty.with_name("bad.csv"))
    assert [row[0] for row in listed] == ["row", *(str(row + 1) for row in BAD)]
    assert [tuple(row[2:]) for row in listed[1:]] == list(BAD.values())
    assert not opened
    assert not dirty.with_name("o.csv").exists()


def test_a_list_of_bad_rows_replaces_only_an_older_list(dirty: Path) -> None:
    bad = dirty.with_name("bad.csv")
    for _ in range(2):
        encode(dirty, dirty.with_name("o.csv"), on_bad="skip", bad_file=str(bad), overwrite=True)
    before = dirty.read_bytes()
    with pytest.raises(OutputError, match=r"dirty\.csv exists already and is no list of bad rows"):
        encode(dirty, dirty.with_name("o.csv"), on_bad="skip", bad_file=str(dirty), overwrite=True)
    assert dirty.read_bytes() == before


def embeddings_of(path: Path) -> list[Any]:
    """A row of numbers or None for each row, by the library of each format."""
    if path.suffix in (".npy", ".npz"):
        found = np.load(path)
        return [
            None if np.isnan(row).all() else row for row in (found if path.suffix == ".npy" else found["embedding"])
        ]
    if path.suffix == ".jsonl":
        return [json.loads(line)["embedding"] for line in path.read_text().splitlines()]
    if path.suffix == ".parquet":
        return list(pyarrow.parquet.read_table(path)["embedding"].to_pylist())
    if path.suffix == ".arrow":
        return list(pyarrow.feather.read_table(path)["embedding"].to_pylist())
    if path.suffix in (".csv", ".tsv"):
        frame = pd.read_csv(path, sep="," if path.suffix == ".csv" else "\t")
    elif path.suffix == ".xlsx":
        head, *rows = openpyxl.load_workbook(path).worksheets[0].iter_rows(values_only=True)
        frame = pd.DataFrame(rows, columns=head)
    else:
        frame = geopandas.read_file(path)
    numbers = frame[[f"embedding_{i}" for i in range(DIM)]].astype(float).to_numpy()
    return [None if np.isnan(row).all() else row for row in numbers]


@pytest.mark.parametrize("suffix", KINDS)
@pytest.mark.parametrize("workers", [None, 1])
def test_rows_without_a_place_are_left_out_or_kept_empty(dirty: Path, suffix: str, workers: int | None) -> None:
    good = [row for row in range(len(LATLON)) if row not in BAD]
    wanted = EMBEDDER.embed(LATLON[good])
    skipped, kept = dirty.with_name(f"skip{suffix}"), dirty.with_name(f"null{suffix}")
    assert encode(dirty, skipped, workers, on_bad="skip")[::2] == (54, 6)
    np.testing.assert_allclose(np.array(embeddings_of(skipped), float), wanted, atol=1e-5)
    assert encode(dirty, kept, workers, on_bad="null")[::2] == (60, 6)
    found = embeddings_of(kept)
    assert all((found[row] is None) == (row in BAD) for row in range(60))
    np.testing.assert_allclose(np.array([found[row] for row in good], float), wanted, atol=1e-5)
    if suffix == ".csv":
        lines = dirty.read_bytes().splitlines()
        ends = kept.read_bytes().splitlines()
        assert all(end.startswith(line + b",") for line, end in zip(lines, ends, strict=True))
        assert [row[0] for row in rows_of(skipped)[1:]] == [f"{row:05d}" for row in good]


def test_labels_are_read_from_dirty_tables_too(dirty: Path) -> None:
    assert len(read_labelled(dirty, "label", reading=Reading(on_bad="skip")).target) == 54
    with pytest.raises(TableError, match="6 of 60 rows"):
        read_labelled(dirty, "label")


@pytest.mark.parametrize("suffix", KINDS)
def test_nothing_is_overwritten_unless_asked_to(dirty: Path, suffix: str, opened: list[ModelChoice]) -> None:
    output = dirty.with_name(f"o{suffix}")
    output.write_text("mine")
    with pytest.raises(OutputError, match="exists already: add --overwrite"):
        encode(dirty, output, on_bad="skip")
    assert output.read_text() == "mine"
    assert not opened
    encode(dirty, output, on_bad="skip", overwrite=True)
    assert len(embeddings_of(output)) == 54


def long_table(path: Path, rows: int = 50_000, end: bytes = b"") -> Path:
    rng = np.random.default_rng(0)
    latlon = np.round(rng.uniform(-80, 80, (rows, 2)), 3)
    lines = b"".join(b'%05d,"a, ""b""",%r,%r\n' % (i, a, o) for i, (a, o) in enumerate(latlon.tolist()))
    path.write_bytes(b"id,note,lat,lon\n" + lines + end)
    return path


def test_a_bad_row_at_the_end_is_found_before_any_work(tmp_path: Path, opened: list[ModelChoice]) -> None:
    source = long_table(tmp_path / "t.csv", end=b"x,y,,3\n")
    for workers in (None, 1):
        with pytest.raises(TableError, match="row 50001: column 'lat' is empty"):
            encode(source, tmp_path / "o.parquet", workers)
    assert not opened
    assert [path.name for path in tmp_path.iterdir()] == ["t.csv"]


def fill_up(monkeypatch: pytest.MonkeyPatch, limit: int) -> None:
    """After some batches the disk is full."""
    done: list[int] = []
    real = tables._embed

    def embed(task: Any) -> Any:
        done.append(1)
        if len(done) > limit:
            raise OutputError("the disk is full")
        return real(task)

    monkeypatch.setattr(tables, "_embed", embed)


@pytest.mark.parametrize("suffix", [".csv", ".tsv", ".parquet", ".arrow", ".gpkg", ".npy"])
def test_a_resumed_run_gives_the_same_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, suffix: str) -> None:
    monkeypatch.setattr("tessearth.storage.formats.ROWS_AT_ONCE", 500)
    source = long_table(tmp_path / "t.csv", 2_000, end=b"x,y,,3\n")
    whole, resumed = tmp_path / f"whole{suffix}", tmp_path / f"resumed{suffix}"
    encode(source, whole, 1, on_bad="null")
    with monkeypatch.context() as patched, pytest.raises(OutputError, match="the disk is full"):
        fill_up(patched, 3)
        encode(source, resumed, 1, on_bad="null")
    encode(source, resumed, 1, on_bad="null")
    assert resumed.read_bytes() == whole.read_bytes()
    assert not list(tmp_path.glob("*.parts"))


def test_unfinished_work_outlives_a_row_that_went_bad(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("tessearth.storage.formats.ROWS_AT_ONCE", 500)
    source, output = long_table(tmp_path / "t.csv", 2_000), tmp_path / "o.parquet"
    with monkeypatch.context() as patched, pytest.raises(OutputError, match="the disk is full"):
        fill_up(patched, 2)
        encode(source, output, 1)
    before = {path.name: path.read_bytes() for path in (tmp_path / "o.parquet.parts").iterdir()}
    whole = source.read_bytes()
    source.write_bytes(whole + b"x,y,,3\n")
    with pytest.raises(TableError, match="row 2001: column 'lat' is empty"):
        encode(source, output, 1)
    assert {path.name: path.read_bytes() for path in (tmp_path / "o.parquet.parts").iterdir()} == before
    source.write_bytes(whole)
    encode(source, output, 1)
    assert pyarrow.parquet.read_metadata(output).num_rows == 2_000


def _zip(path: Path, *names: str) -> None:
    with zipfile.ZipFile(path, "w") as archive:
        for name in names:
            archive.writestr(name, "x")


def _books(path: Path) -> None:
    book = openpyxl.Workbook()
    book.active.append(["lat", "lon"])
    second = book.create_sheet("second")
    second.append(["lat", "lon"])
    second.append([48, 2])
    book.save(path)


REFUSED: dict[str, tuple[str, bytes | Callable[[Path], Any], str]] = {
    "a PDF": ("t.pdf", b"%PDF-1.7 ...", "this is a PDF document, not a table"),
    "a page": ("t.csv", b"<!DOCTYPE html><html>", "this is a web page"),
    "old Excel": ("t.xls", b"\xd0\xcf\x11\xe0\xa1\xb1", r"Excel file of the old kind \(.xls\): save it as .xlsx"),
    "a Word document": ("t.docx", lambda path: _zip(path, "word/document.xml"), "this is a Word document"),
    "an archive": ("t.zip", lambda path: _zip(path, "a.csv"), "this is a zip archive .a.csv.: unpack it first"),
    "a picture": ("t.png", b"\x89PNG\r\n\x1a\n....", "this is a picture"),
    "a pickle": ("t.pkl", b"\x80\x04\x95\x00\x00", "this is a Python pickle"),
    "a numpy array": ("t.npy", lambda path: np.save(path, np.ones(3)), "this is a numpy array"),
    "JSON of another shape": ("t.json", b'{\n "lat": [1, 2]\n}', "line 1 is no JSON object"),
    "a list in JSON": ("t.json", b"[1, 2]", "holds 1 where an object with named values belongs"),
    "text without columns": ("t.txt", b"hello world\nthis is a letter\n", "no column of hello world reads as lat"),
    "latin-1 as UTF-8": (
        "t.csv",
        "lat,lon,n\n1,20,ü\n".encode("cp1252"),
        "name its encoding, such as cp1252 .*add --encoding latin-1",
    ),
    "two encodings": ("t.csv", "lat,lon,n\n1,20,ü\n".encode() + b"1,20,\xfc\n", "not all of the text is utf-8: name"),
    "a title": ("t.csv", b"Places of 2024\n\nlat,lon\n1,20\n", "the first line is one column; if it is no header"),
    "names of their own": ("t.csv", b"breite,laenge\n1,20\n", "reads as lat: .*; add --lat COLUMN --lon COLUMN"),
    "UTF-16 without a mark": ("t.csv", "lat,lon\n1,2\n".encode("utf-16-le"), "add --encoding utf-16-le"),
    "pairs": (
        "t.csv",
        b'id,where\n1,"48.85, 2.35"\n',
        "column 'where' holds pairs .*add --lat where --coordinates lat,lon",
    ),
    "text points": (
        "t.csv",
        b"id,wkt\n1,POINT (2 48)\n",
        "column 'wkt' holds shapes as text; to read these add --lat wkt --coordinates lon,lat",
    ),
    "text shapes": (
        "t.csv",
        b'id,wkt\n1,"POLYGON ((1 1, 2 2, 1 2, 1 1))"\n',
        "column 'wkt' holds shapes as text; to read these add --lat wkt --coordinates wkt",
    ),
    "a bare carriage return": (
        "t.csv",
        b"lat,lon,n\n1,20,x\n3,4,y\rz\n5,6,z\n",
        "row 2 has a quote, or the line end of an old",
    ),
    "an open quote": ("t.csv", b'lat,lon,n\n1,20,"x\n3,4,y\n', "row 1 .*quote"),
    "letters apart in capitals": ("t.csv", b"lat,lon,a,A\n1,20,3,4\n", "differ in capitals only"),
}


DIRTY = """n;gps_lat;gps_lon;value
Zürich;47,37;8,55;1,5
;;;
Bern;46,95;7,45;2,5
nowhere;99,5;7,45;2,5
"""


def test_one_error_names_every_option_that_a_dirty_table_needs(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_bytes(DIRTY.encode() * 3000 + b"\xfc;1;2;3\n")
    with pytest.raises(TableError) as caught, open_points(tmp_path / "t.csv"):
        pass
    said = str(caught.value).partition("to read these add ")[2]
    assert said == "--encoding latin-1 --lat gps_lat --lon gps_lon --coordinates comma --bad-rows skip"
    given = Reading(encoding="latin-1", lat="gps_lat", lon="gps_lon", coordinates="comma", on_bad="skip")
    with open_points(tmp_path / "t.csv", given) as points:
        assert next(points.batches).latlon[:2].tolist() == [[47.37, 8.55], [46.95, 7.45]]
    (tmp_path / "t.csv").write_bytes(DIRTY.encode("cp1252"))
    with pytest.warns(TableWarning, match="read as cp1252"), pytest.raises(TableError) as caught:
        read_labelled(tmp_path / "t.csv", "value")
    assert str(caught.value).endswith("add --lat gps_lat --lon gps_lon --coordinates comma --bad-rows skip")


def test_bad_rows_are_not_left_out_where_another_form_reads_them(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("lat;lon\n" + ";\n" * 20 + "48,5;2,25\n" * 5)
    with pytest.raises(TableError, match="add --coordinates comma --bad-rows skip"), open_points(tmp_path / "t.csv"):
        pass


@pytest.mark.parametrize("geometry", ["point", "mean"])
def test_shapes_as_text_are_places(tmp_path: Path, geometry: Shape) -> None:
    (tmp_path / "t.csv").write_text('id,where\n01,"POLYGON ((0 40, 2 40, 2 42, 0 42, 0 40))"\n02,\n03,POINT (7 8)\n')
    reading = Reading(lat="where", coordinates="wkt", on_bad="null", geometry=geometry)
    with open_points(tmp_path / "t.csv", reading) as points:
        (batch,) = points.batches
    np.testing.assert_allclose(batch.places.apply(lambda latlon: latlon), [(41, 1), (np.nan, np.nan), (8, 7)])
    assert batch.rows.column("id").to_pylist() == ["01", "02", "03"]
    with (
        pytest.raises(TableError, match="row 2: column 'where' is empty"),
        open_points(tmp_path / "t.csv", Reading(lat="where", coordinates="wkt")),
    ):
        pass


@pytest.mark.parametrize("name", REFUSED)
def test_a_refusal_says_what_the_file_looks_like(tmp_path: Path, name: str, opened: list[ModelChoice]) -> None:
    file, content, words = REFUSED[name]
    path = tmp_path / file
    if isinstance(content, bytes):
        path.write_bytes(content)
    else:
        content(path)
    with pytest.raises(TableError, match=words) as caught:
        encode(path, tmp_path / "o.gpkg", encoding="utf-8" if name == "latin-1 as UTF-8" else None)
    assert "\n" not in str(caught.value)
    assert not opened


def test_a_mean_over_shapes_is_the_mean_of_embeddings(tmp_path: Path) -> None:
    boxes = geopandas.GeoSeries([shapely.box(10, 40, 11, 41), shapely.Point(5, 5)], crs=4326)
    geopandas.GeoDataFrame({"id": [1, 2]}, geometry=boxes).to_file(tmp_path / "t.gpkg")
    encode(tmp_path / "t.gpkg", tmp_path / "o.npy", geometry="mean")
    inside = np.random.default_rng(0).uniform((40, 10), (41, 11), (4000, 2))
    wanted = np.stack((EMBEDDER.embed(inside).mean(0), EMBEDDER.embed((5, 5))))
    np.testing.assert_allclose(np.load(tmp_path / "o.npy"), wanted, atol=2e-3)
    tuned = finetune(tiny_encoder(dtype=torch.float32), LATLON, LATLON[:, 0], frozen=True, epochs=0)
    predict_table(tuned, f"{tmp_path}/t.gpkg", tmp_path / "p.csv", reading=Reading(geometry="mean"))
    head, *rows = rows_of(tmp_path / "p.csv")
    found = [float(row[head.index("prediction")]) for row in rows]
    np.testing.assert_allclose(found, tuned.values_of(wanted.astype(np.float32)), atol=0.2)


def test_odd_text_goes_into_a_sheet_as_it_is(tmp_path: Path) -> None:
    odd = ["=1+1", "#N/A", "01", "1e5", " x ", "2024-01-01"]
    frame = pd.DataFrame({"odd": odd, "lat": 1.0, "lon": 20.0})
    frame.to_parquet(tmp_path / "t.parquet")
    encode(tmp_path / "t.parquet", tmp_path / "o.xlsx")
    rows = openpyxl.load_workbook(tmp_path / "o.xlsx", data_only=True).worksheets[0].iter_rows(values_only=True)
    assert [row[0] for row in rows][1:] == odd
    days = [datetime.datetime(2024, 2, 29, 12, 30, 15), datetime.datetime(2024, 2, 29, 12, 30, 15, 250_000)]
    pd.DataFrame({"day": days, "lat": 1.0, "lon": 20.0}).to_parquet(tmp_path / "d.parquet")
    encode(tmp_path / "d.parquet", tmp_path / "d.xlsx")
    encode(tmp_path / "d.xlsx", tmp_path / "again.xlsx", keep=["day", "lat", "lon"])
    for name in ("d.xlsx", "again.xlsx"):
        rows = openpyxl.load_workbook(tmp_path / name).worksheets[0].iter_rows(values_only=True)
        assert [row[0] for row in rows][1:] == days
    pd.DataFrame({"odd": ["\x01"], "lat": 1.0, "lon": 20.0}).to_parquet(tmp_path / "c.parquet")
    with pytest.raises(TableError, match="an Excel cell cannot hold"):
        encode(tmp_path / "c.parquet", tmp_path / "c.xlsx")
    _books(tmp_path / "two.xlsx")
    with pytest.raises(TableError, match="the table holds no rows"), open_points(f"{tmp_path}/two.xlsx"):
        pass
    with open_points(f"{tmp_path}/two.xlsx#second") as points:
        assert points.total_rows == 1


@pytest.mark.parametrize("keep", [[], ["id"], ["label", "lat"]])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".gpkg", ".xlsx", ".jsonl"])
def test_chosen_columns_are_kept(tmp_path: Path, keep: list[str], suffix: str) -> None:
    source = tmp_path / "t.csv"
    source.write_bytes(Text("t", lines_of(table())).content())
    encode(source, tmp_path / f"o{suffix}", keep=keep)
    np.testing.assert_allclose(
        np.array(embeddings_of(tmp_path / f"o{suffix}"), float), EMBEDDER.embed(LATLON), atol=1e-5
    )
    if suffix == ".csv":
        head = rows_of(tmp_path / "o.csv")[0]
        assert head[:-DIM] == (keep or ["lat", "lon"])


@pytest.mark.parametrize("suffix", [".parquet", ".gpkg"])
def test_shapes_left_behind_take_their_projection_along(tmp_path: Path, suffix: str) -> None:
    points = geopandas.GeoSeries.from_xy([10.0, 11.0], [50.0, 51.0], crs=4326)
    frame = geopandas.GeoDataFrame({"id": ["01", "02"], "n": [1, 2]}, geometry=points).to_crs(32632)
    frame.set_index("n").to_parquet(tmp_path / "t.parquet")
    encode(tmp_path / "t.parquet", tmp_path / f"o{suffix}", keep=["id"])
    if suffix == ".gpkg":
        back = geopandas.read_file(tmp_path / "o.gpkg")
        assert back.crs == 4326
        np.testing.assert_allclose(back.geometry.x, points.x, atol=1e-9)
    else:
        back = pd.read_parquet(tmp_path / "o.parquet")
        assert b"geo" not in pyarrow.parquet.read_schema(tmp_path / "o.parquet").metadata
    assert back["id"].tolist() == ["01", "02"]


def test_a_compressed_geojson_is_read(tmp_path: Path) -> None:
    text = '{"type": "Feature", "properties": {"id": "01"}, "geometry": {"type": "Point", "coordinates": [2, 48]}}'
    whole = '{"type": "FeatureCollection", "features": [' + text + "]}"
    (tmp_path / "t.geojson.gz").write_bytes(gzip.compress(whole.encode()))
    encode(tmp_path / "t.geojson.gz", tmp_path / "o.csv")
    assert [row[:3] for row in rows_of(tmp_path / "o.csv")] == [["id", "lat", "lon"], ["01", "48", "2"]]


def test_decimal_commas_and_empty_cells_are_read_as_whole_columns(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessearth.storage.tables.read_angle", lambda *given: pytest.fail("a row was read by itself"))
    (tmp_path / "t.csv").write_text("lat;lon\n48,5;2,25\n;1\n")
    with open_points(tmp_path / "t.csv", Reading(coordinates="comma", on_bad="null")) as points:
        assert next(points.batches).latlon[0].tolist() == [48.5, 2.25]


@pytest.mark.parametrize("on_bad", ["skip", "null"])
@pytest.mark.parametrize("suffix", [".csv", ".parquet", ".gpkg", ".jsonl", ".npy"])
@pytest.mark.parametrize("workers", [None, 1])
def test_whole_batches_may_hold_no_place(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, on_bad: str, suffix: str, workers: int | None
) -> None:
    monkeypatch.setattr("tessearth.storage.formats.ROWS_AT_ONCE", 2)
    (tmp_path / "t.csv").write_text("id,lat,lon\n1,,\n2,,\n3,4,50\n4,,\n5,,\n6,,\n")
    encode(tmp_path / "t.csv", tmp_path / f"o{suffix}", workers, on_bad=on_bad)
    found = [row for row in embeddings_of(tmp_path / f"o{suffix}") if row is not None]
    np.testing.assert_allclose(np.array(found, float), EMBEDDER.embed([(4, 50)]), atol=1e-5)
    assert len(embeddings_of(tmp_path / f"o{suffix}")) == (1 if on_bad == "skip" else 6)


@pytest.mark.parametrize(("suffix", "library"), [(".gpkg", "pyogrio"), (".xlsx", "openpyxl")])
def test_a_library_that_is_missing_is_named_before_any_work(
    dirty: Path, monkeypatch: pytest.MonkeyPatch, suffix: str, library: str
) -> None:
    monkeypatch.setitem(sys.modules, library, None)
    monkeypatch.setattr(ModelChoice, "embed", lambda *given: pytest.fail("rows were embedded"))
    with pytest.raises(TessearthError, match=r"tessearth\[geo\]"):
        encode(dirty, dirty.with_name(f"o{suffix}"), on_bad="skip")


def test_half_numbers_go_into_text(tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("lat,lon\n1,20\n")
    for suffix in (".csv", ".jsonl", ".gpkg", ".xlsx"):
        job = TableJob(source=f"{tmp_path}/t.csv", output=f"{tmp_path}/o{suffix}", width="float16",
                       format=output_format(f"o{suffix}"), choice=ModelChoice(model="shared"))  # fmt: skip
        encode_table(job)
        found = np.array(embeddings_of(tmp_path / f"o{suffix}"), float)
        np.testing.assert_array_equal(found.astype(np.float16), EMBEDDER.embed([(1, 20)]).astype(np.float16))


def test_objects_of_json_are_copied(tmp_path: Path) -> None:
    lines = [
        '{"lat": 1, "lon": 20, "a": {"b": [1.50, null]}, "big": 123456789012345678901234567890 }',
        "{}",
        '{"a": 1}',
    ]
    (tmp_path / "t.jsonl").write_text("\n".join(lines))
    encode(tmp_path / "t.jsonl", tmp_path / "o.jsonl", on_bad="null")
    found = (tmp_path / "o.jsonl").read_text().splitlines()
    assert found[0].startswith(lines[0][:-2] + ', "embedding": [')
    assert found[1:] == ['{"embedding": null}', '{"a": 1, "embedding": null}']
    assert len(json.loads(found[0])["embedding"]) == DIM
