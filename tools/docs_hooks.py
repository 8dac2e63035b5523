"""What mkdocs does with our pages beyond its own: formulas become MathML, files and the commands' help are included.

`<!-- include: PATH -->` stands for a Markdown file elsewhere in the repository, without its title; `include deeper`
makes its headings those of a section. `<!-- commands -->` stands for the help of every command.
"""

import html
import json
import os
import re
from pathlib import Path
from typing import Any

import latex2mathml.converter

ROOT = Path(__file__).parents[1]
PAGES = {
    "benchmarks/results/embedded.md": "results.md",
    "benchmarks/results/questions.md": "questions.md",
    "benchmarks/results/speed-cpu.md": "speed.md",
    "benchmarks/results/speed-gpu.md": "speed.md",
    "src/tessearth/zoo/shipped/earth/README.md": "model-card.md",
}
"""Files that are pages here; links to any other file of the repository become plain text."""
HELP_COLUMNS = "100"


def on_config(config: Any) -> Any:
    """Put pages that the navigation does not name into its last section: none can be forgotten."""
    named = json.dumps(config["nav"])
    others = [page.name for page in sorted(Path(config["docs_dir"]).glob("*.md")) if f'"{page.name}"' not in named]
    if others:
        config["nav"].append({"More": others})
    return config


def on_page_markdown(markdown: str, **_: Any) -> str:
    """Put in what a page asks for."""
    if "<!-- commands -->" in markdown:
        markdown = markdown.replace("<!-- commands -->", command_pages())
    return re.sub(r"<!-- include( deeper)?: (\S+) -->", lambda found: included(found[2], bool(found[1])), markdown)


def on_page_content(content: str, **_: Any) -> str:
    """Formulas, which arithmatex has marked, as MathML: every browser of today draws it without a script."""
    return re.sub(r'<(span|div) class="arithmatex">(.*?)</\1>', _formula, content, flags=re.DOTALL)


def _formula(found: re.Match[str]) -> str:
    latex = html.unescape(found[2]).strip()[2:-2]
    display = "block" if found[1] == "div" else "inline"
    return latex2mathml.converter.convert(latex, display=display)


def included(path: str, deeper: bool) -> str:
    """A file of the repository, its title left out and its links turned towards our pages."""
    text = (ROOT / path).read_text("utf-8").partition("\n")[2]
    if deeper:
        text = re.sub("^##", "###", text, flags=re.MULTILINE)

    def turned(found: re.Match[str]) -> str:
        target = os.path.normpath(Path(path).parent / found[2])
        return f"[{found[1]}]({PAGES[target]})" if target in PAGES else f"{found[1]} (`{target}`)"

    return re.sub(r"(?<!!)\[([^\]]+)\]\((?!https?:|#)([^)]+)\)", turned, text)


def command_pages() -> str:
    """Every command with its help, as it prints it."""
    os.environ["COLUMNS"] = HELP_COLUMNS
    import typer.main

    from tessearth.cli.app import app

    return "\n".join(_describe(typer.main.get_command(app), "tessearth"))


def _describe(command: Any, name: str) -> list[str]:
    inner = getattr(command, "commands", None)
    if inner:
        return [line for word, part in inner.items() for line in _describe(part, f"{name} {word}")]
    context = command.make_context(name, [], resilient_parsing=True)
    return [f"## {name}", "", "```text", command.get_help(context), "```", ""]
