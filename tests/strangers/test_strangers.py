"""Tables as strangers have them: each cell comes back as it was, and each place gets its own embedding."""

import csv
import io
import json
import math
from collections.abc import Mapping
from decimal import Decimal
from pathlib import Path
from typing import Any

import geopandas
import numpy as np
import openpyxl
import pandas as pd
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet
import pyogrio
import pytest
import torch

from tessearth import Embedder
from tessearth.bulk import ModelChoice, TableJob, encode_table, output_format
from tessearth.evaluation import evaluate
from tessearth.storage import Reading, read_labelled
from tessearth.training import finetune, predict_table
from tessearth.training.finetuned import FineTuned
from tests.conftest import tiny_encoder
from tests.strangers.files import FILES, File
from tests.strangers.texts import LAT, LATLON, TEXTS, Text

pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.TableWarning")

ENCODER = tiny_encoder(dtype=torch.float32)
EMBEDDER = Embedder(ENCODER, device="cpu")
DIM = EMBEDDER.dim
SHAPES = ("geometry", "geom", "wkb_geometry")


@pytest.fixture(scope="module")
def tuned() -> FineTuned:
    return finetune(ENCODER, LATLON, ["south" if lat < 0 else "north" for lat in LAT], frozen=True, epochs=0)


@pytest.fixture(autouse=True)
def one_embedder(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(ModelChoice, "open", lambda choice, threads=None: EMBEDDER)


def encode(source: str | Path, output: Path, reading: Mapping[str, Any]) -> None:
    job = TableJob(source=str(source), output=str(output), format=output_format(str(output)),
                   choice=ModelChoice(model="shared"), reading=Reading(**reading))  # fmt: skip
    encode_table(job)


def columns_of(path: str | Path) -> dict[str, list[Any]]:
    """A table by its library's own reader."""
    file, _, layer = str(path).partition("#")
    suffix = Path(file).suffix
    if suffix == ".parquet":
        table = pa.parquet.read_table(file)
    elif suffix in (".feather", ".arrow"):
        table = pa.feather.read_table(file)
    elif suffix in (".jsonl", ".json"):
        text = Path(file).read_text()
        rows = json.loads(text) if suffix == ".json" else [json.loads(line) for line in text.splitlines()]
        return {name: [row.get(name) for row in rows] for row in rows for name in row}
    elif suffix == ".xlsx":
        head, *rows = openpyxl.load_workbook(file).worksheets[0].iter_rows(values_only=True)
        return dict(zip(map(str, head), map(list, zip(*rows, strict=True)), strict=True))
    elif suffix == ".csv":
        head, *rows = csv.reader(io.StringIO(Path(file).read_bytes().decode(), newline=""))
        return dict(zip(head, map(list, zip(*rows, strict=True)), strict=True))
    elif suffix == ".geojson":
        rows = [row["properties"] for row in json.loads(Path(file).read_text())["features"]]
        return {name: [row[name] for row in rows] for name in rows[0]}
    else:
        _, table = pyogrio.read_arrow(file, **({"layer": layer} if layer else {}))
    return {name: table[name].to_pylist() for name in table.column_names if name not in SHAPES}


def is_missing(value: Any) -> bool:
    return value is None or value is pd.NaT or (isinstance(value, float) and math.isnan(value))


def same(given: Any, got: Any) -> bool:
    """Whether a cell is the same value, also where its format writes it as text."""
    if is_missing(given):
        return is_missing(got) or got in ("", "nan", "NaN")
    if isinstance(given, list | dict):
        return bool(given == got or given == json.loads(got))
    if isinstance(given, bytes):
        return got in (given, given.hex()) or (given == b"" and got is None)
    if isinstance(given, bool):
        return str(given).lower() == str(got).lower()
    if isinstance(given, int | Decimal):
        return Decimal(str(got)) == Decimal(str(given))
    if isinstance(given, float):
        return float(got) == given or bool(np.float32(got) == given) or bool(np.float16(got) == given)
    if isinstance(given, str):
        return got == given or (given == "" and got is None)
    if hasattr(given, "tzinfo") and hasattr(given, "year"):
        return at(got) == at(given)
    if isinstance(given, pd.Timedelta) or hasattr(given, "total_seconds"):
        return pd.Timedelta(got) == pd.Timedelta(given)
    return str(got) == str(given) or pd.Timestamp(got) == pd.Timestamp(given)


def at(moment: Any) -> pd.Timestamp:
    """A moment in UTC, which a GeoPackage takes for the zone of times that have none."""
    found = pd.Timestamp(moment)
    return found.tz_localize("UTC") if found.tz is None else found.tz_convert("UTC")


def check_cells(given: dict[str, list[Any]], got: dict[str, list[Any]]) -> None:
    for name, values in given.items():
        assert name in got
        wrong = [(a, b) for a, b in zip(values, got[name], strict=True) if not same(a, b)]
        assert not wrong, (name, wrong[:3])


def check_embeddings(got: dict[str, list[Any]], latlon: Any, atol: float = 1e-5) -> None:
    known = np.isfinite(latlon).all(axis=1)
    wanted = EMBEDDER.embed(latlon[known])
    columns = [got["embedding"]] if "embedding" in got else [got[f"embedding_{i}"] for i in range(DIM)]
    rows = list(zip(*columns, strict=True))
    found = [row for row, is_known in zip(rows, known, strict=True) if is_known]
    np.testing.assert_allclose(np.array(found, np.float64).reshape(wanted.shape), wanted, atol=atol)
    assert all(one in (None, "") for row, is_known in zip(rows, known, strict=True) if not is_known for one in row)


def named(cases: Any) -> Any:
    return pytest.mark.parametrize("case", cases, ids=[case.name for case in cases])


def check_text(case: Text, output: Path, added: int) -> list[list[str]]:
    """Each record of the input is the beginning of a record of the output; the cells behind it."""
    encoding = case.encoding if case.is_copied else "utf-8"
    raw, separator = output.read_bytes(), case.separator.encode()
    if case.is_copied:
        at = 3 if raw.startswith(b"\xef\xbb\xbf") else 0
        for line in filter(None, case.lines):
            assert raw[at : at + len(line)] == line
            assert raw[at + len(line) :].startswith(separator)
            at = raw.index(case.end, at + len(line)) + len(case.end)
        assert at == len(raw)
    text = raw.decode(encoding).removeprefix("\ufeff")
    rows = list(csv.reader(io.StringIO(text, newline=""), delimiter=case.separator))
    assert [row[:-added] for row in rows] == [row for row in case.rows() if row]
    return [row[-added:] for row in rows]


def as_columns(case: Text) -> dict[str, list[Any]]:
    head, *rows = [row for row in case.rows() if row]
    columns = [list(column) for column in zip(*rows, strict=True)]
    names = head if head.count("") < 2 else [name or f"column {i}" for i, name in enumerate(head, 1)]
    found: dict[str, list[Any]] = dict(zip(names, columns, strict=True))
    for name in case.names or ():
        found[name] = list(map(float, found[name]))
    return found


@named(TEXTS)
def test_a_text_is_encoded(case: Text, tmp_path: Path) -> None:
    source = tmp_path / "t.csv"
    source.write_bytes(case.content())
    encode(source, tmp_path / "o.csv", case.reading)
    cells = check_text(case, tmp_path / "o.csv", DIM)
    assert cells[0] == [f"embedding_{i}" for i in range(DIM)]
    np.testing.assert_allclose(np.array(cells[1:], float), EMBEDDER.embed(case.latlon), atol=1e-5)
    given = as_columns(case)
    encode(source, tmp_path / "o.parquet", case.reading)
    got = columns_of(tmp_path / "o.parquet")
    assert list(got) == [*given, "embedding"]
    assert all(got[name] == given[name] for name in given)
    check_embeddings(got, case.latlon)
    encode(source, tmp_path / "o.gpkg", case.reading)
    got = columns_of(tmp_path / "o.gpkg")
    check_cells(given, got)
    check_embeddings(got, case.latlon)
    points = geopandas.read_file(tmp_path / "o.gpkg", columns=[])
    np.testing.assert_allclose(np.stack((points.geometry.y, points.geometry.x), axis=-1), case.latlon, atol=1e-12)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["o.csv", "o.gpkg", "o.parquet", "t.csv"]


@named(TEXTS)
def test_a_text_is_predicted_and_learned_from(case: Text, tmp_path: Path, tuned: FineTuned) -> None:
    source, reading = tmp_path / "t.csv", Reading(**case.reading)
    source.write_bytes(case.content())
    wanted = tuned.predict(case.latlon).tolist()
    predict_table(tuned, str(source), tmp_path / "p.csv", reading=reading)
    cells = check_text(case, tmp_path / "p.csv", 2)
    assert cells[0] == ["prediction", "probability"]
    assert [row[0] for row in cells[1:]] == wanted
    predict_table(tuned, str(source), tmp_path / "p.parquet", reading=reading)
    got, given = columns_of(tmp_path / "p.parquet"), as_columns(case)
    assert got["prediction"] == wanted
    assert all(got[name] == given[name] for name in given)
    if case.label:
        check_labels(source, case.label, reading, case.latlon, [str(one).strip() for one in given[case.label]])


def check_labels(source: Any, label: str, reading: Reading, latlon: Any, labels: list[str]) -> None:
    table = read_labelled(source, label, reading=reading)
    np.testing.assert_allclose(table.latlon[:, 0], latlon[:, 0], atol=1e-5)
    np.testing.assert_allclose(np.cos(np.deg2rad(table.latlon - latlon)), 1, atol=1e-12)
    assert [table.classes[code] for code in table.target] == labels
    if reading == Reading() and label == label.strip() and len(set(labels)) > 1:
        learned = finetune(ENCODER, source, label, frozen=True, epochs=0)
        assert learned.classes == table.classes
        scored = evaluate({"tiny": ENCODER}, [f"{source}:{label}"], ["random"], references=False, cache=False)
        assert len(scored.scores) == 1


RARE = (
    *("Parquet: big numbers", "Parquet: rare types", "Parquet: bytes and nothing"),
    *("empty and missing shapes", "empty and missing shapes in Parquet"),
)
"""Tables that the oldest pandas, geopandas and pyarrow cannot make, or read back as the values they hold."""


def skip_where_libraries_are_too_old(case: File) -> None:
    if case.name in RARE and int(pa.__version__.split(".")[0]) < 26:
        pytest.skip("pandas, geopandas and pyarrow of this age cannot make or read back the table")


@named(FILES)
def test_a_file_is_encoded(case: File, tmp_path: Path) -> None:
    skip_where_libraries_are_too_old(case)
    source = tmp_path / case.path
    case.write(source)
    given = columns_of(source)
    shapes = read_shapes(source) if case.is_vector else None
    for suffix in (".csv", ".parquet", ".gpkg", ".xlsx", case.own):
        output = tmp_path / f"o{suffix}"
        if suffix is None or output.exists():
            continue
        encode(source, output, case.reading)
        got = columns_of(output)
        check_cells(given, {name: value for name, value in got.items() if not name.startswith("embedding")})
        check_embeddings(got, case.latlon, case.atol)
        if suffix == ".jsonl":
            assert all(got[name] == given[name] for name in given)
        if suffix in (".gpkg", case.own) and shapes is not None:
            back = read_shapes(output)
            assert back.crs == shapes.crs
            assert all(a == b or (is_nowhere(a) and is_nowhere(b)) for a, b in zip(shapes, back, strict=True))


def is_nowhere(shape: Any) -> bool:
    return shape is None or shape.is_empty


def read_shapes(path: Path) -> geopandas.GeoSeries:
    file, _, layer = str(path).partition("#")
    if Path(file).suffix == ".parquet":
        return geopandas.read_parquet(file).geometry
    return geopandas.read_file(file, **({"layer": layer} if layer else {})).geometry


@named(FILES)
def test_a_file_is_predicted_and_learned_from(case: File, tmp_path: Path, tuned: FineTuned) -> None:
    skip_where_libraries_are_too_old(case)
    source, reading = tmp_path / case.path, Reading(**case.reading)
    case.write(source)
    given, known = columns_of(source), np.isfinite(case.latlon).all(axis=1)
    wanted = [None] * len(known)
    for row, label in zip(np.flatnonzero(known), tuned.predict(case.latlon[known]), strict=True):
        wanted[row] = label
    for name in ("p.csv", "p.parquet"):
        predict_table(tuned, str(source), tmp_path / name, reading=reading)
        got = columns_of(tmp_path / name)
        check_cells(given, got)
        assert [one or None for one in got["prediction"]] == wanted
    labels = [label for label, is_known in zip(given["label"], known, strict=True) if is_known]
    check_labels(source, "label", reading, case.latlon[known], labels)
