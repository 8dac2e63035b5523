"""Long text compressed on its way out, once: what is the same for everybody is not worked on for each."""

import asyncio
import gzip
import hashlib
import re

from tessearth.explorer.limits import Application, Message, Receive, Scope, Send
from tessearth.explorer.session import Recent

PATHS = ("/sites", "/cells", "/tokens", "/outlines", "/migration", "/openapi.json", "/assets/")
SHORTEST = 4096
LEVEL = 6
KEPT = 32


class Compressing:
    """An ASGI application around another one whose long texts go out as gzip to whoever takes that.

    Pictures and numbers, which gain nothing, go as they are, and so does an answer that comes in several parts.
    """

    def __init__(self, inner: Application) -> None:
        self.inner = inner
        self._kept: Recent[bytes] = Recent(KEPT)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Pass on, and hold the answer's head back until its body is known."""
        if scope["type"] != "http" or not scope["path"].startswith(PATHS) or not _takes_gzip(scope):
            await self.inner(scope, receive, send)
            return
        head: Message | None = None

        async def squeeze(message: Message) -> None:
            nonlocal head
            if message["type"] == "http.response.start":
                head = message
                return
            if head is not None:
                message = await self._pack(head, message)
                await send(head)
                head = None
            await send(message)

        await self.inner(scope, receive, squeeze)

    async def _pack(self, head: Message, message: Message) -> Message:
        """The message with its body compressed, and the head changed to fit."""
        body = message.get("body", b"")
        if message.get("more_body", False) or len(body) < SHORTEST:
            return message
        key = hashlib.sha256(body).digest()
        packed = self._kept.get(key) or self._kept.put(key, await asyncio.to_thread(gzip.compress, body, LEVEL))
        others = [(name, value) for name, value in head["headers"] if name.lower() != b"content-length"]
        said = [(b"content-encoding", b"gzip"), (b"vary", b"Accept-Encoding")]
        head["headers"] = [*others, *said, (b"content-length", str(len(packed)).encode())]
        return {**message, "body": packed}


def _takes_gzip(scope: Scope) -> bool:
    accepted = b",".join(value for name, value in scope["headers"] if name == b"accept-encoding")
    return re.search(rb"\bgzip\b(?!\s*;\s*q=0(\.0*)?\s*(,|$))", accepted) is not None
