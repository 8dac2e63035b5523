"""Serving the application: loopback unless told otherwise, and a stop that lets requests finish."""

import socket
import sys
import threading
import webbrowser
from pathlib import Path
from typing import NamedTuple

from tessearth.errors import ConfigError
from tessearth.explorer.app import build_app
from tessearth.explorer.served import Served
from tessearth.packages import require

LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_CONNECTIONS = 1000
SECONDS_TO_FINISH = 10
BACKLOG = 2048
"""Connections that may wait to be taken."""


class Address(NamedTuple):
    """Where the server listens; port 0 takes any that is free."""

    host: str = "127.0.0.1"
    port: int = 8737


def run_server(served: Served, address: Address, *, page: Path | None = None, open_browser: bool = False) -> None:
    """Serve until interrupted; requests that were begun are finished, for some seconds at most."""
    uvicorn = require("uvicorn", extra="serve", what="the server")
    listener = _listen(address)
    port = listener.getsockname()[1]
    config = uvicorn.Config(
        build_app(served, page=page),
        log_level="warning",
        access_log=False,
        server_header=False,
        limit_concurrency=MOST_CONNECTIONS,
        timeout_keep_alive=30,
        timeout_graceful_shutdown=SECONDS_TO_FINISH,
        h11_max_incomplete_event_size=64 * 1024,
    )
    shown = f"[{address.host}]" if ":" in address.host else address.host
    url = f"http://{shown}:{port}/"
    print(f"{'exploring' if page else 'serving'} {served.embedder.name} on {url} (stop with Ctrl-C)", flush=True)
    if address.host not in LOOPBACK and served.settings.api_key is None:
        print("tessearth: warning: anyone who reaches this machine can ask; set an --api-key", file=sys.stderr)
    if open_browser:
        threading.Timer(0.8, webbrowser.open, (url,)).start()
    uvicorn.Server(config).run(sockets=[listener])


def _listen(address: Address) -> socket.socket:
    """A socket that takes connections already: a port in use is one clear line, and whoever comes early waits."""
    if not 0 <= address.port <= 65_535:
        raise ConfigError(f"port is {address.port}; it must lie between 0 and 65535")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(address.host, address.port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot listen on {address.host}:{address.port}: {reason}; choose another --port") from None
    return listener
