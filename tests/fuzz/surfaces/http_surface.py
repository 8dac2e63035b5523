"""Requests to the server: bodies, addresses and headers, given to the application as a server would."""

import asyncio
import json
import struct
from collections.abc import Sequence
from pathlib import Path
from random import Random
from typing import Any

from tests.fuzz.mutation import VALUES, damage_bytes, damage_tree
from tests.fuzz.surfaces import Prepared, Surface

TOKENS = (
    b"lat=",
    b"&lon=",
    b"NaN",
    b"1e999",
    b"null",
    b"[[",
    b"{",
    b"%00",
    b"%2e%2e/",
    b"\xff",
    b'"format":"binary"',
    b"9" * 400,
)
ODD_STATUSES = {501, 503}
"""Above 499, but said on purpose: a part not installed, or still preparing."""
SEEDS: tuple[dict[str, Any], ...] = (
    {"path": "/embed", "body": {"lat": 48.9, "lon": 2.4}},
    {"path": "/embed", "body": {"points": [[48.9, 2.4], [1, 30]], "format": "binary"}},
    {"path": "/embed", "body": {"lat": [1, 20], "lon": [30, -179.9]}},
    {"path": "/similar", "body": {"lat": 1, "lon": 20, "count": 3, "apart_km": 100}},
    {
        "path": "/predict",
        "body": {
            "lat": list(range(-40, 40, 4)),
            "lon": list(range(0, 100, 5)),
            "values": [i % 3 for i in range(20)],
            "name": "t",
        },
    },
    {
        "path": "/predict",
        "body": {
            "lat": list(range(-40, 40, 4)),
            "lon": list(range(0, 100, 5)),
            "values": ["a", "b"] * 10,
            "name": "t",
            "step_degrees": 30,
        },
    },
    {"path": "/embed?lat=48.9&lon=2.4"},
    {"path": "/place?lat=48.9&lon=2.4"},
    {"path": "/compare?lat1=1&lon1=20&lat2=3&lon2=40"},
    {"path": "/tiles/similarity/1/0/0.png?lat=48.9&lon=2.4"},
    {"path": "/tiles/token/2/1/1.png?token=1&sea=false"},
    {"path": "/legend/sharpness"},
    {"path": "/migration?share=0.5&frames=3&seed=1"},
    {"path": "/cells?tessellation=0"},
    {"path": "/health"},
    {"path": "/sites"},
    {"path": "/metrics"},
)


class RefusedError(Exception):
    """An answer that says in one line what was wrong with the request."""


class OddAnswerError(AssertionError):
    """An answer that is neither what was asked for nor a refusal in one line."""


def prepare(folder: Path) -> Prepared:
    """A served model whose maps are ready."""
    import torch

    from tessearth import Embedder
    from tessearth.explorer.app import build_app
    from tessearth.explorer.limits import ServeSettings
    from tessearth.explorer.session import Served
    from tests.fuzz.surfaces.models import small_encoder

    torch.set_num_threads(1)
    settings = ServeSettings(rate=0, max_points=300, max_body_bytes=20_000, max_labels=100, timeout_s=9.0)
    encoder = small_encoder()
    served = Served(Embedder(encoder, device="cpu"), settings, trajectories=_trajectories(folder, encoder))
    app = build_app(served)
    loop = asyncio.new_event_loop()
    loop.run_until_complete(served.__aenter__())
    while not served.ready:
        loop.run_until_complete(asyncio.sleep(0.05))

    def run(content: bytes) -> None:
        loop.run_until_complete(_ask(app, content))

    seeds = [_bytes(seed) for seed in SEEDS]
    seeds.append(b"POST /embed/binary\napplication/octet-stream\n\n" + struct.pack("<4d", 48.9, 2.4, 1, 30))
    return Prepared(seeds, run, accepted=RefusedError)


def _trajectories(folder: Path, encoder: Any) -> Path:
    """The record of sites that stood still."""
    import numpy as np

    here = encoder.sites().positions.detach().numpy().astype(np.float32)
    still = {"positions": np.stack([here] * 4), "sharpness": np.full((4, len(here)), 20, np.float32)}
    np.savez(folder / "trajectories.npz", steps=np.array([0, 10, 20, 30]), **still)
    return folder / "trajectories.npz"


def _bytes(seed: dict[str, Any]) -> bytes:
    """A request as it is kept in the corpus: method and address, content type, empty line, body."""
    method = "POST" if "body" in seed else "GET"
    body = json.dumps(seed["body"]).encode("utf-8", "surrogatepass") if "body" in seed else b""
    return f"{method} {seed['path']}\napplication/json\n\n".encode("utf-8", "surrogatepass") + body


async def _ask(app: Any, content: bytes) -> None:
    head, _, body = content.partition(b"\n\n")
    first, _, headers = head.partition(b"\n")
    method, _, address = first.partition(b" ")
    path, _, query = address.partition(b"?")
    kind, *others = headers.split(b"\n")
    split = [line.partition(b": ") for line in others if b": " in line]
    pairs = [(name.lower(), value) for name, _, value in split]
    scope = {
        "type": "http", "asgi": {"version": "3.0"}, "http_version": "1.1", "method": method.decode("latin-1") or "GET",
        "scheme": "http", "path": _unquoted(path), "raw_path": path, "query_string": query, "root_path": "",
        "headers": [(b"content-type", kind), (b"content-length", str(len(body)).encode()), *pairs],
        "client": ("127.0.0.1", 1), "server": ("127.0.0.1", 2),
    }  # fmt: skip
    messages: list[Any] = []
    given = [{"type": "http.request", "body": body, "more_body": False}]

    async def receive() -> Any:
        return given.pop() if given else {"type": "http.disconnect"}

    async def send(message: Any) -> None:
        messages.append(message)

    await app(scope, receive, send)
    _check(messages)


def _check(messages: list[Any]) -> None:
    status = messages[0]["status"]
    body = b"".join(message.get("body", b"") for message in messages[1:])
    if status >= 500 and status not in ODD_STATUSES:
        raise OddAnswerError(f"status {status}: {body[:300]!r}")
    if status >= 400:
        words = json.loads(body)["error"]
        if not words or "\n" in words or len(words) > 1000:
            raise OddAnswerError(f"status {status} with the words {words[:300]!r}")
        raise RefusedError(words)


def _unquoted(path: bytes) -> str:
    from urllib.parse import unquote

    return unquote(path.decode("latin-1"), errors="replace")


def mutate(random: Random, seeds: Sequence[bytes]) -> bytes:
    """Damage a body's tree or bytes, the address, or the headers."""
    seed = random.choice(seeds)
    head, _, body = seed.partition(b"\n\n")
    style = random.random()
    if body[:1] == b"{" and style < 0.7:
        body = json.dumps(damage_tree(random, json.loads(body), VALUES)).encode("utf-8", "surrogatepass")
    elif body and style < 0.85:
        body = damage_bytes(random, body, (), TOKENS)
    else:
        head = damage_bytes(random, head, (), TOKENS)
    if random.random() < 0.05:
        head += b"\n" + random.choice(
            (
                b"cookie: a=\x00b",
                b"x-api-key: \xff",
                b"accept-encoding: gzip",
                b"content-length: 5",
                b"content-length: -1",
            )
        )
    if random.random() < 0.02:
        body = random.choice((b"[" * 9000, b"\x00" * 16, b'{"lat":' * 2000, b"", b"1" * 9000))
    return head + b"\n\n" + body


SURFACE = Surface("http", prepare, mutate)
