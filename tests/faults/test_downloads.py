"""Connections that break: what came in part is never taken for the whole, and a second attempt makes it good."""

import hashlib
import http.server
import io
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from PIL import Image

from tessearth.encoder.weights import load_weights, save
from tessearth.errors import DataError
from tessearth.imagery.sources.tile_stores import Tile, UrlTiles
from tests.conftest import tiny_encoder

Answer = Callable[[http.server.BaseHTTPRequestHandler], None]


@pytest.fixture
def serve() -> Iterator[Callable[[Answer], str]]:
    """Starts a server that answers as it is told; its address."""
    servers: list[http.server.ThreadingHTTPServer] = []

    def start(answer: Answer) -> str:
        class Handler(http.server.BaseHTTPRequestHandler):
            do_GET = do_HEAD = answer  # noqa: N815

            def log_message(self, *_: Any) -> None: ...

        server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        server.daemon_threads = True
        servers.append(server)
        threading.Thread(target=server.serve_forever, daemon=True).start()
        return f"http://127.0.0.1:{server.server_address[1]}"

    yield start
    for server in servers:
        server.shutdown()
        server.server_close()


def picture() -> bytes:
    content = io.BytesIO()
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(content, "png")
    return content.getvalue()


def promise(request: http.server.BaseHTTPRequestHandler, length: int, **headers: str) -> None:
    request.send_response(200)
    request.send_header("Content-Length", str(length))
    for name, value in headers.items():
        request.send_header(name.replace("_", "-"), value)
    request.end_headers()


def tiles(address: str, **settings: float) -> UrlTiles:
    return UrlTiles(f"{address}/{{z}}/{{x}}/{{y}}.png", range(3), False, **{"wait_s": 0.01, **settings})  # type: ignore[arg-type]


@pytest.mark.parametrize("share", [0.0, 0.5, 0.99])
def test_a_tile_that_broke_off_is_asked_for_again(share: float, serve: Callable[[Answer], str]) -> None:
    whole, asked = picture(), []

    def break_off_twice(request: http.server.BaseHTTPRequestHandler) -> None:
        asked.append(request.path)
        promise(request, len(whole))
        request.wfile.write(whole if len(asked) > 2 else whole[: int(len(whole) * share)])

    assert tiles(serve(break_off_twice)).read_many([Tile(1, 0, 1)]) == [whole]
    assert len(asked) == 3


@pytest.mark.parametrize("share", [0.0, 0.5])
def test_a_tile_that_always_breaks_off_is_an_error_and_never_missing(
    share: float, serve: Callable[[Answer], str]
) -> None:
    whole = picture()

    def break_off(request: http.server.BaseHTTPRequestHandler) -> None:
        promise(request, len(whole))
        request.wfile.write(whole[: int(len(whole) * share)])

    with pytest.raises(DataError, match=r"tile 1/0/1 of http://127.* did not come: IncompleteRead"):
        tiles(serve(break_off)).read_many([Tile(1, 0, 1)])


def test_a_server_that_trickles_or_is_silent_is_not_waited_for(serve: Callable[[Answer], str]) -> None:
    def trickle(request: http.server.BaseHTTPRequestHandler) -> None:
        promise(request, 10_000)
        for _ in range(200):
            request.wfile.write(b"x")
            time.sleep(0.05)

    start = time.monotonic()
    with pytest.raises(DataError, match="did not come: it came too slowly"):
        tiles(serve(trickle), timeout_s=0.2, attempts=2).read_many([Tile(0, 0, 0)])
    with pytest.raises(DataError, match=r"did not come: .*timed out"):
        tiles(serve(lambda request: time.sleep(3)), timeout_s=0.2, attempts=2).read_many([Tile(0, 0, 0)])
    assert time.monotonic() - start < 6


FETCH = """
import sys
from tessearth.errors import TessearthError
from tessearth.zoo.names import load
try:
    print(sum(float(p.double().sum()) for p in load("mvrl/tte").parameters()))
except TessearthError as error:
    print("refused:", error)
"""
COMMIT = "a" * 40


def hub(content: dict[str, bytes], cut: Callable[[str], bool]) -> Answer:
    """As much of a model hub as a download asks for; where `cut` says so, the connection ends halfway."""

    def answer(request: http.server.BaseHTTPRequestHandler) -> None:
        if request.path.startswith("/api/models/"):
            listed = [
                {"type": "file", "path": name, "size": len(body), "oid": COMMIT} for name, body in content.items()
            ]
            told = {"id": "mvrl/tte", "sha": COMMIT, "siblings": [{"rfilename": name} for name in content]}
            body = json.dumps(listed if "/tree/" in request.path else told).encode()
            promise(request, len(body), Content_Type="application/json")
            request.wfile.write(body)
            return
        name = request.path.rpartition("/")[2].partition("?")[0]
        if name not in content:
            request.send_error(404)
            return
        body = content[name]
        start = int(request.headers.get("Range", "bytes=0-").removeprefix("bytes=").partition("-")[0])
        etag = f'"{hashlib.sha256(body).hexdigest()}"'
        promise(request, len(body) - start, ETag=etag, X_Repo_Commit=COMMIT, Accept_Ranges="bytes")
        if request.command == "GET":
            rest = body[start:]
            request.wfile.write(rest[: len(rest) // 2] if cut(name) else rest)

    return answer


@pytest.mark.slow
def test_a_model_whose_download_breaks_off_is_refused_and_comes_whole_the_next_time(
    serve: Callable[[Answer], str], tmp_path: Path
) -> None:
    pytest.importorskip("huggingface_hub")
    encoder = tiny_encoder(dtype=torch.float32)
    save(encoder, tmp_path / "model", provenance={})
    content = {path.name: path.read_bytes() for path in (tmp_path / "model").iterdir()}
    broken, broken_off = True, []

    def cut(name: str) -> bool:
        if broken and name == "model.safetensors":
            broken_off.append(name)
            return True
        return False

    def fetch() -> str:
        settings = {"HF_ENDPOINT": address, "HF_HOME": str(tmp_path / "hub"), "HF_HUB_DISABLE_XET": "1"}
        settings |= {"HF_HUB_DISABLE_PROGRESS_BARS": "1", "HF_HUB_DOWNLOAD_TIMEOUT": "5", "NO_PROXY": "*"}
        run = [sys.executable, "-c", FETCH]
        done = subprocess.run(
            run, env={**os.environ, **settings}, capture_output=True, text=True, timeout=300, check=False
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return done.stdout.strip()

    address = serve(hub(content, cut))
    refused = fetch()
    assert refused.startswith("refused: the model 'mvrl/tte' is no path here and cannot be had from the hub")
    assert broken_off, "the download was refused for something else"
    assert not list((tmp_path / "hub").rglob("snapshots/*/model.safetensors"))
    broken = False
    expected = sum(float(p.double().sum()) for p in load_weights(tmp_path / "model").parameters())
    assert float(fetch()) == pytest.approx(expected)
