"""Key, rate, size and time: judged before anything else."""

import gzip
import socket
import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest

from tessearth import Embedder
from tessearth.errors import ConfigError
from tessearth.explorer.limits import COOKIE, Rates, ServeSettings
from tessearth.explorer.session import Served
from tests.explorer.serving import Client, serving

# A server is asked about single places; that some look like radians is a line in its log, not a failure.
pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")


@contextmanager
def served_with(embedder: Embedder, **settings: Any) -> Iterator[Client]:
    with serving(Served(embedder, ServeSettings(**settings))) as client:
        yield client


def test_a_client_may_burst_and_then_keeps_to_its_rate() -> None:
    rates = Rates(10)
    assert [rates.wait("a", 0.0) for _ in range(20)] == [0.0] * 20
    assert rates.wait("a", 0.0) == pytest.approx(0.1)
    assert rates.wait("b", 0.0) == 0
    assert rates.wait("a", 0.11) == 0
    assert rates.wait("a", 0.11) > 0
    assert Rates(0).wait("a", 0.0) == 0


def test_too_many_requests_are_429_and_say_when_to_come_back(embedder: Embedder) -> None:
    with served_with(embedder, rate=5) as client:
        answers = [client.ask("/health") for _ in range(30)]
        refused = [answer for answer in answers if answer.status == 429]
        assert refused
        assert int(refused[0].headers["retry-after"]) >= 1
        assert "more than 5 requests a second" in refused[0].error


def test_a_key_is_asked_for_where_one_is_set(embedder: Embedder) -> None:
    with served_with(embedder, api_key="open sesame") as client:
        path = "/embed?lat=1&lon=20"
        assert client.ask("/health").status == 200
        assert client.ask(path).status == 401
        assert client.ask(path, headers={"X-API-Key": "open"}).status == 401
        assert client.ask(path, headers={"X-API-Key": "\xe9"}).status == 401
        assert client.ask("/openapi.json").status == 401
        for headers in (
            {"X-API-Key": "open sesame"},
            {"Authorization": "Bearer open sesame"},
            {"Cookie": f"{COOKIE}=open%20sesame"},
        ):
            assert client.ask(path, headers=headers).status == 200


def test_long_texts_go_out_as_gzip_to_clients_that_take_it(client: Client) -> None:
    plain, packed = client.ask("/outlines"), client.ask("/outlines", headers={"accept-encoding": "br, gzip"})
    assert packed.headers["content-encoding"] == "gzip"
    assert packed.headers["content-length"] == str(len(packed.body))
    assert len(packed.body) < len(plain.body) / 2
    assert gzip.decompress(packed.body) == plain.body
    assert "content-encoding" not in plain.headers
    places = np.zeros((3000, 2)).tobytes()
    for path, body in (("/health", None), ("/embed/binary", places), ("/tiles/embedding/0/0/0.png", None)):
        assert "content-encoding" not in client.ask(path, body, headers={"accept-encoding": "gzip"}).headers


def test_a_body_without_a_length_is_counted(embedder: Embedder) -> None:
    with served_with(embedder, max_body_bytes=1000) as client:
        head = b"POST /embed/binary HTTP/1.1\r\nhost: x\r\ntransfer-encoding: chunked\r\n\r\n"
        chunk = b"190\r\n" + b"\x00" * 400 + b"\r\n"
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
            raw.sendall(head + 3 * chunk)  # at once: a server that has answered may close while more is on its way
            assert b" 413 " in raw.recv(300)


def test_a_body_that_never_comes_is_not_waited_for(embedder: Embedder) -> None:
    with served_with(embedder, body_timeout_s=0.3) as client:
        with socket.create_connection(("127.0.0.1", client.port), timeout=20) as slow:
            slow.sendall(b"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: 50\r\n\r\n{")
            start = time.monotonic()
            assert b" 408 " in slow.recv(200)
            assert time.monotonic() - start < 10
        assert client.ask("/health").status == 200


@pytest.mark.parametrize("length", ["-5", "many", "9" * 30])
def test_lengths_that_are_lies_are_refused(embedder: Embedder, client: Client, length: str) -> None:
    with socket.create_connection(("127.0.0.1", client.port), timeout=20) as raw:
        raw.sendall(f"POST /embed HTTP/1.1\r\nhost: x\r\ncontent-length: {length}\r\n\r\n".encode())
        answer = raw.recv(300)
    assert answer.split()[1] in (b"400", b"413")


class SlowEmbedder:
    """A model that takes its time, in front of the real one."""

    def __init__(self, embedder: Embedder, seconds: float) -> None:
        self._embedder, self._seconds = embedder, seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self._embedder, name)

    def embed(self, latlon: np.ndarray) -> np.ndarray:
        time.sleep(self._seconds)
        return self._embedder.embed(latlon)


def test_a_request_that_takes_too_long_is_503(embedder: Embedder) -> None:
    served = Served(SlowEmbedder(embedder, 1.0), ServeSettings(timeout_s=0.2))  # type: ignore[arg-type]
    with serving(served) as client:
        start = time.monotonic()
        answer = client.ask("/embed?lat=1&lon=20")
        assert answer.status == 503
        assert "no answer within 0.2 s" in answer.error
        assert time.monotonic() - start < 5


def test_maps_that_are_not_ready_are_503_and_not_waited_for(embedder: Embedder) -> None:
    served = Served(SlowEmbedder(embedder, 0.5), ServeSettings())  # type: ignore[arg-type]
    with serving(served) as client:
        for path in ("/tiles/embedding/0/0/0.png", "/legend/token?token=1", "/tokens"):
            answer = client.ask(path)
            assert answer.status == 503
            assert "being prepared" in answer.error
        assert client.ask("/health").json()["status"] == "starting"
        assert client.ask("/layers").json()[0]["ready"] is False


@pytest.mark.parametrize(
    ("settings", "words"),
    [
        ({"max_points": 0}, "max_points is 0; it must be at least 1"),
        ({"rate": -1}, "rate is -1"),
        ({"timeout_s": 0}, "timeout_s is 0; it must be positive"),
        ({"api_key": " "}, "the API key must be plain ASCII text and not empty"),
        ({"api_key": "schlüssel"}, "plain ASCII"),
    ],
)
def test_limits_that_make_no_sense_are_refused(settings: dict[str, Any], words: str) -> None:
    with pytest.raises(ConfigError, match=words):
        ServeSettings(**settings)
