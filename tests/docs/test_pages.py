"""Every block of the README and of every page runs, in order, as a newcomer would paste it."""

import contextlib
import re
import shlex
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest
import typer.main

from tessearth.cli.app import app
from tessearth.imagery.image_encoders import IMAGE_ENCODERS
from tessearth.imagery.sources import SOURCES
from tessearth.version import __version__
from tessearth.zoo import BASELINES
from tests.docs.blocks import ROOT, blocks_of, commands_of, page_name, pages, run_page
from tests.docs.preparations import PREPARATIONS

WITH_BLOCKS = [page for page in pages() if blocks_of(page)]


@pytest.mark.slow
@pytest.mark.parametrize("page", WITH_BLOCKS, ids=page_name)
def test_every_block_runs(page: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("MPLBACKEND", "Agg")
    PREPARATIONS.get(page_name(page), lambda _: None)(tmp_path)
    with registries_put_back():
        run_page(page)


@contextlib.contextmanager
def registries_put_back() -> Iterator[None]:
    """What a page registers is gone with it, so that tests behind it find the package as it is."""
    registries = (BASELINES, SOURCES, IMAGE_ENCODERS)
    before = [set(registry) for registry in registries]
    try:
        yield
    finally:
        for registry, names in zip(registries, before, strict=True):
            for name in set(registry) - names:
                del registry[name]


def command_lines(word: str) -> list[tuple[str, str]]:
    return [
        (f"{page_name(page)}:{block.line}", line.strip())
        for page in WITH_BLOCKS
        for block in blocks_of(page)
        if block.language == "bash"
        for line in commands_of(block)
        if line.strip().startswith(word)
    ]


def test_every_command_line_has_known_options() -> None:
    """Cheap enough for every run of the suite: a renamed option cannot leave its old name behind in a page."""
    root = typer.main.get_command(app)
    lines = command_lines("tessearth ")
    assert len(lines) > 30
    for where, line in lines:
        words = shlex.split(re.split(r"\s[|&>]", line)[0], comments=True)[1:]
        command, name = root, "tessearth"
        while hasattr(command, "commands") and words:
            assert words[0] in command.commands, f"{where}: {name} has no command {words[0]}"
            name, command = f"{name} {words[0]}", command.commands[words[0]]
            words = words[1:]
        known = {option for parameter in command.params for option in (*parameter.opts, *parameter.secondary_opts)}
        known |= {f"--{setting.replace('_', '-')}" for setting in getattr(command, "settings", ())}
        for word in words:
            if word.startswith("--") and word != "--help":
                assert word.partition("=")[0] in known, f"{where}: {name} has no option {word}"


def test_every_extra_and_target_named_is_there() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for page in pages():
        for named in re.findall(r"tessearth\[([^\]]+)\]", page.read_text("utf-8")):
            assert set(named.split(",")) <= set(extras), page_name(page)
    makefile = (ROOT / "Makefile").read_text("utf-8")
    for where, line in command_lines("make "):
        assert re.search(rf"^{line.split()[1]}:", makefile, re.MULTILINE), where


def test_the_citation_names_this_version_and_the_authors_of_the_notice() -> None:
    yaml = pytest.importorskip("yaml")
    citation = yaml.safe_load((ROOT / "CITATION.cff").read_text("utf-8"))
    assert citation["version"] == __version__
    paper = citation["preferred-citation"]
    names = [f"{author['given-names']} {author['family-names']}" for author in paper["authors"]]
    notice = " ".join((ROOT / "NOTICE").read_text("utf-8").split())
    assert f'"{paper["title"]}" by {", ".join(names[:-1])} and {names[-1]}' in notice
    assert citation["authors"][0]["name"] in notice


def test_every_extra_is_listed_with_its_weight() -> None:
    extras = tomllib.loads((ROOT / "pyproject.toml").read_text("utf-8"))["project"]["optional-dependencies"]
    for page in (ROOT / "README.md", ROOT / "docs" / "index.md"):
        rows = [line.split("|")[1] for line in page.read_text("utf-8").splitlines() if line.startswith("| `")]
        listed = {name for row in rows for name in re.findall(r"`(\w+)`", row)}
        assert set(extras) - {"dev", "docs", "all"} <= listed, page_name(page)
