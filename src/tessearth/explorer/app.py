"""The application: routes with their types, errors as one line, the gate around it, the page, and the server."""

import contextlib
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tessearth.errors import ConfigError, UnknownNameError
from tessearth.explorer import schemas
from tessearth.explorer.compressing import Compressing
from tessearth.explorer.limits import CONTENT_TYPE, Gate, Metrics
from tessearth.explorer.page import POLICY
from tessearth.explorer.reference import reference_page
from tessearth.explorer.replies import BINARY, REFUSALS, add_error_replies
from tessearth.explorer.routes import Routes
from tessearth.explorer.session import Served
from tessearth.packages import require
from tessearth.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

PAGE_PATHS = ("/", "/index.html", "/favicon.svg")
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
"""For files whose names carry a hash of what is in them."""
ASSET_KINDS = {".js": "text/javascript", ".css": "text/css"}
BYTES = {"type": "string", "format": "binary"}
PNG: Mapping[str, Any] = {"content": {"image/png": {"schema": BYTES}}}


class Route(NamedTuple):
    """One line of the table below."""

    path: str
    function: str
    answer: Any
    """The dataclass of the answer, or OpenAPI's words for what is not JSON."""
    methods: tuple[str, ...] = ("GET",)
    tag: str = "model"


ROUTES = (
    Route("/embed", "embed", schemas.EmbedAnswer, ("POST",), "places"),
    Route("/embed", "embed_one", schemas.EmbedAnswer, tag="places"),
    Route("/place", "place", schemas.PlaceAnswer, tag="places"),
    Route("/similar", "similar", schemas.SimilarAnswer, ("POST",), "places"),
    Route("/compare", "compare", schemas.CompareAnswer, tag="places"),
    Route("/predict", "predict", schemas.PredictAnswer, ("POST",), "places"),
    Route("/sites", "sites", schemas.SitesAnswer),
    Route("/cells", "cells", {"content": {"application/json": {"schema": {"type": "object"}}}}),
    Route("/tokens", "tokens", schemas.TokensAnswer),
    Route("/migration", "migration", schemas.MigrationAnswer),
    Route("/layers", "layers", list[schemas.LayerAnswer], tag="maps"),
    Route("/legend/{layer}", "legend", schemas.Legend, tag="maps"),
    Route("/tiles/{layer}/{z}/{x}/{y}.png", "tile", PNG, tag="maps"),
    Route("/earth.jpg", "earth", {"content": {"image/jpeg": {"schema": BYTES}}}, tag="maps"),
    Route("/picture.png", "picture", PNG, tag="maps"),
    Route("/outlines", "outlines", {"content": {"application/json": {"schema": {"type": "object"}}}}, tag="maps"),
    Route("/health", "health", schemas.HealthAnswer, tag="server"),
    Route("/metrics", "metrics_text", {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}, tag="server"),
)


def build_app(served: Served, *, page: Path | None = None) -> Gate:
    """The application for one model; `page` is the folder of the built page, None serves the API alone."""
    require("fastapi", extra="serve", what="the server")
    from fastapi import FastAPI

    @contextlib.asynccontextmanager
    async def lifespan(_: "FastAPI") -> AsyncIterator[None]:
        async with served:
            yield

    app = FastAPI(
        title="tessearth",
        version=__version__,
        description="Location encoders: turn a latitude and longitude into an embedding that knows what is there.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own page loads its scripts from elsewhere; /reference does not
        redoc_url=None,
    )
    metrics = Metrics()
    _add_gauges(metrics, served)
    add_error_replies(app)
    routes = Routes(served, metrics)
    _add_routes(app, routes)
    _add_binary_route(app, routes)
    reference_page(app)
    if page is not None:
        _add_page(app, page)
    return Gate(Compressing(app), settings=served.settings, metrics=metrics, is_page=_is_page)


def _add_routes(app: "FastAPI", routes: Routes) -> None:
    for route in ROUTES:
        described = {"description": "Done."}
        words = route.answer if isinstance(route.answer, Mapping) else {"model": route.answer}
        app.add_api_route(
            route.path,
            getattr(routes, route.function),
            methods=list(route.methods),
            tags=[route.tag],
            response_model=None,
            responses={200: {**described, **words}, **REFUSALS},
            operation_id=route.function,
        )


def _add_binary_route(app: "FastAPI", routes: Routes) -> None:
    """The one route whose body is bytes."""
    from fastapi import Request

    async def embed_bytes(request: Request) -> Any:
        return await routes.embed_bytes(await request.body())

    app.add_api_route(
        "/embed/binary",
        embed_bytes,
        methods=["POST"],
        tags=["places"],
        response_model=None,
        description=routes.embed_bytes.__doc__,
        responses={200: {"description": "Done.", "content": {BINARY: {"schema": BYTES}}}, **REFUSALS},
        openapi_extra={"requestBody": {"required": True, "content": {BINARY: {"schema": BYTES}}}},
        operation_id="embed_bytes",
    )


def _add_page(app: "FastAPI", folder: Path) -> None:
    from fastapi import Response

    async def index() -> Any:
        headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}
        return Response((folder / "index.html").read_bytes(), media_type="text/html", headers=headers)

    async def icon() -> Any:
        return Response((folder / "favicon.svg").read_bytes(), media_type="image/svg+xml")

    async def asset(name: str) -> Any:
        path = next((path for path in (folder / "assets").iterdir() if path.name == name), None)
        if path is None:
            raise UnknownNameError(f"there is no file {name}: load the page anew")
        return Response(path.read_bytes(), media_type=ASSET_KINDS.get(path.suffix, BINARY), headers=FOREVER)

    app.add_api_route("/", index, include_in_schema=False)
    app.add_api_route("/index.html", index, include_in_schema=False)
    app.add_api_route("/favicon.svg", icon, include_in_schema=False)
    app.add_api_route("/assets/{name}", asset, include_in_schema=False)


def _add_gauges(metrics: Metrics, served: Served) -> None:
    batcher = served.batcher
    metrics.gauge("tessearth_pending_points", "Places waiting for the model.", lambda: batcher.pending)
    metrics.gauge("tessearth_model_rounds_total", "Calls of the model.", lambda: batcher.rounds, "counter")
    metrics.gauge("tessearth_ready", "1 when every map is prepared.", lambda: float(served.ready))


def _is_page(path: str) -> bool:
    return path in PAGE_PATHS or path.startswith("/assets/")


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
