"""`tessearth serve` and `tessearth explore` as a stranger would start and stop them."""

import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import pytest

from tessearth import Embedder
from tests.cli.conftest import Command

pytest.importorskip("uvicorn", reason="the server's packages are not installed: tessearth[serve]")


@contextmanager
def started(*arguments: object, **environment: str) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """The command in a process of its own, and the address it says it listens on."""
    command = [sys.executable, "-m", "tessearth", *map(str, arguments), "--port", "0", "--no-cache"]
    variables = {**os.environ, "OMP_NUM_THREADS": "1", **environment}
    process = subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=variables, start_new_session=True
    )
    try:
        assert process.stdout is not None
        line = process.stdout.readline()
        assert " on http://127.0.0.1:" in line, line + (process.stderr.read() if process.stderr else "")
        yield process, line.split(" on ")[1].split()[0]
    finally:
        process.kill()
        process.communicate()


def test_it_serves_on_loopback_and_stops_when_told(model: Path) -> None:
    with started("serve", "--model", model) as (process, url):
        with urllib.request.urlopen(f"{url}embed?lat=48.8566&lon=2.3522", timeout=60) as answer:
            found = json.load(answer)["embedding"]
        np.testing.assert_allclose(found, Embedder(model)((48.8566, 2.3522)), atol=1e-6)
        process.send_signal(signal.SIGTERM)
        assert process.wait(30) in (0, -signal.SIGTERM)
        assert process.stderr is not None
        assert "Traceback" not in process.stderr.read()


def pending(url: str) -> int:
    lines = urllib.request.urlopen(f"{url}metrics", timeout=60).read().decode().splitlines()
    return int(float(next(line.split()[1] for line in lines if line.startswith("tessearth_pending_points "))))


def test_a_request_that_was_begun_is_finished(model: Path) -> None:
    """Told to stop in the middle of an answer, the server gives it whole."""
    places = np.random.default_rng(0).uniform(-80, 80, (60_000, 2)).astype("<f8").tobytes()
    with started("serve", "--model", model) as (process, url):
        pending(url)
        connection = http.client.HTTPConnection(url.split("//")[1].rstrip("/"), timeout=60)
        connection.request("POST", "/embed/binary", places)
        while pending(url) < 20_000:
            time.sleep(0.01)
        process.send_signal(signal.SIGTERM)
        answer = connection.getresponse()
        assert answer.status == 200
        assert len(answer.read()) == 60_000 * 18 * 4
        assert process.wait(30) in (0, -signal.SIGTERM)


def test_the_key_comes_from_the_environment_too(model: Path) -> None:
    with started("serve", "--model", model, TESSEARTH_API_KEY="secret") as (_, url):
        request = urllib.request.Request(f"{url}embed?lat=1&lon=20")
        with pytest.raises(urllib.error.HTTPError, match="401"):
            urllib.request.urlopen(request, timeout=60)
        request.add_header("X-API-Key", "secret")
        assert urllib.request.urlopen(request, timeout=60).status == 200


def test_explore_serves_the_page_beside_the_api(model: Path) -> None:
    with started("explore", "--no-browser", "--model", model) as (_, url):
        with urllib.request.urlopen(url, timeout=60) as answer:
            assert "default-src 'none'" in answer.headers["content-security-policy"]
            assert b"tessearth explorer" in answer.read()
        assert urllib.request.urlopen(f"{url}health", timeout=60).status == 200


def test_explore_says_what_to_do_when_the_page_is_not_built(
    tessearth: Command, model: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("tessearth.explorer.app.check_built.__defaults__", (tmp_path,))
    outcome = tessearth("explore", "--no-browser", "--model", model)
    assert outcome.status == 2
    assert "the explorer's page is not built: run `make explorer`" in outcome.err


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.socket() as other:
        other.bind(("127.0.0.1", 0))
        other.listen()
        yield other.getsockname()[1]


def test_a_port_in_use_is_one_clear_line(tessearth: Command, model: Path, taken: int) -> None:
    outcome = tessearth("serve", "--model", model, "--port", taken, "--no-cache")
    assert outcome.status == 2
    assert f"cannot listen on 127.0.0.1:{taken}: address already in use; choose another --port" in outcome.err


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("--port", "70000"), "port is 70000"),
        (("--rate", "-1"), "rate is -1"),
        (("--max-points", "0"), "max_points is 0; it must be at least 1"),
        (("--model", "erth"), "there is no model named 'erth'"),
        (("--host", "no.such.host.invalid"), "cannot listen on no.such.host.invalid"),
        (("--trajectories", "nothing.npz"), "there is no file nothing.npz"),
    ],
)
def test_a_mistake_is_one_clear_line(tessearth: Command, model: Path, arguments: tuple[str, ...], words: str) -> None:
    chosen = () if "--model" in arguments else ("--model", model)
    outcome = tessearth("serve", "--no-cache", *chosen, *arguments)
    assert outcome.status == 2
    assert words in outcome.err
    assert outcome.err.count("\n") == 1
