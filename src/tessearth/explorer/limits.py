"""Limits of the service, its metrics, and the gate that judges size, rate, key and time of every request."""

import asyncio
import bisect
import hmac
import json
import threading
import time
from collections import Counter, OrderedDict
from collections.abc import Awaitable, Callable, Iterator, Mapping, MutableMapping
from dataclasses import dataclass
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote

from tessearth.errors import ConfigError


@dataclass(frozen=True, slots=True, kw_only=True)
class ServeSettings:
    """Limits of the service; a request beyond one is answered with 4xx or 503, never left waiting."""

    max_points: int = 65_536
    """How many places one request may hold."""

    max_pending_points: int = 131_072
    """How many places may wait for the model altogether; beyond that the answer is 503."""

    max_body_bytes: int = 8 * 2**20
    """How large a request's body may be."""

    max_labels: int = 20_000
    """How many labelled places a probe may be fitted on."""

    rate: float = 1000.0
    """Requests a second that one client may send, twice as many in one burst; 0 sets no limit."""

    timeout_s: float = 60.0
    """After so many seconds a request is answered with 503 whatever it was doing."""

    body_timeout_s: float = 15.0
    """After so many seconds a body that is still arriving is answered with 408."""

    api_key: str | None = None
    """What requests must carry (X-API-Key, a Bearer token or the page's cookie); None asks for nothing."""

    def __post_init__(self) -> None:
        for name in ("max_points", "max_pending_points", "max_body_bytes", "max_labels"):
            if getattr(self, name) < 1:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be at least 1")
        for name in ("timeout_s", "body_timeout_s"):
            if not getattr(self, name) > 0:
                raise ConfigError(f"{name} is {getattr(self, name)}; it must be positive")
        if not self.rate >= 0:
            raise ConfigError(f"rate is {self.rate}; it must be 0 (no limit) or more requests a second")
        if self.api_key is not None and not (self.api_key.isascii() and self.api_key.strip()):
            raise ConfigError("the API key must be plain ASCII text and not empty")


CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"
SECONDS = (0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0, 30.0)


class Metrics:
    """What the server has done so far; routes are named by their pattern, so that nobody can make up new labels."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._requests: Counter[tuple[str, str, int]] = Counter()
        self._buckets: dict[str, list[int]] = {}
        self._seconds: Counter[str] = Counter()
        self._gauges: dict[str, tuple[str, str, Callable[[], float]]] = {}

    def gauge(self, name: str, help_text: str, read: Callable[[], float], kind: str = "gauge") -> None:
        """Add a number that is read whenever it is asked for."""
        self._gauges[name] = (help_text, kind, read)

    def observe(self, method: str, route: str, status: int, seconds: float) -> None:
        """Note a finished request."""
        with self._lock:
            self._requests[method, route, status] += 1
            buckets = self._buckets.setdefault(route, [0] * (len(SECONDS) + 1))
            buckets[bisect.bisect_left(SECONDS, seconds)] += 1
            self._seconds[route] += seconds  # type: ignore[assignment] # a Counter adds up any number

    def text(self) -> str:
        """Everything, one sample a line."""
        with self._lock:
            return "\n".join((*self._request_lines(), *self._time_lines(), *self._gauge_lines())) + "\n"

    def _request_lines(self) -> Iterator[str]:
        yield "# HELP tessearth_requests_total Requests answered, by route and status."
        yield "# TYPE tessearth_requests_total counter"
        for (method, route, status), count in sorted(self._requests.items()):
            yield f'tessearth_requests_total{{method="{method}",route="{route}",status="{status}"}} {count}'

    def _time_lines(self) -> Iterator[str]:
        yield "# HELP tessearth_request_seconds Time to answer, by route."
        yield "# TYPE tessearth_request_seconds histogram"
        for route, buckets in sorted(self._buckets.items()):
            total = 0
            for bound, count in zip((*SECONDS, "+Inf"), buckets, strict=True):
                total += count
                yield f'tessearth_request_seconds_bucket{{route="{route}",le="{bound}"}} {total}'
            yield f'tessearth_request_seconds_sum{{route="{route}"}} {self._seconds[route]:.6f}'
            yield f'tessearth_request_seconds_count{{route="{route}"}} {total}'

    def _gauge_lines(self) -> Iterator[str]:
        for name, (help_text, kind, read) in sorted(self._gauges.items()):
            yield f"# HELP {name} {help_text}"
            yield f"# TYPE {name} {kind}"
            yield f"{name} {read():g}"


Scope = MutableMapping[str, Any]
Message = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Message]]
Send = Callable[[Message], Awaitable[None]]
Application = Callable[[Scope, Receive, Send], Awaitable[None]]

COOKIE = "tessearth-key"
OPEN_PATHS = ("/health",)
"""Answered without a key; the page's own files are too (`is_page`)."""
MOST_CLIENTS = 10_000
"""Whose recent requests are remembered; the client not seen for longest is forgotten first."""


class _Refused(Exception):  # noqa: N818
    def __init__(self, status: int, words: str, headers: Mapping[str, str] | None = None) -> None:
        super().__init__(words)
        self.status, self.headers = status, dict(headers or {})


class Gate:
    """An ASGI application around another one; refusals are JSON {"error": one line}."""

    def __init__(
        self, inner: Application, *, settings: ServeSettings, metrics: Metrics, is_page: Callable[[str], bool]
    ) -> None:
        self.inner, self.settings, self.metrics, self.is_page = inner, settings, metrics, is_page
        self.rates = Rates(settings.rate)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Judge, then pass on under a time limit."""
        if scope["type"] != "http":
            await self.inner(scope, receive, send)
            return
        start, state = time.perf_counter(), _Answer(send)
        try:
            self._judge(scope)
            body = _Body(receive, self.settings)
            await body.read()
            async with asyncio.timeout(self.settings.timeout_s):
                await self.inner(scope, body.receive, state.send)
        except _Refused as refusal:
            await state.refuse(refusal)
        except TimeoutError:
            words = f"no answer within {self.settings.timeout_s:g} s; ask for less, or again in a moment"
            await state.refuse(_Refused(503, words, {"retry-after": "5"}))
        finally:
            route = getattr(scope.get("route"), "path", None) or "other"
            self.metrics.observe(_known_method(scope), route, state.status, time.perf_counter() - start)

    def _judge(self, scope: Scope) -> None:
        headers = {name.decode("latin-1"): value.decode("latin-1") for name, value in scope["headers"]}
        client = (scope.get("client") or ("unknown",))[0]
        wait = self.rates.wait(client, time.monotonic())
        if wait > 0:
            words = f"more than {self.settings.rate:g} requests a second from {client}; wait a moment"
            raise _Refused(429, words, {"retry-after": str(int(wait) + 1)})
        path = scope["path"]
        wanted = self.settings.api_key
        if wanted is not None and path not in OPEN_PATHS and not self.is_page(path) and not _has_key(headers, wanted):
            raise _Refused(401, "an API key is needed: send it as X-API-Key", {"www-authenticate": "Bearer"})
        length = headers.get("content-length", "0")
        if not length.isascii() or not length.isdigit():
            raise _Refused(400, "Content-Length is not a whole number")
        if len(length) > 18 or int(length) > self.settings.max_body_bytes:
            raise _too_large(self.settings)


class Rates:
    """A bucket for every client that fills at `rate` and holds twice that."""

    def __init__(self, rate: float) -> None:
        self.rate = rate
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def wait(self, client: str, now: float) -> float:
        """0 when the client may go on, else the seconds until it may."""
        if self.rate == 0:
            return 0.0
        most = max(1.0, 2 * self.rate)
        left, before = self._buckets.pop(client, (most, now))
        left = min(most, left + (now - before) * self.rate)
        allowed = left >= 1
        self._buckets[client] = (left - 1 if allowed else left, now)
        if len(self._buckets) > MOST_CLIENTS:
            self._buckets.popitem(last=False)
        return 0.0 if allowed else (1 - left) / self.rate


class _Body:
    """A body read whole before anybody parses it: counted as it arrives, and not waited for longer than is said."""

    def __init__(self, receive: Receive, settings: ServeSettings) -> None:
        self._receive, self._settings = receive, settings
        self._message: Message | None = None

    async def read(self) -> None:
        parts: list[bytes] = []
        try:
            async with asyncio.timeout(self._settings.body_timeout_s):
                while True:
                    message = await self._receive()
                    parts.append(message.get("body", b""))
                    if sum(map(len, parts)) > self._settings.max_body_bytes:
                        raise _too_large(self._settings)
                    if not message.get("more_body", False):
                        break
        except TimeoutError:
            words = f"the body did not arrive within {self._settings.body_timeout_s:g} s"
            raise _Refused(408, words, {"connection": "close"}) from None
        self._message = {**message, "body": b"".join(parts)} if message["type"] == "http.request" else message

    async def receive(self) -> Message:
        """The body at once, then whatever else comes: word that the client has gone."""
        message, self._message = self._message, None
        return message if message is not None else await self._receive()


class _Answer:
    """Remembers whether an answer has begun, and with which status."""

    def __init__(self, send: Send) -> None:
        self._send, self.status, self.begun = send, 500, False

    async def send(self, message: Message) -> None:
        if message["type"] == "http.response.start":
            self.begun, self.status = True, message["status"]
        await self._send(message)

    async def refuse(self, refusal: _Refused) -> None:
        if self.begun:  # half an answer cannot be taken back: let the connection break
            raise refusal
        body = json.dumps({"error": str(refusal)}).encode()
        headers = {"content-type": "application/json", "content-length": str(len(body)), **refusal.headers}
        start = {"type": "http.response.start", "status": refusal.status}
        await self.send({**start, "headers": [(name.encode(), value.encode()) for name, value in headers.items()]})
        await self.send({"type": "http.response.body", "body": body})


def _too_large(settings: ServeSettings) -> _Refused:
    words = f"the body is larger than {settings.max_body_bytes} bytes; send fewer places at a time"
    return _Refused(413, words, {"connection": "close"})


def _has_key(headers: Mapping[str, str], wanted: str) -> bool:
    given = [headers.get("x-api-key", ""), headers.get("authorization", "").removeprefix("Bearer ")]
    try:
        cookie = SimpleCookie(headers.get("cookie", "")).get(COOKIE)
    except CookieError:
        cookie = None
    given.append(unquote(cookie.value) if cookie else "")  # as browsers write what is no plain word
    return any(hmac.compare_digest(key.encode(), wanted.encode()) for key in given)


def _known_method(scope: Scope) -> str:
    return scope["method"] if scope["method"] in ("GET", "HEAD", "POST", "OPTIONS", "PUT", "DELETE") else "other"
