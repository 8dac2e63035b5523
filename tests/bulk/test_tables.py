"""Tables in parts: whatever interrupts a run, the output is the one an undisturbed run gives, row for row."""

import itertools
import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.csv
import pyarrow.parquet as pq
import pytest
import torch

from tessearth import Embedder, save
from tessearth.bulk import tables
from tessearth.bulk.tables import ModelChoice, TableJob, encode_table
from tessearth.bulk.writers import OutputFormat
from tessearth.errors import ConfigError, DataError, OutputError, TableError, TessearthError
from tessearth.storage.jobs import JOURNAL, Job, open_job
from tests.conftest import tiny_encoder
from tests.memory import PEAK, peak_of

ROWS = 200_000


def random_places(rows: int) -> pd.DataFrame:
    rng = np.random.default_rng(0)
    lat = np.rad2deg(np.arcsin(rng.uniform(-1, 1, rows)))
    return pd.DataFrame({"id": np.arange(rows), "lat": lat, "lon": rng.uniform(-180, 180, rows)})


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model, a long table, and what an undisturbed run in one process makes of it."""
    folder = tmp_path_factory.mktemp("jobs")
    save(tiny_encoder(dtype=torch.float32), folder / "m.safetensors")
    random_places(ROWS).to_parquet(folder / "p.parquet")
    encode_table(job(folder, "plain.parquet"), workers=1)
    return folder


def job(
    folder: Path, output: str, source: str = "p.parquet", form: OutputFormat = "parquet", **more: object
) -> TableJob:
    choice = ModelChoice(model=str(folder / "m.safetensors"), device="cpu")
    paths = {"source": str(folder / source), "output": str(folder / output)}
    return TableJob(**paths, format=form, choice=choice, **more)  # type: ignore[arg-type]


def same_bytes(folder: Path, output: str) -> bool:
    return (folder / output).read_bytes() == (folder / "plain.parquet").read_bytes()


def command(folder: Path, output: str, *more: str) -> list[str]:
    table = ["--input", str(folder / "p.parquet"), "--out", str(folder / output)]
    return [sys.executable, "-m", "tessearth", "encode", *table, "--model", str(folder / "m.safetensors"), *more]


def wait_for(happened: Callable[[], object], seconds: float = 90) -> None:
    deadline = time.monotonic() + seconds
    while not happened():
        assert time.monotonic() < deadline
        time.sleep(0.005)


def chunks_in(parts: Path) -> int:
    return len(Job(parts).entries)


def test_rows_keep_their_order_and_their_embeddings(folder: Path) -> None:
    table = pq.read_table(folder / "plain.parquet")
    assert table.schema.field("embedding").type == pa.list_(pa.float32(), 18)
    assert table.num_rows == ROWS
    np.testing.assert_array_equal(table["id"].to_numpy(), np.arange(ROWS))
    some = np.random.default_rng(1).integers(0, ROWS, 300)
    got = np.stack(table["embedding"].take(some).to_numpy())
    embed = Embedder(folder / "m.safetensors")
    np.testing.assert_allclose(got, embed(random_places(ROWS).iloc[some]), atol=1e-6)
    assert not list(folder.glob("*.parts"))


def test_a_killed_run_goes_on_and_gives_the_same_bytes(folder: Path) -> None:
    """Several processes, killed with no chance to say anything."""
    process = subprocess.Popen(command(folder, "killed.parquet", "--workers", "2"), start_new_session=True)
    parts = folder / "killed.parquet.parts"
    wait_for(lambda: chunks_in(parts) >= 3)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "killed.parquet").exists()
    assert chunks_in(parts) >= 3
    encode_table(job(folder, "killed.parquet"), workers=1)
    assert same_bytes(folder, "killed.parquet")
    assert not parts.exists()


def embedded(monkeypatch: pytest.MonkeyPatch, limit: int = 1000) -> list[int]:
    """The first row's bits of every batch that is embedded from now on; at the limit the disk is full."""
    seen: list[int] = []
    real = tables._embed

    def embed(task: tables.EmbedTask) -> object:
        if len(seen) == limit:
            raise OutputError("the disk is full")
        seen.append(int(task.places.latlon[0].view(np.int64)[0]))
        return real(task)

    monkeypatch.setattr(tables, "_embed", embed)
    return seen


@pytest.mark.parametrize("form", ["parquet", "npy", "npz", "jsonl"])
def test_what_is_done_is_not_done_again(folder: Path, monkeypatch: pytest.MonkeyPatch, form: OutputFormat) -> None:
    random_places(80_000).to_parquet(folder / "short.parquet")
    encode_table(job(folder, f"whole.{form}", "short.parquet", form), workers=1)
    wanted = job(folder, f"again.{form}", "short.parquet", form)
    with monkeypatch.context() as patched:
        first = embedded(patched, limit=3)
        with pytest.raises(OutputError, match="the disk is full"):
            encode_table(wanted, workers=1)
    growing = folder / f"again.{form}.parts" / "growing"
    content = bytearray(growing.read_bytes())
    content[-1000] ^= 16
    growing.write_bytes(content)
    second = embedded(monkeypatch)
    encode_table(wanted, workers=1)
    assert (len(first), len(second)) == (3, 3)  # of five; the damaged one is made again
    assert second[0] == first[2]
    whole, again = folder / f"whole.{form}", folder / f"again.{form}"
    if form == "npz":  # an archive has the time in it
        assert all((np.load(whole)[name] == np.load(again)[name]).all() for name in ("lat", "lon", "embedding"))
    else:
        assert again.read_bytes() == whole.read_bytes()


def test_kept_columns_that_changed_are_written_as_they_are(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    frame = random_places(40_000)
    frame.to_parquet(folder / "named.parquet")
    with monkeypatch.context() as patched, pytest.raises(OutputError, match="the disk is full"):
        embedded(patched, limit=2)
        encode_table(job(folder, "named-o.parquet", "named.parquet"), workers=1)
    frame["id"] = frame["id"][::-1].to_numpy()
    frame.to_parquet(folder / "named.parquet")
    encode_table(job(folder, "named-o.parquet", "named.parquet"), workers=1)
    table = pq.read_table(folder / "named-o.parquet")
    np.testing.assert_array_equal(table["id"].to_numpy(), frame["id"])


def test_a_table_is_opened_once_and_embeddings_are_written_once(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    opened: list[str] = []
    real = tables.open_points
    monkeypatch.setattr(
        tables, "open_points", lambda path, *given, **more: (opened.append(path), real(path, *given, **more))[1]
    )
    most: list[int] = []

    def weigh(done: int, total: int | None) -> None:
        most.append(sum(file.stat().st_size for file in (folder / "once.parquet.parts").glob("*")))

    encode_table(job(folder, "once.parquet"), workers=1, progress=weigh)
    assert len(opened) == 1
    assert max(most) < 1.01 * (folder / "once.parquet").stat().st_size


def test_a_worker_that_is_killed_costs_time_and_no_rows(folder: Path) -> None:
    killed: list[int] = []

    def kill_one(done: int, total: int | None) -> None:
        children = Path(f"/proc/self/task/{os.getpid()}/children").read_text().split()
        workers = [int(pid) for pid in children if b"spawn_main" in Path(f"/proc/{pid}/cmdline").read_bytes()]
        if done and not killed:
            killed.append(workers[0])
            os.kill(workers[0], signal.SIGKILL)

    encode_table(job(folder, "worker.parquet"), workers=2, progress=kill_one)
    assert killed
    assert same_bytes(folder, "worker.parquet")


def test_csv_and_every_output_format_go_through_parts(folder: Path) -> None:
    random_places(40_000).to_csv(folder / "p.csv", index=False)
    told: list[tuple[int, int | None]] = []
    work = job(folder, "o.npy", "p.csv", "npy", width="float16")
    assert encode_table(work, workers=1, progress=lambda *step: told.append(step)) == (40_000, 18, 0)
    got = np.load(folder / "o.npy")
    assert (got.dtype, got.shape) == (np.float16, (40_000, 18))
    np.testing.assert_allclose(got, Embedder(folder / "m.safetensors")(random_places(40_000)), atol=1e-3)
    assert told[-1] == (40_000, 40_000)
    assert all(before[0] <= after[0] for before, after in itertools.pairwise(told))
    assert abs((told[0][1] or 0) / 40_000 - 1) < 0.6  # a csv's length is guessed from the bytes read


def test_unfinished_work_of_other_settings_or_of_an_older_version_is_refused_and_kept(folder: Path) -> None:
    parts = folder / "other.parquet.parts"
    with pytest.raises(OutputError, match="stop"):
        encode_table(job(folder, "other.parquet"), workers=1, progress=stop)
    before = sorted(path.name for path in parts.iterdir())
    assert before == ["growing", JOURNAL, "plan.json"]
    with pytest.raises(DataError, match=r"unfinished work of other settings \(stored as was float32 and is float16\)"):
        encode_table(job(folder, "other.parquet", width="float16"), workers=1)
    assert sorted(path.name for path in parts.iterdir()) == before
    (parts / "job.json").write_text("{}")
    with pytest.raises(ConfigError, match="unfinished work of an older version: remove it to begin anew"):
        encode_table(job(folder, "other.parquet"), workers=1)
    assert sorted(path.name for path in parts.iterdir()) == sorted([*before, "job.json"])


def stop(done: int, total: int | None) -> None:
    raise OutputError("stop")


def test_a_mistake_leaves_nothing(folder: Path, tmp_path: Path) -> None:
    frame = random_places(40_000)
    frame.loc[39_000, "lat"] = 99.0
    frame.to_parquet(folder / "bad.parquet")
    with pytest.raises(TableError, match="row 39001 is"):
        encode_table(job(folder, "o.parquet", "bad.parquet"), workers=1)
    with pytest.raises(TableError, match="the table has a column 'embedding' already"):
        encode_table(job(folder, "o.parquet", "plain.parquet"), workers=1)
    with pytest.raises(TableError, match="there is no column 'ids'"):
        encode_table(job(folder, "o.parquet", keep=("ids",)), workers=1)
    with pytest.raises(OutputError, match="no such file or directory"):
        encode_table(job(folder, "none/o.parquet"), workers=1)
    with pytest.raises(ConfigError, match="workers is 0"):
        encode_table(job(folder, "o.parquet"), workers=0)
    missing = TableJob(
        source=str(folder / "p.parquet"),
        output=str(folder / "o.parquet"),
        format="parquet",
        choice=ModelChoice(model="x"),
    )
    with pytest.raises(TessearthError, match="there is no model named 'x'"):
        encode_table(missing, workers=2)
    assert not list(folder.glob("o.parquet*"))


def test_two_runs_do_not_share_an_output(folder: Path) -> None:
    busy = OutputError("never seen")
    with (
        open_job(folder / "o.parquet.parts", busy=busy),
        pytest.raises(OutputError, match="another process is encoding into"),
    ):
        encode_table(job(folder, "o.parquet"), workers=1)


@pytest.mark.parametrize("reader", ["pandas", "polars", "duckdb", "geopandas"])
@pytest.mark.parametrize("width", ["float32", "float16"])
def test_the_output_is_read_by_those_who_read_parquet(folder: Path, reader: str, width: str) -> None:
    library = pytest.importorskip(reader)
    points = pytest.importorskip("geopandas")
    frame = random_places(50)
    geometry = points.GeoSeries.from_xy(frame["lon"], frame["lat"], crs=4326)
    points.GeoDataFrame(frame[["id"]], geometry=geometry).to_parquet(folder / "geo.parquet")
    output = f"{reader}-{width}.parquet"
    encode_table(job(folder, output, "geo.parquet", width=width), workers=1)
    path = str(folder / output)
    if reader == "duckdb":
        column = [row[0] for row in library.sql(f"select embedding from '{path}'").fetchall()]
    else:
        column = library.read_parquet(path)["embedding"].to_list()
    wanted = Embedder(folder / "m.safetensors")(frame)
    np.testing.assert_allclose(np.stack(column), wanted, atol=1e-3 if width == "float16" else 1e-6)


@pytest.mark.slow
def test_ten_million_rows_stay_under_two_gigabytes_and_survive_a_kill(tmp_path: Path) -> None:
    save(tiny_encoder(dtype=torch.float32), tmp_path / "m.safetensors")
    schema = pa.schema([("id", pa.int64()), ("lat", pa.float64()), ("lon", pa.float64())])
    with pq.ParquetWriter(tmp_path / "p.parquet", schema) as writer:
        for _ in range(10):
            writer.write_table(pa.Table.from_pandas(random_places(1_000_000), schema, preserve_index=False))
    start = time.monotonic()
    peak = peak_of(*command(tmp_path, "plain.parquet", "--workers", "1"), threads=1)
    taken = time.monotonic() - start
    print(f"\npeak resident memory of encoding 10,000,000 rows: {peak / 1e6:,.0f} MB, {taken:.0f} s")
    assert pq.read_metadata(tmp_path / "plain.parquet").num_rows == 10_000_000
    assert peak < 2e9
    parts, said = tmp_path / "o.parquet.parts", tmp_path / "said.txt"
    with said.open("wb") as file:
        process = subprocess.Popen(command(tmp_path, "o.parquet", "--workers", "1"), stderr=file)
    wait_for(lambda: process.poll() is not None or chunks_in(parts) >= 300, 10 * taken)  # of 611
    assert process.poll() is None, said.read_text()
    process.kill()
    process.wait()
    assert not (tmp_path / "o.parquet").exists()
    assert peak_of(*command(tmp_path, "o.parquet", "--workers", "1"), threads=1) < 2e9
    assert same_bytes(tmp_path, "o.parquet")


FIRST_PASS = f"""
{PEAK}
import sys, time
from tessearth.errors import TableError
from tessearth.storage import open_points
start = time.process_time()
try:
    with open_points(sys.argv[1]):
        pass
except TableError as error:
    print(error)
print(peak(), time.process_time() - start)
"""


@pytest.mark.slow
def test_a_bad_row_behind_ten_million_is_found_by_the_first_pass(tmp_path: Path) -> None:
    path, frame = tmp_path / "p.csv", pa.Table.from_pandas(random_places(1_000_000), preserve_index=False)
    with pa.csv.CSVWriter(path, frame.schema) as writer:
        for _ in range(10):
            writer.write_table(frame)
    with path.open("ab") as file:
        file.write(b"7,,2\n")
    done = subprocess.run([sys.executable, "-c", FIRST_PASS, path], capture_output=True, text=True, check=True)
    said, numbers = done.stdout.splitlines()
    peak, seconds = map(float, numbers.split())
    print(f"\nfirst pass over {path.stat().st_size / 1e6:,.0f} MB of csv: {seconds:.1f} s, peak {peak / 1e6:,.0f} MB")
    assert "row 10000001: column 'lat' is empty" in said
    assert peak < 1e9
