"""`tessearth encode` as a stranger would use it."""

import io
import json
import shutil
import sys
import tempfile
from pathlib import Path

import numpy as np
import pandas as pd
import pytest

from tessearth import Embedder
from tests.cli.conftest import Command, without_privileges

FRAME = pd.DataFrame({"id": [1, 2], "lat": [48.8566, -1.2921], "lon": [2.3522, 36.8219]})


@pytest.fixture
def points(tmp_path: Path) -> Path:
    FRAME.to_csv(tmp_path / "points.csv", index=False)
    return tmp_path / "points.csv"


def test_one_place_is_shown_in_three_lines(tessearth: Command, model: Path) -> None:
    outcome = tessearth("encode", 48.8566, 2.3522, "--model", model)
    assert outcome.status == 0
    assert outcome.err == ""
    place, numbers, site = outcome.out.splitlines()
    assert place == f"48.8566, 2.3522: 18 numbers from {model}"
    shown = np.array(numbers.removesuffix(" ... (--json prints all)").split(), dtype=np.float32)
    np.testing.assert_allclose(shown, Embedder(model)((48.8566, 2.3522))[:6], atol=1e-4)
    assert site.startswith("nearest site ")


@pytest.mark.parametrize("place", [("-33.9", "-70.5"), ("-.5", "-100"), ("33.9", "-70.5")])
def test_southern_and_western_places_need_no_tricks(tessearth: Command, model: Path, place: tuple[str, str]) -> None:
    outcome = tessearth("encode", *place, "--model", model, "--json")
    answer = json.loads(outcome.out)
    assert (answer["lat"], answer["lon"]) == (float(place[0]), float(place[1]))
    np.testing.assert_allclose(np.linalg.norm(answer["embedding"]), 1, atol=1e-6)
    assert answer["support"].keys() == {"entropy", "distance_deg"}


def test_random_weights_are_called_random(tessearth: Command) -> None:
    outcome = tessearth("encode", 10, 20, "--model", "untrained")
    assert outcome.status == 0
    assert "model 'untrained' has random weights" in outcome.err
    assert "512 numbers" in outcome.out


def test_baselines_are_models_too(tessearth: Command) -> None:
    outcome = tessearth("encode", "--model", "sphereM+", 48.86, 2.35, "--json")
    assert (outcome.status, outcome.err) == (0, "")
    embedding = np.array(json.loads(outcome.out)["embedding"], dtype=np.float32)
    np.testing.assert_array_equal(embedding, Embedder("sphereM+")((48.86, 2.35)))
    outcome = tessearth("encode", "--model", "fourier", 48.86, 2.35, "--json")
    assert "model 'fourier' has random weights" in outcome.err
    assert json.loads(outcome.out).keys() == {"lat", "lon", "model", "embedding"}  # no sites, no word on support


@pytest.mark.parametrize("suffix", ["npy", "npz", "parquet", "jsonl"])
def test_a_table_becomes_embeddings(tessearth: Command, model: Path, points: Path, suffix: str) -> None:
    target = points.with_name(f"out.{suffix}")
    outcome = tessearth("encode", "--input", points, "--out", target, "--model", model)
    assert (outcome.status, outcome.err) == (0, "")
    assert outcome.out.startswith(f"{target}: 2 rows, 18 numbers each (float32), ")
    read = {
        "npy": np.load,
        "npz": lambda path: np.load(path)["embedding"],
        "parquet": lambda path: np.stack(pd.read_parquet(path)["embedding"].to_list()),
        "jsonl": lambda path: np.array([json.loads(line)["embedding"] for line in path.read_text().splitlines()]),
    }[suffix]
    np.testing.assert_allclose(read(target), Embedder(model)(FRAME), atol=1e-7)
    assert sorted(path.name for path in points.parent.iterdir()) == [f"out.{suffix}", "points.csv"]


class FakeTerminal(io.TextIOWrapper):
    """Standard input or output over bytes in memory."""

    def __init__(self, content: bytes = b"") -> None:
        super().__init__(io.BytesIO(content), encoding="utf-8")


def test_pipes_work_at_both_ends(
    tessearth: Command, model: Path, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "stdin", FakeTerminal(points.read_bytes()))
    out = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", out)
    outcome = tessearth("encode", "--input", "-", "--out", "-", "--format", "npy", "--model", model)
    assert outcome.status == 0
    np.testing.assert_array_equal(np.load(io.BytesIO(out.buffer.getvalue())), Embedder(model)(FRAME))


def test_json_of_a_table_is_one_object_a_line(
    tessearth: Command, model: Path, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    out = FakeTerminal()
    monkeypatch.setattr(sys, "stdout", out)
    assert tessearth("encode", "--input", points, "--out", "-", "--json", "--model", model).status == 0
    rows = [json.loads(line) for line in out.buffer.getvalue().splitlines()]
    assert [row["lat"] for row in rows] == FRAME["lat"].tolist()


def test_columns_to_keep_are_chosen(tessearth: Command, model: Path, points: Path) -> None:
    target = points.with_name("out.parquet")
    for keep, expected in (
        ("id", ["id", "embedding"]),
        ("none", ["embedding"]),
        ("id,lat", ["id", "lat", "embedding"]),
    ):
        assert (
            tessearth(
                "encode", "--input", points, "--out", target, "--model", model, "--keep", keep, "--overwrite"
            ).status
            == 0
        )
        assert list(pd.read_parquet(target).columns) == expected


def test_progress_shows_on_a_terminal_only(
    tessearth: Command, model: Path, points: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    err = FakeTerminal()
    monkeypatch.setattr(err, "isatty", lambda: True, raising=False)
    monkeypatch.setattr(sys, "stderr", err)
    monkeypatch.setenv("TERM", "xterm")
    assert tessearth("encode", "--input", points, "--out", points.with_name("o.npy"), "--model", model).status == 0
    err.flush()
    shown = err.buffer.getvalue().decode()
    assert "points.csv" in shown
    assert "2/2" in shown


WRONG: dict[str, tuple[tuple[str, ...], str]] = {
    "latitude out of range": (
        ("95", "200"),
        "the place is (95, 200): not (lat, lon) in degrees; latitude lies between",
    ),
    "swapped place": (("139.7", "35.7"), "this looks like (lon, lat): swap the two"),
    "not finite": (("nan", "2"), "the place is (nan, 2): latitude or longitude is missing or not finite"),
    "text": (("north", "2"), "LAT is 'north', not a number of degrees"),
    "half a place": (("48",), "LON is missing: give both LAT and LON in degrees"),
    "nothing": ((), "give either LAT LON or --input FILE"),
    "both": (("1", "2", "--input", "points.csv"), "give either LAT LON or --input FILE (and not both)"),
    "output of a place": (("1", "30", "--out", "x.npy"), "--out goes with --input FILE, not with LAT LON"),
    "workers for a place": (("1", "30", "--workers", "2"), "--workers goes with --input FILE, not with LAT LON"),
    "workers from a pipe": (
        ("--input", "-", "--out", "o.npy", "--workers", "2"),
        "from a file into a file, not through a pipe",
    ),
    "unknown width": (
        ("--input", "points.csv", "--out", "o.npy", "--dtype", "int4"),
        "embeddings are stored as float32 or float16, not as 'int4'",
    ),
    "no output": (("--input", "points.csv"), "say where the embeddings go: --out FILE"),
    "mistyped option": (("1", "30", "--modle", "x"), "--modle"),
    "unknown model": (
        ("1", "30", "--model", "untraned"),
        "there is no model named 'untraned', nor such a file or folder; did you mean 'untrained'?",
    ),
    "unknown precision": (("1", "30", "--precision", "int4"), "precision is 'int4'"),
    "unknown device": (("1", "30", "--device", "quantum"), "the device 'quantum' cannot be used"),
    "no such file": (("--input", "nothing.csv", "--out", "o.npy"), "nothing.csv: there is no such file"),
    "a folder": (("--input", ".", "--out", "o.npy"), ".: cannot be read: it is a folder"),
    "missing column": (
        ("--input", "points.csv", "--lat", "latt", "--out", "o.npy"),
        "points.csv: there is no column 'latt'; did you mean 'lat'?",
    ),
    "swapped columns": (("--input", "points.csv", "--lat", "lon", "--lon", "lat", "--out", "o.npy"), "swap them"),
    "unknown format": (("--input", "points.csv", "--out", "o.doc"), "names no output format"),
    "no such folder": (
        ("--input", "points.csv", "--out", "no/o.npy"),
        "cannot write no/o.npy: no such file or directory",
    ),
    "file that is there": (("--input", "points.csv", "--out", "points.csv"), "exists already: add --overwrite"),
    "unknown setting": (("--input", "points.csv", "--out", "o.npy", "--set", "dtyp=float16"), "no setting 'dtyp'"),
    "full disk": (("--input", "points.csv", "--out", "/dev/full", "--format", "npy"), "no space left on device"),
    "column to keep": (("--input", "points.csv", "--out", "o.parquet", "--keep", "ids"), "there is no column 'ids'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_mistake_is_one_clear_line_and_leaves_nothing(
    tessearth: Command, points: Path, monkeypatch: pytest.MonkeyPatch, wrong: str
) -> None:
    monkeypatch.chdir(points.parent)
    arguments, words = WRONG[wrong]
    outcome = tessearth("encode", *arguments)
    assert outcome.status == 2
    assert outcome.out == ""
    errors = [line for line in outcome.err.splitlines() if "warning" not in line]
    assert len(errors) == 1
    assert errors[0].startswith("tessearth: error: ")
    assert words in errors[0]
    assert [path.name for path in points.parent.iterdir()] == ["points.csv"]


def test_a_folder_without_write_permission_is_named(tessearth: Command, model: Path) -> None:
    with tempfile.TemporaryDirectory() as name:  # pytest's own folders are closed to other users
        folder = Path(name)
        folder.chmod(0o755)
        FRAME.to_csv(folder / "points.csv", index=False)
        shutil.copy(model, folder / "model.safetensors")
        closed = folder / "closed"
        closed.mkdir(mode=0o555)
        with without_privileges():
            outcome = tessearth(
                *("encode", "--input", folder / "points.csv", "--model", folder / "model.safetensors"),
                *("--out", closed / "o.npy"),
            )
        assert outcome.status == 2
        assert f"cannot write {closed / 'o.npy'}: permission denied; no partial file was left" in outcome.err
        assert list(closed.iterdir()) == []


def test_a_disk_that_fills_up_half_way_leaves_the_old_file(tessearth: Command, model: Path, points: Path) -> None:
    """A limit on file size stands in for the full disk: the write itself fails, after some of it went well."""
    import resource
    import signal

    rows = 20_000
    pd.DataFrame({"lat": np.linspace(-80, 80, rows), "lon": np.linspace(-170, 170, rows)}).to_csv(points, index=False)
    target = points.with_name("o.npy")
    target.write_text("before")
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (500_000, before[1]))
    try:
        outcome = tessearth("encode", "--input", points, "--out", target, "--model", model, "--overwrite")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)
        signal.signal(signal.SIGXFSZ, handler)
    assert outcome.status == 2
    assert f"cannot write {target}: file too large" in outcome.err
    assert target.read_text() == "before"
    assert sorted(path.name for path in points.parent.iterdir()) == ["o.npy", "points.csv"]


def test_half_the_bytes_are_asked_for_by_dtype(tessearth: Command, model: Path, points: Path) -> None:
    target = points.with_name("o.npy")
    outcome = tessearth(
        *("encode", "--input", points, "--out", target, "--model", model, "--dtype", "float16", "--workers", 1)
    )
    assert (outcome.status, outcome.err) == (0, "")
    assert np.load(target).dtype == np.float16
    np.testing.assert_allclose(np.load(target), Embedder(model)(FRAME), atol=1e-3)
    assert sorted(path.name for path in points.parent.iterdir()) == ["o.npy", "points.csv"]


def test_radians_are_a_warning(tessearth: Command, model: Path, points: Path) -> None:
    np.deg2rad(FRAME[["lat", "lon"]]).to_csv(points, index=False)
    outcome = tessearth("encode", "--input", points, "--out", points.with_name("o.npy"), "--model", model)
    assert outcome.status == 0
    assert outcome.err.count("are these radians?") == 1
    assert outcome.err.startswith("tessearth: warning: ")


def test_damaged_weights_are_one_line(tessearth: Command, model: Path, tmp_path: Path) -> None:
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(model.read_bytes()[:1000])
    outcome = tessearth("encode", 1, 30, "--model", broken)
    assert outcome.status == 2
    assert outcome.err.count("\n") == 1
    assert "is damaged, cut short or not safetensors" in outcome.err
