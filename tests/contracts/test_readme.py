"""The README's Python runs as a newcomer would paste it; its commands, and every other page, run in tests/docs."""

import re
from pathlib import Path

import pytest

README = Path(__file__).parents[2] / "README.md"


def python_blocks() -> list[str]:
    return re.findall(r"```python\n(.*?)```", README.read_text("utf-8"), flags=re.DOTALL)


def test_the_readmes_python_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    blocks = python_blocks()
    assert blocks
    names: dict[str, object] = {}
    for block in blocks:
        exec(compile(block, str(README), "exec"), names)


def test_the_readme_names_both_commands() -> None:
    text = README.read_text("utf-8")
    assert "make demo" in text
    assert "make test" in text
