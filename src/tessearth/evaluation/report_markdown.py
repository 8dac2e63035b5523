"""A report as Markdown."""

from collections.abc import Sequence

from tessearth.evaluation.report_blocks import BEATS, Block, Emphasis, Entry, Figure, Grid, Heading, Listing, Paragraph

EMPHASIS: dict[Emphasis, str] = {"": "{}", "best": "**{}**", "second": "*{}*", "beats": f"{{}} {BEATS}", "note": "*{}*"}


def to_markdown(blocks: Sequence[Block], figures: str) -> str:
    """The report's text; its figures lie in the folder `figures` beside it."""
    return "\n\n".join(_block(block, figures) for block in blocks) + "\n"


def markdown_table(grid: Grid) -> str:
    """A table with bars; words and the first column to the left, numbers to the right."""
    lines = [grid.head, tuple("---" if grid.words or column == 0 else "---:" for column in range(len(grid.head)))]
    rows = [tuple(_entry(entry) for entry in row) for row in grid.rows]
    return "\n".join(f"| {' | '.join(map(_escape, line))} |" for line in [*lines, *rows])


def _block(block: Block, figures: str) -> str:
    match block:
        case Heading(level, text):
            return f"{'#' * level} {text}"
        case Paragraph(text):
            return text
        case Listing(items):
            return "\n".join(f"- {item}" for item in items)
        case Grid():
            return markdown_table(block)
        case Figure(name, caption, _):
            return f"![{caption}]({figures}/{name})"


def _entry(entry: Entry) -> str:
    return EMPHASIS[entry.emphasis].format(entry.text) if entry.text else ""


def _escape(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")
