"""Answers as HTTP: JSON without detours, pictures, numbers as bytes, and errors as one line."""

import dataclasses
import json
from typing import Any

import numpy as np
import numpy.typing as npt

from tessearth.errors import CoordinateError, MissingExtraError, TessearthError, UnknownNameError
from tessearth.explorer.schemas import ErrorAnswer
from tessearth.explorer.session import OverloadedError

BINARY = "application/octet-stream"
STATUSES: tuple[tuple[type[TessearthError], int], ...] = (
    (OverloadedError, 503),
    (UnknownNameError, 404),
    (MissingExtraError, 501),
    (TessearthError, 422),
)
"""The first that fits decides the status."""
REFUSALS: dict[int | str, dict[str, Any]] = {
    status: {"model": ErrorAnswer, "description": words}
    for status, words in (
        (400, "The body cannot be read."),
        (401, "An API key is needed."),
        (404, "There is no such thing."),
        (408, "The body did not arrive in time."),
        (413, "The body, or what is asked for, is too large."),
        (422, "The request is readable but wrong."),
        (429, "Too many requests."),
        (501, "An optional part is not installed."),
        (503, "Overloaded, or still preparing; ask again in a moment."),
    )
}
PLACE_FIELDS = ("lat", "lon", "points")
DIGITS = 8
"""After the point: more than float32 has for numbers below 1."""


def json_reply(content: object, *, max_age: int = 0) -> Any:
    """JSON of plain values or of an answer's dataclass."""
    from fastapi import Response

    plain = dataclasses.asdict(content) if dataclasses.is_dataclass(content) else content  # type: ignore[arg-type]
    body = json.dumps(plain, allow_nan=False, separators=(",", ":")).encode()
    return Response(body, media_type="application/json", headers=_cache_for(max_age))


def picture_reply(content: bytes, *, max_age: int, kind: str = "image/png") -> Any:
    """A picture."""
    from fastapi import Response

    return Response(content, media_type=kind, headers=_cache_for(max_age))


def text_reply(content: str, content_type: str) -> Any:
    """Text of any kind."""
    from fastapi import Response

    return Response(content, media_type=content_type, headers=_cache_for(0))


def numbers_reply(numbers: npt.NDArray[np.floating[Any]]) -> Any:
    """Numbers as float32, little-endian, row after row; their shape is in X-Shape."""
    from fastapi import Response

    shape = ",".join(map(str, numbers.shape))
    return Response(
        numbers.astype("<f4", copy=False).tobytes(), media_type=BINARY, headers={"X-Shape": shape, **_cache_for(0)}
    )


def plain_numbers(numbers: npt.NDArray[np.floating[Any]]) -> list[Any]:
    """Numbers for JSON, with no more digits than they have."""
    rounded: list[Any] = numbers.astype(np.float64).round(DIGITS).tolist()
    return rounded


def error_reply(status: int, words: str, headers: dict[str, str] | None = None) -> Any:
    """{"error": one line}."""
    from fastapi import Response

    body = json.dumps({"error": " ".join(words.split())}).encode()
    return Response(body, status_code=status, media_type="application/json", headers=headers)


def add_error_replies(app: Any) -> None:
    """Every error of ours, of the parser and of the router as one line, in the words the command line uses."""
    from fastapi.exceptions import RequestValidationError
    from starlette.exceptions import HTTPException

    async def ours(_: Any, error: Any) -> Any:
        status = next(status for kind, status in STATUSES if isinstance(error, kind))
        return error_reply(status, str(error), {"Retry-After": "1"} if status == 503 else None)

    async def malformed(_: Any, error: Any) -> Any:
        return error_reply(422, _say(error.errors()[0]))

    async def refused(_: Any, error: Any) -> Any:
        return error_reply(error.status_code, str(error.detail), error.headers)

    app.add_exception_handler(TessearthError, ours)
    app.add_exception_handler(RequestValidationError, malformed)
    app.add_exception_handler(HTTPException, refused)


def _say(problem: dict[str, Any]) -> str:
    """The first thing wrong with a request, by name."""
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


def _cache_for(seconds: int) -> dict[str, str]:
    return {"Cache-Control": f"private, max-age={seconds}" if seconds else "no-store"}
