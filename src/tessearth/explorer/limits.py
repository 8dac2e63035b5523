"""The limits of the service, its metrics, and the gate that checks rate, key, size and time of every request."""

import asyncio
import hmac
import threading
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Hashable, Mapping, MutableMapping
from dataclasses import dataclass
from typing import Any, Generic, TypeVar
from urllib.parse import unquote

from tessearth.errors import ConfigError
from tessearth.packages import require
from tessearth.settings import check_at_least

Kept = TypeVar("Kept")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Limits of the service; a request beyond one is answered at once with 4xx or 503."""

    max_points: int = 65_536
    """Places in one request."""
    max_pending_points: int = 131_072
    """Places of all requests that wait for the model; beyond that the answer is 503."""
    max_body_bytes: int = 8 * 2**20
    """Size of a request's body."""
    max_labels: int = 20_000
    """Labelled places that a probe is fitted on."""
    rate: float = 1000.0
    """Requests a second from one client, twice as many in one burst; 0 sets no limit."""
    timeout_s: float = 60.0
    """Seconds after which a request is given up and answered with 503."""
    body_timeout_s: float = 15.0
    """Seconds after which a body that is still arriving is answered with 408."""
    api_key: str | None = None
    """The key every request must carry (as X-API-Key, Bearer token or the page's cookie); None asks for none."""

    def __post_init__(self) -> None:
        check_at_least(self, 1, "max_points", "max_pending_points", "max_body_bytes", "max_labels")
        check_at_least(self, 0, "rate")
        for name in ("timeout_s", "body_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError("the API key must be plain ASCII text and not empty")


class Recent(Generic[Kept]):
    """The results used most recently, up to a number; two threads may make the same one at once, and both are right."""

    def __init__(self, most: int) -> None:
        self.most = most
        self._kept: OrderedDict[Hashable, Kept] = OrderedDict()
        self._lock = threading.Lock()

    def get(self, key: Hashable) -> Kept | None:
        """The result kept under a key, or None."""
        with self._lock:
            if key in self._kept:
                self._kept.move_to_end(key)
            return self._kept.get(key)

    def put(self, key: Hashable, value: Kept) -> Kept:
        """Keep a result; the one not used for longest may have to go."""
        with self._lock:
            self._kept[key] = value
            self._kept.move_to_end(key)
            while len(self._kept) > self.most:
                self._kept.popitem(last=False)
        return value

    def find(self, key: Hashable, make: Callable[[], Kept]) -> Kept:
        """The result kept under a key, made when it is not there."""
        found = self.get(key)
        return self.put(key, make()) if found is None else found


BINARY = "application/octet-stream"
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)
METHODS = ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE")


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "tessearth-key"
OPEN_PATHS = ("/health", "/", "/index.html", "/favicon.svg")
"""Answered without a key, as are the page's assets."""
MOST_CLIENTS = 10_000
"""Clients whose rates are remembered."""


class _Refused(Exception):  # noqa: N818
    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status, self.headers = status, headers


class Gate:
    """An ASGI application around another one that checks and counts each request, by rate, key, size and time.

    Refusals are JSON {"error": one line}. Metrics label routes by their pattern, so labels stay few.
    """

    def __init__(self, inner: Application, settings: ServeSettings, registry: Any) -> None:
        """`registry` is the one of prometheus-client that the metrics are written from."""
        security = require("fastapi.security", extra="serve", what="the server")
        prometheus = require("prometheus_client", extra="serve", what="the server")
        self.inner, self.settings = inner, settings
        self._requests = prometheus.Counter(
            "tessearth_requests_total",
            "Requests answered, by route and status.",
            ("method", "route", "status"),
            registry=registry,
        )
        self._seconds = prometheus.Histogram(
            "tessearth_request_seconds", "Time to answer, by route.", ("route",), registry=registry, buckets=SECONDS
        )
        self.rates = Rates(settings.rate)
        self._keys = (
            security.APIKeyHeader(name="X-API-Key", auto_error=False),
            security.APIKeyCookie(name=COOKIE, auto_error=False),
            security.HTTPBearer(auto_error=False),
        )

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Check the request, then pass it on under a time limit."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        from fastapi.responses import JSONResponse

        start, status = time.perf_counter(), 0

        async def watch(message: Message) -> None:
            nonlocal status
            if message["type"] == "http.response.start":
                status = message["status"]
            await send(message)

        try:
            await self._check(scope)
            received = await _read_body(receive, self.settings)
            async with asyncio.timeout(self.settings.timeout_s):
                await self.inner(scope, received, watch)
        except (_Refused, TimeoutError) as error:
            if status:  # an answer that has begun cannot be taken back: let the connection break
                raise
            words = f"no answer within {self.settings.timeout_s:g} s; ask for less, or again in a moment"
            refusal = error if isinstance(error, _Refused) else _Refused(503, words, {"retry-after": "5"})
            answer = JSONResponse({"error": str(refusal)}, refusal.status, refusal.headers)
            await answer(scope, receive, watch)
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            method = scope["method"] if scope["method"] in METHODS else "other"
            self._requests.labels(method, route, status or 500).inc()
            self._seconds.labels(route).observe(time.perf_counter() - start)

    async def _check(self, scope: Scope) -> None:
        """Refuse a request by what its head says: too many from one client, no key, too large."""
        from fastapi import Request

        request = Request(scope)
        client = request.client.host if request.client else "unknown"
        wait = self.rates.wait(client, time.monotonic())
        if wait > 0:
            words = f"more than {self.settings.rate:g} requests a second from {client}; wait a moment"
            raise _Refused(429, words, {"retry-after": str(int(wait) + 1)})
        if not await self._may_enter(request):
            raise _Refused(401, "an API key is needed: send it as X-API-Key", {"www-authenticate": "Bearer"})
        length = request.headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise _Refused(400, "Content-Length is not a whole number")
        if len(length) > 18 or int(length) > self.settings.max_body_bytes:
            raise _too_large(self.settings)

    async def _may_enter(self, request: Any) -> bool:
        """Whether the request carries the key, as X-API-Key, Bearer token or cookie, or needs none."""
        wanted, path = self.settings.api_key, request.scope["path"]
        if wanted is None or path in OPEN_PATHS or path.startswith("/assets/"):
            return True
        header, cookie, bearer = [await key(request) for key in self._keys]
        given = (header, unquote(cookie or ""), bearer.credentials if bearer else "")  # browsers quote cookies
        return any(hmac.compare_digest((key or "").encode(), wanted.encode()) for key in given)


class Rates:
    """A token bucket for every client that fills at `rate` a second and holds twice that."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._buckets: Recent[tuple[float, float]] = Recent(MOST_CLIENTS)

    def wait(self, client: str, now: float) -> float:
        """Seconds until the client may send a request; 0 counts one."""
        if self.rate == 0:
            return 0.0
        most = max(1.0, 2 * self.rate)
        left, before = self._buckets.get(client) or (most, now)
        left = min(most, left + (now - before) * self.rate)
        allowed = left >= 1
        self._buckets.put(client, (left - 1 if allowed else left, now))
        return 0.0 if allowed else (1 - left) / self.rate


async def _read_body(receive: Receive, settings: ServeSettings) -> Receive:
    """Read a body whole, within its limits of size and time; returns a function that receives it again."""
    body = bytearray()
    try:
        async with asyncio.timeout(settings.body_timeout_s):
            while True:
                message = await receive()
                body += message.get("body", b"")
                if len(body) > settings.max_body_bytes:
                    raise _too_large(settings)
                if not message.get("more_body", False):
                    break
    except TimeoutError:
        words = f"the body did not arrive within {settings.body_timeout_s:g} s"
        raise _Refused(408, words, {"connection": "close"}) from None
    unread = [{**message, "body": bytes(body)} if message["type"] == "http.request" else message]

    async def receive_again() -> Message:
        return unread.pop() if unread else await receive()

    return receive_again


def _too_large(settings: ServeSettings) -> _Refused:
    words = f"the body is larger than {settings.max_body_bytes} bytes; send fewer places at a time"
    return _Refused(413, words, {"connection": "close"})
