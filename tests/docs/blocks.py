"""Runs a Markdown page as a reader would: top to bottom, in one empty folder, every block."""

import os
import re
import shlex
import subprocess
import sys
import tomllib
import warnings
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple
from unittest import mock

ROOT = Path(__file__).parents[2]
DOCS = ROOT / "docs"
FENCE = re.compile(
    r"^(?P<indent> *)```(?P<language>\w*)(?: title=\"(?P<title>[^\"]+)\")?\n(?P<text>.*?)^ *```$", re.M | re.S
)
SHELL_SIGNS = set("|&;<>$`(){}*")


class Block(NamedTuple):
    """A fenced block of a page."""

    language: str
    title: str | None
    """The file a reader is told to make of it."""
    text: str
    line: int


def pages() -> list[Path]:
    """README and every page, those that others wrote too."""
    return [ROOT / "README.md", *sorted(DOCS.rglob("*.md"))]


def page_name(page: Path) -> str:
    return page.relative_to(ROOT).as_posix()


def blocks_of(page: Path) -> list[Block]:
    text = page.read_text("utf-8")
    return [
        Block(
            found["language"],
            found["title"],
            re.sub(f"^{found['indent']}", "", found["text"], flags=re.MULTILINE),
            text[: found.start()].count("\n") + 2,
        )
        for found in FENCE.finditer(text)
    ]


def commands_of(block: Block) -> list[str]:
    """The command lines of a shell block, continued lines joined."""
    joined = block.text.replace("\\\n", " ")
    return [line for line in joined.splitlines() if line.strip() and not line.lstrip().startswith("#")]


def run_page(page: Path) -> None:
    """Run every block in the present folder; Python blocks share their names."""
    names: dict[str, object] = {"__name__": "__page__"}
    for block in blocks_of(page):
        where = f"{page_name(page)}:{block.line}"
        if block.title is not None:
            Path(block.title).parent.mkdir(parents=True, exist_ok=True)
            Path(block.title).write_text(block.text, "utf-8")
        elif block.language not in RUN:
            raise AssertionError(f"{where}: nobody runs a block of {block.language or 'no language'}; say bash or text")
        else:
            RUN[block.language](block, where, names)


def _run_python(block: Block, where: str, names: dict[str, object]) -> None:
    code = compile("\n" * (block.line - 1) + block.text, where.rpartition(":")[0], "exec")
    exec(code, names)  # warnings are errors, as in every test: a page teaches nothing that warns


def _run_shell(block: Block, where: str, _: dict[str, object]) -> None:
    commands = [line for line in commands_of(block) if not is_set_up(line)]
    if any(SHELL_SIGNS & set(line.partition(" #")[0]) or not line.startswith("tessearth ") for line in commands):
        _run_bash("\n".join(commands), where)
        return
    for line in commands:
        _run_here(shlex.split(line, comments=True), where)


def is_set_up(line: str) -> bool:
    """Whether a line installs or builds: checked by other tests, not run again here."""
    return line.startswith(("pip install", "uv pip install", "make "))


def _run_bash(script: str, where: str) -> None:
    if not script.strip():
        return
    search = f"{Path(sys.executable).parent}{os.pathsep}{os.environ['PATH']}"
    found = subprocess.run(
        ["bash", "-euo", "pipefail", "-c", script],
        env={**os.environ, "PATH": search, "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert found.returncode == 0, f"{where}: {script}\n{found.stdout[-2000:]}\n{found.stderr[-2000:]}"


def _run_here(arguments: list[str], where: str) -> None:
    """Run a command in this process: what the command does is tested, what importing torch costs is not."""
    from tessearth.cli.app import main

    with mock.patch.object(sys, "argv", arguments), warnings.catch_warnings():
        warnings.simplefilter("default")
        shown = warnings.showwarning
        try:
            main()
        except SystemExit as ended:
            if ended.code:
                raise AssertionError(f"{where}: {shlex.join(arguments)} ended with {ended.code}") from None
        finally:
            warnings.showwarning = shown


def _read_toml(block: Block, where: str, _: dict[str, object]) -> None:
    tomllib.loads(block.text)


RUN: dict[str, Callable[[Block, str, dict[str, object]], None]] = {
    "python": _run_python,
    "bash": _run_shell,
    "toml": _read_toml,
    "text": lambda *_: None,
}
