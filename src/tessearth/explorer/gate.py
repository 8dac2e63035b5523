"""The gate every request passes: size, rate, key and time are judged before anything reads the body's meaning."""

import asyncio
import hmac
import json
import time
from collections import OrderedDict
from collections.abc import Awaitable, Callable, Mapping, MutableMapping
from http.cookies import CookieError, SimpleCookie
from typing import Any
from urllib.parse import unquote

from tessearth.explorer.metrics import Metrics
from tessearth.explorer.settings import ServeSettings

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
