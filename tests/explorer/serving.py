"""A real server in a thread of the test process, and a client that speaks plain HTTP to it."""

import asyncio
import http.client
import json
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import pytest

from tessearth.explorer.app import build_app
from tessearth.explorer.session import Served

uvicorn = pytest.importorskip("uvicorn", reason="the server's packages are not installed: tessearth[serve]")

PATIENCE_S = 60.0


class Answer(NamedTuple):
    status: int
    headers: dict[str, str]
    body: bytes

    def json(self) -> Any:
        return json.loads(self.body)

    @property
    def error(self) -> str:
        return str(self.json()["error"])


class Client(NamedTuple):
    port: int

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.port}/"

    def ask(
        self, path: str, body: Any = None, *, method: str | None = None, headers: dict[str, str] | None = None
    ) -> Answer:
        """A POST when there is a body: bytes as they are, anything else as JSON."""
        connection = http.client.HTTPConnection("127.0.0.1", self.port, timeout=PATIENCE_S)
        sent = dict(headers or {})
        if body is not None and not isinstance(body, bytes):
            body, sent = json.dumps(body).encode(), {"content-type": "application/json", **sent}
        elif body is not None:
            sent = {"content-type": "application/octet-stream", **sent}
        try:
            connection.request(method or ("GET" if body is None else "POST"), path, body, sent)
            answer = connection.getresponse()
            return Answer(answer.status, {k.lower(): v for k, v in answer.getheaders()}, answer.read())
        finally:
            connection.close()

    def wait_until_ready(self) -> None:
        deadline = time.monotonic() + PATIENCE_S
        while self.ask("/health").json()["status"] != "ok":
            assert time.monotonic() < deadline, "the server is still preparing"
            time.sleep(0.1)


@contextmanager
def serving(served: Served, page: Path | None = None) -> Iterator[Client]:
    """Serve on a free port for the length of a block."""
    config = uvicorn.Config(build_app(served, page=page), port=0, log_level="error", timeout_graceful_shutdown=5)
    server = uvicorn.Server(config)
    thread = threading.Thread(target=lambda: asyncio.run(server.serve()), daemon=True)
    thread.start()
    deadline = time.monotonic() + PATIENCE_S
    while not server.started:
        assert thread.is_alive(), "the server did not start"
        assert time.monotonic() < deadline, "the server is not up"
        time.sleep(0.02)
    try:
        yield Client(server.servers[0].sockets[0].getsockname()[1])
    finally:
        server.should_exit = True
        thread.join(PATIENCE_S)
