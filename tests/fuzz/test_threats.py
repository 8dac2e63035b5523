"""What docs/security.md promises, each claim shown once."""

import ast
import contextlib
import gzip
import hashlib
import http.server
import inspect
import os
import pickle
import socket
import sqlite3
import subprocess
import sys
import threading
import zipfile
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

import tessearth
from tessearth.errors import CoordinateError, DataError, TableError, TessearthError
from tests.coroutines import run

SOURCE = Path(tessearth.__file__).parent
NEVER_CALLED = {"eval", "exec", "os.system", "pickle.load", "pickle.loads", "marshal.loads", "yaml.load", "joblib.load"}
"""Functions that run what they are given."""


def calls() -> Iterator[tuple[Path, ast.Call, str]]:
    """Every call in the package, by its dotted name."""
    for path in SOURCE.rglob("*.py"):
        for node in ast.walk(ast.parse(path.read_text("utf-8"))):
            if isinstance(node, ast.Call):
                with contextlib.suppress(Exception):
                    yield path, node, ast.unparse(node.func)


def keyword(node: ast.Call, name: str) -> str:
    return next((ast.unparse(given.value) for given in node.keywords if given.arg == name), "")


def test_no_call_in_the_package_opens_a_pickle_or_runs_text() -> None:
    looked_at = 0
    for path, node, name in calls():
        assert name not in NEVER_CALLED, (path, node.lineno)
        assert name != "subprocess.run" or keyword(node, "shell") in {"", "False"}, (path, node.lineno)
        if name in {"np.load", "numpy.load"}:
            assert keyword(node, "allow_pickle") == "False", (path, node.lineno)
            looked_at += 1
        if name == "torch.load":
            assert keyword(node, "weights_only") == "True", (path, node.lineno)
            looked_at += 1
    assert looked_at > 5


class Bomb:
    """Leaves a file behind when it is unpickled."""

    def __init__(self, mark: Path) -> None:
        self.mark = mark

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.mkdir, (str(self.mark),)


def read_database(path: Path) -> object:
    from tessearth.embedding.retrieval import read_database

    return read_database(path)


def read_trajectory(path: Path) -> object:
    from tessearth.encoder.sites import read_trajectory

    return read_trajectory(path)


def read_model(path: Path) -> object:
    return tessearth.Embedder(path)


def read_weight_file(path: Path) -> object:
    from tessearth.storage.foreign_weights import read_weight_file

    return read_weight_file(path)


READERS = (read_database, read_trajectory, read_model, read_weight_file)
WRITERS: dict[str, Callable[[Path, Bomb], object]] = {
    "pickle": lambda path, bomb: path.write_bytes(pickle.dumps({"keys": bomb})),
    "torch": lambda path, bomb: torch.save({"state_dict": bomb, "keys": bomb}, path),
    "old torch": lambda path, bomb: torch.save({"keys": bomb}, path, _use_new_zipfile_serialization=False),
    "npz": lambda path, bomb: np.savez(path, locs=np.array([bomb]), keys=np.array([bomb]), image_embeddings=[bomb]),
    "npy": lambda path, bomb: np.save(path, np.array([bomb])),
}


@pytest.mark.parametrize("read", READERS)
@pytest.mark.parametrize("form", WRITERS)
def test_code_in_a_file_is_refused_and_never_run(tmp_path: Path, read: Callable[[Path], object], form: str) -> None:
    path = tmp_path / {"npz": "f.npz", "npy": "f.npy"}.get(form, "f.bin")
    WRITERS[form](path, Bomb(tmp_path / "ran"))
    with pytest.raises(TessearthError):
        read(path)
    assert not (tmp_path / "ran").exists()


def test_a_compressed_csv_without_an_end_of_line_is_not_unpacked(tmp_path: Path) -> None:
    from tessearth.storage import open_points, read_labelled
    from tessearth.storage.csv_text import LONGEST_RECORD

    path = tmp_path / "bomb.csv.gz"
    with gzip.open(path, "wb", compresslevel=1) as file:
        for _ in range(40):
            file.write(b"a" * LONGEST_RECORD)
    with pytest.raises(TableError, match=r"the header .* has more than"), open_points(str(path)):
        pass
    with pytest.raises(TableError, match=r"the header .* has more than"):
        read_labelled(path, "a")


def test_an_archive_of_zeros_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "bomb.npz"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED, compresslevel=1) as archive:
        for name in ("locs", "keys", "image_embeddings"):
            with archive.open(f"{name}.npy", "w", force_zip64=True) as entry:
                np.lib.format.write_array_header_1_0(entry, {"descr": "<f4", "fortran_order": False, "shape": (2**25,)})
                for _ in range(128):
                    entry.write(bytes(2**20))
    with pytest.raises(DataError, match="GiB of memory from"):
        read_database(path)


def small_mbtiles(path: Path, view: str) -> Path:
    with contextlib.closing(sqlite3.connect(path)) as connection:
        connection.execute("create table metadata (name text, value text)")
        connection.execute("create table n (i)")
        connection.executemany("insert into n values (?)", [(i,) for i in range(2000)])
        connection.execute(f"create view tiles as {view}")
        connection.commit()
    return path


VIEWS = {
    "one that calls itself": "with recursive r(i) as (select 0 union all select i + 1 from r) "
    "select i as zoom_level, 0 as tile_column, 0 as tile_row, x'00' as tile_data from r",
    "one of too many rows": "select a.i + b.i + c.i as zoom_level, 0 as tile_column, 0 as tile_row, x'00' as tile_data "
    "from n a, n b, n c",
    "one of a huge value": "select 0 as zoom_level, 0 as tile_column, 0 as tile_row, zeroblob(900000000) as tile_data",
}


@pytest.mark.parametrize("view", VIEWS)
def test_sql_in_a_tile_file_cannot_hang_or_fill_the_memory(
    tmp_path: Path, view: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pytest.importorskip("PIL")
    from tessearth.imagery.sources import TilePyramid, tile_stores

    monkeypatch.setattr(tile_stores, "MOST_STEPS", 2_000_000)
    path = small_mbtiles(tmp_path / "a.mbtiles", VIEWS[view])
    with pytest.raises(DataError, match=r"cannot read .* as MBTiles"):
        TilePyramid(path, size=4, km_per_pixel=1000.0).tiles(np.array([[0.0, 10.0]]))


@contextlib.contextmanager
def listening() -> Iterator[tuple[int, list[str]]]:
    """A server on this machine that writes down who came."""
    seen: list[str] = []

    class Handler(http.server.BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_error(404)

        do_HEAD = do_GET  # noqa: N815

        def log_message(self, *args: object) -> None: ...

    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield server.server_address[1], seen
    finally:
        server.shutdown()
        server.server_close()


DISGUISES = {
    "a description of a server": '<GDAL_WMS><Service name="TMS"><ServerUrl>http://127.0.0.1:{port}/${{z}}.png</ServerUrl>'
    "</Service><DataWindow><UpperLeftX>-180</UpperLeftX><UpperLeftY>90</UpperLeftY><LowerRightX>180</LowerRightX>"
    "<LowerRightY>-90</LowerRightY><TileLevel>1</TileLevel></DataWindow><Projection>EPSG:4326</Projection></GDAL_WMS>",
    "a mosaic of files elsewhere": '<VRTDataset rasterXSize="4" rasterYSize="2"><SRS>EPSG:4326</SRS>'
    "<GeoTransform>-180,90,0,90,0,-90</GeoTransform>"
    '<VRTRasterBand dataType="Byte" band="1"><SimpleSource><SourceFilename>'
    "/vsicurl/http://127.0.0.1:{port}/a.tif</SourceFilename><SourceBand>1</SourceBand></SimpleSource></VRTRasterBand>"
    "</VRTDataset>",
}


@pytest.mark.parametrize("disguise", DISGUISES)
def test_a_tif_that_is_something_else_leads_nowhere(tmp_path: Path, disguise: str) -> None:
    pytest.importorskip("rasterio")
    from tessearth.imagery.sources import GeoTiff, GlobalRaster
    from tessearth.imagery.sources.images import decode_picture

    with listening() as (port, seen):
        path = tmp_path / "a.tif"
        path.write_text(DISGUISES[disguise].format(port=port))
        for source in (GeoTiff, GlobalRaster):
            with pytest.raises(DataError):
                source(path, size=2, km_per_pixel=1000.0).tiles(np.array([[10.0, 20.0]]))  # type: ignore[operator]
        with pytest.raises(DataError):
            decode_picture(path.read_bytes(), name="a patch")
        assert seen == []


def test_pictures_of_formats_that_start_programs_are_refused(tmp_path: Path) -> None:
    pytest.importorskip("PIL")
    from PIL import Image

    from tessearth.imagery.sources.images import decode_picture

    Image.new("RGB", (4, 4)).save(tmp_path / "a.eps")
    with pytest.raises(DataError, match="cannot identify image file"):
        decode_picture((tmp_path / "a.eps").read_bytes(), name="a tile")


def test_a_patch_that_claims_to_be_the_world_is_not_read(tmp_path: Path) -> None:
    rasterio = pytest.importorskip("rasterio")
    from tessearth.imagery.sources.images import decode_picture

    transform = rasterio.Affine(0.001, 0, 0, 0, -0.001, 50)
    options = {"width": 100_000, "height": 100_000, "count": 3, "dtype": "uint8", "sparse_ok": True, "tiled": True}
    with rasterio.open(tmp_path / "a.tif", "w", driver="GTiff", crs="EPSG:4326", transform=transform, **options):
        pass
    with pytest.raises(DataError, match="that is no patch"):
        decode_picture((tmp_path / "a.tif").read_bytes(), name="a patch")


@pytest.mark.parametrize("name", ["../secret.tif", "/etc/passwd", "images/../../secret.tif"])
def test_an_index_names_no_file_outside_its_folder(tmp_path: Path, name: str) -> None:
    pytest.importorskip("rasterio")
    from tessearth.imagery.sources import sentinel2_patches
    from tests.imagery.sources.fabricate import sentinel2_bytes, write_s2_folder

    (tmp_path / "secret.tif").write_bytes(sentinel2_bytes(0))
    folder = write_s2_folder(tmp_path / "s2", np.array([[48.9, 2.4]]))
    sentinel2_patches(folder)
    (folder / "index.csv").write_text(f"fn,lon,lat\n{name},2.4,48.9\n")
    with pytest.raises(DataError, match="is not a file inside"):
        sentinel2_patches(folder)


def test_the_server_listens_to_this_machine_alone_and_other_pages_may_not_read_it() -> None:
    pytest.importorskip("fastapi")
    from tessearth.cli import serve
    from tessearth.explorer.app import build_app
    from tessearth.explorer.limits import ServeSettings
    from tessearth.explorer.session import Served
    from tests.fuzz.surfaces.models import small_encoder

    for command in (serve.serve, serve.explore):
        assert inspect.signature(command).parameters["host"].default == "127.0.0.1"
    app = build_app(Served(tessearth.Embedder(small_encoder(), device="cpu"), ServeSettings()))
    start = run(answer_to(app, "/health", {"origin": "https://elsewhere.example"}))[0]
    assert start["status"] == 200
    assert not any(name.lower().startswith(b"access-control-") for name, _ in start["headers"])


async def answer_to(app: Any, path: str, headers: dict[str, str]) -> list[dict[str, Any]]:
    """What an application sends for a GET, without a server in between."""
    sent: list[dict[str, Any]] = []
    pairs = [(name.encode(), value.encode()) for name, value in headers.items()]
    scope = {"type": "http", "method": "GET", "path": path, "query_string": b"", "headers": pairs, "root_path": ""}

    async def receive() -> dict[str, Any]:
        return {"type": "http.request", "body": b"", "more_body": False}

    async def send(message: dict[str, Any]) -> None:
        sent.append(message)

    await app({**scope, "http_version": "1.1", "scheme": "http", "client": ("127.0.0.1", 1)}, receive, send)
    return sent


def test_an_error_is_one_printable_line_whatever_it_quotes() -> None:
    hostile = "a\x1b[2J\nb\x00\ud800" + "x" * 5000
    for kind in (TessearthError, CoordinateError, TableError):
        words = str(kind(f"column {hostile!s} is no number; name another"))
        assert words.isprintable()
        assert len(words) <= 1000
        assert words.startswith("column a [2J b")
        assert words.endswith("is no number; name another")


def test_no_name_can_be_looked_up_by_the_library_on_import() -> None:
    """Importing and embedding opens no connection: addresses are only ever looked up for what a user names."""
    real = socket.getaddrinfo
    asked: list[object] = []
    socket.getaddrinfo = lambda *args, **kwargs: asked.append(args) or real(*args, **kwargs)  # type: ignore[assignment]
    try:
        from tests.fuzz.surfaces.models import small_encoder

        tessearth.Embedder(small_encoder(), device="cpu")([(10.0, 20.0)])
        assert tessearth.list_models()
    finally:
        socket.getaddrinfo = real
    assert asked == []


def test_every_dependency_of_the_page_is_pinned_by_its_hash() -> None:
    import json

    lock = SOURCE.parents[1] / "web" / "package-lock.json"
    if not lock.is_file():
        pytest.skip("the page's sources are not here")
    packages: dict[str, Any] = json.loads(lock.read_text())["packages"]
    assert all("integrity" in about for name, about in packages.items() if name)


def pins(text: str) -> dict[str, list[str]]:
    """The hashes behind every `name==version` of a requirements file."""
    found: dict[str, list[str]] = {}
    for line in text.splitlines():
        if line[:1].isalnum():
            found[line.split(" ")[0]] = hashes = []
        elif "--hash=sha256:" in line:
            hashes.append(line.partition("--hash=sha256:")[2].split(" ")[0])
    return found


def test_every_python_package_is_pinned_by_its_hash() -> None:
    root = SOURCE.parents[1]
    if not (root / "hashes.txt").is_file():
        pytest.skip("what installs the package is not here")
    hashed = pins((root / "hashes.txt").read_text())
    assert set(pins((root / "constraints.txt").read_text())) <= set(hashed)
    for package, hashes in {**hashed, **pins((root / "tools" / "uv.txt").read_text())}.items():
        assert hashes, package
        assert all(len(digest) == 64 and set(digest) <= set("0123456789abcdef") for digest in hashes), package


def test_the_installer_refuses_what_its_hash_does_not_match(tmp_path: Path) -> None:
    uv = Path(sys.executable).with_name("uv")
    if not uv.is_file():
        pytest.skip("no uv beside this Python")
    wheel = tmp_path / "tiny-1.0-py3-none-any.whl"
    with zipfile.ZipFile(wheel, "w") as archive:
        archive.writestr("tiny.py", "")
        archive.writestr("tiny-1.0.dist-info/METADATA", "Metadata-Version: 2.1\nName: tiny\nVersion: 1.0\n")
        archive.writestr("tiny-1.0.dist-info/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr("tiny-1.0.dist-info/RECORD", "")
    digest = hashlib.sha256(wheel.read_bytes()).hexdigest()
    for hash_in_file, status in (("0" * 64, 1), (digest, 0)):
        (tmp_path / "hashes.txt").write_text(f"tiny==1.0 \\\n    --hash=sha256:{hash_in_file}\n")
        told = ["--no-index", "--find-links", str(tmp_path), "-c", str(tmp_path / "hashes.txt"), "tiny"]
        place = ["--target", str(tmp_path / "installed"), "--python", sys.executable, "--no-cache"]
        done = subprocess.run([uv, "pip", "install", *told, *place], capture_output=True, text=True, check=False)
        assert done.returncode == status, done.stderr
        assert (tmp_path / "installed" / "tiny.py").is_file() == (status == 0)
