"""The site builds without warnings or network, and every link of it and of the README leads somewhere."""

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from tests.docs.blocks import ROOT, page_name

SCRIPTS_AND_STYLES = re.compile(r'<(?:script|link|img|iframe|source)\b[^>]*?\b(?:src|href)="(?:https?:)?//[^"]*"')


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Built by another process, as `make docs` does: strict, so that a warning is a failure."""
    folder = tmp_path_factory.mktemp("site")
    built = subprocess.run(
        [sys.executable, "-m", "mkdocs", "build", "--strict", "--quiet", "--site-dir", str(folder)],
        cwd=ROOT,
        env={**os.environ, "NO_MKDOCS_2_WARNING": "1", "OMP_NUM_THREADS": "1"},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert built.returncode == 0, built.stderr
    assert not built.stderr.strip(), built.stderr
    return folder


def test_no_page_asks_another_machine_for_anything(site: Path) -> None:
    pages = list(site.rglob("*.html"))
    assert len(pages) > 20
    for page in pages:
        assert not SCRIPTS_AND_STYLES.findall(page.read_text("utf-8")), page.name
    for style in site.rglob("*.css"):
        assert not re.search(r"url\((?!['\"]?(?:data:|#|\.|\w+[/.]))|@import", style.read_text("utf-8")), style.name


def test_formulas_are_drawn_by_the_browser_alone(site: Path) -> None:
    method = (site / "method.html").read_text("utf-8")
    assert method.count("<math") > 10
    assert "arithmatex" not in method


def test_the_reference_knows_every_public_name(site: Path) -> None:
    import tessearth

    library = (site / "reference" / "library.html").read_text("utf-8")
    for name in set(tessearth.__all__) - {"TessearthError", "__version__"}:
        assert re.search(rf'<h\d id="tessearth\.{name}"', library), name


@pytest.mark.parametrize("page", [ROOT / "README.md", ROOT / "CONTRIBUTING.md"], ids=page_name)
def test_every_link_of_a_file_at_the_top_leads_somewhere(page: Path) -> None:
    links = re.findall(r"\]\(([^)\s]+)\)", page.read_text("utf-8"))
    for link in links:
        if not link.startswith(("http:", "https:", "#")):
            assert (ROOT / link.partition("#")[0]).exists(), link
