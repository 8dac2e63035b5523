"""The report: tables with their marks, a page that stands alone, maps that show something."""

import html.parser
import re
from pathlib import Path

import pytest
import torch

from tessearth.embedding import cache as cache_module
from tessearth.evaluation import report
from tessearth.evaluation.report import (
    Entry,
    Grid,
    Heading,
    Listing,
    Paragraph,
    build_report,
    class_grid,
    format_score,
    to_html,
    to_markdown,
)
from tessearth.evaluation.results import Breakdown, ClassTable
from tessearth.evaluation.runner import evaluate
from tests.conftest import tiny_encoder
from tests.evaluation.fabricate import PLACES, class_task, number_task, results_of

VOID = {"meta", "img", "br"}


class Page(html.parser.HTMLParser):
    """Checks that tags nest, and keeps what is of interest."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.images: list[str] = []
        self.bold: list[str] = []
        self.links: list[str] = []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag not in VOID:
            self.open.append(tag)
        named = {name: value or "" for name, value in attrs}
        self.links += [value for name, value in named.items() if name in ("src", "href")]
        if tag == "img":
            self.images.append(named["src"])
            assert named["alt"]

    def handle_endtag(self, tag: str) -> None:
        assert self.open.pop() == tag

    def handle_data(self, data: str) -> None:
        if self.open[-1:] == ["b"]:
            self.bold.append(data)


@pytest.fixture(scope="module")
def written(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A real report: two models, a skipped one, classes and numbers, two splits."""
    folder = tmp_path_factory.mktemp("report")
    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(cache_module, "cache_folder", lambda name: folder)
        models = {f"tiny <{seed}>": tiny_encoder(seed=seed, dtype=torch.float32) for seed in range(2)}
        tasks = [class_task(), number_task(), number_task("close|by", latlon=20 + PLACES / 20)]
        named = {**models, "wrong": "nowhere"}
        evaluate(named, tasks, ["random", "20deg"], out=folder / "out", skip_unknown=True)
    return folder / "out"


def test_the_page_parses_and_asks_the_network_for_nothing(written: Path) -> None:
    text = (written / "report.html").read_text()
    page = Page(text)
    assert not re.search(r"https?:|//[a-z]|@import|url\(", re.sub(r"base64,[^\"]*", "", text))
    assert all(link.startswith("data:image/png;base64,") for link in page.links)
    assert "prefers-color-scheme: dark" in text
    assert "tiny &lt;0&gt;" in text
    assert "tiny <0>" not in text


def test_pictures_are_in_the_page_and_beside_the_text(written: Path) -> None:
    files = sorted(path.name for path in (written / "maps").iterdir())
    assert len(files) == 3
    assert len(Page((written / "report.html").read_text()).images) == 3
    markdown = (written / "report.md").read_text()
    assert all(f"](maps/{name})" in markdown for name in files)
    assert all(re.fullmatch(r"[A-Za-z0-9._-]+\.png", name) for name in files)


def test_the_tables_show_scores_spreads_and_what_was_skipped(written: Path) -> None:
    text = (written / "report.md").read_text()
    assert "## Split random" in text
    assert "## Split 20deg" in text
    assert re.search(r"\| \*\*0\.\d{3} ± 0\.\d{3}\*\* \|", text)
    assert "- model wrong: there is no model named 'nowhere'" in text
    assert "| *references* |" in text
    assert "close\\|by" in text
    assert "## Continent by continent" in text
    assert "### zone, 20deg-42" in text


def test_best_is_bold_second_italic_and_a_winning_reference_is_named() -> None:
    scores = {("a", "t", "random"): [[0.5]], ("b", "t", "random"): [[0.6]], ("idw", "t", "random"): [[0.7]]}
    blocks = build_report(results_of(scores, references=["idw"]))
    text = to_markdown(blocks, "maps")
    assert "| a | *0.500* |" in text
    assert "| b | **0.600** |" in text
    assert "| idw | 0.700 † |" in text
    assert "A reference beats every encoder: t (idw)." in text
    page = to_html(blocks)
    assert Page(page).bold == ["0.600"]
    assert '<td class="second"><i>0.500</i></td>' in page
    assert '<td class="beats">0.700<sup>†</sup></td>' in page


def test_numbers_are_said_as_the_paper_says_them() -> None:
    assert format_score("accuracy", 0.7784, 0.0042) == "77.8 ± 0.4"
    assert format_score("R2", 0.9456) == "0.946"
    assert format_score("R2", -0.00001) == "0.000"
    assert format_score("R2", None) == "-"


def test_text_cannot_break_out_of_its_place() -> None:
    nasty = "<script>alert('|')</script>"
    blocks = [
        Heading(1, nasty),
        Paragraph(nasty),
        Listing((nasty,)),
        Grid((nasty, "b"), ((Entry(nasty), Entry("{}")),)),
    ]
    page = to_html(blocks)
    Page(page)
    assert "<script" not in page
    lines = to_markdown(blocks, "maps").splitlines()
    assert len([line for line in lines if line.startswith("| ")]) == 3
    assert all(line.replace("\\|", "").count("|") == 3 for line in lines if line.startswith("| "))


def test_the_best_and_worst_classes_are_those_with_rows_enough() -> None:
    names = tuple(f"c{i}" for i in range(20))
    recall = tuple(i / 20 for i in range(20))
    classes = ClassTable(names=names, rows=(3, *[50] * 19), recall=recall, precision=(None, *recall[1:]))
    grid = class_grid(Breakdown(model="m", task="t", split="s", draw="s-1", probe="ridge", classes=classes))
    assert grid is not None
    assert [row[0].text for row in grid.rows] == [
        "c19",
        "c18",
        "c17",
        "c16",
        "c15",
        "9 more",
        "c5",
        "c4",
        "c3",
        "c2",
        "c1",
    ]
    assert [entry.text for entry in grid.rows[0]] == ["c19", "50", "95.0", "95.0"]


def test_without_matplotlib_the_report_says_so(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "cache_folder", lambda name: tmp_path)
    monkeypatch.setitem(__import__("sys").modules, "matplotlib.figure", None)
    evaluate({"tiny": tiny_encoder(dtype=torch.float32)}, [number_task()], ["random"], out=tmp_path / "out")
    text = (tmp_path / "out" / "report.md").read_text()
    assert "There are none: a figure needs an optional part that is not installed" in text
    assert not (tmp_path / "out" / "maps").exists()


def test_maps_can_be_of_models_named_or_of_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "cache_folder", lambda name: tmp_path)
    drawn: list[str] = []
    monkeypatch.setattr(report, "draw_maps", lambda prediction, caption: drawn.append(caption) or b"png")
    models = {name: tiny_encoder(seed=seed, dtype=torch.float32) for seed, name in enumerate("ab")}
    for wanted in ([], ["a", "majority"]):
        evaluate(models, [number_task()], ["random"], out=tmp_path / "out", maps=wanted)
    assert [caption.split(":")[0] for caption in drawn] == ["height, a, random-42", "height, majority, random-42"]
