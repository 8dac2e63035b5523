"""Long texts go out compressed, the same text as without; whoever does not take that gets it plain."""

import gzip
from typing import Any

import pytest

from tessearth.explorer.compressing import Compressing
from tests.coroutines import run
from tests.explorer.serving import Client

LONG = b"sites of the sphere, " * 1000


def ask(path: str, accepted: bytes, *parts: bytes) -> tuple[dict[bytes, bytes], bytes]:
    """What comes out when the application inside answers in these parts."""

    async def inner(scope: Any, receive: Any, send: Any) -> None:
        length = str(sum(map(len, parts))).encode()
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-length", length)]})
        for number, part in enumerate(parts):
            await send({"type": "http.response.body", "body": part, "more_body": number < len(parts) - 1})

    sent: list[Any] = []

    async def send(message: Any) -> None:
        sent.append(message)

    scope = {"type": "http", "path": path, "headers": [(b"accept-encoding", accepted)] if accepted else []}
    run(Compressing(inner)(scope, None, send))  # type: ignore[arg-type] # nobody receives
    return dict(sent[0]["headers"]), b"".join(message["body"] for message in sent[1:])


@pytest.mark.parametrize("accepted", [b"gzip", b"deflate, gzip;q=0.5", b"br, gzip"])
def test_what_is_unpacked_is_what_was_said(accepted: bytes) -> None:
    headers, body = ask("/cells", accepted, LONG)
    assert headers[b"content-encoding"] == b"gzip"
    assert headers[b"content-length"] == str(len(body)).encode()
    assert len(body) < len(LONG) / 10
    assert gzip.decompress(body) == LONG


@pytest.mark.parametrize(
    ("path", "accepted", "parts"),
    [
        ("/cells", b"", [LONG]),
        ("/cells", b"gzip;q=0", [LONG]),
        ("/cells", b"gzippy", [LONG]),
        ("/cells", b"gzip", [b"short"]),
        ("/cells", b"gzip", [LONG, LONG]),
        ("/embed/binary", b"gzip", [LONG]),
    ],
)
def test_everything_else_goes_as_it_is(path: str, accepted: bytes, parts: list[bytes]) -> None:
    headers, body = ask(path, accepted, *parts)
    assert b"content-encoding" not in headers
    assert headers[b"content-length"] == str(len(body)).encode()
    assert body == b"".join(parts)


def test_the_server_compresses_its_long_answers(client: Client) -> None:
    plain, packed = client.ask("/outlines"), client.ask("/outlines", headers={"accept-encoding": "gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert gzip.decompress(packed.body) == plain.body
    assert client.ask("/health", headers={"accept-encoding": "gzip"}).headers.get("content-encoding") is None
