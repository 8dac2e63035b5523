"""The demo, made small: it runs from beginning to end, starts over, and touches nothing that is not its own."""

import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


def demo(out: Path) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-W", "error::UserWarning", "examples/demo.py", "--quick", "--out", str(out)]
    return subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def made(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A demo in a folder that holds somebody's file and what a killed demo left."""
    out = tmp_path_factory.mktemp("demo")
    (out / "smoke").mkdir()
    (out / "smoke" / "mine.txt").write_text("mine")
    (out / ".training-killed" / "smoke").mkdir(parents=True)
    ran = demo(out)
    assert ran.returncode == 0, ran.stderr
    (out / "told.txt").write_text(ran.stdout)
    return out


def test_the_page_shows_only_figures_that_are_there(made: Path) -> None:
    page = (made / "index.html").read_text()
    shown = re.findall(r'<img src="([^"]+)"', page)
    assert len(shown) >= 7
    for name in {*shown, *re.findall(r'href="([^"]+)"', page)}:
        assert (made / name).stat().st_size > 500, name
    assert "http" not in page


def test_the_terminal_tells_each_part_and_its_time(made: Path) -> None:
    told = (made / "told.txt").read_text()
    for part in ("The model `earth`", "Places alike", "A probe", "the recipe `smoke`", "All of them compared"):
        assert part in told
    assert len(re.findall(r"\n  \(\d+ s\)", told)) == 7
    score = float(re.search(r"R2 (0\.\d+)\), with", told.replace("\n  ", " "))[1])  # type: ignore[index]
    assert score > 0.6, "the probe on `earth` reads elevation"


def test_the_demo_leaves_what_is_not_its_own_and_nothing_unfinished(made: Path) -> None:
    assert (made / "smoke" / "mine.txt").read_text() == "mine"
    assert not list(made.glob(".training-*"))
    assert not list(made.rglob("*.part"))


def test_somebody_elses_page_is_not_replaced(tmp_path: Path) -> None:
    (tmp_path / "index.html").write_text("<h1>my thesis</h1>")
    ran = demo(tmp_path)
    assert (ran.returncode, len(ran.stderr.splitlines())) == (2, 1)
    assert "was not written by the demo" in ran.stderr
    assert (tmp_path / "index.html").read_text() == "<h1>my thesis</h1>"
