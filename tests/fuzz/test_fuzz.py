"""A short, always equal piece of what `make fuzz` does for hours, and everything that was ever found."""

import os
import signal
from collections.abc import Sequence
from pathlib import Path
from random import Random

import pytest

from tessearth.errors import TessearthError
from tests.fuzz.harness import corpus_of, fuzz
from tests.fuzz.surfaces import NAMES, Prepared, Surface, load_surface

pytestmark = pytest.mark.filterwarnings("ignore:.*fork.*:DeprecationWarning")

CASES = {"coordinates": 300, "tables": 100, "recipes": 60, "weights": 60, "mbtiles": 60, "geotiff": 60, "http": 150}
NEEDS = {"coordinates": ("pandas",), "mbtiles": ("PIL",), "geotiff": ("rasterio", "PIL"), "http": ("fastapi", "scipy")}


def quiet(words: str) -> None:
    """Progress nobody waits for."""


@pytest.mark.parametrize("name", NAMES)
def test_every_input_is_taken_or_refused_in_one_line(name: str) -> None:
    for module in NEEDS.get(name, ()):
        pytest.importorskip(module)
    surface = load_surface(name)
    known = corpus_of(surface)
    outcome = fuzz(surface, seed=7, cases=len(known) + CASES[name], given=known, note=quiet)
    assert outcome.findings == []
    assert outcome.cases == len(known) + CASES[name]
    assert outcome.well > CASES[name] // 20, "hardly any input is taken: damage this heavy reaches nothing"
    assert outcome.refused > CASES[name] // 20, "hardly any input is refused: nothing was damaged"


def runs_text(folder: Path) -> Prepared:
    """A surface that does what its input says: the harness must notice each."""

    def run(content: bytes) -> None:
        text = content.decode()
        if text == "refuse":
            raise TessearthError("one line")
        if text == "raise":
            raise KeyError("x")
        if text == "exec":
            exec("1 + 1")
        if text == "connect":
            import socket

            with socket.socket() as sock:
                sock.connect_ex(("127.0.0.1", 9))
        if text == "write":
            (Path.cwd() / "written-by-a-fuzz-test").write_text("x")
        if text == "memory":
            bytearray(3 * 2**30)
        if text == "die":
            os.kill(os.getpid(), signal.SIGSEGV)
        if text == "hang":
            while True:
                pass

    return Prepared([b"well"], run)


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("raise", "exception"),
        ("exec", "code"),
        ("connect", "code"),
        ("write", "code"),
        ("memory", "memory"),
        ("die", "crash"),
        ("hang", "hang"),
    ],
)
def test_the_harness_notices(text: str, kind: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr("tests.fuzz.harness.HANG_S", 0.3)
    surface = Surface("text", runs_text, _never)
    contents = [b"well", text.encode(), b"refuse", b"well"]
    outcome = fuzz(surface, seed=0, cases=len(contents), given=contents, note=quiet)
    (finding,) = outcome.findings
    assert (finding.kind, finding.content) == (kind, text.encode())
    assert (outcome.cases, outcome.well, outcome.refused) == (4, 2, 1)


def test_a_case_is_the_same_on_every_machine() -> None:
    surface = load_surface("recipes")
    seeds = [b"[training]\nsteps = 3\n", b"base = 'paper'\n"]
    first, again = ([surface.mutate(Random(f"recipes/0/{case}"), seeds) for case in range(50)] for _ in range(2))
    assert first == again
    assert len(set(first)) > 30


def _never(random: Random, seeds: Sequence[bytes]) -> bytes:
    raise AssertionError("a replay damages nothing")
