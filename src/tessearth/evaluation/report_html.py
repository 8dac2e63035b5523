"""A report as one HTML file that asks the network for nothing: its styles and pictures are inside."""

import base64
import html
from collections.abc import Sequence

from tessearth.evaluation.report_blocks import BEATS, Block, Emphasis, Entry, Figure, Grid, Heading, Listing, Paragraph

STYLE = """
:root { color-scheme: light dark; --ink: #1c1c1c; --paper: #ffffff; --line: #d5d5d5; --soft: #f4f4f2; --quiet: #666; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e6e6; --paper: #16181b; --line: #3a3d42; --soft: #1f2226; --quiet: #a0a0a0; }
}
body { margin: 2rem auto; max-width: 76rem; padding: 0 1rem; color: var(--ink); background: var(--paper);
  font: 16px/1.5 system-ui, sans-serif; }
h1, h2, h3 { line-height: 1.2; } h2 { margin-top: 2.5rem; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; font-variant-numeric: tabular-nums; font-size: 0.9rem; }
th, td { padding: 0.3rem 0.7rem; text-align: right; border-bottom: 1px solid var(--line); white-space: nowrap; }
th:first-child, td:first-child { text-align: left; }
thead th { background: var(--soft); } tbody th { font-weight: normal; }
.words th, .words td { text-align: left; white-space: normal; vertical-align: top; }
.second, .note { font-style: italic; } .best { font-weight: bold; } .note, .beats sup { color: var(--quiet); }
figure { margin: 1.5rem 0; } figure img { max-width: 100%; background: #ffffff; border-radius: 4px; }
figcaption { color: var(--quiet); }
"""
EMPHASIS: dict[Emphasis, str] = {
    "": "{}",
    "best": "<b>{}</b>",
    "second": "<i>{}</i>",
    "beats": f"{{}}<sup>{BEATS}</sup>",
    "note": "{}",
}


def to_html(blocks: Sequence[Block]) -> str:
    """The whole page."""
    title = next((block.text for block in blocks if isinstance(block, Heading)), "Report")
    head = (
        f'<meta charset="utf-8"><meta name="viewport" content="width=device-width"><title>{html.escape(title)}</title>'
    )
    body = "\n".join(_block(block) for block in blocks)
    head += f"<style>{STYLE}</style>"
    return f'<!doctype html>\n<html lang="en">\n<head>{head}</head>\n<body>\n{body}\n</body>\n</html>\n'


def _block(block: Block) -> str:
    match block:
        case Heading(level, text):
            return f"<h{level}>{html.escape(text)}</h{level}>"
        case Paragraph(text):
            return f"<p>{html.escape(text)}</p>"
        case Listing(items):
            return f"<ul>{''.join(f'<li>{html.escape(item)}</li>' for item in items)}</ul>"
        case Grid():
            return _table(block)
        case Figure(_, caption, png):
            said = html.escape(caption)
            source = f"data:image/png;base64,{base64.b64encode(png).decode()}"
            return f'<figure><img src="{source}" alt="{said}"><figcaption>{said}</figcaption></figure>'


def _table(grid: Grid) -> str:
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in grid.head)
    rows = "\n".join(f"<tr>{_row(row)}</tr>" for row in grid.rows)
    style = ' class="words"' if grid.words else ""
    table = f"<table{style}><thead><tr>{head}</tr></thead>\n<tbody>\n{rows}\n</tbody></table>"
    return f'<div class="wide">{table}</div>'


def _row(row: Sequence[Entry]) -> str:
    first, *others = row
    return _entry(first, "th", ' scope="row"') + "".join(_entry(entry, "td") for entry in others)


def _entry(entry: Entry, tag: str, attribute: str = "") -> str:
    style = f' class="{entry.emphasis}"' if entry.emphasis else ""
    return f"<{tag}{attribute}{style}>{EMPHASIS[entry.emphasis].format(html.escape(entry.text))}</{tag}>"
