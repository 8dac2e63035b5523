"""Malformed, huge, swapped and hostile requests: 4xx in one line, in the words of the command line."""

import json
import sys

import pytest

from tests.explorer.conftest import MAX_POINTS
from tests.explorer.serving import Client

# A server is asked about single places; that some look like radians is a line in its log, not a failure.
pytestmark = pytest.mark.filterwarnings("ignore::tessearth.errors.CoordinateWarning")

WRONG: dict[str, tuple[object, str]] = {
    "latitude out of range": ({"lat": 95, "lon": 200}, "the place is (95, 200): not (lat, lon) in degrees"),
    "swapped": ({"lat": 139.7, "lon": 35.7}, "this looks like (lon, lat): swap the two"),
    "swapped in a batch": ({"points": [[10, 20], [139.7, 35.7]]}, "row 1 is (139.7, 35.7): not (lat, lon) in degrees"),
    "longitude out of range": ({"lat": 1, "lon": 400}, "longitude lies between -180 and 180"),
    "not finite": (b'{"lat": NaN, "lon": 2}', "the place is (nan, 2): latitude or longitude is missing or not finite"),
    "infinite": (b'{"lat": 1, "lon": -Infinity}', "missing or not finite"),
    "beyond any number": (b'{"lat": 1e999, "lon": 2}', "missing or not finite"),
    "a number of 5000 digits": (b'{"lat": 1, "lon": ' + b"9" * 5000 + b"}", ""),
    "text": ({"lat": "north", "lon": 2}, "lat holds 'north', where degrees as numbers belong"),
    "null": ({"lat": None, "lon": 2}, "no places were given"),
    "half a place": ({"lat": 48}, "no places were given: pass points, or both lat= and lon="),
    "twice": ({"lat": 1, "lon": 2, "points": [[1, 2]]}, "places were given twice"),
    "nothing": ({}, "no places were given"),
    "lengths": ({"lat": [1, 2, 3], "lon": [1, 2]}, "lat has shape (3,) and lon (2,): they do not go together"),
    "ragged": ({"points": [[1, 2], [3]]}, "where degrees as numbers belong"),
    "triples": ({"points": [[1, 2, 3]]}, "(lat, lon) pairs have shape (..., 2)"),
    "no rows": ({"points": []}, "(lat, lon) pairs have shape (..., 2)"),
    "unknown field": ({"lat": 1, "lon": 2, "latt": 3}, "unknown field latt"),
    "too many": ({"points": [[0, 50]] * (MAX_POINTS + 1)}, f"send at most {MAX_POINTS} at a time"),
    "a list": ([1, 2], ""),
    "a word": ("hello", ""),
    "not JSON": (b"{lat: 48}", "the body is not JSON"),
    "cut short": (b'{"lat": 48, "lon"', "the body is not JSON"),
    "not UTF-8": (b"\xff\xfe\x00", ""),
    "deep": (b"[" * 100_000, ""),
    "empty": (b"", ""),
    "unknown format": ({"lat": 1, "lon": 2, "format": "xml"}, "format is 'xml'"),
}


@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_body_is_one_clear_line(client: Client, wrong: str) -> None:
    body, words = WRONG[wrong]
    answer = client.ask("/embed", body, method="POST", headers={"content-type": "application/json"})
    assert answer.status in (400, 422)
    assert words in answer.error
    assert "\n" not in answer.error
    assert len(answer.error) < 400
    assert client.ask("/health").status == 200


def test_no_places_give_no_embeddings(client: Client) -> None:
    assert client.ask("/embed", {"lat": [], "lon": []}).json()["shape"] == [0, 18]


@pytest.mark.parametrize("place", [("95", "200"), ("139.7", "35.7"), ("nan", "2"), ("1", "400")])
def test_the_words_are_those_of_the_command_line(
    client: Client, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str], place: tuple[str, str]
) -> None:
    from tessearth.cli.app import main

    monkeypatch.setattr(sys, "argv", ["tessearth", "encode", *place, "--model", "direct"])
    with pytest.raises(SystemExit):
        main()
    said = capsys.readouterr().err.strip().removeprefix("tessearth: error: ")
    answer = client.ask(f"/embed?lat={place[0]}&lon={place[1]}")
    assert (answer.status, answer.error) == (422, said)


@pytest.mark.parametrize("path", ["/place", "/legend/similarity", "/picture.png", "/tiles/similarity/0/0/0.png"])
def test_every_route_checks_coordinates(client: Client, path: str) -> None:
    answer = client.ask(f"{path}?lat=139.7&lon=35.7")
    assert answer.status == 422
    assert "swap the two" in answer.error


@pytest.mark.parametrize("body", [b"", b"123", b"\x00" * 17])
def test_bytes_that_are_no_places_are_refused(client: Client, body: bytes) -> None:
    answer = client.ask("/embed/binary", body)
    assert answer.status == 422
    assert "16 bytes each" in answer.error


def test_a_body_beyond_the_limit_is_not_read(client: Client) -> None:
    answer = client.ask("/embed/binary", b"\x00" * 300_001)
    assert answer.status == 413
    assert "larger than 300000 bytes" in answer.error


@pytest.mark.parametrize("count", [0, -1, 10**9, 1.5])
def test_counts_outside_their_range_are_refused(client: Client, count: float) -> None:
    assert client.ask("/similar", {"lat": 1, "lon": 20, "count": count}).status == 422


def test_unknown_paths_and_methods_are_json_too(client: Client) -> None:
    assert client.ask("/nothing").status == 404
    assert client.ask("/embed", {}, method="DELETE").status == 405
    assert json.loads(client.ask("/../../etc/passwd").body)["error"]
    for path in ("/assets/../app.py", "/assets/%2e%2e/app.py", "/tiles/earth/0/0/%00.png"):
        assert client.ask(path).status in (404, 422)
