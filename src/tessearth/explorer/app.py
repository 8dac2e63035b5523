"""The application: its routes and their types, errors as one line, the page, and the server."""

import contextlib
import socket
import sys
import threading
import webbrowser
from collections.abc import AsyncIterator, Callable, Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from tessearth.errors import ConfigError, CoordinateError, MissingExtraError, TessearthError, UnknownNameError
from tessearth.explorer import schemas
from tessearth.explorer.limits import BINARY, CONTENT_TYPE, Gate, Receive, Scope, Send
from tessearth.explorer.routes import Routes
from tessearth.explorer.session import OverloadedError, Served
from tessearth.packages import require
from tessearth.sphere import OnBad
from tessearth.version import __version__

if TYPE_CHECKING:
    from fastapi import FastAPI

STATIC = Path(__file__).parent / "static"
POLICY = (
    "default-src 'none'; script-src 'self'; worker-src 'self' blob:; style-src 'self' 'unsafe-inline'; "
    "img-src 'self' data: blob:; connect-src 'self'; font-src 'self'; base-uri 'none'; form-action 'none'; "
    "frame-ancestors 'none'"
)
"""Everything comes from this server; MapLibre writes styles into its elements and reads pictures from blobs."""
FOREVER = {"Cache-Control": "public, max-age=31536000, immutable"}
"""For files whose names carry a hash of their content."""
ASSET_KINDS = {".js": "text/javascript", ".css": "text/css"}
BYTES = {"type": "string", "format": "binary"}
PNG: Mapping[str, Any] = {"content": {"image/png": {"schema": BYTES}}}
GEOJSON: Mapping[str, Any] = {"content": {"application/json": {"schema": {"type": "object"}}}}
RAW: Mapping[str, Any] = {"content": {BINARY: {"schema": BYTES}}}
GZIP_PATHS = ("/sites", "/cells", "/tokens", "/outlines", "/migration", "/openapi.json", "/assets/")
"""Long texts; pictures and numbers do not shrink."""
GZIP_BYTES = 4096


class Route(NamedTuple):
    """One route of the API."""

    path: str
    function: str
    answer: Any
    """The dataclass of the answer, or the OpenAPI description of one that is not JSON."""
    method: str = "GET"
    tag: str = "model"
    extra: dict[str, Any] | None = None
    """The OpenAPI description of a body that is not JSON."""


ROUTES = (
    Route("/embed", "embed", schemas.EmbedAnswer, "POST", "places"),
    Route("/embed", "embed_one", schemas.EmbedAnswer, tag="places"),
    Route("/embed/binary", "embed_bytes", RAW, "POST", "places", {"requestBody": {"required": True, **RAW}}),
    Route("/place", "place", schemas.PlaceAnswer, tag="places"),
    Route("/similar", "similar", schemas.SimilarAnswer, "POST", "places"),
    Route("/compare", "compare", schemas.CompareAnswer, tag="places"),
    Route("/predict", "predict", schemas.PredictAnswer, "POST", "places"),
    Route("/sites", "sites", schemas.SitesAnswer),
    Route("/cells", "cells", GEOJSON),
    Route("/tokens", "tokens", schemas.TokensAnswer),
    Route("/migration", "migration", schemas.MigrationAnswer),
    Route("/layers", "layers", list[schemas.LayerAnswer], tag="maps"),
    Route("/legend/{layer}", "legend", schemas.Legend, tag="maps"),
    Route("/tiles/{layer}/{z}/{x}/{y}.png", "tile", PNG, tag="maps"),
    Route("/earth.jpg", "earth", {"content": {"image/jpeg": {"schema": BYTES}}}, tag="maps"),
    Route("/picture.png", "picture", PNG, tag="maps"),
    Route("/outlines", "outlines", GEOJSON, tag="maps"),
    Route("/health", "health", schemas.HealthAnswer, tag="server"),
    Route("/metrics", "metrics_text", {"content": {CONTENT_TYPE: {"schema": {"type": "string"}}}}, tag="server"),
)


def build_app(served: Served, *, page: Path | None = None) -> Gate:
    """The application for one model; `page` is the folder of the built page, None serves the API alone."""
    require("fastapi", extra="serve", what="the server")
    prometheus = require("prometheus_client", extra="serve", what="the server")
    from fastapi import FastAPI
    from fastapi.middleware.gzip import GZipMiddleware

    @contextlib.asynccontextmanager
    async def lifespan(_: "FastAPI") -> AsyncIterator[None]:
        async with served:
            yield

    app = FastAPI(
        title="tessearth",
        version=__version__,
        description="Location encoders: turn a latitude and longitude into an embedding that knows what is there.",
        lifespan=lifespan,
        docs_url=None,  # FastAPI's own pages load their scripts from elsewhere
        redoc_url=None,
    )
    registry = prometheus.CollectorRegistry()
    registry.register(_State(served))
    _add_error_replies(app)
    _add_routes(app, Routes(served, registry))
    if page is not None:
        _add_page(app, page)
    zipped = GZipMiddleware(app, minimum_size=GZIP_BYTES, compresslevel=6)

    async def choose(scope: Scope, receive: Receive, send: Send) -> None:
        is_long = scope["type"] == "http" and scope["path"].startswith(GZIP_PATHS)
        await (zipped if is_long else app)(scope, receive, send)

    return Gate(choose, served.settings, registry)


def _add_routes(app: "FastAPI", routes: Routes) -> None:
    from fastapi import Request

    async def embed_bytes(request: Request, dims: int | None = None, on_bad: OnBad = "error") -> Any:
        return await routes.embed_bytes(await request.body(), dims, on_bad)

    embed_bytes.__doc__ = routes.embed_bytes.__doc__
    for route in ROUTES:
        described = route.answer if isinstance(route.answer, Mapping) else {"model": route.answer}
        app.add_api_route(
            route.path,
            embed_bytes if route.function == "embed_bytes" else getattr(routes, route.function),
            methods=[route.method],
            tags=[route.tag],
            response_model=None,
            responses={200: {"description": "Done.", **described}, **REFUSALS},
            operation_id=route.function,
            openapi_extra=route.extra,
        )


def check_built(folder: Path = STATIC) -> Path:
    """The page's folder, or an error that says how to build it."""
    if not (folder / "index.html").is_file():
        raise ConfigError("the explorer's page is not built: run `make explorer` (needs Node 20), or `tessearth serve`")
    return folder


def _add_page(app: "FastAPI", folder: Path) -> None:
    from fastapi import Response

    headers = {"Content-Security-Policy": POLICY, "Cache-Control": "no-cache", "X-Content-Type-Options": "nosniff"}

    async def index() -> Any:
        return Response((folder / "index.html").read_bytes(), media_type="text/html", headers=headers)

    async def icon() -> Any:
        return Response((folder / "favicon.svg").read_bytes(), media_type="image/svg+xml")

    async def asset(name: str) -> Any:
        path = next((path for path in (folder / "assets").iterdir() if path.name == name), None)
        if path is None:
            raise UnknownNameError(f"there is no file {name}: load the page anew")
        return Response(path.read_bytes(), media_type=ASSET_KINDS.get(path.suffix, BINARY), headers=FOREVER)

    pages: dict[str, Callable[..., Any]] = {
        "/": index,
        "/index.html": index,
        "/favicon.svg": icon,
        "/assets/{name}": asset,
    }
    for path, function in pages.items():
        app.add_api_route(path, function, include_in_schema=False)


class _State:
    """Numbers of the served model that are read for every answer of /metrics."""

    def __init__(self, served: Served) -> None:
        self.served = served

    def collect(self) -> Iterator[Any]:
        """The samples, as prometheus-client asks for them."""
        from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily

        batcher = self.served.batcher
        yield GaugeMetricFamily("tessearth_pending_points", "Places waiting for the model.", batcher.pending)
        yield CounterMetricFamily("tessearth_model_rounds", "Calls of the model.", batcher.rounds)
        yield GaugeMetricFamily("tessearth_ready", "1 when every map is prepared.", float(self.served.ready))


STATUSES: tuple[tuple[type[TessearthError], int], ...] = (
    (OverloadedError, 503),
    (UnknownNameError, 404),
    (MissingExtraError, 501),
    (TessearthError, 422),
)
"""The first that fits decides the status."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": schemas.ErrorAnswer, "description": words}
    for status, words in (
        (400, "The body cannot be read."),
        (401, "An API key is needed."),
        (404, "There is nothing of this name."),
        (408, "The body did not arrive in time."),
        (413, "The body is too large."),
        (422, "The request is readable but wrong."),
        (429, "Too many requests."),
        (501, "An optional part is not installed."),
        (503, "Overloaded, or still preparing; ask again in a moment."),
    )
}
PLACE_FIELDS = ("lat", "lon", "points")


def _add_error_replies(app: "FastAPI") -> None:
    """Every error of ours, of the parser and of the router as {"error": one line}, in the command line's words."""
    from fastapi.exceptions import RequestValidationError
    from fastapi.responses import JSONResponse
    from starlette.exceptions import HTTPException

    def reply(status: int, words: str, headers: Mapping[str, str] | None = None) -> Any:
        return JSONResponse({"error": " ".join(words.split())}, status, headers)

    async def ours(_: Any, error: Any) -> Any:
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        return reply(status, str(error), {"Retry-After": "1"} if status == 503 else None)

    async def malformed(_: Any, error: Any) -> Any:
        return reply(422, _say(error.errors()[0]))

    async def refused(_: Any, error: Any) -> Any:
        return reply(error.status_code, str(error.detail), error.headers)

    app.add_exception_handler(TessearthError, ours)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, refused)


def _say(problem: dict[str, Any]) -> str:
    """The first mistake in a request, by the name of its field."""
    names = [str(part) for part in problem["loc"][1:] if isinstance(part, str) and part.isidentifier()]
    kind, value = problem["type"], problem.get("input")
    if kind == "json_invalid":
        return "the body is not JSON"
    if kind == "missing":
        return f"{names[-1] if names else 'the body'} is missing"
    if kind in ("unexpected_keyword_argument", "extra_forbidden"):
        return f"unknown field {names[-1] if names else ''}"
    if names and names[0] in PLACE_FIELDS and not isinstance(value, dict | list):
        return str(CoordinateError(f"{names[0]} holds {_short(value)}, where degrees as numbers belong"))
    where = names[0] if names else "the body"
    return f"{where} is {_short(value)}: {problem['msg'][:1].lower()}{problem['msg'][1:]}"


def _short(value: object) -> str:
    text = repr(value)
    return text if len(text) <= 60 else f"{text[:57]}..."


LOOPBACK = ("127.0.0.1", "localhost", "::1")
MOST_CONNECTIONS = 1000
SECONDS_TO_FINISH = 10
BACKLOG = 2048
"""Connections that may wait to be accepted."""


def run_server(served: Served, host: str, port: int, *, page: Path | None = None, open_browser: bool = False) -> None:
    """Serve until interrupted; requests in progress have some seconds to finish. Port 0 takes any that is free."""
    uvicorn = require("uvicorn", extra="serve", what="the server")
    listener = _listen(host, port)
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
    url = f"http://{f'[{host}]' if ':' in host else host}:{listener.getsockname()[1]}/"
    print(f"{'exploring' if page else 'serving'} {served.embedder.name} on {url} (stop with Ctrl-C)", flush=True)
    if host not in LOOPBACK and served.settings.api_key is None:
        print(
            "tessearth: warning: every machine that reaches this one can send requests; set an --api-key",
            file=sys.stderr,
        )
    if open_browser:
        threading.Timer(0.8, webbrowser.open, (url,)).start()
    uvicorn.Server(config).run(sockets=[listener])


def _listen(host: str, port: int) -> socket.socket:
    """A socket that accepts connections already: a port in use is one clear line, and early clients wait."""
    if not 0 <= port <= 65_535:
        raise ConfigError(f"port is {port}; it must lie between 0 and 65535")
    try:
        family, kind, proto, _, where = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        listener = socket.socket(family, kind, proto)
        listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        listener.bind(where)
        listener.listen(BACKLOG)
    except OSError as error:
        reason = (error.strerror or str(error)).lower()
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --port") from None
    return listener
